"""The libfabric-shaped API on two endpoints in one process: packets, messages, waiting."""

import random
from typing import Any

import pytest

from tests.harness.uet.api_ends import PDS_AT, SES_AT, Tap, error, key_of, one
from uet.api import (
    ADDR_UNSPEC,
    Address,
    ApiError,
    AtomicOpcode,
    CqEntry,
    Datatype,
    Domain,
    EndpointType,
    Flag,
    Order,
    ProviderAddress,
)
from uet.api.loopback import Loopback, LoopbackEnd, pair
from uet.config import FepConfig
from uet.tss.secure_domain import SecureDomain
from uet.wire import headers
from uet.wire.codes import Opcode, PacketType

# -- what stands in the packets ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "kind", "other"),
    [
        (Order.NONE, PacketType.RUD_REQ, PacketType.ROD_REQ),
        (Order.SAS, PacketType.ROD_REQ, PacketType.RUD_REQ),
        (Order.WAW | Order.RAW, PacketType.ROD_REQ, PacketType.RUD_REQ),
    ],
)
def test_ordering_chooses_the_delivery_mode(
    order: Order, kind: PacketType, other: PacketType
) -> None:
    tap = Tap()
    a, b = pair(msg_order=order, wire=Loopback(tap=tap))
    b.endpoint.recv(bytearray(8))
    a.endpoint.send(b"hello", a.peer)
    one(a)
    assert kind in tap.types()
    assert other not in tap.types()


def test_the_rudi_flag_goes_without_a_connection() -> None:
    tap = Tap()
    a, b = pair(wire=Loopback(tap=tap))
    source, copy = bytes(range(256)) * 8, bytearray(2048)
    region = b.domain.mr_reg(bytearray(2048), idempotent=True)
    a.endpoint.write(source, a.peer, 0, region.key, flags=Flag.RUDI)
    one(a)
    a.endpoint.read(copy, a.peer, 0, region.key, flags=Flag.RUDI)
    one(a)
    assert bytes(copy) == source
    assert tap.types() == {PacketType.RUDI_REQ, PacketType.RUDI_RESP}


@pytest.mark.conformance("C-060")
def test_datagrams_are_uud_and_draw_no_answer() -> None:
    tap = Tap()
    a, b = pair(EndpointType.DGRAM, wire=Loopback(tap=tap))
    b.endpoint.recv(bytearray(8))
    a.endpoint.send(b"hello", a.peer)
    one(a)
    assert one(b).flags == Flag.RECV | Flag.MSG
    assert tap.types() == {PacketType.UUD_REQ}
    (frame,) = tap.frames
    word, message_id, *_ = headers.SES_STD_SOM.unpack_from(frame, PDS_AT + headers.UUD_REQ.size)
    assert word >> headers.SES_STD_SOM.shift("opcode") & 0x3F == Opcode.DATAGRAM_SEND
    assert message_id == 0
    with pytest.raises(ValueError, match="exceeds the payload MTU"):
        a.endpoint.send(bytes(a.domain.config.payload_mtu + 1), a.peer)


@pytest.mark.parametrize("flags", [Flag.NONE, Flag.DELIVERY_COMPLETE])
def test_delivery_complete_is_the_flag_dc(flags: Flag) -> None:
    tap = Tap()
    a, b = pair(wire=Loopback(tap=tap))
    region = b.domain.mr_reg(bytearray(8))
    a.endpoint.write(b"hello", a.peer, 0, region.key, flags=flags)
    one(a)
    word = headers.SES_STD_SOM.unpack_from(tap.frames[0], SES_AT)[0]
    assert bool(word & headers.SES_STD_SOM.mask("dc")) == bool(flags)


def test_a_lost_packet_is_sent_again_and_nobody_notices() -> None:
    lost: list[bytes] = []

    def lose_the_first_data(frame: bytes) -> bool:
        if len(frame) > 1_000 and not lost:
            lost.append(frame)
            return True
        return False

    a, b = pair(wire=Loopback(tap=Tap(lose_the_first_data)))
    memory = bytearray(20_000)
    payload = bytes(range(250)) * 80
    a.endpoint.write(payload, a.peer, 0, b.domain.mr_reg(memory).key)
    assert one(a).len == 20_000
    assert lost
    assert bytes(memory) == payload
    assert a.domain.counters()["tx_retransmitted_packets"] >= 1


def test_the_same_seed_gives_the_same_packets() -> None:
    def run(seed: int) -> list[bytes]:
        tap = Tap()
        a, b = pair(wire=Loopback(tap=tap, seed=seed))
        b.endpoint.recv(bytearray(9_000))
        a.endpoint.send(bytes(9_000), a.peer)
        one(a)
        return tap.frames

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize("order", [Order.NONE, Order.SAS])
@pytest.mark.parametrize("seed", range(4))
def test_operations_end_once_and_well_on_a_lossy_wire(order: Order, seed: int) -> None:
    rng = random.Random(seed)
    lossy = Tap(lambda frame: rng.random() < 0.05)
    a, b = pair(msg_order=order, wire=Loopback(tap=lossy, seed=seed), max_rto_retx_cnt=12)
    slot, count = 9_000, 40
    memory, total = bytearray(slot * count), bytearray(8)
    region, counter = b.domain.mr_reg(memory), b.domain.mr_reg(total)
    inbox = bytearray(slot * count)
    expected, copies, added = bytearray(slot * count), [], 0
    for number in range(count):
        length = rng.choice((0, 1, 1_000, 4_096, 4_097, slot))
        payload = rng.randbytes(length)
        start = slot * number
        kind = rng.choice(("write", "writedata", "tsend", "atomic", "read"))
        if kind == "write":
            a.endpoint.write(payload, a.peer, start, region.key, number)
        elif kind == "writedata":
            a.endpoint.writedata(payload, number, a.peer, start, region.key, number)
        elif kind == "tsend":
            b.endpoint.trecv(memoryview(inbox)[start : start + slot], tag=number)
            a.endpoint.tsend(payload, a.peer, number, number)
        elif kind == "read":
            source = b.domain.mr_reg(payload, Flag.REMOTE_READ)
            copies.append((bytearray(length), payload))
            a.endpoint.read(copies[-1][0], a.peer, 0, source.key, number)
        else:
            added += number
            operand = number.to_bytes(8, "little")
            a.endpoint.atomic(
                operand, a.peer, 0, counter.key, Datatype.UINT64, AtomicOpcode.SUM, number
            )
        if kind in ("write", "writedata", "tsend"):
            expected[start : start + length] = payload
            (inbox if kind != "tsend" else memory)[start : start + length] = payload
    ended: list[object] = []
    while len(ended) < count and (entries := a.cq.wait()):
        ended += [entry.op_context for entry in entries]
    assert sorted(ended, key=str) == sorted(range(count), key=str)
    assert a.cq.wait() == []
    assert a.domain.counters()["tx_retransmitted_packets"] > 0
    assert memory == expected
    assert inbox == expected
    assert all(bytes(copy) == payload for copy, payload in copies)
    assert int.from_bytes(total, "little") == added


@pytest.mark.parametrize("native", [False, True])
def test_secured_endpoints_understand_each_other(native: bool) -> None:
    domain = SecureDomain(sdi=9, mode="cluster", keys={0: bytes(range(32))})
    tap = Tap()
    a, b = pair(wire=Loopback(tap=tap), domains=(domain,), sdi=9, native=native)
    memory = bytearray(16)
    b.endpoint.recv(memory)
    a.endpoint.send(b"between us alone", a.peer)
    one(a)
    assert bytes(memory) == b"between us alone"
    assert tap.frames
    assert not any(b"between us alone" in frame for frame in tap.frames)


@pytest.mark.conformance("C-142")
def test_a_domain_that_begins_again_repeats_nothing() -> None:
    """At its address, with its keys, toward a peer that has gone on: its work is carried out."""
    tap = Tap()
    secure = SecureDomain(sdi=9, mode="cluster", keys={0: bytes(range(32))})
    a, b = pair(wire=Loopback(tap=tap), domains=(secure,), sdi=9)
    memory = bytearray(8)
    region = b.domain.mr_reg(memory)
    for life in range(1, 4):
        a.endpoint.write(bytes([life]) * 8, a.peer, 0, region.key)
        one(a)
        assert memory == bytes([life]) * 8
        wire = a.domain.driver
        wire.detach(a.domain)  # without a word to the peer
        domain = Domain(a.domain.config, wire)
        endpoint, av, cq = domain.endpoint(), domain.av_open(), domain.cq_open()
        endpoint.bind(av)
        endpoint.bind(cq, Flag.TRANSMIT | Flag.RECV)
        endpoint.enable()
        a = LoopbackEnd(domain, endpoint, av, cq, av.insert(b.endpoint.getname()))
    own = [frame for frame in tap.frames if frame[26:30] == bytes([10, 0, 0, 1])]
    stamps = [frame[42:54] for frame in own]
    assert len(set(stamps)) == len(stamps) > 3


def test_ipv6_endpoints_understand_each_other() -> None:
    wire = Loopback()
    macs = {f"fd00::{number}": f"02:00:00:00:00:{number:02x}" for number in (1, 2)}
    ends = []
    for address, mac in macs.items():
        others = {peer: other for peer, other in macs.items() if peer != address}
        config = FepConfig(address=address, mac=mac, neighbours=others)
        domain = Domain(config, wire)
        endpoint, av, cq = domain.endpoint(), domain.av_open(), domain.cq_open()
        endpoint.bind(av)
        endpoint.bind(cq, Flag.TRANSMIT | Flag.RECV)
        endpoint.enable()
        ends.append((endpoint, av, cq))
    (first, av, sent), (second, other_av, received) = ends
    peer, source = av.insert(second.getname()), other_av.insert(first.getname())
    second.recv(bytearray(8))
    first.send(b"hello", peer)
    assert len(sent.wait()) == 1
    assert [entry.src_addr for entry in received.wait()] == [source]


# -- messages ------------------------------------------------------------------------------------


def test_a_receive_for_one_source_takes_its_messages_only() -> None:
    a, b = pair()
    stranger = ProviderAddress(address="10.0.0.1", initiator_id=99)
    b.endpoint.recv(bytearray(8), b.av.insert(stranger), "stranger's")
    b.endpoint.recv(bytearray(8), b.peer, "neighbour's")
    a.endpoint.send(b"hello", a.peer)
    entry = one(b)
    assert entry.op_context == "neighbour's"
    assert entry.src_addr == b.peer


def test_who_is_in_no_address_vector_is_nobody() -> None:
    a, b = pair()
    b.endpoint.recv(bytearray(8))
    b.av.remove(b.peer)
    a.endpoint.send(b"hello", a.peer)
    assert one(b).src_addr == ADDR_UNSPEC


def test_a_message_that_meets_no_receive_waits_where_that_is_configured() -> None:
    a, b = pair(unexpected="keep")
    a.endpoint.tsend(b"early", a.peer, 5)
    one(a)
    memory = bytearray(8)
    b.endpoint.trecv(memory, tag=5)
    assert one(b).len == 5
    assert memory[:5] == b"early"


@pytest.mark.parametrize("protocol", ["deferrable_threshold", "rendezvous_threshold"])
def test_long_sends_use_the_configured_protocol(protocol: str) -> None:
    thresholds: dict[str, Any] = {protocol: 10_000}
    a, b = pair(eager_size=4_096, **thresholds)
    payload, memory = bytes(range(200)) * 100, bytearray(20_000)
    a.endpoint.send(payload, a.peer)
    assert a.cq.wait(1_000_000) == []  # nobody has posted anything yet
    b.endpoint.recv(memory)
    assert one(b).len == 20_000
    assert one(a).len == 20_000
    assert bytes(memory) == payload


def test_a_multi_receive_gives_its_memory_back_once() -> None:
    a, b = pair()
    b.endpoint.min_multi_recv = 100
    memory = bytearray(1_000)
    b.endpoint.recv(memory, flags=Flag.MULTI_RECV)
    for number in range(10):
        a.endpoint.send(bytes([number]) * 91, a.peer)
    entries: list[CqEntry] = []
    while len(entries) < 10 and (more := b.cq.wait(10_000_000)):
        entries += more
    assert [Flag.MULTI_RECV in entry.flags for entry in entries] == [False] * 9 + [True]
    for number, entry in enumerate(entries):
        assert entry.buf is not None
        assert bytes(entry.buf) == bytes([number]) * 91


def test_the_memory_of_a_multi_receive_is_given_back_when_all_of_it_is_filled() -> None:
    lost: list[bytes] = []

    def lose_the_second_packet(frame: bytes) -> bool:
        if not lost and len(frame) > 1_000 and frame[-1] == 2:
            lost.append(frame)
            return True
        return False

    a, b = pair(wire=Loopback(tap=Tap(lose_the_second_packet)), payload_mtu=1024)
    memory, last = bytearray(3_200), bytes([9]) * 100
    b.endpoint.recv(memory, flags=Flag.MULTI_RECV)
    long = b"".join(bytes([number]) * 1_024 for number in (1, 2, 3))
    a.endpoint.send(long, a.peer)
    a.endpoint.send(last, a.peer)
    short, whole = one(b), one(b)
    assert lost
    assert (short.len, short.flags & Flag.MULTI_RECV) == (100, Flag.NONE)
    assert (whole.len, whole.flags & Flag.MULTI_RECV) == (3_072, Flag.MULTI_RECV)
    assert memory[:3_172] == long + last


def test_the_memory_of_a_multi_receive_is_given_back_though_a_message_was_abandoned() -> None:
    cut_off = [True]

    def lose_the_second_packet(frame: bytes) -> bool:
        return cut_off[0] and len(frame) > 1_000 and frame[-1] == 2

    wire = Loopback(tap=Tap(lose_the_second_packet))
    a, b = pair(wire=wire, payload_mtu=1024, inbound_message_idle_time=20_000_000)
    b.endpoint.recv(bytearray(3_200), flags=Flag.MULTI_RECV)
    a.endpoint.send(b"".join(bytes([number]) * 1_024 for number in (1, 2, 3)), a.peer)
    lost = error(b)
    assert (lost.error, lost.len, lost.flags & Flag.MULTI_RECV) == ("ABANDONED", 2_048, 0)
    cut_off[0] = False
    assert error(a).error == "DROPPED"
    a.endpoint.send(bytes(100), a.peer)
    entry = one(b)
    assert (entry.len, entry.flags & Flag.MULTI_RECV) == (100, Flag.MULTI_RECV)


def test_a_message_too_long_for_a_multi_receive_takes_none_of_it() -> None:
    a, b = pair()
    memory = bytearray(100)
    b.endpoint.min_multi_recv = 40
    b.endpoint.recv(memory, flags=Flag.MULTI_RECV, context="m")
    for length in (30, 101, 35):
        a.endpoint.send(bytes([length]) * length, a.peer)
    entry = one(b)
    assert (entry.len, entry.flags & Flag.MULTI_RECV) == (30, Flag.NONE)
    lost = error(b)
    assert (lost.op_context, lost.error, lost.len) == ("m", "UNSUPPORTED_SIZE", 101)
    assert not lost.flags & Flag.MULTI_RECV
    entry = one(b)
    assert (entry.len, entry.flags & Flag.MULTI_RECV) == (35, Flag.MULTI_RECV)
    assert memory == bytes([30]) * 30 + bytes([35]) * 35 + bytes(35)


def test_a_short_receive_is_refused_at_the_sender_and_used_up() -> None:
    a, b = pair()
    memory = bytearray(4)
    b.endpoint.recv(memory, context="short")
    b.endpoint.recv(memory)
    a.endpoint.send(b"too long", a.peer, "long")
    entry = error(a)
    assert entry.op_context == "long"
    assert entry.error == "UNSUPPORTED_SIZE"
    entry = error(b)
    assert (entry.op_context, entry.error, entry.len) == ("short", "UNSUPPORTED_SIZE", 8)
    a.endpoint.send(b"fits", a.peer)
    one(a)
    assert memory == b"fits"


def test_only_what_waits_can_be_cancelled() -> None:
    a, b = pair()
    b.endpoint.recv(bytearray(8), context="first")
    a.endpoint.send(b"hello", a.peer, context="sent")
    assert not a.endpoint.cancel("sent")
    one(b)
    assert not b.endpoint.cancel("first")
    b.endpoint.trecv(bytearray(8), tag=1, context="second")
    assert b.endpoint.cancel("second")
    entry = error(b)
    assert (entry.op_context, entry.error, entry.len) == ("second", "CANCELLED", 0)
    assert not b.endpoint.cancel("second")


def test_an_injected_message_is_silent_unless_it_fails() -> None:
    a, b = pair(max_restarts=0)
    a.endpoint.inject(b"hello", a.peer)
    assert error(a).error == "NO_MATCH"
    with pytest.raises(ApiError, match="too many to inject"):
        a.endpoint.inject(bytes(a.domain.config.payload_mtu + 1), a.peer)
    region = b.domain.mr_reg(bytearray(8))
    source = bytearray(b"before")
    a.endpoint.write(source, a.peer, 0, region.key, flags=Flag.INJECT)
    source[:] = b"after!"
    one(a)
    assert bytes(region.memory[:6]) == b"before"


# -- several endpoints ---------------------------------------------------------------------------


def test_every_resource_index_has_its_own_receives() -> None:
    a, b = pair()
    second = b.domain.endpoint(address=Address(resource_index=20))
    b.endpoint.recv(bytearray(8), context="first's")
    second.recv(bytearray(8), context="second's")
    to_second = a.av.insert(second.getname())
    a.endpoint.send(b"hello", to_second)
    assert error(a).error == "DISABLED"
    second.bind(b.av)
    second.bind(b.cq, Flag.TRANSMIT | Flag.RECV)
    second.enable()
    a.endpoint.send(b"hello", to_second)
    assert one(b).op_context == "second's"
    with pytest.raises(ApiError, match="open already"):
        b.domain.endpoint(address=Address(resource_index=20))
    one(a)
    second.close()
    a.endpoint.send(b"hello", to_second)
    assert error(a).error == "DISABLED"
    with pytest.raises(ApiError, match="closed"):
        second.recv(bytearray(8))


@pytest.mark.conformance("C-077")
@pytest.mark.parametrize(
    ("place", "name"),
    [
        ({"job_id": 2}, "BAD_JOB_ID"),
        ({"resource_index": 16}, "UNDELIVERABLE"),
        ({"pid_on_fep": 1}, "UNDELIVERABLE"),
        ({"relative": False}, "UNDELIVERABLE"),
    ],
)
def test_a_message_for_nobody_comes_back(place: dict[str, Any], name: str) -> None:
    a, b = pair()
    memory = bytearray(8)
    b.endpoint.recv(memory)
    a.endpoint.send(b"hello", a.av.insert(ProviderAddress(address="10.0.0.2", **place)))
    assert error(a).error == name
    assert not any(memory)


def test_a_closed_endpoint_can_be_opened_again() -> None:
    a, b = pair()
    b.endpoint.close()
    again = b.domain.endpoint()
    again.bind(b.av)
    again.bind(b.cq, Flag.TRANSMIT | Flag.RECV)
    again.enable()
    again.recv(bytearray(8), context="again")
    a.endpoint.send(b"hello", a.peer)
    assert one(b).op_context == "again"


def test_closing_an_endpoint_cancels_its_receives() -> None:
    _, b = pair()
    b.endpoint.recv(bytearray(8), context=1)
    b.endpoint.close()
    assert (error(b).op_context, len(b.cq)) == (1, 0)


# -- time ----------------------------------------------------------------------------------------


def test_waiting_ends_when_its_time_is_over() -> None:
    wire = Loopback()
    a, _ = pair(wire=wire)
    assert a.cq.wait(5_000) == []
    assert wire.now == 5_000
    assert a.cq.read() == []


def test_a_signal_ends_one_wait() -> None:
    a, b = pair()
    a.cq.signal()
    region = b.domain.mr_reg(bytearray(8))
    a.endpoint.write(b"hello", a.peer, 0, region.key)
    assert a.cq.wait() == []
    assert one(a).len == 5


def test_polling_makes_time_go_on() -> None:
    a, b = pair()
    region = b.domain.mr_reg(bytearray(8))
    a.endpoint.write(b"hello", a.peer, 0, region.key)
    for _ in range(10):
        if entries := a.cq.read():
            break
    assert len(entries) == 1


def test_good_entries_before_an_error_are_read_first() -> None:
    a, b = pair()
    region = b.domain.mr_reg(bytearray(8))
    a.endpoint.write(b"good", a.peer, 0, region.key, 1)
    a.endpoint.write(b"bad", a.peer, 0, 99, 2)
    a.endpoint.write(b"good", a.peer, 0, region.key, 3)
    assert a.domain.driver.progress(None)
    while len(a.cq) < 3:
        assert a.domain.driver.progress(None)
    assert [entry.op_context for entry in a.cq.read()] == [1]
    assert error(a).op_context == 2
    assert [entry.op_context for entry in a.cq.read()] == [3]
    assert a.cq.readerr() is None


def test_a_counter_counts_failures_apart_and_ends_its_wait_by_one() -> None:
    a, b = pair()
    counter, at_peer = a.domain.cntr_open(), b.domain.cntr_open()
    a.endpoint.bind(counter, Flag.WRITE)
    b.endpoint.bind(at_peer, Flag.RECV | Flag.REMOTE_WRITE)
    a.endpoint.write(b"bad", a.peer, 0, 99)
    assert not counter.wait(1)
    assert (counter.read(), counter.readerr()) == (0, 1)
    b.endpoint.recv(bytearray(8))
    a.endpoint.send(b"not a write", a.peer)
    a.endpoint.writedata(b"data", 1, a.peer, 0, key_of(b))
    assert counter.wait(1)
    assert at_peer.wait(1)
    assert counter.read() == 1


def test_a_domain_closes_in_good_order() -> None:
    a, b = pair()
    memory = bytearray(100_000)
    with a.domain:
        a.endpoint.write(bytes([7]) * 100_000, a.peer, 0, b.domain.mr_reg(memory).key)
    assert memory == bytes([7]) * 100_000
    assert a.domain.fep.closed
    with pytest.raises(ValueError, match="closing"):
        a.endpoint.send(b"", a.peer)


def test_a_wire_has_each_address_once() -> None:
    wire = Loopback()
    pair(wire=wire)
    with pytest.raises(ApiError, match="there already"):
        pair(wire=wire)
    with pytest.raises(ApiError, match="negative"):
        Loopback(delay=-1)
