"""Options and steps that all stand-alone endpoints share, whatever their transport."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from emulator.endpoint.nic.interface import NetworkInterface
from emulator.endpoint.nic.raw_port import RawPort
from emulator.errors import UserError
from emulator.standalone.capture_file import CaptureFile
from emulator.standalone.ending import BROKEN, end
from emulator.standalone.report import EventReport
from emulator.standalone.script.offers import Offer, OfferedRegion
from emulator.standalone.script.outcomes import Outcomes
from emulator.standalone.script.requested_operations import Message
from emulator.standalone.session import EndpointSession, Limits, Manners, PeerLearner, Stop


@dataclass(frozen=True, kw_only=True)
class StandAlone:
    """An endpoint as the command line describes it; times are ns.

    ``values`` are fields of its configuration that an option of their own has set, ``settings``
    words of ``--set``.
    """

    role: str
    interface: str
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
    limits: Limits = field(default_factory=Limits)
    seed: int | None = None
    table: bool = False
    pcap: Path | None = None
    save: Path | None = None

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
    outcomes = Outcomes(report, work.regions, save=requested.save, seed=work.seed)
    session = EndpointSession(
        endpoint,
        port,
        report,
        outcomes,
        stop,
        limits=requested.limits,
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
