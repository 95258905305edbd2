"""One endpoint by itself, from its options to its exit status: what all transports do alike.

::

    options --prepare--> work --enter the namespace, find the interface--> live
    live: configure, begin, open the port, make the endpoint, serve until the end
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

from emulator.dataplane.clock import Clock
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.errors import UserError
from emulator.lab.standalone.events import CaptureFile, EventReport, make_folder
from emulator.lab.standalone.script.offers import Offer, OfferedRegion
from emulator.lab.standalone.script.outcomes import Outcomes
from emulator.lab.standalone.script.phrases import ip
from emulator.lab.standalone.script.requested_operations import Message
from emulator.lab.standalone.session import (
    EndpointSession,
    Limits,
    Manners,
    PeerLearner,
    Stop,
    enter_namespace,
)
from emulator.sim.endpoint.nic.interface import NetworkInterface, interface, mac_of, own_address
from emulator.sim.endpoint.nic.packet_nic import Nic
from emulator.sim.endpoint.nic.raw_port import RawPort

#: The reason for an end that neither the user nor the work has requested.
BROKEN = "error"


@dataclass(frozen=True, kw_only=True)
class LabGpu:
    """A GPU of a lab: its port, the lab's time, and what fits the fabric.

    ``dilation`` ns of this machine are one of the endpoint's.  ``config`` are the fields of
    its configuration that fit the fabric, as those of a run are.  ``nic`` are settings of its
    :class:`~emulator.sim.endpoint.nic.packet_nic.Nic`.
    """

    dilation: float
    config: Mapping[str, object]
    nic: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StandAlone(ABC):
    """An endpoint as the command line describes it; times are ns.

    ``values`` are fields of its configuration that an option of their own has set, ``settings``
    words of ``--set``.  ``limits`` are in this machine's time; so is ``start_at`` (s since 1970),
    when operations begin.
    """

    role: str
    interface: str
    gpu: LabGpu | None = None
    netns: str | None = None
    address: str | None = None
    version: int | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    settings: Sequence[str] = ()
    regions: Sequence[str] = ()
    receives: Sequence[str] = ()
    receive_after: int = 0
    phrases: Sequence[str] = ()
    script: str | None = None
    in_flight: int = 1
    start_at: float | None = None
    limits: Limits = field(default_factory=Limits)
    seed: int | None = None
    table: bool = False
    pcap: Path | None = None
    save: Path | None = None

    @property
    def dilation(self) -> float:
        """Return how many ns of this machine are one of the endpoint's."""
        return 1.0 if self.gpu is None else self.gpu.dilation

    def run(self) -> int:
        """Be that endpoint until its end; the exit status.  Raises :class:`UserError`."""
        values, work = self.prepare(secrets.randbits(32) if self.seed is None else self.seed)
        if self.save is not None:
            make_folder(self.save)
        with Stop().listening() as stop, contextlib.ExitStack() as stack:
            if self.netns is not None:
                enter_namespace(self.netns)
            found = interface(self.interface)
            found.must_work()
            return self.live(values, EndpointRun(self, work, found, stop, stack))

    @abstractmethod
    def prepare(self, seed: int) -> tuple[dict[str, Any], StandAloneWork]:
        """Return the fields of the configuration that the user decides, and the work.

        Raises :class:`UserError` for all that is wrong whatever the interface is.
        """

    @abstractmethod
    def live(self, values: dict[str, Any], run: EndpointRun) -> int:
        """Make the endpoint of ``values`` in ``run``, and serve; the exit status."""

    def own_address(self, found: NetworkInterface, peer: str | None) -> str:
        """Return its address on ``found``, of the IP version of ``peer`` if that is known."""
        version = self.version
        if version is None and peer is not None:
            version = ip_address(peer).version
        return own_address(found, self.address and ip(self.address, "--address"), version)


@dataclass(frozen=True, slots=True)
class StandAloneWork:
    """The operations to run, and the seed of all random choices in them."""

    seed: int
    offers: Sequence[Offer]
    regions: Sequence[OfferedRegion]
    messages: Sequence[Message]


class Configuration(Protocol):
    @property
    def address(self) -> str: ...

    @property
    def neighbours(self) -> Mapping[str, str]: ...


class EndpointRun:
    """An endpoint at work on the interface ``found``; what it opens is closed with ``stack``."""

    report: EventReport
    clock: Clock

    def __init__(
        self,
        requested: StandAlone,
        work: StandAloneWork,
        found: NetworkInterface,
        stop: Stop,
        stack: contextlib.ExitStack,
    ) -> None:
        self.requested, self.work = requested, work
        self.found, self.stop, self.stack = found, stop, stack

    def mac_of(self, peer: str) -> str:
        """The MAC address that reaches ``peer``.  Raises :class:`UserError`."""
        return mac_of(self.found, peer, lambda: self.stop.number is not None)

    def begin(self) -> None:
        """Start the endpoint's clock, and the times of its events."""
        self.report = EventReport(sys.stdout, table=self.requested.table)
        self.clock = Clock.start(self.requested.dilation)

    def open(self, frames: TransportFrames, title: str) -> None:
        """Open the capture, if there is to be one, and the port; from now on frames wait."""
        requested = self.requested
        self._capture = None
        if requested.pcap is not None:
            self._capture = CaptureFile(requested.pcap, self.found.name, title)
            self.stack.callback(self._capture.close)
        settings = {} if requested.gpu is None else requested.gpu.nic
        self._port = RawPort(self.found, frames, self.clock, **settings)
        self.stack.callback(self._port.close)

    def serve(
        self,
        endpoint: PeerLearner,
        configuration: Configuration,
        *,
        settings: Mapping[str, object],
        regions: Sequence[Mapping[str, object]],
        manners: Manners,
        facts: Mapping[str, object],
        at_end: Callable[[], Mapping[str, object]] = dict,
    ) -> int:
        """Do the work until its end; the exit status.

        The event "start" reports ``settings`` as those of the endpoint, its ``regions``, and
        ``facts``.  The event "end" reports what ``at_end`` returns then.
        """
        requested, work, port = self.requested, self.work, self._port
        self._wait_for_start()
        outcomes = Outcomes(self.report, work.regions, save=requested.save, seed=work.seed)
        session = EndpointSession(
            endpoint,
            port,
            self.report,
            outcomes,
            self.stop,
            limits=requested.limits.slowed(requested.dilation),
            manners=manners,
            messages=work.messages,
            in_flight=requested.in_flight,
            offers=work.offers,
            capture=self._capture,
        )
        self.report.event(
            "start",
            role=requested.role,
            unix_time=time.time(),
            interface=self.found.name,
            netns=requested.netns,
            dilation=None if requested.gpu is None else requested.dilation,
            address=configuration.address,
            mac=self.found.mac,
            mtu=self.found.mtu,
            neighbours=dict(configuration.neighbours),
            seed=work.seed,
            silence=port.silence,
            pcap=None if requested.pcap is None else str(requested.pcap),
            **facts,
            regions=regions,
            receives=len(work.offers),
            operations=len(work.messages),
            config=settings,
        )
        try:
            reason = session.run()
        except UserError as error:  # what it has done so far is reported all the same
            outcomes.tally.errors.append(str(error))
            reason = BROKEN
        return _end(session, endpoint, port.nic, outcomes, self.report, reason, **at_end())

    def _wait_for_start(self) -> None:
        start_at = self.requested.start_at
        if start_at is None:
            return
        until = start_at - time.time()
        if until < 0:
            raise UserError(f"--start-at is {-until:.1f} s ago: choose a later time")
        begin = self.clock.now() + round(until * 1e9 / self.requested.dilation)
        for message in self.work.messages:
            message.after += begin


def _end(
    session: EndpointSession,
    endpoint: PeerLearner,
    nic: Nic,
    outcomes: Outcomes,
    report: EventReport,
    reason: str,
    **more: object,
) -> int:
    """Report the end, with ``more``; return the exit status."""
    at_end = list(outcomes.regions_at_end())
    tally = outcomes.tally
    errors = list(tally.errors)
    if session.unfinished and reason != BROKEN:
        some = "operation" if session.unfinished == 1 else "operations"
        errors.append(f"{session.unfinished} {some} had not ended")
    if session.missing and reason != BROKEN:
        errors.append(f"{session.missing} of the completions to wait for did not come")
    status = 1 if tally.failed or errors else 0
    report.event(
        "end",
        reason=reason,
        status=status,
        operations={
            "posted": tally.posted,
            "succeeded": tally.succeeded,
            "unfinished": session.unfinished,
        },
        received=tally.received,
        failed=tally.failed,
        errors=errors,
        regions=at_end,
        counters={name: value for name, value in sorted(endpoint.counters().items()) if value},
        nic={name: value for name, value in nic.counters().items() if value},
        **more,
    )
    for sentence in errors:
        sys.stderr.write(f"uetemu: {sentence}\n")
    return status
