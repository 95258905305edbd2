"""Answers to Get Log Page (NVM Express Base 2.0, 5.16)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import NamedTuple

from emulator.cluster.nvme_tcp.target.command_outcomes import Outcome, refused, transmission_of
from emulator.cluster.nvme_tcp.target.identify_pages import FIRMWARE
from emulator.cluster.nvme_tcp.target.nvme_controller import ERROR_ENTRIES, NvmeController
from emulator.cluster.nvme_tcp.target.subsystem_model import NvmeSubsystem
from emulator.cluster.nvme_tcp.wire.layouts import (
    ANY_CONTROLLER,
    CHANGED_SIZE,
    DISCOVERY_ENTRY,
    DISCOVERY_HEAD,
    DISCOVERY_NQN,
    EFFECT_CHANGES,
    EFFECT_SUPPORTED,
    EFFECTS_IO,
    EFFECTS_SIZE,
    ERROR_ENTRY,
    FAMILY_IPV4,
    FAMILY_IPV6,
    FIRMWARE_SLOTS,
    HEALTH,
    HEALTH_UNIT,
    NO_LOCATION,
    NO_SECURE_CHANNEL,
    SUBTYPE_NVM,
    SUBTYPE_THIS_DISCOVERY,
    TRANSPORT_TCP,
    AdminOpcode,
    IoOpcode,
    LogPage,
    NvmeCommand,
    NvmeStatus,
)

#: Entries of the Admin queue that the discovery log announces.
ADMIN_ENTRIES = 32
_CHANGING = {IoOpcode.WRITE, IoOpcode.WRITE_ZEROES, IoOpcode.DATASET_MANAGEMENT}


class LocalEnd(NamedTuple):
    """The target's end of a TCP connection: where its host reached it."""

    address: str
    port: int


def log_page(
    controller: NvmeController,
    command: NvmeCommand,
    subsystems: Iterable[NvmeSubsystem],
    local: LocalEnd,
) -> Outcome:
    """Answer a Get Log Page command; a page ends with zeroes where more is requested."""
    octets = _page(controller, command.cdw10 & 0xFF, subsystems, local)
    if octets is None:
        return refused(NvmeStatus.INVALID_LOG_PAGE)
    length = 4 * ((command.cdw11 & 0xFFFF) << 16 | command.cdw10 >> 16) + 4
    offset = command.cdw13 << 32 | command.cdw12
    if offset % 4 or offset > len(octets) or length > controller.settings.most_transfer:
        return refused(NvmeStatus.INVALID_FIELD)
    return transmission_of(octets[offset : offset + length].ljust(length, b"\0"))


def _page(
    controller: NvmeController, number: int, subsystems: Iterable[NvmeSubsystem], local: LocalEnd
) -> bytes | None:
    if number == LogPage.DISCOVERY:
        if controller.subsystem is not None:
            return None
        return discovery_log(controller, subsystems, local)
    page = _PAGES.get(number)
    return None if page is None else page(controller)


def _errors(controller: NvmeController) -> bytes:
    entries = [
        ERROR_ENTRY.pack(
            count=record.count,
            sqid=record.sqid,
            cid=record.command.cid,
            status=record.status << 1 & 0xFFFF,
            location=NO_LOCATION,
            lba=record.command.lba if record.sqid else 0,
            nsid=record.command.nsid,
        )
        for record in controller.errors
    ]
    return b"".join(entries).ljust(ERROR_ENTRIES * ERROR_ENTRY.size, b"\0")


def _health(controller: NvmeController) -> bytes:
    counts = controller.health
    return HEALTH.pack(
        available_spare=100,
        data_units_read=-(-counts.octets_read // HEALTH_UNIT),
        data_units_written=-(-counts.octets_written // HEALTH_UNIT),
        read_commands=counts.reads,
        write_commands=counts.writes,
        error_entries=controller.error_count,
    )


def _firmware(controller: NvmeController) -> bytes:
    return FIRMWARE_SLOTS.pack(afi=1, slot1=FIRMWARE.ljust(8).encode())


def _changed(controller: NvmeController) -> bytes:
    return bytes(CHANGED_SIZE)  # namespaces do not change while the target runs


def _effects(controller: NvmeController) -> bytes:
    octets = bytearray(EFFECTS_SIZE)
    for admin in AdminOpcode:
        octets[4 * admin] = EFFECT_SUPPORTED
    for opcode in IoOpcode:
        effect = EFFECT_CHANGES if opcode in _CHANGING else EFFECT_SUPPORTED
        octets[EFFECTS_IO + 4 * opcode] = effect
    return bytes(octets)


def discovery_log(
    controller: NvmeController, subsystems: Iterable[NvmeSubsystem], local: LocalEnd
) -> bytes:
    """Make the discovery log: the subsystems that the host may use, at the address it came to."""
    host = controller.host.nqn
    offered = [one.nqn for one in subsystems if not one.hosts or host in one.hosts]
    family = FAMILY_IPV6 if ip_address(local.address).version == 6 else FAMILY_IPV4
    entries = [
        DISCOVERY_ENTRY.pack(
            trtype=TRANSPORT_TCP,
            adrfam=family,
            subtype=SUBTYPE_THIS_DISCOVERY if nqn == DISCOVERY_NQN else SUBTYPE_NVM,
            treq=NO_SECURE_CHANNEL,
            cntlid=ANY_CONTROLLER,
            asqsz=ADMIN_ENTRIES,
            trsvcid=str(local.port).ljust(32).encode(),
            subnqn=nqn.encode(),
            traddr=local.address.ljust(256).encode(),
        )
        for nqn in (DISCOVERY_NQN, *offered)
    ]
    # the log never changes while the target runs: one generation
    return DISCOVERY_HEAD.pack(1, len(entries), 0) + b"".join(entries)


_PAGES: dict[int, Callable[[NvmeController], bytes]] = {
    LogPage.ERRORS: _errors,
    LogPage.HEALTH: _health,
    LogPage.FIRMWARE_SLOTS: _firmware,
    LogPage.CHANGED_NAMESPACES: _changed,
    LogPage.COMMAND_EFFECTS: _effects,
}
