"""Commands at the target: what they answer, and with which status."""

from typing import Any

import pytest

from emulator.cluster.nvme_tcp.initiator.host_queue import (
    entry,
    identify_entry,
    io_entry,
    log_entry,
    property_get_entry,
    property_set_entry,
)
from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.cluster.nvme_tcp.target.controller import NvmeSubsystem
from emulator.cluster.nvme_tcp.target.nvme_target import NvmeTarget
from emulator.cluster.nvme_tcp.wire.layouts import (
    ATTRIBUTE_DEALLOCATE,
    DISCOVERY_ENTRY,
    DISCOVERY_HEAD,
    DISCOVERY_NQN,
    DO_NOT_RETRY,
    DSM_RANGE,
    ENABLE,
    ERROR_ENTRY,
    HEALTH,
    IDENTIFY_CONTROLLER,
    IDENTIFY_NAMESPACE,
    IO_ENTRY_SIZES,
    SHUTDOWN_COMPLETE,
    SHUTDOWN_NORMAL,
    AdminOpcode,
    FeatureId,
    IdentifyCns,
    IoOpcode,
    LogPage,
    NvmeCompletion,
    NvmeStatus,
    Property,
)
from tests.harness.nvme.memory_wire import (
    BLOCK,
    HOST_ID,
    HOST_NQN,
    NQN,
    SIZE,
    MemoryQueue,
    admin_queue,
    io_queue,
    target_of,
)

BLOCKS = SIZE // BLOCK


def refusal(status: NvmeStatus) -> int:
    return status | DO_NOT_RETRY


# -- Connect ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connect", "result"),
    [
        ({"subsystem": "nqn.2026-01.example:other"}, 1 << 16 | 256),
        ({"host": ""}, 1 << 16 | 512),
        ({"cntlid": 3}, 1 << 16 | 16),
        ({"sqsize": 0}, 44),
        ({"sqsize": 128}, 44),
        ({"qid": 1, "cntlid": 9}, 1 << 16 | 16),
    ],
)
def test_connect_names_the_invalid_parameter(connect: dict[str, Any], result: int) -> None:
    completion = MemoryQueue(target_of()).connect(**connect).completion
    assert completion.status == refusal(NvmeStatus.CONNECT_INVALID_PARAMETERS)
    assert completion.result == result


@pytest.mark.parametrize(
    ("connect", "place"),
    [
        ({"qid": 17}, 42),
        ({"identifier": b"i" * 16}, 1 << 16),
        ({"host": "nqn.2026-01.example:thief"}, 1 << 16 | 512),
        ({"subsystem": DISCOVERY_NQN}, 1 << 16 | 256),
    ],
)
def test_an_io_queue_is_its_own_hosts(connect: dict[str, Any], place: int) -> None:
    target = target_of()
    _, cntlid = admin_queue(target)
    connect = {"qid": 1, "cntlid": cntlid, **connect}
    completion = MemoryQueue(target).connect(**connect).completion
    assert completion.status == refusal(NvmeStatus.CONNECT_INVALID_PARAMETERS)
    assert completion.result == place


def test_a_queue_is_connected_once() -> None:
    target = target_of()
    admin, cntlid = admin_queue(target)
    assert admin.connect().completion.status == refusal(NvmeStatus.SEQUENCE_ERROR)
    assert MemoryQueue(target).connect(1, cntlid).completion.ok
    again = MemoryQueue(target).connect(1, cntlid).completion
    assert again.status == refusal(NvmeStatus.SEQUENCE_ERROR)


def test_hosts_that_are_not_allowed_are_refused_and_see_nothing() -> None:
    subsystem = NvmeSubsystem.named(NQN, frozenset({HOST_NQN}))
    subsystem.add(BlockStore.memory(SIZE))
    target = NvmeTarget([subsystem])
    assert MemoryQueue(target).connect().completion.ok
    other = "nqn.2026-01.example:other"
    refused = MemoryQueue(target).connect(host=other).completion
    assert refused.status == refusal(NvmeStatus.CONNECT_INVALID_HOST)
    discovery, _ = admin_queue(target, subsystem=DISCOVERY_NQN, host=other)
    data = discovery.command(log_entry(LogPage.DISCOVERY, 0, 1024), download=1024).data
    assert DISCOVERY_HEAD.unpack(data)[1] == 1  # itself


def test_nothing_is_done_before_connect_and_enable() -> None:
    queue = MemoryQueue(target_of())
    early = queue.command(identify_entry(IdentifyCns.CONTROLLER), download=4096).completion
    assert early.status == refusal(NvmeStatus.SEQUENCE_ERROR)
    queue.connect()
    early = queue.command(identify_entry(IdentifyCns.CONTROLLER), download=4096).completion
    assert early.status == refusal(NvmeStatus.SEQUENCE_ERROR)
    queue.enable()
    assert queue.command(identify_entry(IdentifyCns.CONTROLLER), download=4096).completion.ok


# -- properties ------------------------------------------------------------------------------------


def test_properties_of_a_life() -> None:
    queue, _ = admin_queue(target_of())

    def status() -> int:
        return queue.command(property_get_entry(Property.CSTS)).completion.result

    assert queue.command(property_get_entry(Property.VS)).completion.result == 0x20000
    cap = queue.command(property_get_entry(Property.CAP)).completion.result
    assert (cap & 0xFFFF, cap >> 37 & 1) == (127, 1)
    assert status() == 1
    value = ENABLE | IO_ENTRY_SIZES | SHUTDOWN_NORMAL
    assert queue.command(property_set_entry(Property.CC, value)).completion.ok
    assert status() == 1 | SHUTDOWN_COMPLETE


def test_properties_that_are_not_there_are_refused() -> None:
    queue, _ = admin_queue(target_of())
    invalid = refusal(NvmeStatus.INVALID_FIELD)
    odd = property_get_entry(Property.CSTS)
    odd[44] = 0x20
    assert queue.command(odd).completion.status == invalid
    assert queue.command(property_set_entry(Property.CSTS, 0)).completion.status == invalid


def test_a_reset_ends_io_queues_and_event_requests() -> None:
    target = target_of()
    queue = io_queue(target)
    admin = queue.admin
    admin.submit(entry(AdminOpcode.ASYNC_EVENT_REQUEST))
    assert admin.command(property_set_entry(Property.CC, IO_ENTRY_SIZES)).completion.ok
    (event,) = admin.done
    assert event.completion.status == NvmeStatus.ABORT_REQUESTED
    assert target.take_disturbed() == {queue.connection}
    assert queue.connection.finished
    admin.enable()


# -- Identify, features, log pages -----------------------------------------------------------------


def test_identify() -> None:
    target = target_of()
    queue, cntlid = admin_queue(target)
    data = queue.command(identify_entry(IdentifyCns.CONTROLLER), download=4096).data
    fields = IDENTIFY_CONTROLLER.unpack(data)
    assert (fields["cntlid"], fields["nn"], fields["maxcmd"]) == (cntlid, 1, 128)
    assert fields["ioccsz"] * 16 == 64 + 8192
    assert fields["mdts"] == 8
    active = queue.command(identify_entry(IdentifyCns.ACTIVE_NAMESPACES), download=4096).data
    assert active == b"\1".ljust(4096, b"\0")
    data = queue.command(identify_entry(IdentifyCns.NAMESPACE, 1), download=4096).data
    fields = IDENTIFY_NAMESPACE.unpack(data)
    assert (fields["nsze"], fields["lbads"]) == (BLOCKS, 9)
    data = queue.command(identify_entry(IdentifyCns.DESCRIPTORS, 1), download=4096).data
    assert (data[:2], data[20:22], data[40:42]) == (b"\2\x10", b"\3\x10", b"\4\1")


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        (identify_entry(IdentifyCns.NAMESPACE, 2), NvmeStatus.INVALID_NAMESPACE),
        (identify_entry(IdentifyCns.NAMESPACE, 0xFFFFFFFF), NvmeStatus.INVALID_NAMESPACE),
        (identify_entry(IdentifyCns.DESCRIPTORS, 2), NvmeStatus.INVALID_NAMESPACE),
        (identify_entry(IdentifyCns.ACTIVE_NAMESPACES, 0xFFFFFFFF), NvmeStatus.INVALID_NAMESPACE),
        (entry(AdminOpcode.IDENTIFY, 0, 0x55), NvmeStatus.INVALID_FIELD),
        (log_entry(0x70, 0, 4096), NvmeStatus.INVALID_LOG_PAGE),
        (log_entry(0xC0, 0, 4096), NvmeStatus.INVALID_LOG_PAGE),
        (log_entry(LogPage.HEALTH, 3, 4096), NvmeStatus.INVALID_FIELD),
        (log_entry(LogPage.HEALTH, 4096, 4096), NvmeStatus.INVALID_FIELD),
        (entry(0x55), NvmeStatus.INVALID_OPCODE),
    ],
)
def test_admin_commands_that_cannot_be(request_of: bytearray, status: NvmeStatus) -> None:
    queue, _ = admin_queue(target_of())
    done = queue.command(bytearray(request_of), download=4096)
    assert done.completion.status == refusal(status)


@pytest.mark.parametrize(
    ("feature", "value", "read"),
    [
        (FeatureId.ASYNC_EVENTS, 0x100, 0x100),
        (FeatureId.KEEP_ALIVE, 1234, 1300),
        (FeatureId.WRITE_CACHE, 0, 0),
        (FeatureId.NUMBER_OF_QUEUES, 3 << 16 | 3, 15 << 16 | 15),
    ],
)
def test_features_are_set_and_read(feature: FeatureId, value: int, read: int) -> None:
    queue, _ = admin_queue(target_of())
    assert queue.command(entry(AdminOpcode.SET_FEATURES, 0, feature, value)).completion.ok
    assert queue.command(entry(AdminOpcode.GET_FEATURES, 0, feature)).completion.result == read


def test_the_host_identifier_is_that_of_connect() -> None:
    queue, _ = admin_queue(target_of())
    request = entry(AdminOpcode.GET_FEATURES, 0, FeatureId.HOST_IDENTIFIER, 1)
    assert queue.command(request, download=16).data == HOST_ID
    request = entry(AdminOpcode.SET_FEATURES, 0, FeatureId.HOST_IDENTIFIER, 1)
    assert queue.command(request).completion.status == refusal(NvmeStatus.SEQUENCE_ERROR)


def test_the_discovery_log_lists_subsystems_where_the_host_has_come() -> None:
    queue, _ = admin_queue(target_of(), subsystem=DISCOVERY_NQN)
    data = queue.command(log_entry(LogPage.DISCOVERY, 0, 3072), download=3072).data
    assert DISCOVERY_HEAD.unpack(data[:1024])[1] == 2
    fields = DISCOVERY_ENTRY.unpack(data[2048:])
    assert fields["traddr"].rstrip() == b"192.0.2.1"
    assert (fields["trtype"], fields["adrfam"], fields["subtype"]) == (3, 1, 2)
    tail = queue.command(log_entry(LogPage.DISCOVERY, 2048, 1024), download=1024).data
    assert tail == data[2048:]


def test_event_requests_are_held_limited_and_aborted() -> None:
    queue, _ = admin_queue(target_of())
    cids = [queue.submit(entry(AdminOpcode.ASYNC_EVENT_REQUEST)) for _ in range(4)]
    fifth = queue.command(entry(AdminOpcode.ASYNC_EVENT_REQUEST)).completion
    assert fifth.status == refusal(NvmeStatus.EVENT_LIMIT_EXCEEDED)
    assert queue.command(entry(AdminOpcode.ABORT, 0, cids[2] << 16)).completion.result == 0
    (aborted,) = queue.done
    assert (aborted.completion.cid, aborted.completion.status) == (cids[2], 7)
    assert queue.command(entry(AdminOpcode.ABORT, 0, 999 << 16)).completion.result == 1


def test_a_silent_host_loses_its_controller() -> None:
    target = target_of()
    queue, cntlid = admin_queue(target, kato_ms=1000)
    other = MemoryQueue(target)
    assert other.connect(1, cntlid).completion.ok
    queue.now = 900_000_000
    assert queue.command(entry(AdminOpcode.KEEP_ALIVE)).completion.ok
    target.handle_timer(1_800_000_000)
    assert target.controllers()
    assert target.next_deadline() == 1_900_000_000
    target.handle_timer(1_900_000_000)
    assert not target.controllers()
    assert target.take_disturbed() == {queue.connection, other.connection}
    assert queue.connection.finished
    assert other.connection.finished
    assert target.counters["keep_alive_timeouts"] == 1


def test_a_connection_without_connect_is_closed() -> None:
    target = target_of()
    queue = MemoryQueue(target)
    deadline = target.next_deadline()
    assert deadline == target.settings.connect_ns
    target.handle_timer(deadline)
    assert queue.connection.finished
    assert target.next_deadline() is None


# -- I/O -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_of", "octets", "status"),
    [
        (io_entry(IoOpcode.READ, 1, BLOCKS, 1), -BLOCK, NvmeStatus.LBA_OUT_OF_RANGE),
        (io_entry(IoOpcode.READ, 1, BLOCKS - 1, 2), -2 * BLOCK, NvmeStatus.LBA_OUT_OF_RANGE),
        (io_entry(IoOpcode.READ, 1, 2**64 - 1, 1), -BLOCK, NvmeStatus.LBA_OUT_OF_RANGE),
        (io_entry(IoOpcode.WRITE, 1, BLOCKS, 1), BLOCK, NvmeStatus.LBA_OUT_OF_RANGE),
        (io_entry(IoOpcode.WRITE_ZEROES, 1, BLOCKS, 1), 0, NvmeStatus.LBA_OUT_OF_RANGE),
        (io_entry(IoOpcode.READ, 2, 0, 1), -BLOCK, NvmeStatus.INVALID_NAMESPACE),
        (entry(IoOpcode.FLUSH, 2), 0, NvmeStatus.INVALID_NAMESPACE),
        (io_entry(0x55, 1, 0, 1), 0, NvmeStatus.INVALID_OPCODE),
        (io_entry(IoOpcode.READ, 1, 0, 1), -2 * BLOCK, NvmeStatus.DATA_LENGTH_INVALID),
        (io_entry(IoOpcode.WRITE, 1, 0, 1), 2 * BLOCK, NvmeStatus.DATA_LENGTH_INVALID),
        (io_entry(IoOpcode.READ, 1, 0, 4096), -(1 << 20), NvmeStatus.INVALID_FIELD),
        (io_entry(IoOpcode.READ, 1, 0, 1, 1 << 29), -BLOCK, NvmeStatus.INVALID_FIELD),
        (io_entry(IoOpcode.COMPARE, 1, 0, 1), BLOCK, NvmeStatus.COMPARE_FAILURE),
    ],
)
def test_io_that_cannot_be(request_of: bytearray, octets: int, status: NvmeStatus) -> None:
    """``octets`` go to the controller; negative ones come from it."""
    queue = io_queue(target_of())
    done = queue.command(
        bytearray(request_of), upload=b"x" * max(octets, 0), download=max(-octets, 0)
    )
    assert done.completion.status == refusal(status)
    admin = queue.admin
    log = admin.command(log_entry(LogPage.ERRORS, 0, 64), download=64).data
    fields = ERROR_ENTRY.unpack(log)
    assert (fields["count"], fields["sqid"], fields["status"] >> 1) == (1, 1, status)


@pytest.mark.parametrize("descriptor", [0x00, 0x41, 0xFF])
def test_descriptors_of_other_transports_are_refused(descriptor: int) -> None:
    target = target_of()
    queue = io_queue(target)
    queue.submit(io_entry(IoOpcode.READ, 1, 0, 1), download=BLOCK)
    octets = bytearray(b"".join(queue.host.octets_to_send(1 << 20)))
    octets[8 + 39] = descriptor
    queue.connection.receive(bytes(octets), 0)
    queue.host.receive(b"".join(queue.connection.octets_to_send(1 << 20)), 0)
    (done,) = queue.host.take_completions()
    assert done.completion.status == refusal(NvmeStatus.DESCRIPTOR_TYPE_INVALID)


def test_write_read_compare_zero_and_discard() -> None:
    target = target_of()
    queue = io_queue(target)

    def read(lba: int, blocks: int) -> bytes:
        request = io_entry(IoOpcode.READ, 1, lba, blocks)
        return queue.command(request, download=blocks * BLOCK).data

    small, large = b"a" * 2 * BLOCK, bytes(range(256)) * 200 * 2
    for lba, data in ((3, small), (100, large)):
        count = len(data) // BLOCK
        request = io_entry(IoOpcode.WRITE, 1, lba, count)
        assert queue.command(request, upload=data).completion.ok
        assert read(lba, count) == data
        request = io_entry(IoOpcode.COMPARE, 1, lba, count)
        assert queue.command(request, upload=data).completion.ok
    assert queue.command(entry(IoOpcode.FLUSH, 1)).completion.ok
    assert queue.command(entry(IoOpcode.FLUSH, 0xFFFFFFFF)).completion.ok
    assert queue.command(io_entry(IoOpcode.WRITE_ZEROES, 1, 3, 1)).completion.ok
    assert read(3, 2) == bytes(BLOCK) + b"a" * BLOCK
    request = entry(IoOpcode.DATASET_MANAGEMENT, 1, 0, ATTRIBUTE_DEALLOCATE)
    assert queue.command(request, upload=DSM_RANGE.pack(0, 100, 100)).completion.ok
    assert read(100, 100) == bytes(100 * BLOCK)
    beyond = queue.command(
        entry(IoOpcode.DATASET_MANAGEMENT, 1, 0, ATTRIBUTE_DEALLOCATE),
        upload=DSM_RANGE.pack(0, 2, BLOCKS - 1),
    )
    assert beyond.completion.status == refusal(NvmeStatus.LBA_OUT_OF_RANGE)
    admin = queue.admin
    health = HEALTH.unpack(admin.command(log_entry(LogPage.HEALTH, 0, 512), download=512).data)
    assert (health["write_commands"], health["read_commands"]) == (3, 4)


def test_a_store_that_fails_is_an_internal_error() -> None:
    target = target_of()
    queue = io_queue(target)
    target.subsystems[NQN].namespaces[1].store.close()
    completions: list[NvmeCompletion] = [
        queue.command(io_entry(IoOpcode.READ, 1, 0, 1), download=BLOCK).completion,
        queue.command(io_entry(IoOpcode.WRITE, 1, 0, 1), upload=bytes(BLOCK)).completion,
        queue.command(io_entry(IoOpcode.WRITE, 1, 0, 99), upload=bytes(99 * BLOCK)).completion,
        queue.command(entry(IoOpcode.FLUSH, 1)).completion,
    ]
    assert {one.status for one in completions} == {refusal(NvmeStatus.INTERNAL_ERROR)}
    assert target.counters["store_errors"] == 4
