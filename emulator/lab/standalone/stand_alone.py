"""Options and steps that all stand-alone endpoints share, whatever their transport."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from emulator.dataplane.clock import Clock
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.errors import UserError
from emulator.lab.standalone.capture_file import CaptureFile
from emulator.lab.standalone.ending import BROKEN, end
from emulator.lab.standalone.report import EventReport
from emulator.lab.standalone.script.offers import Offer, OfferedRegion
from emulator.lab.standalone.script.outcomes import Outcomes
from emulator.lab.standalone.script.requested_operations import Message
from emulator.lab.standalone.session import EndpointSession, Limits, Manners, PeerLearner, Stop
from emulator.sim.endpoint.nic.interface import NetworkInterface
from emulator.sim.endpoint.nic.raw_port import RawPort


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
class StandAlone:
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

    def open_port(
        self,
        found: NetworkInterface,
        frames: TransportFrames,
        clock: Clock,
        stack: contextlib.ExitStack,
    ) -> RawPort:
        """Return the port, open until ``stack`` ends."""
        port = RawPort(found, frames, clock, **({} if self.gpu is None else self.gpu.nic))
        stack.callback(port.close)
        return port

    def capture(
        self, found: NetworkInterface, title: str, stack: contextlib.ExitStack
    ) -> CaptureFile | None:
        """The file for its frames, if it is to have one; closed with ``stack``."""
        if self.pcap is None:
            return None
        file = CaptureFile(self.pcap, found.name, title)
        stack.callback(file.close)
        return file


@dataclass(frozen=True, slots=True)
class StandAloneWork:
    """The operations to run, and the seed of all random choices in them."""

    seed: int
    offers: Sequence[Offer]
    regions: Sequence[OfferedRegion]
    messages: Sequence[Message]


class Configuration(Protocol):
    """The fields that configurations of all transports have."""

    @property
    def address(self) -> str: ...

    @property
    def neighbours(self) -> Mapping[str, str]: ...


def serve(
    requested: StandAlone,
    work: StandAloneWork,
    endpoint: PeerLearner,
    port: RawPort,
    report: EventReport,
    stop: Stop,
    *,
    found: NetworkInterface,
    configuration: Configuration,
    settings: Mapping[str, object],
    regions: Sequence[Mapping[str, object]],
    manners: Manners,
    capture: CaptureFile | None,
    facts: Mapping[str, object],
    at_end: Callable[[], Mapping[str, object]] = dict,
) -> int:
    """Do ``work`` until its end; the exit status.

    The event "start" reports ``settings`` as those of the endpoint, its ``regions``, and ``facts``.
    The event "end" reports what ``at_end`` returns then.
    """
    if requested.start_at is not None:
        until = requested.start_at - time.time()
        if until < 0:
            raise UserError(f"--start-at is {-until:.1f} s ago: choose a later time")
        begin = port.clock.now() + round(until * 1e9 / requested.dilation)
        for message in work.messages:
            message.after += begin
    outcomes = Outcomes(report, work.regions, save=requested.save, seed=work.seed)
    session = EndpointSession(
        endpoint,
        port,
        report,
        outcomes,
        stop,
        limits=requested.limits.slowed(requested.dilation),
        manners=manners,
        messages=work.messages,
        in_flight=requested.in_flight,
        offers=work.offers,
        capture=capture,
    )
    report.event(
        "start",
        role=requested.role,
        unix_time=time.time(),
        interface=found.name,
        netns=requested.netns,
        dilation=None if requested.gpu is None else requested.dilation,
        address=configuration.address,
        mac=found.mac,
        mtu=found.mtu,
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
    return end(session, endpoint, port.nic, outcomes, report, reason, **at_end())
