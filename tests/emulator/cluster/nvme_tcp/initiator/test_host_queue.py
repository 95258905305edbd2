"""A queue of the initiator: what it refuses of a controller, time-outs, and digests."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster.nvme_tcp.initiator.host_queue import HostQueue, entry, io_entry
from emulator.cluster.nvme_tcp.wire.layouts import CQE, IoOpcode, NvmeStatus
from emulator.cluster.nvme_tcp.wire.pdu import (
    LAST_PDU,
    SUCCESS,
    TERMINATE,
    FatalError,
    PduType,
    PduWriter,
)
from tests.harness.nvme.memory_wire import BLOCK, io_queue, queue_settings, target_of

WRITER = PduWriter()
SECOND = 10**9


def ready_queue(**changes: Any) -> HostQueue:
    queue = HostQueue(queue_settings(**changes), 0, SECOND)
    digests = queue.settings.header_digest + 2 * queue.settings.data_digest
    queue.receive(WRITER.initialize(PduType.IC_RESP, 0, digests, 8192), 0)
    assert queue.ready
    queue.octets_to_send(1 << 20)
    return queue


def termination(queue: HostQueue) -> tuple[int, int]:
    """FES and FEI of the H2CTermReq that a broken queue sends."""
    octets = b"".join(queue.octets_to_send(1 << 20))
    assert octets[0] == PduType.H2C_TERM_REQ
    assert queue.broken is not None
    return TERMINATE.unpack(octets[:24])[-2:]


@pytest.mark.parametrize(
    ("fields", "place"), [((0, 1, 8192), 11), ((0, 0, 4092), 12), ((32, 0, 8192), 10)]
)
def test_initialization_that_cannot_be(fields: tuple[int, int, int], place: int) -> None:
    queue = HostQueue(queue_settings(), 0, SECOND)
    queue.octets_to_send(1 << 20)
    queue.receive(WRITER.initialize(PduType.IC_RESP, *fields), 0)
    assert termination(queue) == (FatalError.UNSUPPORTED_PARAMETER, place)
    assert not queue.ready


def data(flags: int, cid: int, offset: int, length: int) -> bytes:
    return b"".join(WRITER.data(PduType.C2H_DATA, flags, cid, 0, offset, bytes(length)))


def grant(cid: int, offset: int, length: int) -> bytes:
    return b"".join(WRITER.ready_to_transfer(cid, 5, offset, length))


def response(cid: int) -> bytes:
    return b"".join(WRITER.capsule(PduType.CAPSULE_RESP, CQE.pack(0, 0, 1, cid, 0)))


@pytest.mark.parametrize(
    ("octets_of", "status", "information"),
    [
        (lambda cid: data(0, cid + 9, 0, 512), FatalError.INVALID_HEADER_FIELD, 8),
        (lambda cid: data(0, cid, 512, 512), FatalError.DATA_OUT_OF_RANGE, 0),
        (lambda cid: data(0, cid, 0, 8192), FatalError.DATA_OUT_OF_RANGE, 0),
        (lambda cid: data(SUCCESS, cid, 0, 512), FatalError.INVALID_HEADER_FIELD, 1),
        (lambda cid: response(cid + 9), FatalError.INVALID_HEADER_FIELD, 20),
        (lambda cid: grant(cid, 0, 512), FatalError.DATA_OUT_OF_RANGE, 0),
        (lambda cid: grant(cid + 1, 16384, 512), FatalError.DATA_OUT_OF_RANGE, 0),
        (lambda cid: grant(cid + 1, 0, 0), FatalError.DATA_OUT_OF_RANGE, 0),
        (lambda cid: grant(cid + 1, 0, 99) * 2, FatalError.LIMIT_EXCEEDED, 0),
        (
            lambda cid: WRITER.initialize(PduType.IC_RESP, 0, 0, 8192),
            FatalError.SEQUENCE_ERROR,
            0,
        ),
    ],
)
def test_a_controller_that_errs_ends_the_queue(
    octets_of: Callable[[int], bytes], status: FatalError, information: int
) -> None:
    queue = ready_queue()
    cid = queue.submit(io_entry(IoOpcode.READ, 1, 0, 8), "read", 0, download=4096)
    queue.submit(io_entry(IoOpcode.WRITE, 1, 0, 32), "write", 0, upload=bytes(16384))
    queue.octets_to_send(1 << 20)
    queue.receive(octets_of(cid), 0)
    assert termination(queue) == (status, information)
    assert queue.counters.bad_pdus == 1
    assert queue.outstanding == 0


def test_a_response_before_all_data_is_a_failed_transfer() -> None:
    queue = ready_queue()
    cid = queue.submit(io_entry(IoOpcode.READ, 1, 0, 8), "read", 0, download=4096)
    queue.receive(data(0, cid, 0, 512) + response(cid), 0)
    (done,) = queue.take_completions()
    assert done.completion.status == NvmeStatus.DATA_TRANSFER_ERROR
    assert queue.broken is None


def test_the_last_data_may_stand_for_the_response() -> None:
    queue = ready_queue()
    cid = queue.submit(io_entry(IoOpcode.READ, 1, 0, 2), "read", 100, download=1024)
    queue.receive(data(0, cid, 0, 512) + data(LAST_PDU | SUCCESS, cid, 512, 512), 350)
    (done,) = queue.take_completions()
    assert (done.token, done.completion.ok, len(done.data)) == ("read", True, 1024)
    assert done.elapsed_ns == 250


def test_spoilt_data_fail_their_command_alone() -> None:
    queue = ready_queue(data_digest=True)
    writer = PduWriter()
    writer.data_digest = True
    cid = queue.submit(io_entry(IoOpcode.READ, 1, 0, 2), "read", 0, download=1024)
    octets = bytearray(b"".join(writer.data(PduType.C2H_DATA, LAST_PDU, cid, 0, 0, bytes(1024))))
    octets[100] ^= 1
    queue.receive(bytes(octets) + response(cid), 0)
    (done,) = queue.take_completions()
    assert done.completion.status == NvmeStatus.TRANSIENT_TRANSPORT_ERROR
    assert done.data == b""
    assert queue.counters.data_digest_errors == 1


def test_what_is_late_breaks_the_queue() -> None:
    silent = HostQueue(queue_settings(), 0, SECOND)
    assert silent.next_deadline() == SECOND
    silent.handle_timer(SECOND - 1)
    assert silent.broken is None
    silent.handle_timer(SECOND)
    assert silent.broken == "no ICResp came"
    queue = ready_queue()
    assert queue.next_deadline() is None
    queue.submit(entry(IoOpcode.FLUSH, 1), None, 0, timeout_ns=300)
    queue.submit(entry(IoOpcode.FLUSH, 1), None, 0)
    assert queue.next_deadline() == 300
    queue.handle_timer(300)
    assert queue.broken == "a command was not completed in time"
    assert queue.counters.timeouts == 1


def test_a_full_queue_takes_no_command() -> None:
    queue = ready_queue(depth=2)
    for _ in range(2):
        queue.submit(entry(IoOpcode.FLUSH, 1), None, 0)
    with pytest.raises(RuntimeError, match="full"):
        queue.submit(entry(IoOpcode.FLUSH, 1), None, 0)


def test_a_command_that_fails_while_its_data_are_fetched_sends_no_more() -> None:
    queue = ready_queue()
    cid = queue.submit(io_entry(IoOpcode.WRITE, 1, 0, 64), "write", 0, upload=bytes(32768))
    queue.octets_to_send(1 << 20)
    queue.receive(grant(cid, 0, 32768), 0)
    assert sum(map(len, queue.octets_to_send(1))) == 24 + 8192  # MAXH2CDATA
    failed = CQE.pack(0, 0, 1, cid, NvmeStatus.INTERNAL_ERROR << 1)
    queue.receive(b"".join(WRITER.capsule(PduType.CAPSULE_RESP, failed)), 0)
    assert not queue.busy
    assert queue.broken is None


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_octets_of_a_controller(pieces: list[bytes]) -> None:
    queue = ready_queue()
    queue.submit(io_entry(IoOpcode.READ, 1, 0, 8), "read", 0, download=4096)
    for piece in pieces:
        queue.receive(piece, 0)
    queue.take_completions()


@given(
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 7)), min_size=1, max_size=5),
    st.booleans(),
)
def test_flipped_bits_of_a_controller(flips: list[tuple[int, int]], digests: bool) -> None:
    queue = io_queue(target_of(), queue_settings(header_digest=digests, data_digest=digests))
    queue.submit(io_entry(IoOpcode.READ, 1, 0, 8), download=8 * BLOCK)
    queue.submit(io_entry(IoOpcode.WRITE, 1, 0, 64), upload=bytes(64 * BLOCK))
    queue.connection.receive(b"".join(queue.host.octets_to_send(1 << 20)), 0)
    octets = bytearray(b"".join(queue.connection.octets_to_send(1 << 20)))
    for place, bit in flips:
        octets[place % len(octets)] ^= 1 << bit
    queue.host.receive(bytes(octets), 0)
    if digests:
        assert all(not one.completion.ok or one.data in (b"", bytes(8 * BLOCK))
                   for one in queue.host.take_completions())  # fmt: skip
