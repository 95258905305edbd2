"""Whatever a host sends, the target neither raises nor keeps more than its limits."""

import random

from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster.nvme_tcp.initiator.host_queue import entry, io_entry
from emulator.cluster.nvme_tcp.target.controller import TargetSettings
from emulator.cluster.nvme_tcp.wire.layouts import AdminOpcode, IoOpcode
from emulator.cluster.nvme_tcp.wire.pdu import PduType, PduWriter
from tests.harness.nvme.memory_wire import (
    BLOCK,
    LOCAL,
    MemoryQueue,
    admin_queue,
    io_queue,
    queue_settings,
    target_of,
)

LARGEST_PDU = 1 << 19
#: Types of PDUs that a host may begin with.
HOST_TYPES = (PduType.IC_REQ, PduType.H2C_TERM_REQ, PduType.CAPSULE_CMD, PduType.H2C_DATA)


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_any_octets(pieces: list[bytes]) -> None:
    target = target_of()
    connection = target.accept(LOCAL, 0)
    assert connection is not None
    for piece in pieces:
        connection.receive(piece, 0)
        connection.octets_to_send(1 << 20)
    stream = b"".join(pieces)
    assert connection.finished or len(stream) < 8 or stream[0] in HOST_TYPES


@given(
    seed=st.integers(0, 2**32),
    digests=st.booleans(),
    flips=st.integers(1, 4),
    cut=st.integers(1, 400),
)
def test_valid_streams_with_flipped_bits(seed: int, digests: bool, flips: int, cut: int) -> None:
    draw = random.Random(seed)
    target = target_of(TargetSettings(maxh2cdata=4096))
    settings = queue_settings(header_digest=digests, data_digest=digests)
    queue = io_queue(target, settings)
    for _ in range(6):
        if queue.host.broken is not None:
            break
        kind = draw.choice((IoOpcode.WRITE, IoOpcode.READ, IoOpcode.FLUSH, IoOpcode.COMPARE))
        blocks = draw.choice((1, 4, 30))
        uploads = kind in (IoOpcode.WRITE, IoOpcode.COMPARE)
        if queue.host.outstanding < 31:
            queue.submit(
                io_entry(kind, 1, draw.randrange(1000), blocks),
                upload=draw.randbytes(blocks * BLOCK) if uploads else b"",
                download=blocks * BLOCK if kind == IoOpcode.READ else 0,
            )
        octets = bytearray(b"".join(queue.host.octets_to_send(1 << 20)))
        for _ in range(flips if octets else 0):
            octets[draw.randrange(min(len(octets), 200))] ^= 1 << draw.randrange(8)
        for at in range(0, len(octets), cut):
            queue.connection.receive(bytes(octets[at : at + cut]), 0)
        queue.host.receive(b"".join(queue.connection.octets_to_send(1 << 20)), 0)
    assert target.counters["bad_pdus"] <= 1


@given(st.lists(st.binary(min_size=64, max_size=64), min_size=1, max_size=8), st.booleans())
def test_any_submission_queue_entry(entries: list[bytes], admin: bool) -> None:
    target = target_of()
    queue = admin_queue(target)[0] if admin else io_queue(target)
    writer = PduWriter()
    for octets in entries:
        queue.connection.receive(b"".join(writer.capsule(PduType.CAPSULE_CMD, octets)), 0)
        queue.connection.octets_to_send(1 << 20)


@given(
    opcode=st.sampled_from([*AdminOpcode, *IoOpcode, 0x7F]),
    dwords=st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6),
    nsid=st.sampled_from([0, 1, 2, 0xFFFFFFFF]),
    length=st.sampled_from([0, 4, 512, 1024, 4096, 2**32 - 1]),
    admin=st.booleans(),
)
def test_any_fields_of_known_commands(
    opcode: int, dwords: list[int], nsid: int, length: int, admin: bool
) -> None:
    target = target_of()
    queue = admin_queue(target)[0] if admin else io_queue(target)
    request = entry(opcode, nsid, *dwords)
    request[2:4] = b"\x77\x00"
    request[32:40] = length.to_bytes(4, "little") + b"\0\0\0\x5a"
    queue.connection.receive(b"".join(PduWriter().capsule(PduType.CAPSULE_CMD, bytes(request))), 0)
    sent = b"".join(queue.connection.octets_to_send(1 << 22))
    held = opcode == AdminOpcode.ASYNC_EVENT_REQUEST and admin
    assert sent or held


def test_a_host_that_never_reads_makes_the_target_keep_little() -> None:
    """Reads are not read from the store before their octets can leave; the runner stops reading."""
    target = target_of()
    queue = io_queue(target)
    for number in range(31):
        queue.submit(io_entry(IoOpcode.READ, 1, number, 2048), download=2048 * BLOCK)
    queue.connection.receive(b"".join(queue.host.octets_to_send(1 << 20)), 0)
    assert queue.connection.busy
    assert sum(map(len, queue.connection.octets_to_send(1 << 16))) < LARGEST_PDU


def test_a_pdu_that_promises_too_much_is_refused_by_its_header() -> None:
    queue = MemoryQueue(target_of())
    queue.connection.receive(b"\x04\x00\x48\x48" + (2**31).to_bytes(4, "little") + bytes(64), 0)
    assert queue.connection.fault == f"invalid_header_field: PLEN {2**31}"
