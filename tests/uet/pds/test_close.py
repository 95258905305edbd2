"""How a PDC ends, in order, in error, and on request; and what arrives afterwards (UES 3.5.8)."""

import random

import pytest

from tests.harness.uet.network import Impairment, Network, endpoint
from tests.harness.uet.script import (
    ELSEWHERE,
    HERE,
    INITIATOR,
    KEY,
    MS,
    MTU,
    REGION,
    START,
    TARGET,
    THERE,
    Script,
    ack,
    control,
    refusal,
    rud,
    write,
)
from uet.ses.initiator.requests import MessageError
from uet.transport import WriteRequest
from uet.wire.codes import AckRequest, ControlType, NackCode, ReturnCode

# -- the initiator -------------------------------------------------------------------------------


@pytest.mark.conformance("C-051")
def test_close_after_the_last_answer() -> None:
    """CLOSE waits for every response, takes the next PSN, asks for an ACK, and is repeated."""
    script = Script()
    script.establish_initiator()
    script.post(bytes(3 * MTU))
    packets = script.take()
    script.fep.close()
    assert script.take() == []
    script.give(ack(packets[1], cack=packets[0].psn - 1))
    assert script.give(ack(packets[0], cack=packets[1].psn)) == []
    assert not script.fep.closed
    (close,) = script.give(ack(packets[2]))
    assert close.control is ControlType.CLOSE_CMD
    assert close.psn == packets[2].psn + 1
    assert (close.ar, close.retx, close.syn, close.dpdcid) == (1, 0, 0, TARGET)
    assert close.payload_word == 0
    (again,) = script.wait(MS)
    assert (again.control, again.psn, again.retx, again.ar) == (close.control, close.psn, 1, 1)
    assert not script.fep.closed
    script.give(ack(close, code=None))
    assert script.fep.closed
    assert script.pdcs == []
    assert script.fep.next_deadline() is None


def test_close_with_a_sack_only() -> None:
    """A SACK that covers the CLOSE is not yet its acknowledgement."""
    script = Script()
    script.establish_initiator()
    script.fep.close()
    (close,) = script.take()
    script.give(ack(psn=close.psn - 1, dpdcid=close.spdcid, sack=(close.psn, 1)))
    assert not script.fep.closed
    (again,) = script.wait(MS)
    assert again.control is ControlType.CLOSE_CMD


def test_lost_ack_of_the_close() -> None:
    """The target has forgotten the PDC and says so: that is an answer too."""
    script = Script()
    script.establish_initiator()
    script.fep.close()
    assert len(script.take()) == 1
    (again,) = script.wait(MS)
    script.give(refusal(again, code=NackCode.INV_DPDCID, spdcid=0))
    assert script.fep.closed
    assert "pdc_errors" not in script.counters
    assert "pdcs_closed_unanswered" not in script.counters


def test_a_close_that_nobody_answers() -> None:
    script = Script(max_rto_retx_cnt=2)
    script.establish_initiator()
    script.fep.close()
    closes = script.wait(1000 * MS)
    assert [c.control for c in closes] == [ControlType.CLOSE_CMD] * 3
    assert script.fep.closed
    assert script.counters["pdcs_closed_unanswered"] == 1


@pytest.mark.conformance("C-068")
def test_no_new_message_once_the_close_has_begun() -> None:
    """A request that comes after the target asked to close goes to a PDC of its own."""
    script = Script()
    own = script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    (close,) = script.give(ack(request, req=AckRequest.CLOSE))
    assert close.control is ControlType.CLOSE_CMD
    script.post(b"y")
    (other,) = script.take()
    assert other.syn == 1
    assert other.spdcid != own
    script.post(b"z")
    (third,) = script.take()
    assert third.spdcid == other.spdcid
    assert other.psn_offset == 0
    script.give(ack(close, code=None))
    script.give(ack(third, spdcid=TARGET + 1))
    assert [c.error for c in script.completions] == [None, None, None]
    assert script.pdc.id == other.spdcid


@pytest.mark.conformance("C-068")
@pytest.mark.parametrize("how", ["reclaimed", "asked by CLOSE_REQ", "asked in an ACK"])
@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_a_pdc_that_waits_to_close_takes_no_message(how: str, delivery: str) -> None:
    """Its own request is unanswered, so that no CLOSE has left; what is posted goes elsewhere."""
    script = Script(delivery=delivery)
    own = script.establish_initiator()
    first_return = script.pdc.start_psn
    script.post(bytes(2 * MTU))
    one, two = script.take()
    if how == "reclaimed":
        script.pdc.quiesce()
    elif how == "asked by CLOSE_REQ":
        script.give(control(ControlType.CLOSE_REQ, first_return, dpdcid=own, spdcid=TARGET, ar=1))
    else:
        script.give(ack(one, req=AckRequest.CLOSE))
    script.post(b"y")
    (other,) = script.take()
    assert (other.syn, other.spdcid != own, other.payload) == (1, True, b"y")
    closes = script.give(ack(two))
    assert [(packet.control, packet.spdcid) for packet in closes] == [(ControlType.CLOSE_CMD, own)]
    script.post(b"z")
    assert {packet.spdcid for packet in script.take()} == {other.spdcid}


@pytest.mark.conformance("C-068")
def test_what_was_posted_before_the_close_is_finished() -> None:
    script = Script(window_bytes=2_000)
    script.establish_initiator()
    script.post(bytes(4 * MTU), context=1)
    script.post(bytes(4 * MTU), context=2)
    sent = script.take()
    sent += script.give(ack(sent[0], req=AckRequest.CLOSE))
    while sent[-1].is_request:
        sent += script.give(ack(sent[-1]))
    assert len(sent) == 9
    assert [c.context for c in script.completions] == [1, 2]
    assert sent[-1].control is ControlType.CLOSE_CMD


def test_a_closing_endpoint_takes_no_requests() -> None:
    script = Script()
    script.fep.close()
    with pytest.raises(MessageError, match="closing"):
        script.post(b"x")


@pytest.mark.conformance("C-054")
def test_the_target_asks_for_the_close() -> None:
    """CLOSE_REQ takes a return PSN and is acknowledged; CLOSE comes when all is drained."""
    script = Script()
    own = script.establish_initiator()
    first_return = script.pdc.start_psn
    script.post(bytes(2 * MTU))
    packets = script.take()
    ask = control(ControlType.CLOSE_REQ, first_return, dpdcid=own, spdcid=TARGET, ar=1)
    (answer,) = script.give(ask)
    assert answer.is_ack
    assert (answer.ack_psn, answer.cack_psn, answer.ses) == (first_return, first_return, None)
    ask.retx = 1
    (again,) = script.give(ask)
    assert again.ack_psn == first_return
    (close,) = script.give(ack(packets[-1]))
    assert close.control is ControlType.CLOSE_CMD
    script.give(ack(close, code=None))
    assert script.pdcs == []


# -- the target ----------------------------------------------------------------------------------


def test_the_target_closes() -> None:
    """The target acknowledges, and forgets all, half a message included."""
    script = Script()
    own = script.establish_target()
    script.give(rud(START + 1, dpdcid=own) / write(bytes(8), at=0, total=16, message_id=4))
    assert len(script.fep.target.inbound.messages) == 1
    (answer,) = script.give(control(ControlType.CLOSE_CMD, START + 2, dpdcid=own, ar=1))
    assert (answer.ack_psn, answer.cack_psn, answer.ses) == (START + 2, START + 2, None)
    assert script.pdcs == []
    assert script.fep.target.inbound.messages == {}
    assert script.counters["rx_messages_abandoned"] == 1
    (nack,) = script.give(control(ControlType.CLOSE_CMD, START + 2, dpdcid=own, ar=1, retx=1))
    assert (nack.nack, nack.spdcid, nack.dpdcid) == (NackCode.INV_DPDCID, 0, INITIATOR)


def test_close_clears_what_was_guaranteed() -> None:
    """Everything the source has sent is answered by then, so CACK covers the CLOSE."""
    script = Script(mpr=1)
    own = script.establish_target()
    for k in range(1, 129):
        script.give(rud(START + k, dpdcid=own, clear=START) / write(b"x", match_bits=1))
    (answer,) = script.give(control(ControlType.CLOSE_CMD, START + 129, dpdcid=own, ar=1))
    assert (answer.ack_psn, answer.cack_psn) == (START + 129, START + 129)
    assert script.pdcs == []


def test_close_outside_the_window_changes_nothing() -> None:
    script = Script()
    own = script.establish_target()
    script.give(rud(START + 1, dpdcid=own, clear=START) / write(b"x", match_bits=1))
    for psn in (START + 5_000, START - 5_000, START + 2**31):
        (nack,) = script.give(control(ControlType.CLOSE_CMD, psn, dpdcid=own, ar=1))
        assert nack.nack is NackCode.PSN_OOR_WINDOW
    assert set(script.pdc.destination.stored) == {START + 1}


@pytest.mark.conformance("C-053")
def test_a_request_after_the_close() -> None:
    """Beyond the PSN of the CLOSE: CLOSING, whether the request knows the target's id or not."""
    script = Script()
    own = script.establish_target()
    script.give(control(ControlType.CLOSE_CMD, START + 1, dpdcid=own, ar=1))
    (nack,) = script.give(rud(START + 2, dpdcid=own) / write(b"x"))
    assert (nack.nack, nack.nack_psn, nack.spdcid) == (NackCode.CLOSING, START + 2, 0)
    (nack,) = script.give(rud(START + 2, syn=2) / write(b"x"))
    assert nack.nack is NackCode.CLOSING
    (nack,) = script.give(rud(START, dpdcid=own) / write(b"x"))
    assert nack.nack is NackCode.INV_DPDCID
    assert script.pdcs == []
    assert script.memory[0] == 0


def test_a_late_syn_does_not_open_the_pdc_again() -> None:
    """A copy that the network has kept back would be carried out a second time."""
    script = Script()
    late = rud(START, syn=0, ar=1) / write(b"late", hd=1, header_data=7)
    (answer,) = script.give(late)
    script.give(control(ControlType.CLOSE_CMD, START + 1, dpdcid=answer.spdcid, ar=1))
    assert len(script.completions) == 1
    script.memory[:4] = b"used"
    assert script.give(late) == []
    late.retx = 1
    assert script.give(late) == []
    assert script.completions == []
    assert script.memory[:4] == b"used"
    assert script.pdcs == []
    assert script.counters["rx_drop_syn_of_closed_pdc"] == 2


def test_the_next_incarnation_is_welcome() -> None:
    """An identifier that comes again with another first PSN is a new PDC."""
    script = Script()
    own = script.establish_target()
    script.give(control(ControlType.CLOSE_CMD, START + 1, dpdcid=own, ar=1))
    start = START + 70_000
    (answer,) = script.give(rud(start, syn=0, clear=start - 1) / write(b"new"))
    assert answer.cack_psn == start
    assert script.memory[:3] == b"new"


def test_closed_targets_remembered_are_bounded() -> None:
    script = Script()
    table = script.fep.table
    peer = script.fep.peers[bytes([10, 0, 1, 2])]
    for k in range(5_000):
        pdc = table.accept(peer, k + 1, START, 0)
        assert pdc is not None
        pdc.closed()
    known = [k + 1 for k in range(5_000) if table.find_closed(peer.key, k + 1) is not None]
    assert known == list(range(5_001 - 4_096, 5_001))


@pytest.mark.conformance("C-054")
def test_a_target_that_must_close_in_error() -> None:
    """The pool is exhausted: CLOSE_REQ, repeated by its timer, then Close_REQ_Time is over."""
    script = Script(max_pdcs=1, close_req_time=4 * MS, rto_init_time=MS)
    own = script.establish_target()
    refused = rud(START, syn=0, spdcid=8) / write(b"x")
    assert [a.nack for a in script.give(refused)] == [NackCode.NO_PDC_AVAIL]
    script.now += 4 * MS
    nack, ask = script.give(refused)
    assert nack.nack is NackCode.NO_PDC_AVAIL
    assert ask.control is ControlType.CLOSE_REQ
    assert (ask.psn, ask.ar, ask.spdcid, ask.dpdcid) == (START, 1, own, INITIATOR)
    again = script.wait(4 * MS)
    assert [(p.control, p.psn, p.retx) for p in again] == [(ControlType.CLOSE_REQ, START, 1)] * 2
    assert script.pdcs == []
    (answer,) = script.give(refused)
    assert answer.is_ack
    # A late copy of the old PDC's SYN is refused: nobody knows whether it was carried out.
    (nack,) = script.give(rud(START + 1, syn=1) / write(b"x"))
    assert nack.nack is NackCode.CLOSING


@pytest.mark.conformance("C-054")
def test_an_initiator_that_obeys() -> None:
    script = Script(max_pdcs=1)
    own = script.establish_target()
    refused = rud(START, syn=0, spdcid=8) / write(b"x")
    script.give(refused)
    script.now += MS
    *_, ask = script.give(refused)
    script.give(ack(ask, spdcid=INITIATOR, code=None))
    (answer,) = script.give(control(ControlType.CLOSE_CMD, START + 1, dpdcid=own, ar=1))
    assert answer.is_ack
    assert script.pdcs == []
    assert script.fep.next_deadline() is None
    assert "pdc_errors" not in script.counters


def test_an_initiator_that_is_gone_says_so() -> None:
    script = Script(max_pdcs=1)
    script.establish_target()
    refused = rud(START, syn=0, spdcid=8) / write(b"x")
    script.give(refused)
    script.now += MS
    *_, ask = script.give(refused)
    script.give(refusal(ask, code=NackCode.INV_DPDCID, spdcid=0))
    assert script.pdcs == []
    assert "pdc_errors" not in script.counters


def test_an_initiator_that_is_still_busy_gets_more_time() -> None:
    """New data after the CLOSE_REQ: what was queued is being finished."""
    script = Script(max_pdcs=1, close_req_time=MS, rto_init_time=8 * MS)
    own = script.establish_target()
    refused = rud(START, syn=0, spdcid=8) / write(b"x")
    script.give(refused)
    script.now += MS
    *_, ask = script.give(refused)
    script.give(ack(ask, spdcid=INITIATOR, code=None))
    for k in range(1, 6):
        script.wait(MS // 2)
        assert script.give(rud(START + k, dpdcid=own) / write(b"x", message_id=k)) == []
        script.wait(MS // 2)
        assert script.pdc.id == own
    script.wait(2 * MS)
    assert script.pdcs == []


def test_a_busy_pdc_is_not_asked_to_close() -> None:
    script = Script(max_pdcs=1, close_req_time=MS)
    own = script.establish_target()
    for k in range(1, 9):
        answers = script.give(rud(START, syn=0, spdcid=8) / write(b"x"))
        assert [a.nack for a in answers] == [NackCode.NO_PDC_AVAIL]
        script.now += MS
        script.give(rud(START + k, dpdcid=own) / write(b"x", message_id=k))


# -- control packets that cannot be obeyed -------------------------------------------------------


@pytest.mark.conformance("C-055")
def test_unsupported_control_packets() -> None:
    """Unexpected kind or direction: UNEXP_EVENT; unknown PDC: INV_DPDCID; nothing changes."""
    script = Script()
    target = script.establish_target()
    wrong = set(range(16)) - {
        ControlType.NOOP,
        ControlType.ACK_REQ,
        ControlType.CLEAR_CMD,
        ControlType.CLEAR_REQ,
        ControlType.CLOSE_CMD,
        ControlType.PROBE,
        ControlType.CREDIT,
        ControlType.CREDIT_REQ,
        ControlType.NEGOTIATION,
    }
    for kind in sorted(wrong):
        (nack,) = script.give(control(kind, START + 1, dpdcid=target, ar=1))  # type: ignore[arg-type]
        assert nack.nack is NackCode.UNEXP_EVENT
        assert (nack.nack_psn, nack.spdcid) == (START + 1, target)
    assert script.pdc.destination.window.cack == START
    for kind in ControlType:
        (nack,) = script.give(control(kind, START + 1, dpdcid=target + 1, ar=1))
        assert (nack.nack, nack.spdcid) == (NackCode.INV_DPDCID, 0)
    (nack,) = script.give(control(ControlType.PROBE, START, dpdcid=0, spdcid=55, syn=1))
    assert nack.nack is NackCode.INV_DPDCID
    assert [pdc.id for pdc in script.pdcs] == [target]


@pytest.mark.conformance("C-055")
def test_a_target_does_not_close_an_initiator() -> None:
    script = Script()
    own = script.establish_initiator()
    packet = control(ControlType.CLOSE_CMD, script.pdc.start_psn, dpdcid=own, spdcid=TARGET, ar=1)
    (nack,) = script.give(packet)
    assert nack.nack is NackCode.UNEXP_EVENT
    assert script.pdc.id == own


def test_an_initiator_does_not_ask_a_target_by_an_ack() -> None:
    """REQ_CLOSE and REQ_CLEAR say something to initiators only."""
    script = Script()
    own = script.establish_target()
    for req in (AckRequest.CLOSE, AckRequest.CLEAR):
        stray = ack(psn=START - 1, dpdcid=own, spdcid=INITIATOR, req=req, code=ReturnCode.OK)
        assert script.give(stray) == []
    assert script.fep.next_deadline() is None
    assert script.give(rud(START + 1, dpdcid=own, ar=1) / write(b"x"))


# -- two endpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(4))
def test_nothing_is_carried_out_twice_around_a_close(block: int) -> None:
    """Frames are kept back by up to ten round trips, while PDCs come and go.

    Every message brings its header data once, whatever arrives after the close of its PDC.
    """
    for seed in range(block * 25, block * 25 + 25):
        rng = random.Random(seed)
        feps = {a: endpoint(a, seed=seed + k, max_pdcs=2) for k, a in enumerate((HERE, THERE))}
        network = Network(
            feps, random.Random(seed), Impairment(loss=0.1, duplicate=0.3, jitter_ns=20_000)
        )
        memory = bytearray(REGION)
        feps[THERE].register(memoryview(memory), key=KEY)
        for number in range(6):
            payload = memoryview(rng.randbytes(rng.choice((0, 1, 5_000))))
            feps[HERE].post(
                WriteRequest(
                    peer=THERE,
                    key=KEY,
                    offset=0,
                    payload=payload,
                    header_data=number,
                    context=number,
                )
            )
            mine = network.completions[HERE]
            assert network.run(lambda mine=mine, number=number: len(mine) > number)  # type: ignore[misc]
            feps[HERE].table.quiesce()  # close each PDC while copies are still under way
        network.settle()
        assert [c.error for c in network.completions[HERE]] == [None] * 6
        assert [c.header_data for c in network.completions[THERE]] == list(range(6))
        assert len(feps[HERE].table) == 0
        assert len(feps[THERE].table) == 0


def test_pdcs_of_an_initiator_that_vanished_are_taken_back() -> None:
    """A pool full of PDCs whose initiators have vanished serves a newcomer all the same."""
    feps = {a: endpoint(a, seed=k, max_pdcs=4) for k, a in enumerate((HERE, THERE, ELSEWHERE))}
    network = Network(feps, random.Random(1))
    memory = bytearray(REGION)
    feps[HERE].register(memoryview(memory), key=KEY)
    for generation in range(12):
        feps[THERE] = endpoint(THERE, seed=100 + generation)
        feps[THERE].post(WriteRequest(peer=HERE, key=KEY, offset=0, payload=memoryview(b"a")))
        network.settle()
    assert [c.error for c in network.completions[THERE]] == [None] * 12
    del network.endpoints[THERE]
    for _ in range(3):
        feps[ELSEWHERE].post(WriteRequest(peer=HERE, key=KEY, offset=0, payload=memoryview(b"b")))
        network.settle()
    assert [c.error for c in network.completions[ELSEWHERE]] == [None] * 3
    assert len(feps[HERE].table) <= 4
