"""Discovery lists the subsystems that a target offers (NVM Express Base 2.0, 3.1.2.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from emulator.cluster.nvme_tcp.initiator.controller_session import ControllerSession
from emulator.cluster.nvme_tcp.initiator.host_errors import QueueBrokenError
from emulator.cluster.nvme_tcp.initiator.host_link import Dialer, dial
from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.wire.layouts import (
    DISCOVERY_ENTRY,
    DISCOVERY_HEAD,
    DISCOVERY_NQN,
    LogPage,
    padded_text,
)

#: Entries that are read; a log with more is refused.
_MOST_ENTRIES = 4096
_ATTEMPTS = 5


@dataclass(frozen=True)
class DiscoveredSubsystem:
    """An entry of the discovery log, with the numbers of the specification."""

    transport: int
    family: int
    kind: int
    nqn: str
    address: str
    service: str
    port_id: int
    cntlid: int
    admin_entries: int


async def discover(options: HostOptions, dialer: Dialer = dial) -> list[DiscoveredSubsystem]:
    """Read the discovery log at the address of ``options``, whatever their subsystem."""
    session = ControllerSession(replace(options, subsystem=DISCOVERY_NQN), dialer)
    await session.open()
    try:
        for _ in range(_ATTEMPTS):
            head = await session.log_page(LogPage.DISCOVERY, DISCOVERY_HEAD.size)
            generation, number, _ = DISCOVERY_HEAD.unpack(head)
            if number > _MOST_ENTRIES:
                raise QueueBrokenError(f"the discovery log has {number} entries; that is refused")
            entries = [await _entry(session, place) for place in range(number)]
            head = await session.log_page(LogPage.DISCOVERY, DISCOVERY_HEAD.size)
            if DISCOVERY_HEAD.unpack(head)[0] == generation:
                return entries
        raise QueueBrokenError("the discovery log changes while it is read; try again")
    finally:
        await session.shut_down()


async def _entry(session: ControllerSession, place: int) -> DiscoveredSubsystem:
    offset = DISCOVERY_HEAD.size + place * DISCOVERY_ENTRY.size
    fields = DISCOVERY_ENTRY.unpack(
        await session.log_page(LogPage.DISCOVERY, DISCOVERY_ENTRY.size, offset)
    )
    return DiscoveredSubsystem(
        transport=fields["trtype"],
        family=fields["adrfam"],
        kind=fields["subtype"],
        nqn=padded_text(fields["subnqn"]),
        address=padded_text(fields["traddr"]),
        service=padded_text(fields["trsvcid"]),
        port_id=fields["portid"],
        cntlid=fields["cntlid"],
        admin_entries=fields["asqsz"],
    )
