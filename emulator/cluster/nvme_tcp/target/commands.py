"""Commands of the Admin queue, of Fabrics, and of I/O queues, each a function with an outcome.

Sources: NVM Express Base 2.0 (Admin: 5; Identify: 5.17; Get Log Page: 5.16; Fabrics: 6), NVM
Command Set 1.0 (I/O: 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.cluster.nvme_tcp.target.controller import (
    ERROR_ENTRIES,
    SUCCEEDED,
    Answer,
    Collection,
    NvmeController,
    NvmeNamespace,
    NvmeSubsystem,
    Outcome,
    Transmission,
    Waiting,
    refused,
    transmission_of,
)
from emulator.cluster.nvme_tcp.wire import layouts as nvme

_SAVE = 1 << 31


def set_features(controller: NvmeController, command: nvme.NvmeCommand, now_ns: int) -> Outcome:
    """Carry out Set Features (Base 2.0, 5.27); nothing is saved."""
    number, value = command.cdw10 & 0xFF, command.cdw11
    if command.cdw10 & _SAVE:
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    if number == nvme.FeatureId.KEEP_ALIVE:
        controller.set_keep_alive(value, now_ns)
        return SUCCEEDED
    if number == nvme.FeatureId.ASYNC_EVENTS:
        controller.event_mask = value
        return SUCCEEDED
    if number == nvme.FeatureId.HOST_IDENTIFIER:
        return refused(nvme.NvmeStatus.SEQUENCE_ERROR)  # Connect has set it (Base 2.0, 5.27.1.25)
    if controller.subsystem is None:
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    if number == nvme.FeatureId.NUMBER_OF_QUEUES:
        if 0xFFFF in (value & 0xFFFF, value >> 16):
            return refused(nvme.NvmeStatus.INVALID_FIELD)
        return _allocated_queues(controller)
    if number == nvme.FeatureId.WRITE_CACHE:
        controller.write_cache = bool(value & 1)
        return SUCCEEDED
    return refused(nvme.NvmeStatus.INVALID_FIELD)


def _allocated_queues(controller: NvmeController) -> Answer:
    """Return the I/O queues of the controller, which has them whatever was requested."""
    last = controller.settings.queues - 1
    return Answer(result=last << 16 | last)


def get_features(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    """Answer Get Features (Base 2.0, 5.15) with present values."""
    number = command.cdw10 & 0xFF
    if command.cdw10 >> 8 & 7:  # SEL: default, saved, supported
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    if number == nvme.FeatureId.KEEP_ALIVE:
        return Answer(result=controller.keep_alive_ms)
    if number == nvme.FeatureId.ASYNC_EVENTS:
        return Answer(result=controller.event_mask)
    if controller.subsystem is None:
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    if number == nvme.FeatureId.HOST_IDENTIFIER:
        if not command.cdw11 & 1:  # EXHID: over fabrics it has 128 bits
            return refused(nvme.NvmeStatus.INVALID_FIELD)
        return transmission_of(controller.host.identifier)
    if number == nvme.FeatureId.NUMBER_OF_QUEUES:
        return _allocated_queues(controller)
    if number == nvme.FeatureId.WRITE_CACHE:
        return Answer(result=int(controller.write_cache))
    return refused(nvme.NvmeStatus.INVALID_FIELD)


def async_event_request(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    """Hold an Async Event Request (Base 2.0, 5.2) until an Abort, a reset or the end."""
    if len(controller.event_requests) >= controller.settings.event_requests:
        return refused(nvme.NvmeStatus.EVENT_LIMIT_EXCEEDED)
    controller.event_requests.append(command.cid)
    return Waiting()


def keep_alive(controller: NvmeController, now_ns: int) -> Outcome:
    """Start the keep-alive timer again (Keep Alive, Base 2.0, 5.18)."""
    controller.keep_alive(now_ns)
    return SUCCEEDED


MODEL, FIRMWARE = "uetemu NVMe/TCP", "1"
_ENTRY_SIZES = 0x66, 0x44  # both the least and the most: 64 and 16 octets


def identify(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    number = command.cdw10 & 0xFF
    if number == nvme.IdentifyCns.CONTROLLER:
        return transmission_of(controller_data(controller))
    page = IDENTIFY_PAGES.get(number)
    if page is None or controller.subsystem is None:
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    return page(controller, command)


def controller_data(controller: NvmeController) -> bytes:
    settings, subsystem = controller.settings, controller.subsystem
    nqn = nvme.DISCOVERY_NQN if subsystem is None else subsystem.nqn
    common = {
        "sn": (("discovery" if subsystem is None else subsystem.serial).ljust(20)).encode(),
        "mn": MODEL.ljust(40).encode(),
        "fr": FIRMWARE.ljust(8).encode(),
        "mdts": (settings.most_transfer // nvme.PAGE).bit_length() - 1,
        "cntlid": controller.cntlid,
        "ver": nvme.VERSION,
        "cntrltype": nvme.DISCOVERY_CONTROLLER if subsystem is None else nvme.IO_CONTROLLER,
        "aerl": settings.event_requests - 1,
        "elpe": ERROR_ENTRIES - 1,
        "kas": 1,
        "maxcmd": settings.queue_entries,
        "sgls": nvme.SGL_SUPPORT,
        "subnqn": nqn.encode(),
        "lpa": nvme.LPA_EXTENDED | (0 if subsystem is None else nvme.LPA_EFFECTS),
    }
    if subsystem is None:
        return nvme.IDENTIFY_CONTROLLER.pack(**common)
    return nvme.IDENTIFY_CONTROLLER.pack(
        **common,
        cmic=nvme.SEVERAL_PORTS_AND_CONTROLLERS,
        frmw=nvme.ONE_FIRMWARE_SLOT,
        acl=0,
        sqes=_ENTRY_SIZES[0],
        cqes=_ENTRY_SIZES[1],
        nn=max(subsystem.namespaces, default=1),
        oncs=nvme.SUPPORTS_COMPARE | nvme.SUPPORTS_DSM | nvme.SUPPORTS_WRITE_ZEROES,
        vwc=nvme.WRITE_CACHE,
        ioccsz=(nvme.SQE.size + settings.in_capsule) // nvme.CAPSULE_UNIT,
        iorcsz=nvme.CQE.size // nvme.CAPSULE_UNIT,
        msdbd=1,
    )


def _namespace(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    if command.nsid == nvme.ALL_NAMESPACES:
        return refused(nvme.NvmeStatus.INVALID_NAMESPACE)  # no capabilities common to all
    if not 1 <= command.nsid <= max(controller.namespaces, default=1):
        return refused(nvme.NvmeStatus.INVALID_NAMESPACE)
    namespace = controller.namespaces.get(command.nsid)
    if namespace is None:
        return transmission_of(bytes(nvme.IDENTIFY_SIZE))  # inactive: all zeroes
    return transmission_of(namespace_data(namespace))


def namespace_data(namespace: NvmeNamespace) -> bytes:
    return nvme.IDENTIFY_NAMESPACE.pack(
        nsze=namespace.blocks,
        ncap=namespace.blocks,
        nuse=namespace.blocks,
        nmic=nvme.SHARED_NAMESPACE,
        dlfeat=nvme.DEALLOCATED_ZEROES,
        nsattr=nvme.WRITE_PROTECTED if namespace.store.read_only else 0,
        nguid=namespace.nguid,
        lbads=namespace.block_size.bit_length() - 1,
    )


def _active(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    if command.nsid >= nvme.ALL_NAMESPACES - 1:
        return refused(nvme.NvmeStatus.INVALID_NAMESPACE)
    behind = [nsid for nsid in sorted(controller.namespaces) if nsid > command.nsid]
    octets = b"".join(nsid.to_bytes(4, "little") for nsid in behind[: nvme.IDENTIFY_SIZE // 4])
    return transmission_of(octets.ljust(nvme.IDENTIFY_SIZE, b"\0"))


def _descriptors(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    namespace = controller.namespaces.get(command.nsid)
    if namespace is None:
        return refused(nvme.NvmeStatus.INVALID_NAMESPACE)
    entries = (
        (nvme.DESCRIPTOR_NGUID, namespace.nguid),
        (nvme.DESCRIPTOR_UUID, namespace.uuid.bytes),
        (nvme.DESCRIPTOR_CSI, b"\0"),
    )
    octets = b"".join(nvme.DESCRIPTOR.pack(kind, len(value)) + value for kind, value in entries)
    return transmission_of(octets.ljust(nvme.IDENTIFY_SIZE, b"\0"))


def _command_set_namespace(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    if command.cdw11 >> 24:  # CSI: the NVM command set only
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    if command.nsid not in controller.namespaces:
        return refused(nvme.NvmeStatus.INVALID_NAMESPACE)
    return transmission_of(bytes(nvme.IDENTIFY_SIZE))


def _command_set_controller(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    if command.cdw11 >> 24:
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    return transmission_of(bytes(nvme.IDENTIFY_SIZE))  # no limits besides MDTS


IDENTIFY_PAGES: dict[int, Callable[[NvmeController, nvme.NvmeCommand], Outcome]] = {
    nvme.IdentifyCns.NAMESPACE: _namespace,
    nvme.IdentifyCns.ACTIVE_NAMESPACES: _active,
    nvme.IdentifyCns.DESCRIPTORS: _descriptors,
    nvme.IdentifyCns.COMMAND_SET_NAMESPACE: _command_set_namespace,
    nvme.IdentifyCns.COMMAND_SET_CONTROLLER: _command_set_controller,
}


#: Entries of the Admin queue that the discovery log announces.
ADMIN_ENTRIES = 32
_CHANGING_EFFECTS = {
    nvme.IoOpcode.WRITE,
    nvme.IoOpcode.WRITE_ZEROES,
    nvme.IoOpcode.DATASET_MANAGEMENT,
}


class LocalEnd(NamedTuple):
    """The target's end of a TCP connection: where its host reached it."""

    address: str
    port: int


def log_page(
    controller: NvmeController,
    command: nvme.NvmeCommand,
    subsystems: Iterable[NvmeSubsystem],
    local: LocalEnd,
) -> Outcome:
    """Answer a Get Log Page command; a page ends with zeroes where more is requested."""
    octets = _page(controller, command.cdw10 & 0xFF, subsystems, local)
    if octets is None:
        return refused(nvme.NvmeStatus.INVALID_LOG_PAGE)
    length = 4 * ((command.cdw11 & 0xFFFF) << 16 | command.cdw10 >> 16) + 4
    offset = command.cdw13 << 32 | command.cdw12
    if offset % 4 or offset > len(octets) or length > controller.settings.most_transfer:
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    return transmission_of(octets[offset : offset + length].ljust(length, b"\0"))


def _page(
    controller: NvmeController, number: int, subsystems: Iterable[NvmeSubsystem], local: LocalEnd
) -> bytes | None:
    if number == nvme.LogPage.DISCOVERY:
        if controller.subsystem is not None:
            return None
        return discovery_log(controller, subsystems, local)
    page = _LOG_PAGES.get(number)
    return None if page is None else page(controller)


def _errors(controller: NvmeController) -> bytes:
    entries = [
        nvme.ERROR_ENTRY.pack(
            count=record.count,
            sqid=record.sqid,
            cid=record.command.cid,
            status=record.status << 1 & 0xFFFF,
            location=nvme.NO_LOCATION,
            lba=record.command.lba if record.sqid else 0,
            nsid=record.command.nsid,
        )
        for record in controller.errors
    ]
    return b"".join(entries).ljust(ERROR_ENTRIES * nvme.ERROR_ENTRY.size, b"\0")


def _health(controller: NvmeController) -> bytes:
    counts = controller.health
    return nvme.HEALTH.pack(
        available_spare=100,
        data_units_read=-(-counts.octets_read // nvme.HEALTH_UNIT),
        data_units_written=-(-counts.octets_written // nvme.HEALTH_UNIT),
        read_commands=counts.reads,
        write_commands=counts.writes,
        error_entries=controller.error_count,
    )


def _firmware(controller: NvmeController) -> bytes:
    return nvme.FIRMWARE_SLOTS.pack(afi=1, slot1=FIRMWARE.ljust(8).encode())


def _changed(controller: NvmeController) -> bytes:
    return bytes(nvme.CHANGED_SIZE)  # namespaces do not change while the target runs


def _effects(controller: NvmeController) -> bytes:
    octets = bytearray(nvme.EFFECTS_SIZE)
    for admin in nvme.AdminOpcode:
        octets[4 * admin] = nvme.EFFECT_SUPPORTED
    for opcode in nvme.IoOpcode:
        effect = nvme.EFFECT_CHANGES if opcode in _CHANGING_EFFECTS else nvme.EFFECT_SUPPORTED
        octets[nvme.EFFECTS_IO + 4 * opcode] = effect
    return bytes(octets)


def discovery_log(
    controller: NvmeController, subsystems: Iterable[NvmeSubsystem], local: LocalEnd
) -> bytes:
    """Make the discovery log: the subsystems that the host may use, at the address it came to."""
    host = controller.host.nqn
    offered = [one.nqn for one in subsystems if not one.hosts or host in one.hosts]
    family = nvme.FAMILY_IPV6 if ip_address(local.address).version == 6 else nvme.FAMILY_IPV4
    entries = [
        nvme.DISCOVERY_ENTRY.pack(
            trtype=nvme.TRANSPORT_TCP,
            adrfam=family,
            subtype=nvme.SUBTYPE_THIS_DISCOVERY if nqn == nvme.DISCOVERY_NQN else nvme.SUBTYPE_NVM,
            treq=nvme.NO_SECURE_CHANNEL,
            cntlid=nvme.ANY_CONTROLLER,
            asqsz=ADMIN_ENTRIES,
            trsvcid=str(local.port).ljust(32).encode(),
            subnqn=nqn.encode(),
            traddr=local.address.ljust(256).encode(),
        )
        for nqn in (nvme.DISCOVERY_NQN, *offered)
    ]
    # the log never changes while the target runs: one generation
    return nvme.DISCOVERY_HEAD.pack(1, len(entries), 0) + b"".join(entries)


_LOG_PAGES: dict[int, Callable[[NvmeController], bytes]] = {
    nvme.LogPage.ERRORS: _errors,
    nvme.LogPage.HEALTH: _health,
    nvme.LogPage.FIRMWARE_SLOTS: _firmware,
    nvme.LogPage.CHANGED_NAMESPACES: _changed,
    nvme.LogPage.COMMAND_EFFECTS: _effects,
}


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    record_format: int
    qid: int
    sqsize: int
    flow_control: bool
    keep_alive_ms: int
    host_identifier: bytes
    cntlid: int
    subsystem: str
    host: str


def connect_request(entry: bytes, data: bytes) -> ConnectRequest:
    """Take a Connect command apart; ``data`` has the size of its layout."""
    fields, given = nvme.CONNECT.unpack(entry), nvme.CONNECT_DATA.unpack(data)
    return ConnectRequest(
        record_format=fields["recfmt"],
        qid=fields["qid"],
        sqsize=fields["sqsize"],
        flow_control=not fields["cattr"] & nvme.DISABLE_FLOW_CONTROL,
        keep_alive_ms=fields["kato"],
        host_identifier=given["hostid"],
        cntlid=given["cntlid"],
        subsystem=nvme.padded_text(given["subnqn"]),
        host=nvme.padded_text(given["hostnqn"]),
    )


def invalid_parameter(name: str) -> Answer:
    """Refuse a Connect for a field: IPO is its offset, IATTR names command or data."""
    for layout, attribute in ((nvme.CONNECT, 0), (nvme.CONNECT_DATA, nvme.IN_DATA)):
        try:
            place = layout.offset(name)
        except KeyError:
            continue
        return refused(nvme.NvmeStatus.CONNECT_INVALID_PARAMETERS, attribute << 16 | place)
    raise ValueError(f"Connect has no field {name}")


def property_get(controller: NvmeController, entry: bytes) -> Outcome:
    """Answer Property Get (Base 2.0, 6.5)."""
    fields = nvme.PROPERTY.unpack(entry)
    value = controller.value_of(fields["ofst"])
    if value is None or (fields["attrib"] & 7) != int(fields["ofst"] in nvme.LONG_PROPERTIES):
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    return Answer(result=value)


def property_set(controller: NvmeController, entry: bytes) -> Outcome:
    """Carry out Property Set (Base 2.0, 6.6): CC alone can be set."""
    fields = nvme.PROPERTY.unpack(entry)
    if fields["ofst"] != nvme.Property.CC or fields["attrib"] & 7:
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    controller.configure(fields["value"] & 0xFFFFFFFF)
    return SUCCEEDED


#: Octets of 256 ranges, the most that Dataset Management takes.
_LONGEST_TABLE = 256 * nvme.DSM_RANGE.size
_Handler = Callable[[NvmeController, NvmeNamespace, nvme.NvmeCommand], Outcome]


def execute_io(controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
    """Begin an I/O command; raises ``OSError`` where the store does."""
    namespaces = controller.namespaces
    handler = _HANDLERS.get(command.opcode)
    if handler is None:
        return refused(nvme.NvmeStatus.INVALID_OPCODE)
    if command.opcode == nvme.IoOpcode.FLUSH and command.nsid == nvme.ALL_NAMESPACES:
        for one in namespaces.values():
            one.store.flush()
        return SUCCEEDED
    namespace = namespaces.get(command.nsid)
    if namespace is None:
        return refused(nvme.NvmeStatus.INVALID_NAMESPACE)
    return handler(controller, namespace, command)


def _refusal(
    controller: NvmeController, namespace: NvmeNamespace, command: nvme.NvmeCommand
) -> Answer | None:
    """Return the refusal of a range of blocks, or None."""
    if command.lba + command.blocks > namespace.blocks:
        return refused(nvme.NvmeStatus.LBA_OUT_OF_RANGE)
    if command.cdw12 >> 26 & 0xF:  # PRINFO: no protection information here
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    if command.opcode in _CHANGING and namespace.store.read_only:
        return refused(nvme.NvmeStatus.NAMESPACE_WRITE_PROTECTED)
    if command.opcode == nvme.IoOpcode.WRITE_ZEROES:
        return None  # carries no data
    if command.blocks * namespace.block_size > controller.settings.most_transfer:
        return refused(nvme.NvmeStatus.INVALID_FIELD)
    return None


def _flush(
    controller: NvmeController, namespace: NvmeNamespace, command: nvme.NvmeCommand
) -> Outcome:
    namespace.store.flush()
    return SUCCEEDED


def _read(
    controller: NvmeController, namespace: NvmeNamespace, command: nvme.NvmeCommand
) -> Outcome:
    if refusal := _refusal(controller, namespace, command):
        return refusal
    start, length = command.lba * namespace.block_size, command.blocks * namespace.block_size
    store, health = namespace.store, controller.health
    health.reads += 1
    health.octets_read += length
    return Transmission(length, lambda offset, size: store.read(start + offset, size))


def _write(
    controller: NvmeController, namespace: NvmeNamespace, command: nvme.NvmeCommand
) -> Outcome:
    if refusal := _refusal(controller, namespace, command):
        return refusal
    start, length = command.lba * namespace.block_size, command.blocks * namespace.block_size
    store, health = namespace.store, controller.health

    def finish() -> Answer:
        health.writes += 1
        health.octets_written += length
        if command.cdw12 & nvme.FORCE_UNIT_ACCESS or not controller.write_cache:
            store.flush()
        return SUCCEEDED

    return Collection(length, lambda offset, octets: store.write(start + offset, octets), finish)


def _compare(
    controller: NvmeController, namespace: NvmeNamespace, command: nvme.NvmeCommand
) -> Outcome:
    if refusal := _refusal(controller, namespace, command):
        return refusal
    start, length = command.lba * namespace.block_size, command.blocks * namespace.block_size
    store, differs = namespace.store, False

    def take(offset: int, octets: bytes) -> None:
        nonlocal differs
        differs = differs or store.read(start + offset, len(octets)) != octets

    def finish() -> Answer:
        return refused(nvme.NvmeStatus.COMPARE_FAILURE) if differs else SUCCEEDED

    return Collection(length, take, finish)


def _write_zeroes(
    controller: NvmeController, namespace: NvmeNamespace, command: nvme.NvmeCommand
) -> Outcome:
    if refusal := _refusal(controller, namespace, command):
        return refusal
    size = namespace.block_size
    namespace.store.zero(command.lba * size, command.blocks * size)
    controller.health.writes += 1
    return SUCCEEDED


def _manage(
    controller: NvmeController, namespace: NvmeNamespace, command: nvme.NvmeCommand
) -> Outcome:
    """Deallocate ranges (Dataset Management); other attributes are advice, and ignored."""
    ranges = (command.cdw10 & 0xFF) + 1
    deallocate = bool(command.cdw11 & nvme.ATTRIBUTE_DEALLOCATE)
    if deallocate and namespace.store.read_only:
        return refused(nvme.NvmeStatus.NAMESPACE_WRITE_PROTECTED)
    size = ranges * nvme.DSM_RANGE.size
    # a host may send the longest table always, as Linux does
    length = command.length if size <= command.length <= _LONGEST_TABLE else size
    table = bytearray(length)

    def take(offset: int, octets: bytes) -> None:
        table[offset : offset + len(octets)] = octets

    def finish() -> Answer:
        listed = list(nvme.DSM_RANGE.iter_unpack(table[:size]))
        if any(lba + count > namespace.blocks for _, count, lba in listed):
            return refused(nvme.NvmeStatus.LBA_OUT_OF_RANGE)
        if deallocate:
            _deallocate(namespace.store, namespace.block_size, listed)
        return SUCCEEDED

    return Collection(length, take, finish)


def _deallocate(store: BlockStore, size: int, ranges: list[tuple[int, int, int]]) -> None:
    for _, count, lba in ranges:
        if count:
            store.deallocate(lba * size, count * size)  # advice: it may stay as it is


_CHANGING = {nvme.IoOpcode.WRITE, nvme.IoOpcode.WRITE_ZEROES}
_HANDLERS: dict[int, _Handler] = {
    nvme.IoOpcode.FLUSH: _flush,
    nvme.IoOpcode.WRITE: _write,
    nvme.IoOpcode.READ: _read,
    nvme.IoOpcode.COMPARE: _compare,
    nvme.IoOpcode.WRITE_ZEROES: _write_zeroes,
    nvme.IoOpcode.DATASET_MANAGEMENT: _manage,
}
