"""Loss and its repair: timers, NACKs, ACK_REQ, and when to give up (UES 3.5.15, 3.5.20.3)."""

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.uet.open_requests import SIZE, opened, sent
from tests.harness.uet.script import (
    MS,
    MTU,
    START,
    TARGET,
    THERE,
    Script,
    Seen,
    ack,
    control,
    refusal,
    rud,
    write,
)
from uet.config import FepConfig
from uet.congestion.spraying.paths import TIMEOUT
from uet.pds.nacks import REISSUED
from uet.pds.open_requests import OpenRequests
from uet.pds.repair import TailLoss
from uet.wire.codes import AckRequest, ControlType, NackCode, ReturnCode


def in_flight(script: Script, packets: int, context: object = "message") -> list[Seen]:
    """An established PDC with one message under way."""
    script.establish_initiator()
    script.post(bytes(k % 251 for k in range(packets * MTU)), context=context)
    return script.take()


def times(script: Script, ns: int) -> list[tuple[int, Seen]]:
    """Frames until ``ns`` later, each with its time from now (ns)."""
    begin = script.now
    end = begin + ns
    seen = []
    while (deadline := script.fep.next_deadline()) is not None and deadline <= end:
        script.now = deadline
        seen += [(script.now - begin, frame) for frame in script.take()]
    script.now = end
    return seen


@pytest.mark.conformance("C-044")
def test_retransmission_times_double() -> None:
    """At 1, 3, 7, 15 and 31 ms after the first transmission; at 63 ms all is over.

    The PDC is closed in error, and every message that is not finished is reported.
    """
    script = Script(rto_init_time=MS, max_rto_retx_cnt=5)
    first, *_ = in_flight(script, 1)
    script.post(b"second", context="second")
    assert len(script.take()) == 1
    seen = times(script, 62 * MS)
    assert [t // MS for t, p in seen if p.psn == first.psn] == [1, 3, 7, 15, 31]
    assert script.completions == []
    (close,) = [p for _, p in times(script, MS)]
    assert close.control is ControlType.CLOSE_CMD
    assert [(c.context, c.error) for c in script.completions] == [
        ("message", "RTO_RETRIES_EXHAUSTED"),
        ("second", "RTO_RETRIES_EXHAUSTED"),
    ]
    script.give(ack(close, code=None))
    assert script.pdcs == []
    assert script.fep.next_deadline() is None
    assert script.counters["pdc_errors"] == 1


@pytest.mark.conformance("C-044")
def test_an_unanswered_close_in_error_ends_too() -> None:
    script = Script(max_rto_retx_cnt=2)
    in_flight(script, 3)
    seen = times(script, 100 * MS)
    closes = [t // MS for t, p in seen if p.name == "cp"]
    assert closes == [7, 8, 10]
    assert script.pdcs == []
    assert [c.error for c in script.completions] == ["RTO_RETRIES_EXHAUSTED"]
    assert script.counters["pdcs_closed_unanswered"] == 1
    assert script.fep.peers[bytes([10, 0, 1, 2])].congestion.inflight == 0


def test_a_pdc_that_was_never_answered_is_dropped_without_a_close() -> None:
    script = Script(max_rto_retx_cnt=1)
    script.post(b"x")
    script.take()
    seen = times(script, 100 * MS)
    assert [p.name for _, p in seen] == ["rud_req"]
    assert script.pdcs == []
    assert [c.error for c in script.completions] == ["RTO_RETRIES_EXHAUSTED"]


def test_unlimited_retries_stop_doubling() -> None:
    """15 stands for unlimited; the interval ends at 2^14 times the first, not beyond time."""
    script = Script(rto_init_time=1_000, max_rto_retx_cnt=15)
    in_flight(script, 1)
    seen = times(script, 1_000 * 2**18)
    gaps = [b - a for (a, _), (b, _) in pairwise(seen)]
    assert max(gaps) == 1_000 * 2**14
    assert gaps[:15] == [1_000 * 2**n for n in range(1, 15)] + [1_000 * 2**14]
    assert script.completions == []


@pytest.mark.conformance("C-044")
def test_only_the_timer_of_what_is_open_runs() -> None:
    """Answered packets have no timer, and each packet's timer runs from its own transmission."""
    script = Script()
    script.establish_initiator()
    sent: dict[int, int] = {}
    for k in range(4):
        script.now += 100_000
        script.post(b"x", context=k)
        (request,) = script.take()
        sent[request.psn] = script.now
    script.give(ack(psn=request.psn - 2, cack=request.psn - 4, dpdcid=request.spdcid))
    start = script.now
    seen = times(script, MS)
    assert [(p.psn, start + t - sent[p.psn]) for t, p in seen] == [
        (psn, MS) for psn in sorted(sent) if psn != request.psn - 2
    ]


@pytest.mark.conformance("C-045")
def test_a_retransmission_is_the_same_packet() -> None:
    """Same PSN and SES octets, RETX and AR set, and another entropy value."""
    script = Script()
    packets = in_flight(script, 4)
    again = script.wait(MS)
    assert len(again) == 4
    for old, new in zip(packets, again, strict=True):
        assert new.psn == old.psn
        assert vars(new.ses) == vars(old.ses)
        assert new.payload == old.payload
        assert (old.retx, new.retx, new.ar) == (0, 1, 1)
        assert new.ev != old.ev


@pytest.mark.conformance("C-037")
def test_what_was_received_is_not_sent_again() -> None:
    """When the timer of a packet that SACK has marked runs out, its response is asked for."""
    script = Script()
    first, second, third = in_flight(script, 3)
    script.give(ack(first, sack=(third.psn, 1)))
    again = script.wait(MS)
    assert [(p.name, p.psn) for p in again] == [("rud_req", second.psn), ("cp", third.psn)]
    request = again[1]
    assert request.control is ControlType.ACK_REQ
    assert (request.ar, request.dpdcid) == (1, TARGET)
    assert request.payload_word == third.ses.message_id
    # It is repeated with the same backoff, and ends with the response.
    later = times(script, 2 * MS)
    assert [(t // MS, p.name) for t, p in later] == [(2, "rud_req"), (2, "cp")]
    script.give(ack(third))
    assert [c.error for c in script.completions] == [None]


def test_a_sack_while_the_resend_waits() -> None:
    """Then the resend turns into a request for the response."""
    script = Script(nack_retx_time=MS // 2)
    first, second = in_flight(script, 2)
    script.give(refusal(second, code=NackCode.NO_PKT_BUFFER))
    script.give(ack(first, sack=(second.psn, 1)))
    (request,) = script.wait(MS // 2)
    assert request.control is ControlType.ACK_REQ


@pytest.mark.conformance("C-043")
def test_a_nack_of_what_was_received_is_ignored() -> None:
    """A packet that SACK has marked is not asked for again by an older NACK."""
    script = Script()
    first, second = in_flight(script, 2)
    script.give(ack(first, sack=(second.psn, 1)))
    for code in (NackCode.TRIMMED, NackCode.NO_PKT_BUFFER):
        assert script.give(refusal(second, code=code)) == []
    assert script.wait(MS - 1) == []


@pytest.mark.conformance("C-038")
def test_answers_to_ack_req() -> None:
    """Unseen: NACK; seen: its ACK again, stored response included; outside the window: silence."""
    script = Script()
    own = script.establish_target()
    script.give(rud(START + 1, dpdcid=own) / write(b"a", message_id=44))
    script.give(rud(START + 2, dpdcid=own) / write(b"a", message_id=45, match_bits=1))

    def ask(psn: int, message_id: int = 0) -> list[Seen]:
        packet = control(ControlType.ACK_REQ, psn, dpdcid=own, ar=1, payload_word=message_id)
        return script.give(packet, ev=55_555)

    (nack,) = ask(START + 3)
    assert (nack.nack, nack.nack_psn) == (NackCode.PKT_NOT_RCVD, START + 3)
    assert script.pdc.destination.window.cack == START + 1
    (again,) = ask(START + 1, message_id=44)
    assert (again.ack_psn, again.answer, again.ses.message_id) == (START + 1, ReturnCode.OK, 44)
    assert again.ev == 55_555
    (stored,) = ask(START + 2)
    assert (stored.ack_psn, stored.answer) == (START + 2, ReturnCode.BAD_MKEY)
    assert (stored.ses.message_id, stored.req) == (45, 1)
    assert ask(START + 2000) == []
    assert ask(START - 2000) == []
    assert script.counters["rx_ack_request_outside_window"] == 2


@pytest.mark.conformance("C-038")
def test_ack_req_of_a_packet_that_was_not_received() -> None:
    """PKT_NOT_RCVD brings the data after all (a SACK bit is not to be relied on)."""
    script = Script(nack_retx_time=0)
    first, second = in_flight(script, 2)
    script.give(ack(first, sack=(second.psn, 1)))
    (request,) = script.wait(MS)
    assert request.control is ControlType.ACK_REQ
    answered = script.give(
        refusal(psn=second.psn, dpdcid=second.spdcid, code=NackCode.PKT_NOT_RCVD)
    )
    assert [(p.name, p.psn, p.retx) for p in answered] == [("rud_req", second.psn, 1)]
    assert answered[0].payload == second.payload


@pytest.mark.conformance("C-043")
def test_nacks_of_other_psns_change_nothing() -> None:
    """Answered, not yet sent, of long ago; fatal ones too."""
    script = Script()
    packets = in_flight(script, 4)
    own = packets[0].spdcid
    script.give(ack(packets[1]))
    source = script.pdc.source
    before = (source.window.base, source.window.next, script.fep.next_deadline())
    for code in NackCode:
        for psn in (packets[0].psn, packets[1].psn, packets[3].psn + 1, 5, packets[0].psn ^ 2**31):
            assert script.give(refusal(psn=psn, dpdcid=own, code=code)) == []
    assert (source.window.base, source.window.next, script.fep.next_deadline()) == before
    assert script.completions == []
    assert len(script.pdcs) == 1


def test_nacks_with_wrong_identifiers_change_nothing() -> None:
    script = Script()
    (request,) = in_flight(script, 1)
    script.give(refusal(request, code=NackCode.TRIMMED, spdcid=TARGET + 1))
    script.give(refusal(psn=request.psn, dpdcid=request.spdcid + 1, code=NackCode.TRIMMED))
    script.give(refusal(request, code=NackCode.TRIMMED, nt=1, nack_pkt_id=request.psn))
    assert script.counters["rx_drop_nack_of_other_pdc"] == 1
    assert script.counters["rx_drop_nack_of_unknown_pdc"] == 1
    assert script.counters["rx_nacks_of_settled_psn"] == 1  # no RUDI request has that packet id
    assert script.wait(MS - 1) == []


#: Reactions to each code: sent again at once, after NACK_Retx_Time, or by the timer only.
AT_ONCE = {NackCode.TRIMMED, NackCode.TRIMMED_LASTHOP, NackCode.RCVR_INFER_LOSS}
LATER = {
    NackCode.NO_PDC_AVAIL,
    NackCode.NO_CCC_AVAIL,
    NackCode.NO_BITMAP,
    NackCode.NO_PKT_BUFFER,
    NackCode.NO_GTD_DEL_AVAIL,
    NackCode.NO_SES_MSG_AVAIL,
    NackCode.NO_RESOURCE,
    NackCode.PSN_OOR_WINDOW,
    NackCode.ROD_OOO,
    NackCode.PKT_NOT_RCVD,
    NackCode.ACK_WITH_DATA,
    NackCode.EXP_NACK_NORMAL,
    NackCode.EXP_NACK_ERR,
}
IGNORED = {NackCode.TRIMMED_ACK, NackCode.NEW_START_PSN, NackCode.RCVD_SES_PROCG}


@pytest.mark.conformance("C-209")
@pytest.mark.parametrize("code", NackCode, ids=lambda code: code.name)
def test_reaction_to_each_code(code: NackCode) -> None:
    """Resend, wait, leave it to the timer, or the end of the PDC (UES Tables 3-58 to 3-61)."""
    script = Script(rto_init_time=10 * MS, nack_retx_time=MS)
    first, second = in_flight(script, 2)
    at_once = script.give(refusal(second, code=code))
    resent = [("rud_req", second.psn, 1)]
    if code in AT_ONCE:
        assert [(p.name, p.psn, p.retx) for p in at_once] == resent
        assert script.wait(MS) == []
    elif code in LATER:
        assert at_once == []
        assert [(t, p.name, p.psn, p.retx) for t, p in times(script, MS)] == [(MS, *resent[0])]
    elif code in IGNORED:
        assert at_once == []
        assert script.wait(10 * MS - 1) == []
        assert [p.psn for p in script.wait(1)] == [first.psn, second.psn]
    else:
        if code in REISSUED:  # the other packet may still be answered
            assert script.completions == []
            assert at_once == []
            at_once = script.wait(10 * MS)
        assert [(c.context, c.error) for c in script.completions] == [("message", code.name)]
        has_target = code not in (NackCode.INV_DPDCID, NackCode.PDC_HDR_MISMATCH, NackCode.CLOSING)
        assert [p.control for p in at_once] == [ControlType.CLOSE_CMD] * has_target
        assert len(script.pdcs) == int(has_target)
    assert script.pdcs == [] or script.pdc.source.window.next >= second.psn


def test_a_failure_clears_nothing() -> None:
    """A CLEAR that was due would claim responses that never came: only the CLOSE leaves."""
    script = Script(pds_clear_time=MS, rto_init_time=10 * MS)
    script.establish_initiator()
    script.post(b"x")
    (first,) = script.take()
    script.post(b"y")
    (second,) = script.take()
    answer = ack(first, cack=first.psn - 1, code=ReturnCode.BAD_ADDR, req=AckRequest.CLEAR)
    script.give(answer)
    script.now += MS
    script.fep.receive(
        [memoryview(script.frame(refusal(second, code=NackCode.UNEXP_EVENT)))], script.now
    )
    assert [p.control for p in script.wait(5 * MS)] == [ControlType.CLOSE_CMD]


@pytest.mark.conformance("C-209")
def test_unknown_codes_are_left_to_the_timer() -> None:
    script = Script()
    (request,) = in_flight(script, 1)
    for code in (0x00, 0x0C, 0x1B, 0x80, 0xFC):
        assert script.give(refusal(request, code=code)) == []  # type: ignore[arg-type]
    assert script.counters["rx_nacks_of_unknown_code"] == 5
    assert [p.psn for p in script.wait(MS)] == [request.psn]


@pytest.mark.conformance("C-046")
@pytest.mark.parametrize("limit", [0, 3])
def test_nack_retries_have_a_limit_of_their_own(limit: int) -> None:
    """Max_NACK_Retx_Cnt NACKs are obeyed, whatever the timers have counted; one more ends it."""
    script = Script(
        rto_init_time=10 * MS, max_rto_retx_cnt=1, nack_retx_time=MS, max_nack_retx_cnt=limit
    )
    (request,) = in_flight(script, 1)
    for doublings in range(limit):
        assert script.give(refusal(request, code=NackCode.NO_PKT_BUFFER)) == []
        assert script.wait((MS << doublings) - 1) == []
        assert [p.psn for p in script.wait(1)] == [request.psn]
    assert script.completions == []
    script.give(refusal(request, code=NackCode.NO_PKT_BUFFER))
    assert [c.error for c in script.completions] == ["NACK_RETRIES_EXHAUSTED"]


@pytest.mark.conformance("C-046")
def test_nacks_do_not_use_up_the_timer_retries() -> None:
    script = Script(rto_init_time=10 * MS, max_rto_retx_cnt=2, max_nack_retx_cnt=31)
    (request,) = in_flight(script, 1)
    for refusals in range(100):  # 31 is unlimited
        script.give(refusal(request, code=NackCode.NO_PKT_BUFFER))
        assert len(script.wait(MS << min(refusals, 5))) == 1
    source = script.pdc.source
    assert source.timer.timeouts[request.psn & source.requests.slot_mask] == 0
    assert [t // MS for t, p in times(script, 65 * MS) if p.name == "rud_req"] == [10, 30]


@pytest.mark.conformance("C-046")
def test_each_packet_has_a_nack_count_of_its_own() -> None:
    """A packet whose record lies where an older one's was has its own count, too."""
    script = Script(window_bytes=10**9, max_nack_retx_cnt=1, nack_retx_time=0)
    packets = in_flight(script, 3000)
    for start in (0, 1024, 2048):
        request = packets[start]
        assert len(script.give(refusal(request, code=NackCode.NO_PKT_BUFFER))) == 1
        packets += script.give(ack(packets[start + 900]))
    assert script.completions == []


@pytest.mark.conformance("C-047")
def test_a_lost_nack_is_repaired_by_the_timer() -> None:
    """The target could not take the packet and said so, but nobody heard."""
    script = Script()
    (request,) = in_flight(script, 1)
    (again,) = script.wait(MS)
    assert (again.psn, again.retx) == (request.psn, 1)
    script.give(ack(again, retx=1))
    assert [c.error for c in script.completions] == [None]


def test_a_nacked_packet_is_sent_once_though_its_timer_runs_out_too() -> None:
    script = Script(rto_init_time=MS, nack_retx_time=MS)
    (request,) = in_flight(script, 1)
    script.give(refusal(request, code=NackCode.NO_PKT_BUFFER))
    assert len(script.wait(MS)) == 1


def test_what_is_in_flight_is_accounted_for() -> None:
    """After any mixture of losses, SACKs and NACKs the congestion context is empty again."""
    script = Script()
    packets = in_flight(script, 40)
    congestion = script.pdc.peer.congestion
    own = packets[0].spdcid

    def expected() -> int:
        return sum(script.pdc.source.requests.size)

    assert (
        congestion.inflight == expected() == sum(len(p.payload) + 8 + 12 + 44 + 40 for p in packets)
    )
    script.give(refusal(packets[5], code=NackCode.TRIMMED))
    script.give(refusal(packets[5], code=NackCode.TRIMMED))
    script.give(refusal(packets[6], code=NackCode.NO_RESOURCE))
    script.give(ack(psn=packets[3].psn, dpdcid=own, sack=(packets[4].psn, 0xFF0)))
    script.give(ack(psn=packets[3].psn, dpdcid=own, sack=(packets[4].psn, 0xFFF)))
    assert congestion.inflight == expected()
    script.wait(5 * MS)
    assert congestion.inflight == expected()
    script.give(ack(packets[-1]))
    assert congestion.inflight == 0
    assert [c.error for c in script.completions] == [None]


def test_a_failed_pdc_leaves_nothing_in_flight() -> None:
    """The congestion context outlives the PDC: what was in flight must be taken off."""
    script = Script()
    packets = in_flight(script, 40)
    congestion = script.pdc.peer.congestion
    assert congestion.inflight > 0
    script.give(refusal(packets[7], code=NackCode.INV_DPDCID))
    assert congestion.inflight == 0
    script.wait(MS)
    assert script.pdcs == []
    assert script.fep.initiator.open_messages == 0
    script.post(b"x", peer=THERE, context="after")
    (request,) = script.take()
    assert (request.syn, request.psn_offset) == (1, 0)
    script.give(ack(request))
    assert [c.error for c in script.completions] == ["INV_DPDCID", None]


TIME, MOST = 100, 3
ASKED_ON = 77
NAMES: dict[str, Any] = {"address": "10.0.0.1", "mac": "02:00:00:00:00:01"}


def tail_of(requests: OpenRequests) -> tuple[TailLoss, Counter[str]]:
    config = FepConfig(**NAMES, tail_loss_time=TIME, max_tail_loss_retx=MOST)
    counts: Counter[str] = Counter()
    writer: Any = SimpleNamespace(asked_on=ASKED_ON)
    return TailLoss(requests, config, writer=writer, counters=counts), counts


def test_an_ordered_pdc_has_no_tail_loss_probes() -> None:
    for ordered, deadline in ((False, TIME), (True, None)):
        requests = opened(1, ordered=ordered)
        tail, _ = tail_of(requests)
        sent(requests, 1)
        assert tail.deadline() == deadline


@pytest.mark.conformance("C-181")
def test_the_deadline_runs_from_what_was_heard_last() -> None:
    requests = opened(1)
    tail, _ = tail_of(requests)
    assert tail.deadline() is None  # nothing is open
    sent(requests, 2)
    tail.heard_at = 50
    assert tail.deadline() == 50 + TIME
    tail.heard(70)
    assert tail.deadline() == 70 + TIME


def test_what_waits_to_leave_again_has_nothing_to_hear() -> None:
    requests = opened(1)
    tail, _ = tail_of(requests)
    first, second = sent(requests, 2)
    requests.retransmit.add(first, 0, 0)
    requests.discard(first)
    assert tail.deadline() == TIME  # the second is still in flight
    requests.discard(second)
    assert tail.deadline() is None


@pytest.mark.conformance("C-181")
def test_so_many_probes_and_no_more_until_something_is_heard() -> None:
    requests = opened(1)
    tail, counts = tail_of(requests)
    sent(requests, 1)
    heard: list[tuple[int, int, int]] = []
    paths: Any = SimpleNamespace(on_feedback=lambda *what: heard.append(what))
    requests.flow.paths = paths
    for n in range(MOST):
        deadline = tail.deadline()
        assert deadline == (n + 1) * TIME
        tail.probed(deadline)
    assert tail.deadline() is None
    assert counts["tx_tail_loss_probes"] == MOST
    # each but the first shows that the path of the one before has lost it
    assert heard == [(ASKED_ON, TIMEOUT, 2 * TIME), (ASKED_ON, TIMEOUT, 3 * TIME)]
    tail.heard(500)
    assert tail.deadline() == 500 + TIME


@pytest.mark.parametrize("settled", [False, True])
def test_a_window_is_stuck_once_nobody_is_to_open_it(settled: bool) -> None:
    requests = opened(1, window=2 * SIZE)
    tail, _ = tail_of(requests)
    assert not tail.window_is_stuck()  # nothing is in flight
    first, _ = sent(requests, 2)
    assert tail.window_is_stuck()
    requests.asked = first
    assert not tail.window_is_stuck()  # its ACK will come
    if settled:
        requests.window.finish(first)
    else:
        requests.size[first & requests.slot_mask] = 0  # refused, or lost
    assert tail.window_is_stuck()
    tail.asked()
    assert not tail.window_is_stuck()
    tail.heard(10)
    assert tail.window_is_stuck()
