"""Requests that SES answers later: until then they are busy (UES 3.5.20.2, RCVD_SES_PROCG)."""

import pytest

from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.script import (
    INITIATOR,
    MS,
    START,
    Script,
    control,
    refusal,
    rud,
    write,
)
from tests.harness.uet.stub import StubSemantics, guaranteed
from uet.pds.semantics import ACCEPTED, LATER, Response
from uet.wire.codes import ControlType, NackCode, ReturnCode


def busy(script: Script) -> tuple[StubSemantics, int]:
    """The peer has sent START + 1, about which SES still thinks."""
    semantics = StubSemantics(script, {START + 1: LATER})
    own = script.establish_target()
    assert script.give(rud(START + 1, dpdcid=own, ar=1) / write(b"x", message_id=5)) == []
    return semantics, own


@pytest.mark.conformance("C-030")
def test_a_copy_is_refused_and_not_executed() -> None:
    """However often it comes; those without RETX, which the network made, are not even answered."""
    script = Script()
    semantics, own = busy(script)
    for _ in range(3):
        packet = rud(START + 1, dpdcid=own, ar=1, retx=1) / write(b"x", message_id=5)
        (nack,) = script.give(packet, ev=60_000, ecn=3)
        assert (nack.nack, nack.nack_psn, nack.retx) == (NackCode.RCVD_SES_PROCG, START + 1, 1)
        assert (nack.m, nack.ev, nack.spdcid, nack.dpdcid) == (1, 60_000, own, INITIATOR)
    assert script.give(rud(START + 1, dpdcid=own, ar=1) / write(b"x", message_id=5)) == []
    assert semantics.psns == [START, START + 1]


@pytest.mark.conformance("C-038")
def test_ack_req_for_a_busy_request() -> None:
    script = Script()
    semantics, own = busy(script)
    asked = control(ControlType.ACK_REQ, START + 1, dpdcid=own, ar=1, payload_word=5)
    (nack,) = script.give(asked)
    assert (nack.nack, nack.nack_psn) == (NackCode.RCVD_SES_PROCG, START + 1)
    semantics.pdcs[-1].respond(START + 1, ACCEPTED)
    (answer,) = script.take()
    (again,) = script.give(asked)
    assert (again.is_ack, again.ack_psn, again.ses.message_id) == (True, START + 1, 5)
    assert answer.ses.message_id == 5


@pytest.mark.conformance("C-030", "C-031")
@pytest.mark.parametrize("wants_ack", [0, 1])
def test_the_answer_follows(wants_ack: int) -> None:
    """The answer has the entropy and mark of the request, whether or not that asked for it."""
    script = Script()
    semantics = StubSemantics(script, {START + 1: LATER})
    own = script.establish_target()
    packet = rud(START + 1, dpdcid=own, ar=wants_ack) / write(b"x", message_id=5)
    assert script.give(packet, ev=60_001, ecn=3) == []
    window = script.pdc.destination.window
    assert window.cack == START
    # What is behind it is delivered and acknowledged; CACK waits.
    (other,) = script.give(rud(START + 2, dpdcid=own, ar=1) / write(b"y"))
    assert (other.cack_psn, other.ack_psn, other.req) == (START, START + 2, 0)
    script.now += MS
    semantics.pdcs[-1].respond(START + 1, ACCEPTED)
    (answer,) = script.take()
    assert (answer.ack_psn, answer.cack_psn, answer.req) == (START + 1, START + 2, 0)
    assert (answer.ev, answer.m, answer.answer) == (60_001, 1, ReturnCode.OK)
    assert answer.ses.message_id == 5
    semantics.pdcs[-1].respond(START + 1, ACCEPTED)
    assert script.take() == []
    check(script.fep, script.now)


@pytest.mark.conformance("C-025", "C-026", "C-028")
def test_a_guaranteed_answer_is_kept_from_then_on() -> None:
    script = Script()
    semantics, own = busy(script)
    semantics.pdcs[-1].respond(START + 1, guaranteed(ReturnCode.NO_MATCH, 5))
    (answer,) = script.take()
    assert (answer.req, answer.cack_psn, answer.answer) == (1, START, ReturnCode.NO_MATCH)
    packet = rud(START + 1, dpdcid=own, ar=1, retx=1) / write(b"x", message_id=5)
    (again,) = script.give(packet)
    assert again.octets[-12:] == answer.octets[-12:]
    script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=START + 1))
    assert script.pdc.destination.window.cack == START + 1
    check(script.fep, script.now)


def test_an_answer_of_its_own_that_is_not_guaranteed() -> None:
    script = Script()
    semantics, _ = busy(script)
    octets = guaranteed(ReturnCode.OK, 5).octets
    semantics.pdcs[-1].respond(START + 1, Response(octets, guaranteed=False))
    (answer,) = script.take()
    assert (answer.req, answer.cack_psn) == (0, START + 1)
    assert script.pdc.destination.stored == {}


def test_answers_in_any_order() -> None:
    script = Script()
    semantics = StubSemantics(script, {START + k: LATER for k in range(1, 6)})
    own = script.establish_target()
    for k in range(1, 6):
        assert script.give(rud(START + k, dpdcid=own) / write(b"x", message_id=k)) == []
    cacks = []
    for k in (3, 1, 5, 2, 4):
        semantics.pdcs[k].respond(START + k, ACCEPTED)
        (answer,) = script.take()
        assert (answer.ack_psn, answer.ses.message_id) == (START + k, k)
        cacks.append(answer.cack_psn - START)
    assert cacks == [0, 1, 1, 3, 5]


def test_an_answer_to_nothing() -> None:
    """To a PSN that was never busy, and for a PDC that has closed."""
    script = Script()
    semantics, own = busy(script)
    semantics.pdcs[-1].respond(START + 2, ACCEPTED)
    assert script.take() == []
    script.give(control(ControlType.CLOSE_CMD, START + 2, dpdcid=own, ar=1))
    assert script.pdcs == []
    semantics.pdcs[-1].respond(START + 1, guaranteed())
    assert script.take() == []


def test_a_clear_does_not_answer_for_ses() -> None:
    """A source that claims to know the response before there is one does not lose it."""
    script = Script()
    semantics, own = busy(script)
    script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=START + 1))
    semantics.pdcs[-1].respond(START + 1, guaranteed(ReturnCode.NO_MATCH, 5))
    (answer,) = script.take()
    assert (answer.ack_psn, answer.answer) == (START + 1, ReturnCode.NO_MATCH)
    check(script.fep, script.now)


def test_many_are_busy_at_a_time() -> None:
    """The window's number of requests waits, in as little memory as their headers take."""
    script = Script(mpr=1)
    StubSemantics(script, {START + k: LATER for k in range(1, 200)})
    own = script.establish_target()
    for k in range(1, 129):
        assert script.give(rud(START + k, dpdcid=own) / write(b"x" * 1_000)) == []
    (nack,) = script.give(rud(START + 129, dpdcid=own) / write(b"x"))
    assert nack.nack is NackCode.PSN_OOR_WINDOW
    kept = script.pdc.destination.busy.values()
    assert len(kept) == 128
    assert max(len(arrived.packet) for arrived in kept) < 128


@pytest.mark.conformance("C-030")
def test_a_source_waits_for_the_busy_target() -> None:
    """RCVD_SES_PROCG: not sent again at once; the timer goes on as if nothing had come."""
    script = Script()
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    script.now += MS // 2
    for _ in range(20):
        assert script.give(refusal(request, code=NackCode.RCVD_SES_PROCG)) == []
    assert script.wait(MS // 2 - 1) == []
    (again,) = script.wait(1)
    assert (again.psn, again.retx) == (request.psn, 1)
    assert script.completions == []


def test_the_pdc_of_an_initiator_waits_for_its_busy_return_data() -> None:
    """What SES has not answered yet keeps a PDC from closing."""
    script = Script()
    semantics, own = busy(script)
    assert script.pdc.in_use
    semantics.pdcs[-1].respond(START + 1, ACCEPTED)
    script.take()
    assert not script.pdc.in_use
    script.give(control(ControlType.CLOSE_CMD, START + 2, dpdcid=own, ar=1))
    check_idle(script.fep)
