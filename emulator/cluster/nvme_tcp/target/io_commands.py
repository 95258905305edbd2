"""I/O commands of the NVM command set (NVM Command Set 1.0, 3)."""

from __future__ import annotations

from collections.abc import Callable

from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.cluster.nvme_tcp.target.command_outcomes import (
    SUCCEEDED,
    Answer,
    Collection,
    Outcome,
    Transmission,
    refused,
)
from emulator.cluster.nvme_tcp.target.nvme_controller import NvmeController
from emulator.cluster.nvme_tcp.target.subsystem_model import NvmeNamespace
from emulator.cluster.nvme_tcp.wire.layouts import (
    ALL_NAMESPACES,
    ATTRIBUTE_DEALLOCATE,
    DSM_RANGE,
    FORCE_UNIT_ACCESS,
    IoOpcode,
    NvmeCommand,
    NvmeStatus,
)

#: Octets of 256 ranges, the most that Dataset Management takes.
_LONGEST_TABLE = 256 * DSM_RANGE.size
_Handler = Callable[[NvmeController, NvmeNamespace, NvmeCommand], Outcome]


def execute(controller: NvmeController, command: NvmeCommand) -> Outcome:
    """Begin an I/O command; raises ``OSError`` where the store does."""
    assert controller.subsystem is not None
    namespaces = controller.subsystem.namespaces
    handler = _HANDLERS.get(command.opcode)
    if handler is None:
        return refused(NvmeStatus.INVALID_OPCODE)
    if command.opcode == IoOpcode.FLUSH and command.nsid == ALL_NAMESPACES:
        for one in namespaces.values():
            one.store.flush()
        return SUCCEEDED
    namespace = namespaces.get(command.nsid)
    if namespace is None:
        return refused(NvmeStatus.INVALID_NAMESPACE)
    return handler(controller, namespace, command)


def _refusal(
    controller: NvmeController, namespace: NvmeNamespace, command: NvmeCommand
) -> Answer | None:
    """Return the refusal of a range of blocks, or None."""
    if command.lba + command.blocks > namespace.blocks:
        return refused(NvmeStatus.LBA_OUT_OF_RANGE)
    if command.cdw12 >> 26 & 0xF:  # PRINFO: no protection information here
        return refused(NvmeStatus.INVALID_FIELD)
    if command.opcode in _CHANGING and namespace.store.read_only:
        return refused(NvmeStatus.NAMESPACE_WRITE_PROTECTED)
    if command.opcode == IoOpcode.WRITE_ZEROES:
        return None  # carries no data
    if command.blocks * namespace.block_size > controller.settings.most_transfer:
        return refused(NvmeStatus.INVALID_FIELD)
    return None


def _flush(controller: NvmeController, namespace: NvmeNamespace, command: NvmeCommand) -> Outcome:
    namespace.store.flush()
    return SUCCEEDED


def _read(controller: NvmeController, namespace: NvmeNamespace, command: NvmeCommand) -> Outcome:
    if refusal := _refusal(controller, namespace, command):
        return refusal
    start, length = command.lba * namespace.block_size, command.blocks * namespace.block_size
    store, health = namespace.store, controller.health
    health.reads += 1
    health.octets_read += length
    return Transmission(length, lambda offset, size: store.read(start + offset, size))


def _write(controller: NvmeController, namespace: NvmeNamespace, command: NvmeCommand) -> Outcome:
    if refusal := _refusal(controller, namespace, command):
        return refusal
    start, length = command.lba * namespace.block_size, command.blocks * namespace.block_size
    store, health = namespace.store, controller.health

    def finish() -> Answer:
        health.writes += 1
        health.octets_written += length
        if command.cdw12 & FORCE_UNIT_ACCESS or not controller.write_cache:
            store.flush()
        return SUCCEEDED

    return Collection(length, lambda offset, octets: store.write(start + offset, octets), finish)


def _compare(controller: NvmeController, namespace: NvmeNamespace, command: NvmeCommand) -> Outcome:
    if refusal := _refusal(controller, namespace, command):
        return refusal
    start, length = command.lba * namespace.block_size, command.blocks * namespace.block_size
    store, differs = namespace.store, False

    def take(offset: int, octets: bytes) -> None:
        nonlocal differs
        differs = differs or store.read(start + offset, len(octets)) != octets

    def finish() -> Answer:
        return refused(NvmeStatus.COMPARE_FAILURE) if differs else SUCCEEDED

    return Collection(length, take, finish)


def _write_zeroes(
    controller: NvmeController, namespace: NvmeNamespace, command: NvmeCommand
) -> Outcome:
    if refusal := _refusal(controller, namespace, command):
        return refusal
    size = namespace.block_size
    namespace.store.zero(command.lba * size, command.blocks * size)
    controller.health.writes += 1
    return SUCCEEDED


def _manage(controller: NvmeController, namespace: NvmeNamespace, command: NvmeCommand) -> Outcome:
    """Deallocate ranges (Dataset Management); other attributes are advice, and ignored."""
    ranges = (command.cdw10 & 0xFF) + 1
    deallocate = bool(command.cdw11 & ATTRIBUTE_DEALLOCATE)
    if deallocate and namespace.store.read_only:
        return refused(NvmeStatus.NAMESPACE_WRITE_PROTECTED)
    size = ranges * DSM_RANGE.size
    # a host may send the longest table always, as Linux does
    length = command.length if size <= command.length <= _LONGEST_TABLE else size
    table = bytearray(length)

    def take(offset: int, octets: bytes) -> None:
        table[offset : offset + len(octets)] = octets

    def finish() -> Answer:
        listed = list(DSM_RANGE.iter_unpack(table[:size]))
        if any(lba + count > namespace.blocks for _, count, lba in listed):
            return refused(NvmeStatus.LBA_OUT_OF_RANGE)
        if deallocate:
            _deallocate(namespace.store, namespace.block_size, listed)
        return SUCCEEDED

    return Collection(length, take, finish)


def _deallocate(store: BlockStore, size: int, ranges: list[tuple[int, int, int]]) -> None:
    for _, count, lba in ranges:
        if count:
            store.deallocate(lba * size, count * size)  # advice: it may stay as it is


_CHANGING = {IoOpcode.WRITE, IoOpcode.WRITE_ZEROES}
_HANDLERS: dict[int, _Handler] = {
    IoOpcode.FLUSH: _flush,
    IoOpcode.WRITE: _write,
    IoOpcode.READ: _read,
    IoOpcode.COMPARE: _compare,
    IoOpcode.WRITE_ZEROES: _write_zeroes,
    IoOpcode.DATASET_MANAGEMENT: _manage,
}
