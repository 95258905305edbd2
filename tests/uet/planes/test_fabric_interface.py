"""A fabric interface: planes share the work, take over from each other, and do nothing twice."""

import random
from collections import Counter

import pytest

from tests.harness.uet.network import Impairment
from tests.harness.uet.planes import KEY, MTU, REGION, US, Planes, plane_of, route
from uet.planes import numbered_writes
from uet.ses.initiator.initiator import MessageError
from uet.ses.memory.registered_memory import MemoryRegionError
from uet.transport import (
    AtomicRequest,
    Completion,
    ReadRequest,
    ReceiveRequest,
    SendRequest,
    WriteRequest,
)
from uet.wire.codes import AtomicOpcode, Datatype

A, B = 1, 2
TO_B = route(B)[0]
STRIPED = 40 * MTU + 17


def write(planes: Planes, offset: int, payload: bytes, *, tag: int, to: int = B) -> None:
    planes.interfaces[0].post(
        WriteRequest(
            peer=route(to, planes.planes)[0],
            key=KEY,
            offset=offset,
            payload=memoryview(payload),
            header_data=tag,
            context=tag,
        )
    )


def reports(planes: Planes, nic: int = B) -> Counter[tuple[int | None, int | None, int]]:
    """The writes that ``nic`` was told of: header data, offset, length."""
    found = (each for each in planes.completions(nic) if each.kind == "remote_write")
    return Counter((each.header_data, each.offset, each.length) for each in found)


def ended(planes: Planes, nic: int = A) -> Counter[tuple[object, str | None]]:
    found = (each for each in planes.completions(nic) if each.kind in ("write", "read"))
    return Counter((each.context, each.error) for each in found)


@pytest.mark.parametrize("count", [2, 4])
def test_a_long_write_is_striped_over_all_planes_and_reported_once(count: int) -> None:
    planes = Planes(planes=count)
    payload = planes.octets(STRIPED)
    write(planes, 5, payload, tag=0xFEED_0000_0000_0001)
    assert planes.run(lambda: bool(ended(planes)) and bool(reports(planes)))
    assert planes.memories[1][5 : 5 + STRIPED] == payload
    assert reports(planes) == {(0xFEED_0000_0000_0001, 5, STRIPED): 1}
    (completion,) = planes.completions(A)
    assert (completion.peer, completion.length, completion.error) == (
        route(B, count)[0],
        STRIPED,
        None,
    )
    (reported,) = planes.completions(B)
    assert (reported.peer, reported.key) == (route(A, count)[0], KEY)
    sent = [dict(counts)["tx_data_packets"] for _, counts in planes.interfaces[0].per_fep()]
    assert sum(sent) == -(-STRIPED // MTU)  # no packet more than a whole message has
    assert max(sent) - min(sent) <= 1
    assert planes.interfaces[0].counters()["tx_messages_striped"] == 1


def test_short_writes_take_the_planes_in_turn() -> None:
    planes = Planes()
    for tag in range(10):
        write(planes, tag * 8, bytes([tag] * 8), tag=tag)
    assert planes.run(lambda: len(ended(planes)) == 10 and len(reports(planes)) == 10)
    sent = [dict(counts)["tx_data_packets"] for _, counts in planes.interfaces[0].per_fep()]
    assert sent == [5, 5]
    assert planes.interfaces[0].counters()["tx_messages_striped"] == 0


def test_a_long_read_is_striped() -> None:
    planes = Planes()
    planes.memories[1][:STRIPED] = requested = planes.octets(STRIPED)
    into = bytearray(STRIPED)
    planes.interfaces[0].post(
        ReadRequest(peer=TO_B, key=KEY, offset=0, memory=memoryview(into), context="read")
    )
    assert planes.run(lambda: bool(ended(planes)))
    assert ended(planes) == {("read", None): 1}
    assert into == requested
    assert min(planes.carried) > 20


@pytest.mark.conformance("C-230")
def test_a_fep_talks_to_the_fep_in_its_own_plane_only() -> None:
    planes = Planes(nics=3)
    seen: set[tuple[bytes, bytes]] = set()
    keep = planes.network.tap
    assert keep is not None

    def tap(frame: bytes, now: int) -> object:
        seen.add((frame[26:30], frame[30:34]))
        return keep(frame, now)

    planes.network.tap = tap  # type: ignore[assignment]
    for to in (2, 3):
        write(planes, 0, planes.octets(STRIPED), tag=to, to=to)
    assert planes.run(lambda: len(ended(planes)) == 2)
    assert len(seen) == 8
    assert all(source[1] == target[1] for source, target in seen)
    feps = [plane.fep for plane in planes.interfaces[0].planes]
    assert len({fep.config.address for fep in feps}) == 2
    for fep in feps:
        assert {pdc.address for pdc in fep.table.by_id.values()} == set(fep.config.neighbours)
        assert len(fep.table) == 2
    ways = [{id(peer.congestion) for peer in fep.peers.values()} for fep in feps]
    assert not ways[0] & ways[1]


@pytest.mark.parametrize("dead", [0, 1])
def test_a_black_hole_loses_nothing_and_reports_nothing_twice(dead: int) -> None:
    planes = Planes()
    payloads = [planes.octets(STRIPED if tag % 3 else 300) for tag in range(12)]
    for tag, payload in enumerate(payloads):
        write(planes, tag * STRIPED, payload, tag=tag)
    assert planes.run(lambda: planes.network.now >= 3 * US)  # some of it is there
    planes.dead.add(dead)
    assert planes.run(lambda: len(ended(planes)) == 12)
    assert ended(planes) == {(tag, None): 1 for tag in range(12)}
    assert reports(planes) == {(t, t * STRIPED, len(p)): 1 for t, p in enumerate(payloads)}
    for tag, payload in enumerate(payloads):
        assert planes.memories[1][tag * STRIPED : tag * STRIPED + len(payload)] == payload
    counters = planes.interfaces[0].counters()
    assert counters["planes_silent"] == 1
    assert counters["tx_messages_issued_again"] > 0


def test_a_write_whose_acknowledgement_was_lost_is_reported_once() -> None:
    planes = Planes()
    planes.swallows = lambda frame: plane_of(frame) == 0 and frame[33] == A  # answers of plane 1
    for tag in range(4):
        write(planes, 0, bytes([tag] * 64), tag=5)  # a doorbell: all alike, and each counts
    assert planes.run(lambda: sum(ended(planes).values()) == 4)
    assert reports(planes) == {(5, 0, 64): 4}
    assert planes.interfaces[1].counters()["rx_writes_repeated"] == 2


@pytest.mark.parametrize("length", [64, STRIPED])
def test_a_write_that_was_reported_is_not_placed_again(length: int) -> None:
    """Target and source may use the memory for something else by then, as in a ring AllReduce."""
    planes = Planes()
    planes.swallows = lambda frame: plane_of(frame) == 0 and frame[33] == A  # answers of plane 1
    payloads = [bytearray(planes.octets(length)) for _ in range(2)]  # one by each plane, if whole
    for tag, payload in enumerate(payloads):
        planes.interfaces[0].post(
            WriteRequest(
                peer=TO_B,
                key=KEY,
                offset=tag * length,
                payload=memoryview(payload),
                header_data=tag,
                context=tag,
            )
        )
    assert planes.run(lambda: len(reports(planes)) == 2)
    assert len(ended(planes)) < 2
    for payload in payloads:
        payload[:] = b"\xee" * length  # as another write from B might do
    planes.memories[1][: 2 * length] = b"\x11" * 2 * length
    assert planes.run(lambda: len(ended(planes)) == 2)
    assert planes.memories[1][: 2 * length] == b"\x11" * 2 * length
    assert len(planes.completions(B)) == 2


def test_what_comes_late_by_a_plane_that_was_given_up_is_not_placed() -> None:
    planes = Planes()
    held: list[bytes] = []

    def swallows(frame: bytes) -> bool:
        late = plane_of(frame) == 0 and frame[33] == B and planes.carried[0] > 3
        if late:
            held.append(frame)
        return late

    planes.swallows = swallows
    payload = planes.octets(STRIPED)
    write(planes, 0, payload, tag=1)
    assert planes.run(lambda: bool(ended(planes)) and bool(reports(planes)))
    assert planes.memories[1][:STRIPED] == payload
    planes.memories[1][:STRIPED] = b"\x11" * STRIPED
    planes.swallows = lambda frame: False
    assert held
    for frame in held:
        planes.interfaces[1].planes[0].receive([memoryview(frame)], planes.network.now)
    assert planes.memories[1][:STRIPED] == b"\x11" * STRIPED
    assert reports(planes) == {(1, 0, STRIPED): 1}


def test_work_leaves_a_port_without_carrier_at_once_and_comes_back() -> None:
    planes = Planes()
    sender = planes.interfaces[0]
    write(planes, 0, planes.octets(400 * MTU), tag=1)
    assert planes.run(lambda: planes.network.now >= 2 * US)
    planes.dead.add(0)
    sender.use_ports([1])
    assert planes.run(lambda: ended(planes) == {(1, None): 1})
    assert planes.network.now < 100 * US  # no time-out was waited for
    before = planes.carried[0]
    for tag in range(2, 8):
        write(planes, 0, b"x" * 100, tag=tag)
    assert planes.run(lambda: len(ended(planes)) == 7)
    assert planes.carried[0] == before
    planes.dead.clear()
    sender.use_ports([0, 1])
    assert planes.run(lambda: sender.counters()["planes_up"] == 1)
    for tag in range(8, 14):
        write(planes, 0, b"x" * 100, tag=tag)
    assert planes.run(lambda: len(ended(planes)) == 13)
    assert planes.carried[0] > before
    counters = sender.counters()
    assert (counters["planes_down"], counters["planes_up"]) == (1, 1)
    assert all(count == 1 for count in reports(planes).values())


def test_a_silent_plane_is_used_again_once_it_answers() -> None:
    planes = Planes(nics=3)
    sender = planes.interfaces[0]
    planes.swallows = lambda frame: plane_of(frame) == 0 and B in (frame[29], frame[33])
    write(planes, 0, planes.octets(STRIPED), tag=1)
    assert planes.run(lambda: len(ended(planes)) == 1)
    # It is dead towards that peer only.
    before = sender.counters()["tx_messages_striped"]
    write(planes, 0, planes.octets(STRIPED), tag=2, to=3)
    assert sender.counters()["tx_messages_striped"] == before + 1
    write(planes, 0, planes.octets(STRIPED), tag=3)
    assert sender.counters()["tx_messages_striped"] == before + 1
    planes.swallows = lambda frame: False
    assert planes.run(lambda: sender.counters()["planes_found"] == 1)
    write(planes, 0, planes.octets(STRIPED), tag=4)
    assert sender.counters()["tx_messages_striped"] == before + 2
    assert planes.run(lambda: len(ended(planes)) == 4)


def test_a_plane_does_what_is_due_where_the_first_one_is_not_called() -> None:
    """The line of the first plane may be busy just then."""
    planes = Planes()
    sender = planes.interfaces[0]
    planes.swallows = lambda frame: True
    write(planes, 0, planes.octets(STRIPED), tag=1)
    for plane in sender.planes:
        plane.transmit(0, 64)
    other = sender.planes[1]
    due = sender.due
    assert due is not None
    assert other.next_deadline() == due
    other.transmit(due, 1)
    later = other.next_deadline()
    assert later is not None
    assert later > due


def test_with_all_planes_dead_a_write_ends_in_an_error_once() -> None:
    planes = Planes()
    planes.dead = {0, 1}
    write(planes, 0, planes.octets(STRIPED), tag=1)
    assert planes.run(lambda: bool(ended(planes)))
    assert ended(planes) == {(1, "RTO_RETRIES_EXHAUSTED"): 1}
    assert not reports(planes)


def test_a_refusal_is_final_and_told_once() -> None:
    planes = Planes()
    write(planes, REGION - 10, planes.octets(STRIPED), tag=1)
    assert planes.run(lambda: bool(ended(planes)))
    ((context, error),) = ended(planes)
    assert context == 1
    assert error is not None
    assert planes.interfaces[0].counters()["tx_messages_issued_again"] == 0


def test_a_receive_takes_one_message_by_whichever_plane_it_comes() -> None:
    planes = Planes(unexpected="keep")
    receiver = planes.interfaces[1]
    memories = [bytearray(64) for _ in range(6)]
    for place in range(3):  # three before the messages, three behind
        receiver.post_receive(ReceiveRequest(memory=memoryview(memories[place]), context=place))
    for number in range(6):
        planes.interfaces[0].post(
            SendRequest(peer=TO_B, payload=memoryview(bytes([number] * 64)), context=number)
        )

    def sends() -> list[Completion]:
        return [c for c in planes.completions(A) if c.kind == "send"]

    assert planes.run(lambda: len(sends()) >= 3)
    for place in range(3, 6):
        receiver.post_receive(ReceiveRequest(memory=memoryview(memories[place]), context=place))
    assert planes.run(lambda: len(planes.completions(B)) == 6 and len(sends()) == 6)
    assert sorted(memory[0] for memory in memories) == list(range(6))
    assert sorted(str(c.context) for c in planes.completions(B)) == list("012345")
    assert {c.error for c in planes.completions(B)} == {None}
    assert {c.peer for c in planes.completions(B)} == {route(A)[0]}
    assert min(planes.carried) > 2


def test_a_tagged_receive_from_one_peer_waits_for_that_one() -> None:
    planes = Planes(nics=3)
    memory = bytearray(16)
    planes.interfaces[1].post_receive(
        ReceiveRequest(memory=memoryview(memory), tag=9, peer=route(3)[0], context="mine")
    )
    for nic in (0, 2):
        planes.interfaces[nic].post(
            SendRequest(peer=TO_B, payload=memoryview(bytes([nic] * 16)), tag=9, context=nic)
        )
    assert planes.run(lambda: bool(planes.completions(B)))
    assert memory == bytes([2] * 16)


def test_what_may_not_be_done_twice_ends_with_the_planes_error() -> None:
    planes = Planes()
    sender = planes.interfaces[0]
    planes.swallows = lambda frame: frame[33] == A  # nothing is answered
    for number in range(4):
        sender.post(
            AtomicRequest(
                peer=TO_B,
                key=KEY,
                offset=0,
                operation=int(AtomicOpcode.SUM),
                datatype=int(Datatype.UINT64),
                operand=(1).to_bytes(8, "little"),
                context=number,
            )
        )
    assert planes.run(lambda: len(planes.completions(A)) == 4)
    assert {c.error for c in planes.completions(A)} == {"RTO_RETRIES_EXHAUSTED"}
    assert int.from_bytes(planes.memories[1][:8], "little") == 4  # each was done once


def test_ordered_writes_stay_in_order_when_their_plane_dies() -> None:
    planes = Planes(delivery="rod")
    order: list[int] = []
    for tag in range(40):
        write(planes, 0, bytes([tag] * 700), tag=tag)
    assert planes.run(lambda: len(reports(planes)) >= 5)
    first = 0 if planes.carried[0] else 1
    assert not planes.carried[1 - first]
    planes.dead.add(first)
    planes.interfaces[0].use_ports([1 - first])
    for tag in range(40, 50):
        write(planes, 0, bytes([tag] * 700), tag=tag)
    assert planes.run(lambda: len(ended(planes)) == 50)
    order = [c.header_data or 0 for c in planes.completions(B) if c.kind == "remote_write"]
    assert order == list(range(50))
    assert planes.memories[1][:700] == bytes([49] * 700)


def test_more_writes_than_have_numbers_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_writes, "WINDOW", 16)
    planes = Planes()
    count = 200
    for tag in range(count):
        write(planes, 8 * tag, tag.to_bytes(8, "big"), tag=tag)
    assert planes.run(lambda: len(ended(planes)) == count)
    assert reports(planes) == {(tag, 8 * tag, 8): 1 for tag in range(count)}
    assert planes.memories[1][: 8 * count] == b"".join(t.to_bytes(8, "big") for t in range(count))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_wire_does_everything_ends_once_and_with_the_right_octets(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((2, 2, 4))
    planes = Planes(
        planes=count,
        seed=seed,
        impairment=Impairment(loss=0.05, duplicate=0.05, jitter_ns=5 * US),
        tail_loss_time=rng.choice((0, 20 * US)),
    )
    sizes = [rng.choice((0, 8, 700, MTU, 3 * MTU, STRIPED)) for _ in range(20)]
    payloads = [planes.octets(size) for size in sizes]
    sender = planes.interfaces[0]
    for tag, payload in enumerate(payloads):
        write(planes, tag * STRIPED, payload, tag=tag)
        start = planes.network.now
        pause = rng.randrange(20 * US)
        planes.run(lambda: planes.network.now >= start + pause)  # noqa: B023
        what = rng.randrange(6)
        if what == 0:
            planes.dead = {rng.randrange(count)}
        elif what == 1:
            gone = rng.randrange(count)
            planes.dead = {gone}
            sender.use_ports([plane for plane in range(count) if plane != gone])
        elif what == 2:
            planes.dead = set()
            sender.use_ports(range(count))
    planes.dead = set()
    sender.use_ports(range(count))
    assert planes.run(lambda: len(ended(planes)) == len(sizes))
    assert ended(planes) == {(tag, None): 1 for tag in range(len(sizes))}
    assert reports(planes) == {(t, t * STRIPED, size): 1 for t, size in enumerate(sizes)}
    for tag, payload in enumerate(payloads):
        assert planes.memories[1][tag * STRIPED :][: len(payload)] == payload
    for fi in planes.interfaces:
        fi.close()
    assert planes.run(lambda: all(fi.closed for fi in planes.interfaces))


def test_keys_that_numbers_need_are_refused() -> None:
    planes = Planes()
    with pytest.raises(MemoryRegionError, match="bits 24 to 55"):
        planes.interfaces[0].register(memoryview(bytearray(8)), key=1 << 30)
    with pytest.raises(MessageError, match="bits 24 to 55"):
        planes.interfaces[0].post(
            WriteRequest(peer=TO_B, key=1 << 30, offset=0, payload=memoryview(b"x"), header_data=1)
        )
    with pytest.raises(MessageError, match="multi-receives"):
        planes.interfaces[0].post_receive(
            ReceiveRequest(memory=memoryview(bytearray(8)), least_space=1)
        )
    with pytest.raises(MessageError, match="not among"):
        planes.interfaces[0].post(
            WriteRequest(peer="10.9.9.9", key=KEY, offset=0, payload=memoryview(b"x"))
        )


def test_the_whole_face_takes_frames_for_all_planes() -> None:
    planes = Planes()
    one, other = planes.interfaces
    payload = planes.octets(STRIPED)
    write(planes, 0, payload, tag=1)
    done = []
    for _ in range(100):
        frames = [memoryview(bytes(h) + bytes(p)) for h, p in one.transmit(0, 8)]
        other.receive(frames, 0)
        back = [memoryview(bytes(h) + bytes(p)) for h, p in other.transmit(0, 8)]
        one.receive(back, 0)
        done += one.completions()
    assert [each.error for each in done] == [None]
    assert planes.memories[1][:STRIPED] == payload
