"""Reads every port of a running lab, again and again, for :mod:`emulator.lab.live.rates`.

A switch port with an ASIC reports what it admitted and what waits: the difference was sent.  NICs,
and all ports of a lab without ASIC, are read from the kernel's queues, which count what left them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from emulator.dataplane import lab_record
from emulator.dataplane.clock import Dilation
from emulator.dataplane.kernel.port_counters import PortCounters, QueueCounters
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import LabRecord, Phase
from emulator.dataplane.switch.bpf.layout import DropReason, Queue, TrafficClass
from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.telemetry import VALUES, Series
from emulator.dataplane.switch.virtual_state import NOW, SWITCH_WORDS
from emulator.errors import UserError
from emulator.lab.live.rates import Activity, Reading, activities, directions, tiers
from topologies.ethernet import FRAMING_OCTETS

T = TypeVar("T")

#: Most readings of one thing while a virtual clock moves: it does so every 0.1 ms or so.
_TRIES = 50


class LabGone(UserError):
    """The lab that was looked at is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits of a port's data queue in octets: where marking begins, where it is certain, its end.

    ``kmin_bytes`` and ``kmax_bytes`` are None where nothing is marked.
    """

    limit_bytes: int
    kmin_bytes: int | None = None
    kmax_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All ports at one time, by ``node:port``.

    ``at_ns`` is CLOCK_MONOTONIC of the host, or the time of a virtual clock.  ``drops`` has the
    packets that each port of an ASIC dropped, by reason in lower case.
    """

    at_ns: int
    record: LabRecord
    readings: Mapping[str, Reading]
    limits: Mapping[str, QueueLimits]
    drops: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSample:
    """The traffic of a lab in an interval of ``interval_us``, ``up_us`` after its start.

    Both are fabric time.

    ``tiers`` are all of the fabric in the order in which a packet passes them.  The start is known
    to a second of host time.
    """

    record: LabRecord
    interval_us: float
    up_us: float
    activities: tuple[Activity, ...]
    limits: Mapping[str, QueueLimits]
    tiers: tuple[str, ...]


class LabSampler:
    """Samples of ``lab``, one after the other.  Costs some 0.3 ms of host time a node."""

    def __init__(self, lab: Lab) -> None:
        self._directions = directions(lab.topology)
        self._tiers = tiers(lab.topology)
        self._lab = lab
        self._asic = lab.asic
        self._series = None if lab.asic is None else Series(lab.asic, anew=False)
        shared = None if lab.asic is None else lab.asic.virtual
        self._clock = None if shared is None else shared.switches
        self._record = lab.record
        self._limits = self._limits_of(self._asic)

    def sample(self) -> Sample:
        """Now.  Raises LabGone when the lab has been taken down, or left behind."""
        self._check()
        at_ns = self._now()
        try:
            readings = self._readings()
        except (OSError, UserError) as error:
            self._check()  # did it go while we were reading it?
            raise UserError(f"lab {self._lab.name} cannot be read: {error}") from error
        self._check()  # ports that have gone meanwhile would be missing
        return Sample(
            at_ns=at_ns,
            record=self._record,
            readings=readings,
            limits=self._limits,
            drops=self._drops(),
        )

    def pauses(self) -> Mapping[str, PauseCounters]:
        """Return the pauses of every port; empty where switches do not pause.

        With a virtual clock they are those that the run published last, after a row.
        """
        try:
            return {} if self._asic is None else self._asic.pauses.counters()
        except (OSError, UserError) as error:
            self._check()
            raise UserError(f"lab {self._lab.name} cannot be read: {error}") from error

    def between(self, before: Sample, after: Sample) -> LabSample:
        dilation = self._lab.dilation
        created = datetime.fromisoformat(after.record.created).timestamp()
        return LabSample(
            record=after.record,
            interval_us=Dilation(dilation).fabric_ns(after.at_ns - before.at_ns) / 1000,
            up_us=Dilation(dilation).fabric_ns((time.time() - created) * 1e6)
            if self._clock is None
            else after.at_ns / 1000,
            activities=tuple(
                activities(self._directions, before.readings, after.readings, dilation)
            ),
            limits=after.limits,
            tiers=self._tiers,
        )

    def _now(self) -> int:
        if self._clock is None:
            return time.monotonic_ns()
        return max(self._clock[NOW::SWITCH_WORDS].tolist(), default=0)

    def _check(self) -> None:
        name = self._lab.name
        record = lab_record.load(name)
        if (
            record is None
            or record.identity != self._lab.record.identity
            or record.phase is not Phase.UP
        ):
            raise LabGone(f"lab {name} has been taken down")
        if record.abandoned:
            raise LabGone(
                f"the process that ran lab {name} died: remove the rest with uetemu clean {name}"
            )
        if record.switch != self._record.switch:
            self._limits = self._limits_of(self._asic)
        self._record = record

    def _readings(self) -> dict[str, Reading]:
        readings = {}
        switches = self._switches()
        for node in self._lab.topology.nodes:
            at_ns, counters = self._at_one_time(partial(self._lab.counters, [node.name]))
            for port, counted in counters.items():
                by_kernel = _by_kernel(counted, at_ns)
                by_asic = switches.get(port)
                readings[port] = (
                    by_kernel
                    if by_asic is None
                    else replace(by_asic, overflowed=by_kernel.overflowed)
                )
        return readings

    def _drops(self) -> dict[str, dict[str, int]]:
        if self._asic is None or self._series is None:
            return {}
        names = [reason.name.lower() for reason in DropReason]
        return {
            port: dict(zip(names, row, strict=True))
            for port, row in zip(self._asic.ports, self._series.drops().tolist(), strict=True)
        }

    def _switches(self) -> dict[str, Reading]:
        """Return the readings of the ASICs."""
        if self._asic is None or self._series is None:
            return {}
        series = self._series
        at_ns, rows = self._at_one_time(lambda: series.sample(self._now()).tolist())
        return {
            port: _by_asic(dict(zip(VALUES, row, strict=True)), at_ns)
            for port, row in zip(self._asic.ports, rows, strict=True)
        }

    def _at_one_time(self, read: Callable[[], T]) -> tuple[int, T]:
        """Return a time and what ``read`` read then.

        A virtual clock moves while a process reads, a long way in an interval of few microseconds:
        what was read while it moved is read again, so many times at most.
        """
        for _ in range(_TRIES):
            at_ns = self._now()
            found = read()
            if self._clock is None or self._now() == at_ns:
                break
        return at_ns, found

    def _limits_of(self, asic: FabricAsic | None) -> dict[str, QueueLimits]:
        limits = {
            str(end): QueueLimits(limit_bytes=link.buffer_bytes)
            for link in self._lab.topology.links
            for end in link.ends
        }
        if asic is None:
            return limits
        fitted = asic.fitted
        for name, port in asic.ports.items():
            profile = fitted.profile(port.cable)
            deepest = max(
                profile.rules(each).limit_bytes or 0
                for each in TrafficClass
                if profile.queue(each) is Queue.LOW
            )
            marks = profile.data.kmax_bytes is not None
            limits[name] = QueueLimits(
                limit_bytes=deepest,
                kmin_bytes=profile.data.kmin_bytes if marks else None,
                kmax_bytes=profile.data.kmax_bytes,
            )
        return limits


def _by_asic(reported: Mapping[str, int], at_ns: int) -> Reading:
    """Return a reading from a row of the telemetry, without what overflowed below."""
    return Reading(
        at_ns=at_ns,
        sent_bytes=reported["tx_bytes"] - reported["queue_bytes"] - reported["control_queue_bytes"],
        queue_bytes=reported["queue_bytes"],
        control_queue_bytes=reported["control_queue_bytes"],
        peak_bytes=reported["peak_bytes"],
        marked=reported["marked"],
        trimmed=reported["trimmed"],
        dropped=reported["dropped"],
        overflowed=0,
    )


def _by_kernel(counted: PortCounters, at_ns: int) -> Reading:
    """Without queues, as on cables of a virtual clock, all that was sent has left."""
    data, control = counted.data, counted.control
    if not data.packets and not control.packets:
        data = QueueCounters(packets=counted.tx_packets, bytes=counted.tx_bytes)
    return Reading(
        at_ns=at_ns,
        sent_bytes=data.bytes + control.bytes + (data.packets + control.packets) * FRAMING_OCTETS,
        queue_bytes=data.backlog_bytes + data.backlog_packets * FRAMING_OCTETS,
        control_queue_bytes=control.backlog_bytes + control.backlog_packets * FRAMING_OCTETS,
        overflowed=data.drops + control.drops + counted.tx_dropped,
    )
