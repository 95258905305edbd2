"""Trimmed packets of secure domains, and of RUDI, are asked for again (UES 3.5.22, 3.7, 4.1)."""

from typing import Any

import pytest

from tests.harness.uet.exchange import KEY as WIDE_KEY
from tests.harness.uet.exchange import MTU, TRIMMED, Exchange, Wire, trimmed
from tests.harness.uet.network import flip
from tests.harness.uet.script import INITIATOR, KEY, MS, START, Script, rud, write
from tests.harness.uet.secured import OTHER, SDI, SecureScript, opening
from uet.pds.connectionless import MOST_TRIMS
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import WriteRequest
from uet.tss.record import PEEKED
from uet.tss.secure_domain import SecureDomain
from uet.wire.codes import NackCode
from uet.wire.layers import UET_NACK, UET_RUDI_REQ

#: UDP, TSS and PDS header: what trimming must leave of a secured request without credit.
LEAST = 8 + 12 + 12
RUDI_KEY = KEY | IDEMPOTENT_SAFE


@pytest.mark.conformance("C-120", "C-147")
@pytest.mark.parametrize("kept", [LEAST, LEAST + 4, 64])
def test_a_trimmed_secured_request_draws_a_nack(kept: int) -> None:
    """In its own domain, sealed; nothing is delivered, no PSN is taken for received."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    packet = rud(START + 1, dpdcid=answer.spdcid, ar=1, retx=1) / write(b"x" * 500)
    (nack,) = script.give_frame(trimmed(script.frame(packet), TRIMMED, least=kept))
    assert (nack.nack, nack.nack_psn, nack.retx) == (NackCode.TRIMMED, START + 1, 1)
    assert (nack.spdcid, nack.dpdcid, script.newest_sdi) == (answer.spdcid, INITIATOR, SDI)
    window = script.pdc.destination.window
    assert (window.cack, window.received) == (START, 0)
    assert script.memory[:500] == bytes(500)
    assert script.counters["rx_trimmed_secured"] == 1
    (answer,) = script.give(packet)
    assert answer.ack_psn == START + 1


@pytest.mark.conformance("C-069", "C-147")
def test_a_trimmed_secured_syn_makes_no_pdc_and_draws_a_nack() -> None:
    script = SecureScript()
    (nack,) = script.give_frame(trimmed(script.frame(opening(START)), TRIMMED, least=LEAST))
    assert (nack.nack, nack.spdcid, nack.dpdcid) == (NackCode.TRIMMED, 0, INITIATOR)
    assert script.pdcs == []


@pytest.mark.conformance("C-134", "C-147")
def test_what_a_trimmed_secured_packet_says_is_not_believed() -> None:
    """Another domain, a PSN beyond the window, too little of it, no security: no answer."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    own = answer.spdcid

    def give(psn: int, *, least: int = LEAST, sdi: int | None = SDI, own: int = own) -> int:
        packet = rud(psn, dpdcid=own, ar=1) / write(b"x" * 500)
        return len(script.give_frame(trimmed(script.frame(packet, sdi=sdi), TRIMMED, least=least)))

    assert give(START + 1) == 1
    assert give(START + 1, sdi=OTHER) == 0
    assert give(START + 100_000) == 0
    assert give(START + 1, own=own + 1) == 0
    assert give(START + 1, sdi=None) == 0
    assert script.counters["tss_clear_refused"] == 1
    for least in range(12, LEAST):
        assert give(START + 1, least=least) == 0
    # A bit that is changed underway changes that bit of what is read, and no more than a NACK.
    frame = trimmed(
        script.frame(rud(START + 1, dpdcid=own, ar=1) / write(b"x" * 500)), TRIMMED, least=LEAST
    )
    for bit in range((14 + 20 + 8) * 8, len(frame) * 8):
        script.give_frame(flip(frame, bit))
    window = script.pdc.destination.window
    assert (len(script.pdcs), window.cack, window.received) == (1, START, 0)


@pytest.mark.conformance("C-147")
def test_only_the_pds_header_is_read() -> None:
    script = SecureScript()
    frame = script.frame(opening(START))
    records = script.there.find(SDI)
    assert records is not None
    prefix = frame[26:34] + frame[34:40] + bytes(2)
    plaintext = records.read(prefix, frame[42:])
    assert isinstance(plaintext, bytes)
    for least in range(13, len(frame) - 42):
        peeked = records.peek(prefix, frame[42 : 42 + least])
        assert peeked == plaintext[: min(PEEKED, least - 12)]
    assert records.peek(prefix, frame[42:54]) == "tss_truncated"


@pytest.mark.parametrize(
    "domain",
    [
        SecureDomain(sdi=SDI, mode="direct", keys={0: bytes(range(32))}),
        SecureDomain(
            sdi=SDI, mode="cluster", keys={0: bytes(32)}, rekey_mask=0xFF00, rekey_shift=8
        ),
    ],
    ids=["direct", "cluster"],
)
@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_trimming_costs_a_secured_transfer_no_timeout(domain: SecureDomain, delivery: str) -> None:
    secured: dict[str, Any] = {"domains": (domain,), "sdi": SDI, "expected_psn": 0}
    exchange = Exchange(Wire(trimming=0.1), 1, rto_init_time=100 * MS, delivery=delivery, **secured)
    _transfer(exchange, WIDE_KEY)


def test_trimming_costs_rudi_no_timeout() -> None:
    exchange = Exchange(Wire(trimming=0.1), 1, rto_init_time=100 * MS, delivery="rudi")
    _transfer(exchange, WIDE_KEY)


def _transfer(exchange: Exchange, key: int) -> None:
    here, there = exchange.sides
    data = exchange.data(200 * MTU)
    here.fep.post(WriteRequest(peer=there.address, key=key, offset=0, payload=memoryview(data)))
    net = exchange.network
    assert net.run(lambda: bool(net.completions[here.address]), horizon_ns=50 * MS)
    assert [c.error for c in net.completions[here.address]] == [None]
    assert there.region[: len(data)] == data
    assert exchange.switch.cut > 10
    assert here.fep.counters().get("rto_expirations", 0) == 0


# -- RUDI -----------------------------------------------------------------------------------------


@pytest.mark.conformance("C-146")
@pytest.mark.parametrize("secured", [False, True])
def test_a_trimmed_rudi_request_draws_a_nack(secured: bool) -> None:
    """With NT and its packet id; it is not carried out."""
    script = SecureScript() if secured else Script()
    script.fep.register(memoryview(script.memory), key=RUDI_KEY)
    packet = UET_RUDI_REQ(pkt_id=77, retx=1) / write(b"x" * 500, match_bits=RUDI_KEY)
    (nack,) = script.give_frame(trimmed(script.frame(packet), TRIMMED, least=LEAST))
    assert (nack.name, nack.nt, nack.nack_pkt_id, nack.retx) == ("nack", 1, 77, 1)
    assert nack.nack is NackCode.TRIMMED
    assert script.memory[:500] == bytes(500)
    (answer,) = script.give(packet)
    assert answer.pkt_id == 77
    assert script.memory[:500] == b"x" * 500


@pytest.mark.conformance("C-146")
def test_a_refused_rudi_request_is_sent_again_at_once_if_it_was_trimmed() -> None:
    """With RETX; any other refusal waits for NACK_Retx_Time and is limited."""
    script = Script(nack_retx_time=MS, rto_init_time=50 * MS, max_nack_retx_cnt=1)
    script.post(b"x" * 100, key=RUDI_KEY, delivery="rudi", context="w")
    (request,) = script.take()

    def refuse(code: NackCode) -> list[int]:
        nack = UET_NACK(nt=1, nack_code=code, nack_pkt_id=request.pkt_id)
        return [seen.retx for seen in script.give(nack)]

    for code in (NackCode.TRIMMED, NackCode.TRIMMED_LASTHOP) * (MOST_TRIMS // 2):
        assert refuse(code) == [1]
    for _ in range(2):
        assert refuse(NackCode.NO_RESOURCE) == [] or script.completions
        again = script.wait(MS)
        assert len(again) <= 1
    assert [c.error for c in script.completions] == ["NACK_RETRIES_EXHAUSTED"]
    assert refuse(NackCode.TRIMMED) == []


def test_one_refusal_that_comes_twice_makes_one_copy() -> None:
    script = Script()
    script.post(b"x" * 100, key=RUDI_KEY, delivery="rudi")
    (request,) = script.take()
    nack = UET_NACK(nt=1, nack_code=NackCode.TRIMMED, nack_pkt_id=request.pkt_id)
    frame = memoryview(script.frame(nack))
    script.fep.receive([frame, frame, frame], script.now)
    assert len(script.take()) == 1
