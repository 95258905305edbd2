"""Reliable ordered delivery: go-back-N, or a buffer that puts in order (UES 3.5.21)."""

import random
from typing import Any

import pytest

from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import Impairment, Network, endpoint
from tests.harness.uet.script import (
    HERE,
    INITIATOR,
    KEY,
    MS,
    MTU,
    START,
    TARGET,
    THERE,
    US,
    Script,
    Seen,
    ack,
    control,
    refusal,
    rod,
    rud,
    write,
)
from tests.harness.uet.stub import StubSemantics, guaranteed, watch
from uet.congestion.controls.fixed_window import FixedWindow
from uet.pds.pdc import PdcState
from uet.pds.semantics import LATER, NO_ROOM
from uet.pds.window import MASK
from uet.transport import WriteRequest
from uet.wire.codes import ControlType, NackCode

ROD: dict[str, Any] = {"delivery": "rod"}


def opened(script: Script) -> int:
    """The peer opens an ordered PDC; its id here."""
    (answer,) = script.give(rod(START, syn=0, ar=1) / write(b"0"))
    assert (answer.is_ack, answer.cack_psn) == (True, START)
    return answer.spdcid


def in_flight(script: Script, packets: int) -> list[Seen]:
    """The endpoint opens an ordered PDC, and then sends a message of that many packets."""
    script.establish_initiator()
    script.post(bytes(packets * MTU), context="message")
    sent = script.take()
    assert len(sent) == packets
    return sent


# -- the destination without a buffer -----------------------------------------------------------


@pytest.mark.conformance("C-013")
def test_an_ordered_pdc_begins_with_its_first_packet() -> None:
    """Another one that overtook it is refused with the PSN expected, and leaves nothing."""
    script = Script()
    (nack,) = script.give(rod(START + 2, syn=2, ar=1) / write(b"x"), ev=55_555)
    assert (nack.nack, nack.nack_psn, nack.payload_word) == (NackCode.ROD_OOO, START + 2, START)
    assert (nack.spdcid, nack.dpdcid, nack.ev) == (0, INITIATOR, 55_555)
    assert script.pdcs == []
    assert script.memory[0] == 0
    (answer,) = script.give(rod(START, syn=0, ar=1) / write(b"x"))
    assert (answer.cack_psn, script.memory[0]) == (START, ord("x"))
    assert script.pdc.ordered


@pytest.mark.conformance("C-023")
def test_what_is_early_is_refused() -> None:
    script = Script()
    semantics = StubSemantics(script)
    own = opened(script)
    for psn in (START + 3, START + 2, START + 3):
        (nack,) = script.give(rod(psn, dpdcid=own, ar=1) / write(b"x"))
        assert (nack.nack, nack.nack_psn) == (NackCode.ROD_OOO, psn)
        assert (nack.payload_word, nack.spdcid) == (START + 1, own)
    assert semantics.psns == [START]
    assert script.pdc.destination.window.highest == START
    for psn in range(START + 1, START + 4):
        (answer,) = script.give(rod(psn, dpdcid=own, ar=1, retx=1) / write(b"x"))
        assert (answer.cack_psn, answer.ack_psn, answer.retx) == (psn, psn, 1)
    assert semantics.psns == [START, START + 1, START + 2, START + 3]


@pytest.mark.conformance("C-022", "C-029")
def test_an_ordered_duplicate_is_answered_and_not_delivered() -> None:
    script = Script()
    semantics = StubSemantics(script)
    own = opened(script)
    script.give(rod(START + 1, dpdcid=own, ar=1) / write(b"x", message_id=7))
    again = rod(START + 1, dpdcid=own, ar=1, retx=1) / write(b"x", message_id=7)
    (answer,) = script.give(again)
    assert (answer.ack_psn, answer.cack_psn, answer.retx) == (START + 1, START + 1, 1)
    assert answer.ses.message_id == 7
    assert script.give(rod(START + 1, dpdcid=own, ar=1) / write(b"x", message_id=7)) == []
    assert semantics.psns == [START, START + 1]


@pytest.mark.conformance("C-014")
@pytest.mark.parametrize("ordered", [False, True])
def test_each_pdc_has_one_mode(ordered: bool) -> None:
    right, wrong = (rod, rud) if ordered else (rud, rod)
    script = Script()
    (answer,) = script.give(right(START, syn=0, ar=1) / write(b"0"))
    for packet in (
        wrong(START + 1, dpdcid=answer.spdcid, ar=1),
        wrong(START + 1, syn=1, ar=1),
    ):
        (nack,) = script.give(packet / write(b"x"))
        assert (nack.nack, nack.nack_psn) == (NackCode.PDC_MODE_MISMATCH, START + 1)
        assert nack.spdcid == answer.spdcid
    assert script.memory[0] == ord("0")
    assert script.pdc.destination.window.cack == START


@pytest.mark.conformance("C-014")
def test_a_mode_mismatch_ends_the_pdc_of_the_source() -> None:
    """Nothing of the message was carried out, so it goes to a new PDC, all of it."""
    script = Script(**ROD)
    (first, *_) = sent = in_flight(script, 3)
    close, *again = script.give(refusal(first, code=NackCode.PDC_MODE_MISMATCH))
    assert (close.control, close.spdcid) == (ControlType.CLOSE_CMD, first.spdcid)
    assert [packet.payload for packet in again] == [packet.payload for packet in sent]
    assert {(packet.syn, packet.retx) for packet in again} == {(1, 0)}
    assert {packet.spdcid for packet in again}.isdisjoint({first.spdcid})
    script.give(ack(again[-1], spdcid=TARGET + 1))
    assert [c.error for c in script.completions] == [None]


@pytest.mark.conformance("C-012")
@pytest.mark.parametrize("reorder", [False, True])
def test_an_ordered_request_outside_the_window(reorder: bool) -> None:
    script = Script(mpr=1, rod_reorder=reorder)
    semantics = StubSemantics(script)
    own = opened(script)
    for psn in (START + 129, START - 129):
        (nack,) = script.give(rod(psn, dpdcid=own, ar=1) / write(b"x"))
        assert (nack.nack, nack.nack_psn) == (NackCode.PSN_OOR_WINDOW, psn)
    assert semantics.psns == [START]


def test_a_close_of_an_initiator_that_has_given_up() -> None:
    """The CLOSE comes behind a gap that nobody will fill, and is taken all the same."""
    script = Script()
    own = opened(script)
    (answer,) = script.give(control(ControlType.CLOSE_CMD, START + 5, dpdcid=own, ar=1))
    assert (answer.is_ack, answer.ack_psn, answer.cack_psn) == (True, START + 5, START)
    assert script.pdcs == []


def test_a_close_behind_a_full_window() -> None:
    script = Script(mpr=1)
    own = opened(script)
    packet = control(ControlType.CLOSE_CMD, START + 130, dpdcid=own, ar=1)
    assert [seen.nack for seen in script.give(packet)] == [NackCode.PSN_OOR_WINDOW]
    packet = control(ControlType.CLOSE_CMD, START + 129, dpdcid=own, ar=1)
    (answer,) = script.give(packet)
    assert (answer.is_ack, answer.ack_psn) == (True, START + 129)
    assert script.pdcs == []


# -- the destination with a buffer --------------------------------------------------------------


@pytest.mark.conformance("C-013", "C-023")
def test_a_buffer_holds_what_is_early() -> None:
    """A buffer holds the packet that opens the PDC, too; all is delivered in its turn."""
    script = Script(rod_reorder=True)
    semantics = StubSemantics(script)
    assert script.give(rod(START + 2, syn=2, ar=1) / write(b"2")) == []
    own = script.pdc.id
    assert script.give(rod(START + 4, syn=4) / write(b"4")) == []
    assert script.give(rod(START + 1, syn=1) / write(b"1")) == []
    assert semantics.taken == []
    answers = script.give(rod(START, syn=0) / write(b"0"))
    assert semantics.taken == [(START + k, b"%d" % k) for k in range(3)]
    # Each SYN packet gets its ACK, and each says what all of them together have reached.
    assert [(a.ack_psn, a.cack_psn, a.spdcid) for a in answers] == [
        (START + k, START + 2, own) for k in range(3)
    ]
    answers = script.give(rod(START + 3, dpdcid=own) / write(b"3"))
    assert semantics.psns == [START + k for k in range(5)]
    assert [(a.ack_psn, a.cack_psn) for a in answers][-1] == (START + 4, START + 4)
    check(script.fep, script.now)


def test_what_is_held_is_reported_and_not_answered() -> None:
    """SACK shows it, so that it is not sent again; it has no response yet."""
    script = Script(rod_reorder=True)
    semantics = StubSemantics(script)
    own = opened(script)
    held = rod(START + 2, dpdcid=own, ar=1) / write(b"2")
    assert script.give(held) == []
    assert script.give(rod(START + 2, dpdcid=own, ar=1, retx=1) / write(b"2")) == []
    (nack,) = script.give(control(ControlType.ACK_REQ, START + 2, dpdcid=own, ar=1))
    assert nack.nack is NackCode.RCVD_SES_PROCG
    (nack,) = script.give(control(ControlType.ACK_REQ, START + 1, dpdcid=own, ar=1))
    assert nack.nack is NackCode.PKT_NOT_RCVD
    (answer,) = script.give(rod(START, dpdcid=own, ar=1, retx=1) / write(b"0"))
    assert answer.cack_psn == START
    assert answer.sack_bitmap >> START + 2 - (answer.cack_psn + answer.sack_psn_offset) & 1
    assert semantics.psns == [START]


@pytest.mark.parametrize("infer", [True, False])
def test_what_was_overtaken_is_asked_for_only_where_loss_is_inferred(infer: bool) -> None:
    script = Script(rod_reorder=True, infer_loss=infer)
    own = opened(script)
    nacks = [
        seen.nack
        for k in range(2, 12)
        for seen in script.give(rod(START + k, dpdcid=own) / write(b"%d" % k))
    ]
    assert nacks == ([NackCode.RCVR_INFER_LOSS] if infer else [])


def test_no_room_in_the_middle_of_a_run() -> None:
    """The one without room is refused and the rest waits on, for its second coming."""
    script = Script(rod_reorder=True)
    semantics = StubSemantics(script, {START + 3: NO_ROOM})
    own = opened(script)
    for k in (2, 3, 4, 5):
        assert script.give(rod(START + k, dpdcid=own, ar=1) / write(b"%d" % k)) == []
    one, two, nack = sorted(
        script.give(rod(START + 1, dpdcid=own, ar=1) / write(b"1")), key=lambda s: s.is_ack is False
    )
    assert (nack.nack, nack.nack_psn) == (NackCode.NO_SES_MSG_AVAIL, START + 3)
    assert [(a.ack_psn, a.cack_psn) for a in (one, two)] == [
        (START + 1, START + 2),
        (START + 2, START + 2),
    ]
    window = script.pdc.destination.window
    assert window.first_missing == START + 3
    # A probe, or ACK_REQ, tells the same.
    (asked,) = script.give(control(ControlType.ACK_REQ, START + 3, dpdcid=own, ar=1))
    assert asked.nack is NackCode.PKT_NOT_RCVD
    check(script.fep, script.now)
    answers = script.give(rod(START + 3, dpdcid=own, ar=1, retx=1) / write(b"3"))
    assert [a.ack_psn for a in answers] == [START + 3, START + 4, START + 5]
    assert {a.cack_psn for a in answers} == {START + 5}
    assert semantics.taken == [(START + k, b"%d" % k if k else b"0") for k in range(6)]


@pytest.mark.conformance("C-025", "C-026")
def test_a_guaranteed_response_in_a_run() -> None:
    """CACK stops in front of it until it is cleared, while the order goes on."""
    script = Script(rod_reorder=True)
    semantics = StubSemantics(script, {START + 2: guaranteed(message_id=2)})
    own = opened(script)
    for k in (2, 3, 5):
        script.give(rod(START + k, dpdcid=own, ar=1) / write(b"x", message_id=k))
    answers = script.give(rod(START + 1, dpdcid=own, ar=1) / write(b"x"))
    assert [(a.ack_psn, a.cack_psn, a.req) for a in answers] == [
        (START + 1, START + 1, 0),
        (START + 2, START + 1, 1),
        (START + 3, START + 1, 0),
    ]
    assert answers[1].ses.message_id == 2
    # The stored one is what a duplicate gets; what is new still waits for START + 4.
    (stored,) = script.give(rod(START + 2, dpdcid=own, ar=1, retx=1) / write(b"x"))
    assert (stored.octets[-12:], stored.req) == (answers[1].octets[-12:], 1)
    assert semantics.psns == [START, START + 1, START + 2, START + 3]
    script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=START + 3))
    assert script.pdc.destination.window.cack == START + 3
    assert script.pdc.destination.stored == {}
    answers = script.give(rod(START + 4, dpdcid=own, clear=START + 3, ar=1) / write(b"x"))
    assert [(a.ack_psn, a.cack_psn) for a in answers] == [
        (START + 4, START + 5),
        (START + 5, START + 5),
    ]


def test_one_that_is_answered_later_does_not_hold_up_the_others() -> None:
    script = Script(rod_reorder=True)
    semantics = StubSemantics(script, {START + 1: LATER})
    own = opened(script)
    script.give(rod(START + 2, dpdcid=own, ar=1) / write(b"2"))
    (answer,) = script.give(rod(START + 1, dpdcid=own, ar=1) / write(b"1", message_id=9))
    assert (answer.ack_psn, answer.cack_psn) == (START + 2, START)
    assert semantics.psns == [START, START + 1, START + 2]
    semantics.pdcs[-1].respond(START + 1, 0)
    (answer,) = script.take()
    assert (answer.ack_psn, answer.cack_psn, answer.ses.message_id) == (START + 1, START + 2, 9)


@pytest.mark.parametrize("kind", [ControlType.NOOP, ControlType.NEGOTIATION])
def test_a_control_packet_has_its_turn_too(kind: ControlType) -> None:
    """What has waited for a NOOP is delivered after it, and not merely counted as received."""
    script = Script(rod_reorder=True)
    semantics = StubSemantics(script)
    assert script.give(rod(START + 1, syn=1, ar=1) / write(b"1")) == []
    opening = control(kind, START, dpdcid=0, syn=1, psn_offset=0, isrod=1, ar=1)
    answers = [seen for seen in script.give(opening) if seen.is_ack]
    assert {a.ack_psn for a in answers} == {START, START + 1}
    assert {a.cack_psn for a in answers} == {START + 1}
    assert semantics.taken == [(START + 1, b"1")]


def test_an_early_control_packet() -> None:
    """The packet is refused, with or without a buffer, and opens no ordered PDC either."""
    for reorder in (False, True):
        script = Script(rod_reorder=reorder)
        own = opened(script)
        (nack,) = script.give(control(ControlType.NOOP, START + 2, dpdcid=own, ar=1))
        assert (nack.nack, nack.payload_word) == (NackCode.ROD_OOO, START + 1)
    script = Script()
    opening = control(ControlType.NOOP, START + 1, dpdcid=0, syn=1, psn_offset=1, isrod=1, ar=1)
    (nack,) = script.give(opening)
    assert (nack.nack, nack.payload_word, nack.spdcid) == (NackCode.ROD_OOO, START, 0)
    assert script.pdcs == []


# -- the source ---------------------------------------------------------------------------------


@pytest.mark.conformance("C-048", "C-045")
def test_go_back_n_makes_one_pass_for_each_loss() -> None:
    """However many packets behind the lost one are refused."""
    script = Script(**ROD)
    packets = in_flight(script, 8)
    lost = packets[2].psn
    script.give(ack(packets[1]))
    resent = script.give(refusal(packets[3], code=NackCode.ROD_OOO, payload_word=lost))
    assert [p.psn for p in resent] == [p.psn for p in packets[2:]]
    for before, after in zip(packets[2:], resent, strict=True):
        assert (after.retx, after.ar, after.name) == (1, 1, "rod_req")
        assert (after.payload, after.ses) == (before.payload, before.ses)
    for packet in packets[4:]:
        assert script.give(refusal(packet, code=NackCode.ROD_OOO, payload_word=lost)) == []
    # One of the second pass is lost too: that is another event, once CACK has moved.
    script.give(ack(resent[0]))
    resent = script.give(refusal(resent[2], code=NackCode.ROD_OOO, payload_word=lost + 1))
    assert [p.psn for p in resent] == [p.psn for p in packets[3:]]
    assert script.counters["rod_go_back"] == 2
    script.give(ack(packets[-1]))
    assert [c.error for c in script.completions] == [None]
    check_idle(script.fep)


@pytest.mark.conformance("C-045", "C-048", "C-214")
@pytest.mark.parametrize("first_to_come", ["refusal", "order"])
def test_nothing_is_sent_past_a_delayed_head(first_to_come: str) -> None:
    """The first packet waits for NACK_Retx_Time: whatever else leaves before would be refused."""
    script = Script(**ROD, nack_retx_time=MS // 4)
    packets = in_flight(script, 4)
    head = refusal(packets[0], code=NackCode.NO_PKT_BUFFER)
    early = [refusal(p, code=NackCode.ROD_OOO, payload_word=packets[0].psn) for p in packets[1:]]
    if first_to_come == "refusal":
        for nack in (head, *early):
            assert script.give(nack) == []
        resent = packets
    else:
        resent = script.give(early[0])
        assert [p.psn for p in resent] == [p.psn for p in packets]
        assert script.give(refusal(resent[0], code=NackCode.NO_PKT_BUFFER, retx=1)) == []
        for packet in resent[1:]:
            nack = refusal(packet, code=NackCode.ROD_OOO, payload_word=packets[0].psn, retx=1)
            assert script.give(nack) == []
    assert script.pdc.source.flow.unsettled == 0
    assert script.wait(MS // 4 - 1) == []
    again = script.wait(1)
    assert [p.psn for p in again] == [p.psn for p in packets]
    script.give(ack(again[-1]))
    assert [c.error for c in script.completions] == [None]
    check_idle(script.fep)


@pytest.mark.conformance("C-214")
def test_new_packets_stay_behind_a_delayed_head() -> None:
    """The window has room for what is posted meanwhile; it would be refused all the same."""
    script = Script(**ROD, nack_retx_time=MS // 4)
    (first,) = in_flight(script, 1)
    assert script.give(refusal(first, code=NackCode.NO_PKT_BUFFER)) == []
    script.post(b"behind")
    assert script.take() == []
    assert script.wait(MS // 4 - 1) == []
    again, behind = script.wait(1)
    assert (again.psn, behind.psn) == (first.psn, (first.psn + 1) & MASK)
    script.give(ack(behind))
    assert [c.error for c in script.completions] == [None, None]
    check_idle(script.fep)


@pytest.mark.conformance("C-048", "C-214")
def test_what_is_refused_again_leaves_the_window_and_follows_the_head() -> None:
    """The pass was in vain, for its first packet was lost once more."""
    script = Script(**ROD)
    packets = in_flight(script, 4)
    first = packets[0].psn
    resent = script.give(refusal(packets[1], code=NackCode.ROD_OOO, payload_word=first))
    full = script.pdc.source.flow.unsettled
    for count, packet in enumerate(resent[1:], 1):
        nack = refusal(packet, code=NackCode.ROD_OOO, payload_word=first, retx=1)
        assert script.give(nack) == []
        assert script.pdc.source.flow.unsettled * 4 == full * (4 - count)
    # A late copy of the first arrives after all: the others need not wait for a timer.
    again = script.give(ack(packets[0]))
    assert [p.psn for p in again] == [p.psn for p in packets[1:]]
    script.give(ack(again[-1]))
    assert [c.error for c in script.completions] == [None]
    check_idle(script.fep)


def test_refusals_of_the_copies_before_a_pass_say_nothing_of_the_pass() -> None:
    script = Script(**ROD)
    packets = in_flight(script, 6)
    resent = script.give(refusal(packets[1], code=NackCode.ROD_OOO, payload_word=packets[0].psn))
    in_the_network = script.pdc.source.flow.unsettled
    for packet in packets[2:]:
        script.give(refusal(packet, code=NackCode.ROD_OOO, payload_word=packets[0].psn))
    assert script.pdc.source.flow.unsettled == in_the_network
    assert script.give(ack(resent[0])) == []


def test_a_head_that_waits_for_the_window_is_not_kept_from_it_by_those_behind() -> None:
    """They are lost, and time out: nothing else would say that they are not in flight."""
    script = Script(**ROD, window_bytes=3_000, rto_init_time=MS)
    script.establish_initiator()
    script.post(bytes(8 * MTU))
    packets = script.take()
    source = script.pdc.source
    congestion = script.pdc.peer.congestion.window
    assert isinstance(congestion, FixedWindow)
    congestion.window_octets = 500
    assert script.give(refusal(packets[0], code=NackCode.TRIMMED)) == []
    assert script.wait(MS - 1) == []
    (again,) = script.wait(1)
    assert again.psn == packets[0].psn
    assert source.window.outstanding == len(packets) > 1


@pytest.mark.conformance("C-048", "C-044")
def test_the_timer_begins_another_pass() -> None:
    """If the packet is lost again no NACK tells; those behind it are not sent alone."""
    script = Script(**ROD)
    packets = in_flight(script, 4)
    first = packets[0].psn
    resent = script.give(refusal(packets[1], code=NackCode.ROD_OOO, payload_word=first))
    assert len(resent) == 4
    assert script.wait(MS - 1) == []
    again = script.wait(2 * MS)
    assert [p.psn for p in again] == [p.psn for p in packets]
    assert script.give(ack(again[-1])) == []
    check_idle(script.fep)


def test_no_new_packet_overtakes_one_that_is_sent_again() -> None:
    script = Script(**ROD)
    packets = in_flight(script, 4)
    script.post(b"next")
    (behind,) = script.take()
    script.post(b"last")
    sent = script.give(refusal(packets[2], code=NackCode.ROD_OOO, payload_word=packets[1].psn))
    script.give(ack(packets[0]))
    psns = [p.psn for p in sent]
    assert psns == sorted(psns)
    assert psns == [*(p.psn for p in packets[1:]), behind.psn, behind.psn + 1]


@pytest.mark.conformance("C-043")
def test_go_back_to_somewhere_else() -> None:
    """A payload that is none of ours means: from the first one without a response."""
    for payload in (0, START, 0xFFFF_FFFF):
        script = Script(**ROD)
        packets = in_flight(script, 3)
        resent = script.give(refusal(packets[2], code=NackCode.ROD_OOO, payload_word=payload))
        assert [p.psn for p in resent] == [p.psn for p in packets]
        outside = packets[-1].psn + 1
        own = packets[0].spdcid
        nack = refusal(psn=outside, dpdcid=own, code=NackCode.ROD_OOO, payload_word=outside)
        assert script.give(nack) == []


@pytest.mark.conformance("C-114")
def test_one_entropy_value() -> None:
    """All requests take one path; it is left only when a timeout says that nothing arrives."""
    script = Script(**ROD)
    packets = in_flight(script, 6)
    resent = script.give(refusal(packets[3], code=NackCode.ROD_OOO, payload_word=packets[2].psn))
    path = {p.ev for p in packets} | {p.ev for p in resent}
    assert len(path) == 1
    again = script.wait(2 * MS)
    assert [p.psn for p in again] == [p.psn for p in packets]
    others = {p.ev for p in again}
    assert len(others) == 1
    assert not others & path
    script.give(ack(packets[-1]))
    script.post(b"x")
    (more,) = script.take()
    assert {more.ev} == others


def test_the_pdc_of_a_timeout_takes_no_more_messages_but_they_are_not_lost() -> None:
    """The target is gone: what was sent fails, what was not begins anew on another PDC."""
    script = Script(**ROD, window_bytes=3_000, max_rto_retx_cnt=1)
    (first, *_) = in_flight_at_most(script)
    script.post(b"later", context="unsent")
    seen = script.wait(4 * MS)
    assert [c.context for c in script.completions] == ["message"]
    fresh = [s for s in seen if s.is_request and s.syn]
    assert [s.payload for s in fresh][:1] == [b"later"]
    assert fresh[0].spdcid != first.spdcid
    script.give(ack(fresh[0], spdcid=77))
    assert [(c.context, c.error) for c in script.completions] == [("unsent", None)]


def in_flight_at_most(script: Script) -> list[Seen]:
    script.establish_initiator()
    script.post(bytes(8 * MTU), context="message")
    return script.take()


# -- both together ------------------------------------------------------------------------------


def pair(seed: int, **parameters: Any) -> tuple[Network, dict[str, bytearray]]:
    feps = {
        a: endpoint(a, seed=seed + k, delivery="rod", payload_mtu=1024, **parameters)
        for k, a in enumerate((HERE, THERE))
    }
    memory = {}
    for address, fep in feps.items():
        memory[address] = bytearray(64 * 1024)
        fep.register(memoryview(memory[address]), key=KEY)
    return Network(feps, random.Random(seed)), memory


@pytest.mark.conformance("C-022", "C-023", "C-048")
@pytest.mark.parametrize("reorder", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_everything_arrives_in_order_both_ways(reorder: bool, seed: int) -> None:
    """With one per cent of loss, duplicates, and on a network that reorders."""
    network, memory = pair(seed, rod_reorder=reorder, window_bytes=32_768, max_rto_retx_cnt=15)
    network.impairment = Impairment(loss=0.01, duplicate=0.01, jitter_ns=reorder * 3 * US)
    taken = {a: watch(fep) for a, fep in network.endpoints.items()}
    rng = random.Random(seed)
    data = {a: rng.randbytes(48 * 1024) for a in (HERE, THERE)}
    for source, target in ((HERE, THERE), (THERE, HERE)):
        for k in range(16):
            part = memoryview(data[source])[k * 3 * 1024 : (k + 1) * 3 * 1024]
            network.endpoints[source].post(
                WriteRequest(peer=target, key=KEY, offset=k * 3 * 1024, payload=part)
            )
    network.settle()
    for source, target in ((HERE, THERE), (THERE, HERE)):
        assert [c.error for c in network.completions[source]] == [None] * 16
        assert memory[target][: 48 * 1024] == data[source]
        psns = [psn for _, psn in taken[target]]
        assert psns == list(range(psns[0], psns[0] + 48))
        check_idle(network.endpoints[source])
        check(network.endpoints[source], network.now)
        network.endpoints[source].close()
    network.settle()
    for fep in network.endpoints.values():
        assert fep.closed
        assert fep.counters()["pdcs_open"] == 0
        assert fep.counters().get("pdc_errors", 0) == 0


@pytest.mark.conformance("C-022", "C-023")
def test_both_modes_side_by_side() -> None:
    """Each on a PDC of its own; only the ordered one goes back."""
    network, memory = pair(9, window_bytes=1 << 20)
    network.impairment = Impairment(loss=0.02, jitter_ns=2 * US)
    taken = watch(network.endpoints[THERE])
    data = random.Random(9).randbytes(60 * 1024)
    for k in range(20):
        network.endpoints[HERE].post(
            WriteRequest(
                peer=THERE,
                key=KEY,
                offset=k * 3 * 1024,
                payload=memoryview(data)[k * 3 * 1024 : (k + 1) * 3 * 1024],
                delivery="rod" if k % 2 else "rud",
            )
        )
    network.settle()
    assert [c.error for c in network.completions[HERE]] == [None] * 20
    assert memory[THERE][: 60 * 1024] == data
    pdcs = network.endpoints[THERE].table.by_id.values()
    assert sorted(pdc.ordered for pdc in pdcs) == [False, True]
    for pdc in pdcs:
        assert pdc.state is PdcState.ESTABLISHED
        psns = [psn for number, psn in taken if number == pdc.id]
        assert (psns == sorted(psns)) is pdc.ordered
        assert sorted(psns) == list(range(pdc.start_psn, pdc.start_psn + len(psns)))
