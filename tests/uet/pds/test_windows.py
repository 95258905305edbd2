"""PSN windows: what may be outstanding, what is accepted, and the wrap at 2^32 (UES 3.5.11)."""

import itertools
import random

import pytest

from tests.harness.uet.script import MS, MTU, START, Script, Seen, ack, refusal, rud, write
from uet.wire.codes import NackCode

MASK = 0xFFFF_FFFF

# -- the destination -----------------------------------------------------------------------------


@pytest.mark.conformance("C-012")
@pytest.mark.parametrize("mpr", [1, 8])
def test_requests_outside_the_window(mpr: int) -> None:
    """One PSN further than the range either way is refused, and not delivered."""
    script = Script(mpr=mpr)
    own = script.establish_target()
    size = 128 * mpr
    for psn in (START + 1 + size, START - size, START + 1 + 2**31, START - 2**31):
        (nack,) = script.give(rud(psn, dpdcid=own, ar=1) / write(b"x"))
        assert nack.nack is NackCode.PSN_OOR_WINDOW
        assert nack.nack_psn == psn & MASK
        assert script.memory[0] == 0
    (answer,) = script.give(rud(START + size, dpdcid=own, ar=1) / write(b"y", message_id=2))
    assert (answer.ack_psn, answer.cack_psn) == (START + size, START)
    assert script.memory[0] == ord("y")
    (answer,) = script.give(rud(START + 1 - size, dpdcid=own, retx=1) / write(b"z", message_id=3))
    assert answer.is_ack  # an old one of which all is known
    assert script.memory[0] == ord("y")


@pytest.mark.conformance("C-024")
def test_cack_stops_before_a_gap() -> None:
    """In whatever order packets come, CACK is the last before the first that is missing."""
    rng = random.Random(5)
    script = Script()
    own = script.establish_target()
    order = list(range(1, 101))
    rng.shuffle(order)
    arrived = {0}
    for k in order:
        packet = rud(START + k, dpdcid=own, ar=1) / write(b"a", message_id=k)
        (answer,) = script.give(packet)
        arrived.add(k)
        gap = next(n for n in range(102) if n not in arrived)
        assert answer.cack_psn == START + gap - 1
        assert answer.ooo_count == sum(1 for n in arrived if n > gap)


@pytest.mark.conformance("C-020")
def test_destination_across_the_wrap() -> None:
    """PSNs from 0xFFFFFFF0 on, some of them out of order, one of them twice."""
    start = 0xFFFF_FFF0
    script = Script()
    order = list(range(64))
    random.Random(1).shuffle(order)
    own = 0
    for k in order:
        fields = {"dpdcid": own} if own else {"syn": k}
        packet = rud(start + k, clear=start - 1, ar=1, **fields) / write(
            bytes([k + 1]) * 16, at=16 * k, total=64 * 16
        )
        packet.clear_psn_offset = -1 - k
        (answer,) = script.give(packet)
        assert answer.ack_psn == (start + k) & MASK
        own = answer.spdcid
        packet.retx = 1
        (again,) = script.give(packet)
        assert again.ack_psn == (start + k) & MASK
    assert answer.cack_psn == (start + 63) & MASK
    assert script.memory[: 64 * 16] == b"".join(bytes([k + 1]) * 16 for k in range(64))
    assert script.counters["rx_messages"] == 1
    assert script.counters["rx_duplicates"] == 64


# -- the source ----------------------------------------------------------------------------------


def source_at(start: int, script: Script) -> None:
    """Make the next PDC begin at ``start``."""
    script.fep.secure.next_start = lambda peer_key, sdi: start  # type: ignore[method-assign]


@pytest.mark.conformance("C-020", "C-021")
def test_source_across_the_wrap() -> None:
    """64 packets from 0xFFFFFFF0 on, with losses, acknowledged singly and in any order."""
    start = 0xFFFF_FFF0
    script = Script(ack_gen_trigger=16_384)
    source_at(start, script)
    script.post(bytes(64 * MTU), context="all")
    packets = script.take()
    assert [p.psn for p in packets] == [(start + k) & MASK for k in range(64)]
    assert {p.clear_psn for p in packets} == {(start - 1) & MASK}
    rng = random.Random(2)
    lost = set(rng.sample(range(64), 20))
    arrived = [p for k, p in enumerate(packets) if k not in lost]
    rng.shuffle(arrived)
    for p in arrived:
        script.give(ack(p, cack=start - 1))
    again = script.wait(MS)
    assert [p.psn for p in again] == [(start + k) & MASK for k in sorted(lost)]
    assert {p.clear_psn for p in again} == {(start + min(lost) - 1) & MASK}
    script.give(ack(again[3], cack=start + 63))
    assert [(c.context, c.error) for c in script.completions] == [("all", None)]
    assert script.next_psn == (start + 64) & MASK


@pytest.mark.conformance("C-021", "C-065")
def test_every_request_says_what_is_answered() -> None:
    """CLEAR_PSN is the lowest PSN without a response, minus one; never falls nor leads."""
    rng = random.Random(3)
    script = Script(window_bytes=20_000)
    script.establish_initiator()
    script.post(bytes(300 * MTU))
    first = script.next_psn
    answered = {first - 1}
    waiting: list[Seen] = []
    newest_clear = first - 1
    for _ in range(400):
        for request in script.take():
            lowest = next(n for n in range(first, first + 400) if n not in answered)
            assert request.clear_psn == lowest - 1
            assert request.clear_psn >= newest_clear
            assert request.clear_psn_offset < 0
            newest_clear = request.clear_psn
            waiting.append(request)
        if not waiting:
            break
        request = waiting.pop(rng.randrange(len(waiting)))
        answered.add(request.psn)
        if rng.random() < 0.5:
            cack = next(n for n in range(first, first + 400) if n not in answered) - 1
        else:
            cack = first - 1
        waiting += script.give(ack(request, cack=cack))
    assert [c.error for c in script.completions] == [None]


@pytest.mark.conformance("C-041")
@pytest.mark.parametrize("mpr", [1, 2, 8])
def test_no_more_outstanding_than_the_peer_tracks(mpr: int) -> None:
    """Default_MPR before the first ACK, then what the peer says: max CACK + 128 * mpr."""
    script = Script(window_bytes=10**9, mpr=8)
    script.post(bytes(4000 * MTU))
    packets = script.take()
    assert len(packets) == 1024
    assert packets[-1].ar == 1  # or the peer might never answer
    first = packets[0].psn
    more = script.give(ack(packets[9], mpr=mpr))
    assert len(more) == (10 if mpr == 8 else 0)
    sent = 1024 + len(more)
    for k in range(10, 1500, 7):
        if k < sent:
            more = script.give(ack(psn=first + k, dpdcid=packets[0].spdcid, mpr=mpr))
            sent += len(more)
            assert sent - 1 <= max(1023, k + 128 * mpr)
            if more:
                assert sent - 1 == k + 128 * mpr


@pytest.mark.conformance("C-042", "C-127")
def test_mpr_of_an_older_ack_is_ignored() -> None:
    script = Script(window_bytes=10**9)
    script.post(bytes(4000 * MTU))
    packets = script.take()
    script.give(ack(packets[100], mpr=4))
    assert script.pdc.source.requests.peer_range == 512
    script.give(ack(packets[50], mpr=8))
    assert script.pdc.source.requests.peer_range == 512
    script.give(ack(packets[101], mpr=0))  # says nothing
    assert script.pdc.source.requests.peer_range == 512
    script.give(ack(packets[102], mpr=255))  # more than this implementation remembers
    assert script.pdc.source.requests.peer_range == 1024


@pytest.mark.conformance("C-042")
def test_a_reduced_range_holds_back_retransmissions() -> None:
    """What lies beyond is sent again only when CACK has come closer, whatever was lost first."""
    script = Script(window_bytes=10**9)
    script.post(bytes(600 * MTU))
    packets = script.take()
    base = packets[0].psn
    script.give(ack(packets[0], mpr=1))
    # The network reports the loss of a far packet before that of a near one.
    script.give(refusal(packets[500], code=NackCode.TRIMMED))
    near = script.give(refusal(packets[3], code=NackCode.TRIMMED))
    assert [p.psn for p in near] == [base + 3]
    again = script.wait(MS)
    assert {p.psn for p in again} <= set(range(base + 1, base + 129))
    script.give(ack(packets[400], mpr=1, retx=1))
    later = script.wait(4 * MS)
    assert base + 500 in {p.psn for p in later}
    assert {p.psn for p in later} == set(range(base + 401, base + 529))


@pytest.mark.conformance("C-041")
def test_an_older_cack_does_not_take_room_back() -> None:
    script = Script(window_bytes=10**9)
    script.post(bytes(4000 * MTU))
    packets = script.take()
    packets += script.give(ack(packets[100]))
    assert len(packets) == 1125
    script.give(ack(packets[50]))
    (again,) = script.give(refusal(packets[-1], code=NackCode.TRIMMED))
    assert (again.psn, again.retx) == (packets[-1].psn, 1)
    assert len(script.give(ack(packets[101]))) == 1


def test_a_full_window_is_not_an_error() -> None:
    """The message waits for room and goes on."""
    script = Script(window_bytes=2_000)
    script.post(bytes(10 * MTU))
    sent = script.take()
    assert len(sent) == 2
    while len(sent) < 10:
        sent += script.give(ack(sent[-1]))
    script.give(ack(sent[-1]))
    assert [c.error for c in script.completions] == [None]
    assert script.pdc.peer.congestion.inflight == 0


@pytest.mark.conformance("C-041")
def test_a_stream_at_the_end_of_the_range_does_not_ask_with_every_packet() -> None:
    """An ACK that is still to come moves the range on; without one the next request asks."""
    script = Script(window_bytes=10**9, mpr=1)
    script.post(bytes(2_000 * MTU))
    sent = script.take()
    asked = [p.psn for p in sent if p.ar]
    assert (len(sent), asked) == (128, [sent[-1].psn])
    first = sent[0].psn
    # The peer acknowledges every fourth packet by itself, and at once what asks for it.
    unacknowledged = 4
    answers = 0
    while (covered := first + unacknowledged) <= first + 1_000:
        more = script.give(ack(psn=covered, dpdcid=sent[0].spdcid, mpr=1))
        answers += 1
        sent += more
        unacknowledged += 4
    asked = [p.psn for p in sent if p.ar]
    assert len(sent) > 1_000
    assert len(asked) <= len(sent) // 64
    assert sent[-1].psn - first - unacknowledged <= 128
    # However few there are, one is always under way that asks.
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert max(gaps) <= 256
