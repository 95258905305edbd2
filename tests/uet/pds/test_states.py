"""Identifiers, the reserved pool, the peer's range, and the messages of a PDC that has failed."""

import random

import pytest

from tests.harness.uet.invariants import check_idle
from tests.harness.uet.script import (
    HERE,
    MS,
    MTU,
    START,
    TARGET,
    Script,
    Seen,
    ack,
    refusal,
    rud,
    write,
)
from uet.compatibility import Compatibility
from uet.config import FepConfig
from uet.config_checks import ConfigurationError
from uet.wire.codes import USE_RSV_PDC, NackCode

# -- the reserved pool ----------------------------------------------------------------------------


@pytest.mark.conformance("C-010")
def test_a_part_of_the_pool_is_for_those_who_ask_for_it() -> None:
    script = Script(max_pdcs=4, reserved_pdcs=2)
    opened = []
    for spdcid in range(1, 4):
        (seen,) = script.give(rud(START, syn=0, spdcid=spdcid, ar=1) / write(b"x"))
        opened.append(seen)
    assert [s.nack for s in opened] == [None, None, NackCode.NO_PDC_AVAIL]
    for spdcid in (4, 5):
        packet = rud(START, syn=0, pdc_info=USE_RSV_PDC, spdcid=spdcid, ar=1)
        (seen,) = script.give(packet / write(b"x"))
        assert seen.is_ack
    packet = rud(START, syn=0, pdc_info=USE_RSV_PDC, spdcid=6, ar=1) / write(b"x")
    assert [s.nack for s in script.give(packet)] == [NackCode.NO_PDC_AVAIL]
    assert [pdc.identity.reserved for pdc in script.pdcs] == [False, False, True, True]


@pytest.mark.parametrize("asks", [False, True])
def test_an_initiator_that_asks_for_it(asks: bool) -> None:
    """In every SYN packet, and it takes from its own reserve too."""
    script = Script(max_pdcs=4, reserved_pdcs=3, use_reserved_pdcs=asks)
    script.give(rud(START, syn=0, ar=1) / write(b"x"))  # takes what is for everybody
    script.post(bytes(2 * MTU))
    sent = script.take()
    assert len(sent) == (2 if asks else 0)
    assert [s.pdc_info for s in sent] == [USE_RSV_PDC] * len(sent)
    assert [s.psn_offset for s in sent] == list(range(len(sent)))


def test_the_reserve_must_leave_something() -> None:
    with pytest.raises(ConfigurationError, match="reserved_pdcs"):
        FepConfig(address=HERE, mac="02:00:00:00:00:01", max_pdcs=3, reserved_pdcs=3)


# -- Syn_Retx_Safety_Time -------------------------------------------------------------------------


def reopened(script: Script) -> Seen:
    """Close the PDC, and return the first request of the next, which has no identifier but that."""
    script.pdc.quiesce()
    script.fep.activate(script.pdc)
    (close,) = script.take()
    script.give(ack(close, code=None))
    assert script.pdcs == []
    script.post(b"x")
    (request,) = script.take()
    return request


@pytest.mark.parametrize("resent", [False, True])
def test_an_identifier_whose_syn_was_resent_rests(resent: bool) -> None:
    """A late copy of that SYN may still be under way when the PDC has closed (UES 1.0.3).

    A message waits as long as no other identifier is free.
    """
    script = Script(syn_retx_safety_time=8 * MS, close_req_time=2 * MS, last_pdcid=1)
    script.post(b"x")
    (request,) = script.take()
    if resent:
        (request,) = script.wait(MS)
        assert (request.syn, request.retx) == (1, 1)
    script.give(ack(request))
    script.pdc.quiesce()
    script.fep.activate(script.pdc)
    (close,) = script.take()
    script.give(ack(close, code=None))
    assert script.pdcs == []
    script.post(b"y")
    if resent:
        assert script.wait(7 * MS) == []
    (fresh,) = [s for s in script.wait(3 * MS) if s.retx == 0]
    assert (fresh.spdcid, fresh.syn) == (1, 1)


@pytest.mark.conformance("C-015")
def test_an_identifier_that_comes_again_starts_elsewhere() -> None:
    for seed in range(20):
        script = Script(seed=seed, last_pdcid=1)
        script.establish_initiator()
        for _ in range(10):
            last = script.next_psn  # which the CLOSE takes
            request = reopened(script)
            assert request.spdcid == 1
            assert 1 << 16 <= request.psn < 1 << 31
            assert abs(request.psn - last) >= 1 << 16
            script.give(ack(request))


@pytest.mark.conformance("C-015")
@pytest.mark.parametrize("distance", [-(1 << 16) + 1, -1, 0, 1, (1 << 16) - 1])
def test_a_near_first_psn_is_not_taken(distance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator proposes a PSN near to the last one, and then one that is far enough."""
    script = Script(seed=3, last_pdcid=1)
    script.establish_initiator()
    last = script.next_psn
    proposals = iter([last + distance, last + (1 << 16)])
    monkeypatch.setattr(random.Random, "randrange", lambda *_: next(proposals))
    request = reopened(script)
    assert (request.spdcid, request.psn) == (1, last + (1 << 16))


# -- the range of the peer ------------------------------------------------------------------------


@pytest.mark.conformance("C-041", "C-042")
def test_a_range_that_shrinks_holds_back_what_is_sent_again() -> None:
    """Down to 128 PSNs while 200 are in flight: those beyond wait until CACK moves."""
    script = Script(window_bytes=1 << 30, mpr=2)
    script.establish_initiator(mpr=2)
    for _ in range(4):
        script.post(bytes(50 * MTU))
    packets = script.take()
    assert len(packets) == 200
    script.give(ack(packets[0], mpr=1))
    resent = [s for s in script.wait(MS) if s.is_request]
    assert [s.psn for s in resent] == [p.psn for p in packets[1:129]]
    resent = [s for s in script.give(ack(packets[49], mpr=1)) if s.is_request]
    assert [s.psn for s in resent] == [p.psn for p in packets[129:178]]
    assert {s.retx for s in resent} == {1}


@pytest.mark.conformance("C-042", "C-127")
@pytest.mark.parametrize(("switch", "expected"), [(None, 1_024), (1, 128), (3, 384)])
def test_what_a_range_of_zero_means(switch: int | None, expected: int) -> None:
    """Nothing, unless configuration says how many units (UES 1.0.3, Override_MPR_Zero_Value)."""
    script = Script(
        window_bytes=1 << 30, compatibility=Compatibility(override_mpr_zero_value=switch)
    )
    script.establish_initiator(mpr=0)
    assert script.pdc.source.requests.peer_range == expected


@pytest.mark.conformance("C-042")
def test_ranges_of_older_acknowledgements() -> None:
    script = Script(window_bytes=1 << 30)
    script.establish_initiator()
    script.post(bytes(4 * MTU))
    packets = script.take()
    source = script.pdc.source
    script.give(ack(packets[2], cack=packets[1].psn, mpr=4))
    assert source.requests.peer_range == 512
    script.give(ack(packets[0], mpr=1))
    assert source.requests.peer_range == 512
    script.give(ack(packets[3], mpr=2))
    assert source.requests.peer_range == 256


# -- messages of a PDC that failed ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["fatal NACK", "timeout", "gone"])
def test_messages_that_were_not_sent_go_elsewhere(how: str) -> None:
    """In their order, on a new PDC, at once: whatever ended the old one, and without an event."""
    script = Script(window_bytes=2 * MTU, max_rto_retx_cnt=0)
    own = script.establish_initiator()
    script.post(bytes(4 * MTU), context="sent")
    for k in range(3):
        script.post(b"%d" % k, context=k)
    sent = script.take()
    assert len(sent) == 2
    code = NackCode.INV_DPDCID if how == "gone" else NackCode.UNEXP_EVENT
    seen = script.wait(MS) if how == "timeout" else script.give(refusal(sent[0], code=code))
    fresh = [s for s in seen if s.is_request and s.spdcid != own]
    assert [s.payload for s in fresh] == [b"0", b"1", b"2"]
    assert [s.psn_offset for s in fresh] == [0, 1, 2]
    deadline = script.fep.next_deadline()
    assert deadline is not None
    assert deadline > script.now
    for packet in fresh:
        script.give(ack(packet, spdcid=TARGET + 1))
    ended = script.completions
    assert [s for s in script.wait(MS) if s.is_request] == []  # what was in flight may be answered
    ended += script.completions
    sent_end = "RTO_RETRIES_EXHAUSTED" if how == "timeout" else code.name
    assert {c.context: c.error for c in ended} == {"sent": sent_end, 0: None, 1: None, 2: None}
    assert len(ended) == 4


def test_messages_that_were_not_sent_wait_for_a_pdc() -> None:
    """The old one still takes the only place: they go as soon as its CLOSE is answered."""
    script = Script(window_bytes=MTU, max_pdcs=2, close_req_time=2 * MS)
    script.establish_initiator()
    script.post(b"sent", context="sent")
    script.post(bytes(MTU - 100), context="second")
    script.post(b"later", context="later")
    sent = script.take()
    seen = script.give(refusal(sent[0], code=NackCode.UNEXP_EVENT)) + script.wait(MS)
    (close,) = [s for s in seen if s.control is not None]
    assert not [s for s in seen if s.is_request]
    seen = script.give(ack(close, code=None))
    seen += script.wait(3 * MS)
    fresh = [s for s in seen if s.is_request and not s.retx]
    assert fresh
    assert {s.syn for s in fresh} == {1}
    assert script.fep.initiator.open_messages == len({s.psn for s in fresh})


def test_a_refused_opening_is_tried_again_and_then_fails() -> None:
    """NO_PDC_AVAIL: the same SYN after NACK_Retx_Time and later, Max_NACK_Retx_Cnt times."""
    script = Script(max_nack_retx_cnt=2, nack_retx_time=MS // 4)
    script.post(b"x", context="w")
    (request,) = script.take()
    for doublings in range(2):
        assert script.give(refusal(request, code=NackCode.NO_PDC_AVAIL, spdcid=0)) == []
        (again,) = script.wait(MS // 4 << doublings)
        assert (again.psn, again.syn, again.retx) == (request.psn, 1, 1)
    script.give(refusal(request, code=NackCode.NO_PDC_AVAIL, spdcid=0))
    assert [c.error for c in script.completions] == ["NACK_RETRIES_EXHAUSTED"]
    assert script.pdcs == []
    check_idle(script.fep)
