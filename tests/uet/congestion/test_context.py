"""Test what PDCs to one peer share, and what each of them has by itself (UES 3.6)."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from uet.congestion.congestion_parameters import NsccParameters, ParameterError, RcccParameters
from uet.congestion.congestion_profile import CongestionProfile, profile
from uet.congestion.context import CongestionContext
from uet.congestion.controls.fixed_window import FixedWindow
from uet.congestion.controls.nscc import Nscc
from uet.congestion.receiver_credit import CreditSource
from uet.congestion.signals import NO_SAMPLE, units
from uet.congestion.spraying.paths import CLEAN, ECN, NACK, TIMEOUT
from uet.congestion.spraying.policies import SPRAYING
from uet.wire.codes import NackCode

MTU = 4_096
US = 1_000
TRIMMED, LASTHOP = int(NackCode.TRIMMED), int(NackCode.TRIMMED_LASTHOP)


class Notes:
    """A path selection that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int, int]] = []
        self.packets: list[int] = []

    def pick(self) -> int:
        return 7

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        self.heard.append((ev, how, now))
        self.packets.append(packets)

    def timed_out(self) -> None:
        """Nothing."""


def made(algorithm: str = "nscc", **changes: Any) -> CongestionProfile:
    """A profile of the reference network."""
    path: dict[str, Any] = {"base_rtt": 12 * US, "link_rate": 100 * 10**9, "mtu": MTU}
    path |= {"spraying": "reps", "trimming": True, "fixed_window": 10 * MTU}
    path |= {"freeze_time": 10_000 * US, "credit_timeout": 100 * US}
    return profile(algorithm, **(path | changes))


def context(*, nscc: bool = True, rccc: bool = False) -> CongestionContext:
    algorithm = {(1, 0): "nscc", (0, 1): "rccc", (1, 1): "both"}[nscc, rccc]
    opened = made(algorithm).open(random.Random(1), 0, ccc_id=5)
    opened.paths = Notes()
    return opened


def nscc_of(ccc: CongestionContext) -> Nscc:
    assert isinstance(ccc.window, Nscc)
    return ccc.window


def credit_of(ccc: CongestionContext) -> CreditSource:
    assert ccc.credit is not None
    return ccc.credit


def test_a_flow_that_ends_takes_with_it_what_it_had() -> None:
    """The flow takes what a peer's counter, in units of 256 octets, has left above or below 0."""
    ccc = context()
    ending, other = ccc.flow(), ccc.flow()
    room = ccc.room()
    ending.on_send(MTU)
    ending.waits(3 * MTU)
    other.on_send(MTU)
    other.waits(MTU)
    ending.on_ack(units(MTU) + 1, MTU, 7, False, NO_SAMPLE, 0)
    assert ending.inflight < 0
    ending.ended()
    assert (ccc.room(), ccc.inflight, ccc.backlog) == (room - MTU, MTU, MTU)


def test_flows_share_one_window() -> None:
    ccc = context()
    one, two = ccc.flow(), ccc.flow()
    room = ccc.room()
    one.on_send(MTU)
    two.on_send(2 * MTU)
    assert ccc.room() == room - 3 * MTU
    one.on_ack(units(MTU), 0, 7, False, NO_SAMPLE, 0)
    assert ccc.room() == room - 2 * MTU
    two.on_nack(MTU, int(NackCode.ROD_OOO), 7, False, 0)
    assert ccc.room() == room - MTU
    two.on_discard(MTU)
    assert (ccc.room(), two.inflight) == (room, 0)
    two.on_send(MTU)
    two.drained()
    assert ccc.room() == room


def test_acks_that_overtake_each_other_count_once() -> None:
    ccc = context()
    flow = ccc.flow()
    flow.on_send(10 * MTU)
    for packets in (3, 1, 2, 3, 5):
        flow.on_ack(units(packets * MTU), 0, 7, False, NO_SAMPLE, 0)
    assert flow.inflight == 5 * MTU


@pytest.mark.parametrize("counter", [None, 0], ids=["plain ACK", "does not count"])
def test_what_an_ack_settles_counts_where_the_peer_does_not(counter: int | None) -> None:
    ccc = context()
    flow = ccc.flow()
    flow.on_send(3 * MTU)
    for left in (2, 1, 0):
        flow.on_ack(counter, MTU, 7, False, NO_SAMPLE, 0)
        assert flow.inflight == left * MTU


def test_a_counter_is_ahead_of_what_is_settled() -> None:
    """The counter reports packets behind a gap; settling them later adds nothing."""
    ccc = context()
    flow = ccc.flow()
    flow.on_send(20 * MTU)
    flow.on_ack(units(5 * MTU), MTU, 7, False, NO_SAMPLE, 0)
    assert flow.inflight == 15 * MTU
    flow.on_ack(None, 4 * MTU, 7, False, NO_SAMPLE, 0)
    assert flow.inflight == 15 * MTU
    flow.on_ack(None, MTU, 7, False, NO_SAMPLE, 0)
    assert flow.inflight == 14 * MTU


def test_a_peer_that_counts_too_little_holds_nothing_up() -> None:
    ccc = context()
    flow = ccc.flow()
    for packets in range(1, 200):
        flow.on_send(MTU)
        flow.on_ack(packets, MTU, 7, False, NO_SAMPLE, 0)
        assert flow.inflight <= 0


@pytest.mark.parametrize("counter", [(1 << 23) - 1, 1_000])
def test_a_peer_that_counts_too_much_gains_little(counter: int) -> None:
    ccc = context()
    flow = ccc.flow()
    flow.on_send(10 * MTU)
    flow.on_ack(counter, 0, 7, False, NO_SAMPLE, 0)
    assert flow.inflight == -255
    flow.drained()
    assert flow.inflight == 0
    assert ccc.window is not None
    assert ccc.window.inflight == 0


def test_a_loss_that_was_none_does_not_count_twice() -> None:
    ccc = context()
    flow = ccc.flow()
    for _ in range(100):
        flow.on_send(MTU)
        flow.on_loss(MTU, 7, 0)  # its ACK was only late
        flow.on_ack(units(MTU), 0, 7, False, NO_SAMPLE, 0)
    assert flow.inflight >= -255


@examples(60)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["send", "ack", "nack", "loss", "drained"])),
        max_size=200,
    )
)
def test_the_window_holds_the_sum_of_its_flows(events: list[tuple[int, str]]) -> None:
    ccc = context()
    flows = [ccc.flow() for _ in range(3)]
    sent = [0, 0, 0]
    for who, what in events:
        flow = flows[who]
        if what == "send":
            flow.on_send(MTU)
            sent[who] += MTU
        elif what == "ack":
            flow.on_ack(units(sent[who]), 0, 7, False, NO_SAMPLE, 0)
        elif what == "nack" and flow.inflight >= MTU:
            flow.on_nack(MTU, TRIMMED, 7, False, 0)
        elif what == "loss" and flow.inflight >= MTU:
            flow.on_loss(MTU, 7, 0)
        elif what == "drained":
            flow.drained()
        assert ccc.window is not None
        assert ccc.window.inflight == sum(f.inflight for f in flows)
        assert all(-255 <= f.inflight <= f.unsettled + 255 for f in flows)


def test_what_paths_hear() -> None:
    ccc = context()
    flow, own = ccc.flow(), Notes()
    ordered = ccc.flow(own)
    flow.on_ack(0, 0, 1, False, NO_SAMPLE, 10)
    flow.on_ack(0, 0, 2, True, NO_SAMPLE, 11)
    flow.on_nack(0, TRIMMED, 3, True, 12)
    flow.on_nack(0, LASTHOP, 4, False, 13)  # not the path's fault
    flow.on_nack(0, LASTHOP, 5, True, 14)
    flow.on_nack(0, int(NackCode.NO_SES_MSG_AVAIL), 6, False, 15)
    flow.on_loss(0, 7, 16)
    ordered.on_ack(0, 0, 8, False, NO_SAMPLE, 17)
    assert isinstance(ccc.paths, Notes)
    assert ccc.paths.heard == [
        (1, CLEAN, 10),
        (2, ECN, 11),
        (3, NACK, 12),
        (4, CLEAN, 13),
        (5, ECN, 14),
        (6, CLEAN, 15),
        (7, TIMEOUT, 16),
    ]
    assert own.heard == [(8, CLEAN, 17)]


def test_an_answer_stands_for_all_that_it_settles() -> None:
    ccc = context()
    notes = ccc.paths
    assert isinstance(notes, Notes)
    flow = ccc.flow()
    flow.on_send(6 * MTU)
    for settled in (0, MTU - 1, MTU, 4 * MTU + 100):
        flow.on_ack(None, settled, 7, False, NO_SAMPLE, 0)
    assert notes.packets == [1, 1, 1, 4]


# -- with credit -------------------------------------------------------------------------------


def test_a_packet_needs_window_and_credit() -> None:
    ccc = context(rccc=True)
    flow = ccc.flow()
    flow.on_send(MTU)
    flow.on_ack(units(MTU), 0, 7, False, NO_SAMPLE, 0)
    assert ccc.room() <= 0  # a window, no credit
    ccc.on_credit(5, 64)
    assert ccc.room() == 64 * 256
    nscc_of(ccc).cwnd = MTU
    flow.on_send(MTU)
    assert credit_of(ccc).credit > 0
    assert ccc.room() <= 0  # credit, no window


@pytest.mark.conformance("C-101")
def test_no_window_needed_with_credit_alone() -> None:
    ccc = context(nscc=False, rccc=True)
    flow = ccc.flow()
    assert ccc.window is None
    assert ccc.window_octets == RcccParameters().max_wnd
    flow.on_send(MTU)
    flow.on_nack(MTU, LASTHOP, 7, False, 0)
    assert ccc.room() <= 0
    assert not ccc.wants_ack(16_384)
    ccc.on_credit(5, 16)
    assert ccc.room() == MTU
    flow.on_send(MTU)  # again: a retransmission spends credit too
    assert ccc.room() == 0
    flow.on_loss(MTU, 7, 0)
    assert ccc.room() == 0
    flow.drained()


@pytest.mark.conformance("C-098")
def test_the_last_hop_is_the_receivers_matter() -> None:
    for rccc in (False, True):
        ccc = context(rccc=rccc)
        flow = ccc.flow()
        flow.on_send(MTU)
        before = ccc.window_octets
        flow.on_nack(MTU, LASTHOP, 7, False, 100 * US)
        assert (ccc.window_octets < before) is not rccc


def test_demand_is_limited_by_the_window() -> None:
    ccc = context(rccc=True)
    flow = ccc.flow()
    flow.on_nack(0, int(NackCode.ROD_OOO), 7, False, 0)
    nscc_of(ccc).cwnd = 10 * MTU
    flow.waits(10**9)
    assert ccc.credit_word() == 5 << 24 | 11 * 16
    flow.waits(MTU)
    assert ccc.credit_word() == 5 << 24 | 16
    ccc.flow().waits(MTU)  # those of another PDC wait as well
    assert ccc.credit_word() == 5 << 24 | 32
    other = context()
    other.flow().waits(10**9)
    assert other.credit_word() == 5 << 24


def test_requests_for_credit_come_ever_less_often() -> None:
    """After one round trip, then after two, four and eight; credit or data begin anew."""
    ccc = context(rccc=True)
    flow = ccc.flow()
    flow.waits(MTU)
    assert ccc.credit_request(0) is None  # it has credit on trust
    flow.on_nack(0, int(NackCode.ROD_OOO), 7, False, 0)
    flow.waits(0)
    assert ccc.credit_request(0) is None
    assert ccc.next_deadline() is None
    flow.waits(MTU)
    asked = [at for at in range(0, 300 * US, 100) if ccc.credit_request(at) is not None]
    assert asked == [0, 24 * US, 72 * US, 168 * US, 264 * US]
    ccc.credit_asked(300 * US)
    assert ccc.next_deadline() == 312 * US
    ccc.on_credit(5, 16)
    assert ccc.next_deadline() is None
    other = context()
    other.flow().waits(MTU)
    assert other.next_deadline() is None
    context().on_credit(5, 16)  # no credit there: nothing


def test_credit_is_for_the_context_it_names() -> None:
    ccc = context(rccc=True)
    ccc.on_credit(4, 100)
    assert credit_of(ccc).granted == 0
    ccc.on_credit(5, 100)
    assert credit_of(ccc).granted == 100


# -- profiles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spraying", SPRAYING)
def test_every_way_of_spraying_has_a_context(spraying: str) -> None:
    ccc = made(spraying=spraying).open(random.Random(1), 0)
    assert len({ccc.paths.pick() for _ in range(36)}) > 8
    ccc.paths.timed_out()


def test_algorithms() -> None:
    opened = {name: made(name).open(random.Random(1), 0) for name in ("none", "rccc", "both")}
    assert isinstance(opened["none"].window, FixedWindow)
    assert (opened["none"].credit, opened["rccc"].window) == (None, None)
    assert nscc_of(opened["both"]).credited
    assert credit_of(opened["both"]).max_wnd == 225_000
    tuned = made(cc_parameters={"nscc": {"gamma": 0.5}, "rccc": {"grant_mtus": 8}})
    assert tuned.tuning.of("nscc", NsccParameters).gamma == 0.5
    assert tuned.granting.grant_mtus == 8


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"spraying": "ecmp"}, "spraying is 'ecmp'; choose one of oblivious"),
        ({"algorithm": "dcqcn"}, "'dcqcn' is not known; choose one of none, nscc, both, rccc"),
        ({"base_rtt": 0}, "base_rtt is 0"),
        (
            {"cc_parameters": {"nscc": {"gain": 1}}},
            "nscc has no parameter 'gain'; it has base_rtt, ",
        ),
        ({"cc_parameters": {"nscc": {"gamma": 7}}}, "gamma is 7"),
        (
            {"cc_parameters": {"rccc": {"grant_mtus": "four"}}},
            "rccc.grant_mtus is 'four'; give a number",
        ),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        made(**({"algorithm": "nscc"} | changes))


def test_a_context_limits_something() -> None:
    with pytest.raises(ValueError, match="needs a window, credit or both"):
        CongestionContext(window=None, credit=None, paths=Notes())
