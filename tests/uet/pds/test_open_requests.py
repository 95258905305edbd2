"""Records of what is sent and not answered: they are shared, and so are changed in place."""

import pytest

from tests.harness.uet.open_requests import PEER_RANGE, SIZE, opened, sent
from uet.pds.open_requests import FIRST_SLOTS, RING, OpenRequests
from uet.pds.window import MASK
from uet.wire.codes import ControlType

STARTS = [1, 5_000, MASK - 2]


def shared(requests: OpenRequests) -> list[int]:
    """Return what others may have bound."""
    names = ("window", "timer", "retransmit", "controls", "message", "index", "size", "ev")
    return [id(getattr(requests, name)) for name in (*names, "copies", "nacks")]


def test_rings_are_made_once() -> None:
    requests = opened(1)
    psns = sent(requests, 2)
    before = shared(requests)
    requests.make_rings()
    assert shared(requests) == before
    assert [requests.size[psn & requests.slot_mask] for psn in psns] == [SIZE, SIZE]
    assert len(requests.size) == len(requests.message) == FIRST_SLOTS


@pytest.mark.parametrize("start", [*STARTS, 9, RING - 3])
def test_rings_grow_with_the_requests_in_flight(start: int) -> None:
    requests = opened(start)
    before = shared(requests)
    psns = sent(requests, FIRST_SLOTS)
    assert len(requests.size) == FIRST_SLOTS
    for ring in (requests.nacks, requests.timer.timeouts, requests.timer.sent_at):
        for psn in psns:
            ring[psn & requests.slot_mask] = psn
    psns += sent(requests, RING - FIRST_SLOTS, now=7)
    assert shared(requests) == before
    assert len(requests.size) == len(requests.timer.sent_at) == RING == requests.slot_mask + 1
    mask = requests.slot_mask
    early = psns[:FIRST_SLOTS]
    for ring in (requests.nacks, requests.timer.timeouts, requests.timer.sent_at):
        assert [ring[psn & mask] for psn in early] == early
    assert [requests.index[psn & mask] for psn in early] == list(range(FIRST_SLOTS))
    assert requests.size == [SIZE] * RING
    late = psns[FIRST_SLOTS:]
    assert {requests.timer.sent_at[psn & mask] for psn in late} == {7}
    requests.discard_all()
    assert requests.flow.unsettled == 0


def test_a_grown_ring_has_each_size_once() -> None:
    requests = opened(MASK - 3)
    psns = sent(requests, FIRST_SLOTS)
    requests.lose(psns[4], 1)
    requests.grow()
    assert sum(requests.size) == requests.flow.unsettled == (FIRST_SLOTS - 1) * SIZE


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("shift", [1, 700, RING, RING + 3, 1 << 31])
def test_records_move_with_the_first_psn(start: int, shift: int) -> None:
    requests = opened(start)
    psns = sent(requests, 5, now=10)
    noop = psns[2]
    requests.controls[noop] = ControlType.NOOP
    requests.retransmit.add(psns[1], 20, 20)
    requests.nacks[psns[3] & requests.slot_mask] = 4
    before = shared(requests)
    fresh = (start + shift) & MASK
    requests.renumber(fresh)
    assert shared(requests) == before
    moved = [(psn + shift) & MASK for psn in psns]
    assert [requests.index[psn & requests.slot_mask] for psn in moved] == [0, 1, 2, 3, 4]
    assert [requests.size[psn & requests.slot_mask] for psn in moved] == [SIZE] * 5
    assert [requests.nacks[psn & requests.slot_mask] for psn in moved] == [0, 0, 0, 4, 0]
    assert sum(requests.size) == 5 * SIZE
    assert requests.controls == {(noop + shift) & MASK: ControlType.NOOP}
    assert not requests.retransmit
    assert (requests.window.base, requests.window.outstanding) == (fresh, 5)
    assert requests.max_cack == requests.clear_sent == (fresh - 1) & MASK
    requests.retransmit.add(moved[1], 30, 30)
    assert requests.retransmit.head(30) == moved[1]


def test_nothing_is_left_of_what_is_forgotten() -> None:
    requests = opened(1)
    psns = sent(requests, 5)
    requests.controls[psns[2]] = ControlType.NOOP
    before = shared(requests)
    requests.forget()
    assert shared(requests) == before
    assert not any(requests.size)
    assert requests.controls == {}
    assert not any(requests.window.is_open(psn) for psn in psns)
    assert requests.window.outstanding == 0


def test_what_is_discarded_or_lost_is_not_in_flight() -> None:
    requests = opened(1)
    psns = sent(requests, 5)
    flow = requests.flow
    requests.discard(psns[0])
    requests.discard(psns[0])
    requests.lose(psns[1], 10)
    requests.lose(psns[1], 10)
    assert (flow.unsettled, flow.inflight) == (3 * SIZE, 3 * SIZE)
    requests.discard_all()
    assert (flow.unsettled, flow.inflight) == (0, 0)
    assert all(requests.window.is_open(psn) for psn in psns)


@pytest.mark.parametrize("start", STARTS)
def test_the_range_of_the_peer_is_counted_from_its_cack(start: int) -> None:
    requests = opened(start)
    cack = (start - 1) & MASK
    assert not requests.is_beyond_range((cack + PEER_RANGE) & MASK)
    assert requests.is_beyond_range((cack + PEER_RANGE + 1) & MASK)
    requests.max_cack = (cack + 1) & MASK
    assert not requests.is_beyond_range((cack + PEER_RANGE + 1) & MASK)


@pytest.mark.parametrize("start", STARTS)
def test_an_answer_is_awaited_until_cack_covers_it(start: int) -> None:
    requests = opened(start)
    assert not requests.awaits_answer
    first, second = sent(requests, 2)
    requests.asked = second
    assert requests.awaits_answer
    requests.max_cack = first
    assert requests.awaits_answer
    requests.max_cack = second
    assert not requests.awaits_answer


def test_a_packet_sent_again_or_reported_was_not_sent_once() -> None:
    requests = opened(1)
    first, second, third = sent(requests, 3)
    requests.copies[second & requests.slot_mask] = 2
    requests.window.sacked(third, 1)
    assert [requests.was_sent_once(psn) for psn in (first, second, third)] == [True, False, False]
