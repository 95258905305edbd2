"""Answers to Identify (NVM Express Base 2.0, 5.17)."""

from __future__ import annotations

from collections.abc import Callable

from emulator.cluster.nvme_tcp.target.command_outcomes import Outcome, refused, transmission_of
from emulator.cluster.nvme_tcp.target.nvme_controller import ERROR_ENTRIES, NvmeController
from emulator.cluster.nvme_tcp.target.subsystem_model import NvmeNamespace
from emulator.cluster.nvme_tcp.wire.layouts import (
    ALL_NAMESPACES,
    CAPSULE_UNIT,
    CQE,
    DEALLOCATED_ZEROES,
    DESCRIPTOR,
    DESCRIPTOR_CSI,
    DESCRIPTOR_NGUID,
    DESCRIPTOR_UUID,
    DISCOVERY_CONTROLLER,
    DISCOVERY_NQN,
    IDENTIFY_CONTROLLER,
    IDENTIFY_NAMESPACE,
    IDENTIFY_SIZE,
    IO_CONTROLLER,
    LPA_EFFECTS,
    LPA_EXTENDED,
    ONE_FIRMWARE_SLOT,
    PAGE,
    SEVERAL_PORTS_AND_CONTROLLERS,
    SGL_SUPPORT,
    SHARED_NAMESPACE,
    SQE,
    SUPPORTS_COMPARE,
    SUPPORTS_DSM,
    SUPPORTS_WRITE_ZEROES,
    VERSION,
    WRITE_CACHE,
    WRITE_PROTECTED,
    IdentifyCns,
    NvmeCommand,
    NvmeStatus,
)

MODEL, FIRMWARE = "uetemu NVMe/TCP", "1"
_ENTRY_SIZES = 0x66, 0x44  # both the least and the most: 64 and 16 octets


def identify(controller: NvmeController, command: NvmeCommand) -> Outcome:
    """Answer an Identify command."""
    number = command.cdw10 & 0xFF
    if number == IdentifyCns.CONTROLLER:
        return transmission_of(controller_data(controller))
    page = _PAGES.get(number)
    if page is None or controller.subsystem is None:
        return refused(NvmeStatus.INVALID_FIELD)
    return page(controller, command)


def controller_data(controller: NvmeController) -> bytes:
    """Make Identify Controller data."""
    settings, subsystem = controller.settings, controller.subsystem
    nqn = DISCOVERY_NQN if subsystem is None else subsystem.nqn
    common = {
        "sn": (("discovery" if subsystem is None else subsystem.serial).ljust(20)).encode(),
        "mn": MODEL.ljust(40).encode(),
        "fr": FIRMWARE.ljust(8).encode(),
        "mdts": (settings.most_transfer // PAGE).bit_length() - 1,
        "cntlid": controller.cntlid,
        "ver": VERSION,
        "cntrltype": DISCOVERY_CONTROLLER if subsystem is None else IO_CONTROLLER,
        "aerl": settings.event_requests - 1,
        "elpe": ERROR_ENTRIES - 1,
        "kas": 1,
        "maxcmd": settings.queue_entries,
        "sgls": SGL_SUPPORT,
        "subnqn": nqn.encode(),
        "lpa": LPA_EXTENDED | (0 if subsystem is None else LPA_EFFECTS),
    }
    if subsystem is None:
        return IDENTIFY_CONTROLLER.pack(**common)
    return IDENTIFY_CONTROLLER.pack(
        **common,
        cmic=SEVERAL_PORTS_AND_CONTROLLERS,
        frmw=ONE_FIRMWARE_SLOT,
        acl=0,
        sqes=_ENTRY_SIZES[0],
        cqes=_ENTRY_SIZES[1],
        nn=max(subsystem.namespaces, default=1),
        oncs=SUPPORTS_COMPARE | SUPPORTS_DSM | SUPPORTS_WRITE_ZEROES,
        vwc=WRITE_CACHE,
        ioccsz=(SQE.size + settings.in_capsule) // CAPSULE_UNIT,
        iorcsz=CQE.size // CAPSULE_UNIT,
        msdbd=1,
    )


def _namespace(controller: NvmeController, command: NvmeCommand) -> Outcome:
    assert controller.subsystem is not None
    if command.nsid == ALL_NAMESPACES:
        return refused(NvmeStatus.INVALID_NAMESPACE)  # no capabilities common to all
    if not 1 <= command.nsid <= max(controller.subsystem.namespaces, default=1):
        return refused(NvmeStatus.INVALID_NAMESPACE)
    namespace = controller.subsystem.namespaces.get(command.nsid)
    if namespace is None:
        return transmission_of(bytes(IDENTIFY_SIZE))  # inactive: all zeroes
    return transmission_of(namespace_data(namespace))


def namespace_data(namespace: NvmeNamespace) -> bytes:
    """Make Identify Namespace data of an active namespace."""
    return IDENTIFY_NAMESPACE.pack(
        nsze=namespace.blocks,
        ncap=namespace.blocks,
        nuse=namespace.blocks,
        nmic=SHARED_NAMESPACE,
        dlfeat=DEALLOCATED_ZEROES,
        nsattr=WRITE_PROTECTED if namespace.store.read_only else 0,
        nguid=namespace.nguid,
        lbads=namespace.block_size.bit_length() - 1,
    )


def _active(controller: NvmeController, command: NvmeCommand) -> Outcome:
    assert controller.subsystem is not None
    if command.nsid >= ALL_NAMESPACES - 1:
        return refused(NvmeStatus.INVALID_NAMESPACE)
    behind = [nsid for nsid in sorted(controller.subsystem.namespaces) if nsid > command.nsid]
    octets = b"".join(nsid.to_bytes(4, "little") for nsid in behind[: IDENTIFY_SIZE // 4])
    return transmission_of(octets.ljust(IDENTIFY_SIZE, b"\0"))


def _descriptors(controller: NvmeController, command: NvmeCommand) -> Outcome:
    assert controller.subsystem is not None
    namespace = controller.subsystem.namespaces.get(command.nsid)
    if namespace is None:
        return refused(NvmeStatus.INVALID_NAMESPACE)
    entries = (
        (DESCRIPTOR_NGUID, namespace.nguid),
        (DESCRIPTOR_UUID, namespace.uuid.bytes),
        (DESCRIPTOR_CSI, b"\0"),
    )
    octets = b"".join(DESCRIPTOR.pack(kind, len(value)) + value for kind, value in entries)
    return transmission_of(octets.ljust(IDENTIFY_SIZE, b"\0"))


def _command_set_namespace(controller: NvmeController, command: NvmeCommand) -> Outcome:
    assert controller.subsystem is not None
    if command.cdw11 >> 24:  # CSI: the NVM command set only
        return refused(NvmeStatus.INVALID_FIELD)
    if command.nsid not in controller.subsystem.namespaces:
        return refused(NvmeStatus.INVALID_NAMESPACE)
    return transmission_of(bytes(IDENTIFY_SIZE))


def _command_set_controller(controller: NvmeController, command: NvmeCommand) -> Outcome:
    if command.cdw11 >> 24:
        return refused(NvmeStatus.INVALID_FIELD)
    return transmission_of(bytes(IDENTIFY_SIZE))  # no limits besides MDTS


_PAGES: dict[int, Callable[[NvmeController, NvmeCommand], Outcome]] = {
    IdentifyCns.NAMESPACE: _namespace,
    IdentifyCns.ACTIVE_NAMESPACES: _active,
    IdentifyCns.DESCRIPTORS: _descriptors,
    IdentifyCns.COMMAND_SET_NAMESPACE: _command_set_namespace,
    IdentifyCns.COMMAND_SET_CONTROLLER: _command_set_controller,
}
