"""Guaranteed-delivery responses: kept until CLEAR, given again to duplicates (UES 3.5.20.2)."""

from typing import Any

import pytest

from tests.harness.uet.script import (
    MS,
    MTU,
    START,
    TARGET,
    Script,
    Seen,
    ack,
    control,
    refusal,
    rud,
    write,
)
from uet.wire.codes import AckRequest, ControlType, NackCode, ReturnCode

# -- the destination -----------------------------------------------------------------------------


def refused(k: int) -> object:
    """A write with a key that nobody has registered."""
    return write(b"no", match_bits=1, message_id=100 + k)


def accepted(k: int) -> object:
    return write(b"yes", message_id=100 + k)


@pytest.mark.conformance("C-025", "C-026")
def test_single_packet_not_guaranteed() -> None:
    """Success: CACK moves at once, nothing is kept, nothing is asked for."""
    script = Script()
    own = script.establish_target()
    (answer,) = script.give(rud(START + 1, dpdcid=own, ar=1, clear=START) / accepted(1))
    assert (answer.cack_psn, answer.ack_psn_offset, answer.req) == (START + 1, 0, 0)
    assert script.pdc.destination.stored == {}


@pytest.mark.conformance("C-025", "C-026")
def test_single_packet_guaranteed() -> None:
    """A refusal: CACK stays below it, with REQ_CLEAR, until the source has cleared it."""
    script = Script()
    own = script.establish_target()
    (answer,) = script.give(rud(START + 1, dpdcid=own, ar=1, clear=START) / refused(1))
    assert (answer.cack_psn, answer.ack_psn_offset) == (START, 1)
    assert answer.req == AckRequest.CLEAR
    (later,) = script.give(rud(START + 2, dpdcid=own, ar=1, clear=START) / accepted(2))
    assert (later.cack_psn, later.ack_psn, later.req) == (START, START + 2, 0)
    (cleared,) = script.give(rud(START + 3, dpdcid=own, ar=1, clear=START + 2) / accepted(3))
    assert (cleared.cack_psn, cleared.req) == (START + 3, 0)
    assert script.pdc.destination.stored == {}


@pytest.mark.conformance("C-025", "C-066")
def test_clear_by_control_packet() -> None:
    """A CLEAR frees what it covers, and is never acknowledged, whatever its flags say."""
    script = Script()
    own = script.establish_target()
    for k in (1, 2, 3):
        (answer,) = script.give(rud(START + k, dpdcid=own, clear=START) / refused(k))
        assert (answer.cack_psn, answer.ack_psn, answer.req) == (START, START + k, 1)
    clear = control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=START + 2, ar=1)
    assert script.give(clear) == []
    assert script.pdc.destination.window.cack == START + 2
    assert set(script.pdc.destination.stored) == {START + 3}
    assert script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=START)) == []
    assert script.pdc.destination.window.cack == START + 2
    assert script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=START + 3)) == []
    assert script.pdc.destination.window.cack == START + 3


def test_guaranteed_and_other_responses_mixed() -> None:
    """Four refusals and two successes; CLEAR of the refusals comes before the last is answered."""
    script = Script()
    own = script.establish_target()
    for k in (1, 2, 3, 4):
        (answer,) = script.give(rud(START + k, dpdcid=own, clear=START) / refused(k))
        assert answer.req == AckRequest.CLEAR
    assert script.give(rud(START + 5, dpdcid=own, clear=START) / accepted(5)) == []
    (answer,) = script.give(rud(START + 6, dpdcid=own, ar=1, clear=START + 4) / accepted(6))
    assert (answer.cack_psn, answer.req) == (START + 6, 0)


@pytest.mark.conformance("C-028")
def test_a_duplicate_gets_the_stored_response() -> None:
    """Octet for octet, though the target would now answer otherwise."""
    script = Script()
    own = script.establish_target()
    packet = rud(START + 1, dpdcid=own, clear=START) / refused(1)
    (first,) = script.give(packet)
    script.fep.register(memoryview(bytearray(100)), key=1)
    packet.retx = 1
    (second,) = script.give(packet)
    assert vars(second.ses) == vars(first.ses)
    assert (second.ack_psn, second.req, second.retx) == (START + 1, AckRequest.CLEAR, 1)
    assert script.pdc.destination.window.cack == START


@pytest.mark.conformance("C-029")
@pytest.mark.parametrize("cleared", [False, True])
def test_a_duplicate_gets_the_default_response(cleared: bool) -> None:
    """With RETX, for PSNs above and below CACK: success and the same message id, no delivery."""
    script = Script()
    own = script.establish_target()
    psn = START + 1 if cleared else START + 2
    packet = rud(psn, dpdcid=own) / write(b"one", message_id=321, hd=1, header_data=7)
    script.give(packet)
    script.memory[:3] = b"two"
    packet.retx = 1
    (answer,) = script.give(packet)
    assert (answer.ack_psn, answer.answer) == (psn, ReturnCode.OK)
    assert (answer.ses.message_id, answer.ses.opcode) == (321, 0)
    assert script.memory[:3] == b"two"
    assert len(script.completions) == 1


@pytest.mark.conformance("C-029")
@pytest.mark.parametrize("drop", [True, False])
def test_a_copy_made_by_the_network(drop: bool) -> None:
    """Without RETX it is dropped, or answered alike for peers that forget the flag."""
    script = Script(drop_network_duplicates=drop)
    own = script.establish_target()
    packet = rud(START + 1, dpdcid=own) / write(b"one", message_id=321)
    script.give(packet)
    script.memory[:3] = b"two"
    answers = script.give(packet)
    assert [a.ack_psn for a in answers] == [] if drop else [START + 1]
    assert script.memory[:3] == b"two"
    assert script.counters["rx_duplicates"] == 1


@pytest.mark.parametrize("claim", [START + 2, START + 900, START + 5_000, START + 2**30])
def test_an_impossible_clear_is_not_believed(claim: int) -> None:
    """Nobody knows the response to a request that has not arrived; CACK must not depend on it."""
    script = Script()
    own = script.establish_target()
    script.give(rud(START + 1, dpdcid=own, clear=START) / refused(1))
    script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=claim))
    assert set(script.pdc.destination.stored) == {START + 1}
    script.give(rud(START + 2, dpdcid=own, clear=START) / refused(2))
    script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=START + 2))
    assert script.pdc.destination.window.cack == START + 2
    assert script.pdc.destination.stored == {}


def test_stored_responses_are_bounded_by_the_window() -> None:
    """A source that never clears fills its own window, and no more memory."""
    script = Script(mpr=1)
    own = script.establish_target()
    nacks = 0
    for k in range(1, 200):
        (answer,) = script.give(rud(START + k, dpdcid=own, clear=START) / refused(k))
        nacks += answer.nack is NackCode.PSN_OOR_WINDOW
    assert len(script.pdc.destination.stored) == 128
    assert nacks == 199 - 128


# -- the source ----------------------------------------------------------------------------------


def refuse(request: Seen, **fields: Any) -> object:
    """The refusal of a request, for which the target wants a CLEAR."""
    cack = request.psn - 1
    return ack(request, cack=cack, code=ReturnCode.BAD_ADDR, req=AckRequest.CLEAR, **fields)


@pytest.mark.conformance("C-027", "C-066")
def test_clear_follows_within_its_time() -> None:
    """With nothing to carry it, a CLEAR leaves after PDS_Clear_Time: PSN 0, no AR, absolute."""
    script = Script(pds_clear_time=300_000)
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    assert script.give(refuse(request)) == []
    assert [c.error for c in script.completions] == ["BAD_ADDR"]
    assert script.fep.next_deadline() == script.now + 300_000
    assert script.wait(299_999) == []
    (clear,) = script.wait(1)
    assert clear.control is ControlType.CLEAR_CMD
    assert (clear.psn, clear.ar, clear.retx, clear.syn) == (0, 0, 0, 0)
    assert (clear.payload_word, clear.dpdcid, clear.dscp) == (request.psn, TARGET, 46)
    assert script.wait(100 * MS) == []
    assert script.fep.next_deadline() is None


@pytest.mark.conformance("C-066")
def test_a_request_carries_the_clear() -> None:
    """Then no control packet follows, neither with the request queued nor with it unanswered."""
    script = Script(pds_clear_time=300_000)
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    script.give(refuse(request))
    script.post(b"y")
    (carrier,) = script.take()
    assert carrier.clear_psn == request.psn
    assert script.wait(MS - 1) == []
    (again,) = script.wait(1)
    assert (again.retx, again.clear_psn) == (1, request.psn)
    script.give(ack(again))
    assert script.wait(100 * MS) == []


@pytest.mark.conformance("C-066")
def test_no_clear_while_a_request_waits_for_room() -> None:
    """The request that is held back by congestion control will carry it."""
    script = Script(pds_clear_time=100_000, window_bytes=1_000, rto_init_time=10 * MS)
    script.establish_initiator()
    script.post(b"x")
    script.post(bytes(MTU))
    script.post(b"y")
    small, big = script.take()
    assert script.give(refuse(small)) == []
    assert script.wait(5 * MS) == []
    (carrier,) = script.give(ack(big, cack=small.psn - 1))
    assert carrier.clear_psn == big.psn
    script.give(ack(carrier))
    assert script.wait(5 * MS) == []


def test_clear_waits_for_older_requests() -> None:
    """CLEAR_PSN is cumulative: one request still open below holds it back."""
    script = Script(pds_clear_time=100_000)
    script.establish_initiator()
    script.post(b"x")
    script.post(b"y")
    first, second = script.take()
    script.give(ack(second, cack=first.psn - 1, code=ReturnCode.BAD_ADDR, req=AckRequest.CLEAR))
    assert script.wait(500_000) == []
    script.give(ack(first, cack=first.psn))
    (clear,) = script.wait(100_000)
    assert clear.payload_word == second.psn


def test_target_asks_for_a_clear() -> None:
    """CLEAR_REQ is answered at once, even if the same CLEAR was sent before: it may be lost."""
    script = Script()
    own = script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    script.give(refuse(request))
    (clear,) = script.wait(MS)
    ask = control(ControlType.CLEAR_REQ, 0, dpdcid=own, spdcid=TARGET)
    for _ in range(2):
        (again,) = script.give(ask)
        assert again.control is ControlType.CLEAR_CMD
        assert again.payload_word == clear.payload_word
    assert script.wait(100 * MS) == []


def test_a_whole_range_behind_one_refusal() -> None:
    """The range fills up behind a response that waits for its CLEAR, which no request can carry.

    CLEAR is sent by itself then, and as nobody acknowledges it, an ACK is asked for.
    """
    script = Script(mpr=1, window_bytes=10**9, rto_init_time=10 * MS)
    script.establish_initiator(mpr=1)
    script.post(b"x", key=1)
    script.post(bytes(200 * MTU), context="long")
    packets = script.take()
    assert len(packets) == 128
    first = packets[0].psn
    stuck = first - 1  # the target's CACK: below the refusal
    for request in packets[1:]:
        assert script.give(ack(request, cack=stuck, mpr=1)) == []
    assert script.give(refuse(packets[0], mpr=1)) == []
    assert script.pdc.source.idle is False
    clear, ask = script.wait(MS)
    assert (clear.control, clear.payload_word) == (ControlType.CLEAR_CMD, packets[-1].psn)
    assert (ask.control, ask.psn) == (ControlType.ACK_REQ, packets[-1].psn)
    # Both may be lost: they are repeated with the timer's backoff.
    assert [p.control for p in script.wait(10 * MS)] == [clear.control, ask.control]
    more = script.give(ack(psn=ask.psn, dpdcid=ask.spdcid, mpr=1))
    assert len(more) == 73
    script.give(ack(more[-1], mpr=1))
    assert [(c.context, c.error) for c in script.completions] == [
        (None, "BAD_ADDR"),
        ("long", None),
    ]
    assert script.wait(1000 * MS) == []


def test_a_stall_that_nobody_ends() -> None:
    """The peer is gone: the attempts are limited like any retransmission."""
    script = Script(mpr=1, window_bytes=10**9, max_rto_retx_cnt=3)
    script.establish_initiator(mpr=1)
    script.post(b"x", key=1)
    script.post(bytes(200 * MTU), context="long")
    packets = script.take()
    stuck = packets[0].psn - 1
    for request in packets[1:]:
        script.give(ack(request, cack=stuck, mpr=1))
    script.give(refuse(packets[0], mpr=1))
    seen = script.wait(1000 * MS)
    assert [p.control for p in seen].count(ControlType.ACK_REQ) == 4
    assert [(c.context, c.error) for c in script.completions][1:] == [
        ("long", "RTO_RETRIES_EXHAUSTED")
    ]
    assert script.fep.next_deadline() is None
    assert script.pdcs == []


def test_a_stale_resend_does_not_hold_back_the_clear() -> None:
    """A NACKed packet that is answered while its resend waits is nothing unsent."""
    script = Script(pds_clear_time=MS, nack_retx_time=8 * MS, rto_init_time=100 * MS)
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    script.give(refusal(request, code=NackCode.NO_RESOURCE))
    script.give(refuse(request))
    seen = script.wait(20 * MS)
    assert [p.control for p in seen] == [ControlType.CLEAR_CMD]
