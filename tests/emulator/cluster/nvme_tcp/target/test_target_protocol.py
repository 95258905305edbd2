"""PDUs at the target: transfers, limits, digests, order, and the ends of connections."""

from collections.abc import Callable

import pytest

from emulator.cluster.nvme_tcp.initiator.host_queue import entry, io_entry
from emulator.cluster.nvme_tcp.target.controller import TargetSettings
from emulator.cluster.nvme_tcp.target.nvme_target import TargetConnection
from emulator.cluster.nvme_tcp.wire.layouts import IoOpcode, NvmeStatus, completion_of
from emulator.cluster.nvme_tcp.wire.pdu import (
    DATA,
    INITIALIZE,
    LAST_PDU,
    R2T,
    SUCCESS,
    TERMINATE,
    FatalError,
    Pdu,
    PduReader,
    PduType,
    PduWriter,
)
from tests.harness.nvme.memory_wire import (
    BLOCK,
    LOCAL,
    MemoryQueue,
    io_queue,
    queue_settings,
    target_of,
)


def sent(connection: TargetConnection, *, header: bool = False) -> list[Pdu]:
    """PDUs that a connection sends now."""
    limits = dict.fromkeys(PduType, 1 << 20)
    reader = PduReader(limits)
    reader.header_digest = header
    reader.feed(b"".join(connection.octets_to_send(1 << 24)))
    found = []
    while (pdu := reader.next_pdu()) is not None:
        found.append(pdu)
    return found


def termination(connection: TargetConnection, *, header: bool = False) -> tuple[int, int]:
    """FES and FEI of the C2HTermReq that ends a connection."""
    pdu = sent(connection, header=header)[-1]
    assert pdu.kind is PduType.C2H_TERM_REQ
    assert connection.finished
    return TERMINATE.unpack(pdu.header)[-2:]


def write_with_r2t(queue: MemoryQueue, octets: int) -> Pdu:
    """Begin a write by R2T, and give the R2T; the host does not answer it."""
    queue.submit(io_entry(IoOpcode.WRITE, 1, 0, octets // BLOCK), upload=bytes(octets))
    queue.connection.receive(b"".join(queue.host.octets_to_send(1 << 20)), 0)
    (pdu,) = sent(queue.connection)
    assert pdu.kind is PduType.R2T
    return pdu


# -- initialization --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "information"),
    [
        ((8, 1), FatalError.UNSUPPORTED_PARAMETER, 8),
        ((10, 32), FatalError.INVALID_HEADER_FIELD, 10),
        ((11, 4), FatalError.INVALID_HEADER_FIELD, 11),
    ],
)
def test_initialization_that_cannot_be(
    change: tuple[int, int], status: FatalError, information: int
) -> None:
    target = target_of()
    connection = target.accept(LOCAL, 0)
    assert connection is not None
    request = bytearray(PduWriter().initialize(PduType.IC_REQ, 0, 0, 0))
    request[change[0]] = change[1]
    connection.receive(bytes(request), 0)
    assert termination(connection) == (status, information)
    assert target.counters["bad_pdus"] == 1


def test_the_target_states_its_limits_and_agrees_to_digests_that_it_allows() -> None:
    target = target_of(TargetSettings(data_digest=False, alignment=3, maxh2cdata=8192))
    connection = target.accept(LOCAL, 0)
    assert connection is not None
    connection.receive(PduWriter().initialize(PduType.IC_REQ, 0, 3, 0), 0)
    (answer,) = sent(connection)
    assert INITIALIZE.unpack(answer.header)[5:] == (0, 3, 1, 8192)


def test_a_command_before_initialization_is_a_sequence_error() -> None:
    connection = target_of().accept(LOCAL, 0)
    assert connection is not None
    connection.receive(b"".join(PduWriter().capsule(PduType.CAPSULE_CMD, bytes(64))), 0)
    assert termination(connection) == (FatalError.SEQUENCE_ERROR, 0)


# -- transfers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize(
    "digests", [{}, {"header_digest": True}, {"header_digest": True, "data_digest": True}]
)
def test_data_of_any_size_arrive_in_any_pieces(digests: dict[str, bool], piece: int) -> None:
    settings = TargetSettings(maxh2cdata=4096, r2t_octets=8192, c2h_octets=5000, alignment=31)
    host = queue_settings(**digests, alignment=2, r2ts=3)
    target = target_of(settings)
    queue = io_queue(target, host)
    queue.piece = piece
    for size in (BLOCK, 8192, 8704, 50 * BLOCK):
        data = bytes(range(256)) * (size // 256)
        request = io_entry(IoOpcode.WRITE, 1, 5, size // BLOCK)
        assert queue.command(request, upload=data).completion.ok
        request = io_entry(IoOpcode.READ, 1, 5, size // BLOCK)
        assert queue.command(request, download=size).data == data
    # 8704 and 25600 octets do not fit into capsules: 2 and 4 R2Ts
    assert target.counters["tx_r2ts"] == 6


def test_no_more_r2ts_are_outstanding_than_the_host_allows() -> None:
    queue = io_queue(target_of(TargetSettings(r2t_octets=4096)), queue_settings(r2ts=2))
    cid = queue.submit(io_entry(IoOpcode.WRITE, 1, 0, 40), upload=bytes(40 * BLOCK))
    queue.connection.receive(b"".join(queue.host.octets_to_send(1 << 20)), 0)
    grants = [R2T.unpack(pdu.header)[-3:] for pdu in sent(queue.connection)]
    assert [(offset, length) for _, offset, length in grants] == [(0, 4096), (4096, 4096)]
    octets = PduWriter().data(PduType.H2C_DATA, LAST_PDU, cid, grants[0][0], 0, bytes(4096))
    queue.connection.receive(b"".join(octets), 0)
    (third,) = sent(queue.connection)
    assert R2T.unpack(third.header)[-2:] == (8192, 4096)


@pytest.mark.parametrize(
    ("spoil", "status", "information"),
    [
        (lambda cid, tag: (LAST_PDU, cid, tag + 9, 0, 16384), FatalError.INVALID_HEADER_FIELD, 10),
        (lambda cid, tag: (LAST_PDU, cid + 9, tag, 0, 16384), FatalError.INVALID_HEADER_FIELD, 8),
        (lambda cid, tag: (LAST_PDU, cid, tag, 512, 15872), FatalError.DATA_OUT_OF_RANGE, 0),
        (lambda cid, tag: (LAST_PDU, cid, tag, 0, 16896), FatalError.DATA_OUT_OF_RANGE, 0),
        (lambda cid, tag: (0, cid, tag, 0, 16384), FatalError.INVALID_HEADER_FIELD, 1),
        (lambda cid, tag: (LAST_PDU, cid, tag, 0, 512), FatalError.INVALID_HEADER_FIELD, 1),
    ],
)
def test_host_data_that_nobody_has_requested_end_the_connection(
    spoil: Callable[[int, int], tuple[int, int, int, int, int]],
    status: FatalError,
    information: int,
) -> None:
    queue = io_queue(target_of())
    *_, cid, tag, _, _ = R2T.unpack(write_with_r2t(queue, 16384).header)
    flags, cccid, ttag, offset, length = spoil(cid, tag)
    octets = PduWriter().data(PduType.H2C_DATA, flags, cccid, ttag, offset, bytes(length))
    queue.connection.receive(b"".join(octets), 0)
    assert termination(queue.connection) == (status, information)


def test_a_data_length_that_is_not_that_of_the_pdu_is_refused() -> None:
    queue = io_queue(target_of())
    *_, cid, tag, _, _ = R2T.unpack(write_with_r2t(queue, 16384).header)
    octets = bytearray(
        b"".join(PduWriter().data(PduType.H2C_DATA, LAST_PDU, cid, tag, 0, bytes(16384)))
    )
    octets[16:20] = (4096).to_bytes(4, "little")
    queue.connection.receive(bytes(octets), 0)
    assert termination(queue.connection) == (FatalError.INVALID_HEADER_FIELD, 16)


# -- order, SQHD -----------------------------------------------------------------------------------


def test_a_small_read_overtakes_a_large_one() -> None:
    queue = io_queue(target_of(TargetSettings(c2h_octets=4096)))
    large = queue.submit(io_entry(IoOpcode.READ, 1, 0, 64), download=64 * BLOCK)
    small = queue.submit(io_entry(IoOpcode.READ, 1, 0, 1), download=BLOCK)
    write = queue.submit(io_entry(IoOpcode.WRITE, 1, 0, 64), upload=bytes(64 * BLOCK))
    queue.run()
    order = [done.completion.cid for done in queue.done]
    assert order.index(small) < order.index(large)
    assert set(order) == {large, small, write}


def test_sqhd_follows_the_entries_that_were_taken() -> None:
    queue = io_queue(target_of(), sqsize=4)
    heads = [queue.command(entry(IoOpcode.FLUSH, 1)).completion.sqhd for _ in range(7)]
    assert heads == [2, 3, 4, 0, 1, 2, 3]  # Connect was the first of five entries


def test_without_flow_control_sqhd_says_so_and_reads_need_no_response() -> None:
    target = target_of()
    queue = io_queue(target, flow_control=False)
    assert queue.command(entry(IoOpcode.FLUSH, 1)).completion.sqhd == 0xFFFF
    queue.submit(io_entry(IoOpcode.READ, 1, 0, 1), download=BLOCK)
    queue.connection.receive(b"".join(queue.host.octets_to_send(1 << 20)), 0)
    (pdu,) = sent(queue.connection)
    assert DATA.unpack(pdu.header)[1] == LAST_PDU | SUCCESS
    assert queue.command(io_entry(IoOpcode.READ, 1, 0, 1), download=BLOCK).completion.ok


def test_a_cid_in_use_is_refused_and_the_first_command_goes_on() -> None:
    queue = io_queue(target_of())
    writer = PduWriter()
    request = io_entry(IoOpcode.WRITE, 1, 0, 64)
    request[2:4] = b"\x09\x00"
    request[32:40] = (64 * BLOCK).to_bytes(4, "little") + b"\0\0\0\x5a"
    for _ in range(2):
        queue.connection.receive(b"".join(writer.capsule(PduType.CAPSULE_CMD, bytes(request))), 0)
    grant, conflict = sent(queue.connection)
    assert grant.kind is PduType.R2T
    assert completion_of(conflict.header, 8).status & 0x7FF == NvmeStatus.ID_CONFLICT


def test_more_commands_than_entries_end_the_connection() -> None:
    queue = io_queue(target_of(), sqsize=4)
    request = io_entry(IoOpcode.WRITE, 1, 0, 64)
    request[32:40] = (64 * BLOCK).to_bytes(4, "little") + b"\0\0\0\x5a"
    for cid in range(6):
        request[2:4] = cid.to_bytes(2, "little")
        octets = b"".join(PduWriter().capsule(PduType.CAPSULE_CMD, bytes(request)))
        queue.connection.receive(octets, 0)
    assert termination(queue.connection) == (FatalError.SEQUENCE_ERROR, 0)


# -- digests and ends ------------------------------------------------------------------------------


def test_a_spoilt_header_ends_the_connection() -> None:
    settings = queue_settings(header_digest=True)
    target = target_of()
    queue = io_queue(target, settings)
    queue.submit(entry(IoOpcode.FLUSH, 1))
    octets = bytearray(b"".join(queue.host.octets_to_send(1 << 20)))
    octets[30] ^= 0x10
    queue.connection.receive(bytes(octets), 0)
    received = int.from_bytes(octets[72:76], "little")
    expected = (FatalError.HEADER_DIGEST_ERROR, received)
    assert termination(queue.connection, header=True) == expected
    assert target.counters["header_digest_errors"] == 1


@pytest.mark.parametrize("blocks", [2, 64])
def test_spoilt_data_are_not_written_and_the_host_may_try_again(blocks: int) -> None:
    """In a capsule, and by R2T."""
    settings = queue_settings(header_digest=True, data_digest=True)
    target = target_of()
    queue = io_queue(target, settings)
    request = io_entry(IoOpcode.WRITE, 1, 0, blocks)
    queue.submit(request, upload=b"x" * blocks * BLOCK)
    for _ in range(3):
        octets = bytearray(b"".join(queue.host.octets_to_send(1 << 20)))
        if len(octets) > 1000:
            octets[-100] ^= 1
        queue.connection.receive(bytes(octets), 0)
        queue.host.receive(b"".join(queue.connection.octets_to_send(1 << 20)), 0)
    (done,) = queue.host.take_completions()
    assert done.completion.status == NvmeStatus.TRANSIENT_TRANSPORT_ERROR
    assert target.counters["data_digest_errors"] == 1
    read = queue.command(io_entry(IoOpcode.READ, 1, 0, blocks), download=blocks * BLOCK)
    assert read.data == bytes(blocks * BLOCK)
    request = io_entry(IoOpcode.WRITE, 1, 0, blocks)
    assert queue.command(request, upload=b"x" * blocks * BLOCK).completion.ok


def test_the_end_of_the_admin_queue_ends_the_controller() -> None:
    target = target_of()
    queue = io_queue(target)
    admin = queue.admin
    admin.connection.close()
    assert target.take_disturbed() == {queue.connection}
    assert not target.controllers()


def test_the_end_of_an_io_queue_leaves_the_controller() -> None:
    target = target_of()
    queue = io_queue(target)
    queue.connection.close()
    assert len(target.controllers()) == 1
    again = MemoryQueue(target)
    assert again.connect(1, target.controllers()[0].cntlid).completion.ok


def test_a_termination_request_ends_the_connection_without_an_answer() -> None:
    target = target_of()
    queue = io_queue(target)
    octets = TERMINATE.pack(PduType.H2C_TERM_REQ, 0, 24, 0, 24, 1, 0)
    queue.connection.receive(octets, 0)
    assert queue.connection.finished
    assert sent(queue.connection) == []
    assert target.counters["rx_termination_requests"] == 1


def test_connections_and_controllers_are_limited() -> None:
    target = target_of(TargetSettings(connections=3, controllers=1))
    first, second = MemoryQueue(target), MemoryQueue(target)
    assert first.connect().completion.ok
    assert second.connect().completion.status == NvmeStatus.CONNECT_CONTROLLER_BUSY
    MemoryQueue(target)
    assert target.accept(LOCAL, 0) is None
    assert target.counters["refused_connections"] == 1
