"""Test what a secured endpoint takes in clear, and keys that change or end (UES 3.7)."""

import random
from typing import Any

import pytest

from tests.harness.uet.invariants import check_idle
from tests.harness.uet.script import (
    HERE,
    KEY,
    MTU,
    START,
    THERE,
    US,
    Script,
    ack,
    control,
    refusal,
    rud,
    write,
)
from tests.harness.uet.secured import DOMAINS, OTHER, SDI, SecureScript, counter_of, opening, pair
from tests.harness.uet.tss_vectors import sealed_frame
from tests.uet.pds.test_return_direction import read_request
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import SendRequest, WriteRequest
from uet.tss.record import SecureDomains
from uet.tss.secure_domain import COUNTER_LIMIT, SecureDomain
from uet.wire.codes import ControlType, NackCode
from uet.wire.layers import UET_NACK

# -- clear packets --------------------------------------------------------------------------------


@pytest.mark.conformance("C-140")
def test_packets_in_clear_are_refused() -> None:
    script = SecureScript()
    (answer,) = script.give(opening(START))
    script.post(b"x")
    (request,) = script.take()
    clear = (
        opening(START + 9, spdcid=9),
        rud(START + 1, dpdcid=answer.spdcid, ar=1) / write(b"evil"),
        ack(request),
        refusal(request, code=NackCode.INV_DPDCID, spdcid=0),
        control(ControlType.CLOSE_CMD, START + 1, dpdcid=answer.spdcid, ar=1),
    )
    for packet in clear:
        assert script.give_frame(script.frame(packet, sdi=None)) == []
    assert script.counters["tss_clear_refused"] == len(clear)
    assert script.completions == []
    assert len(script.pdcs) == 2


def test_a_domain_may_accept_refusals_in_clear() -> None:
    """The UEC reference provider sends them so where it has no PDC; nothing else is in clear."""
    lax = SecureDomain(sdi=SDI, mode="cluster", keys={0: bytes(range(32))}, accept_clear=True)
    script = SecureScript(domains=(lax,))
    script.post(b"x", context="w")
    (request,) = script.take()
    assert script.give_frame(script.frame(ack(request), sdi=None)) == []
    assert script.completions == []
    nack = refusal(request, code=NackCode.NEW_START_PSN, payload_word=9_000, spdcid=0)
    (again,) = script.give_frame(script.frame(nack, sdi=None))
    assert again.psn == 9_000
    script.give(ack(again))
    assert [c.error for c in script.completions] == [None]


def test_secured_packets_where_there_is_no_security() -> None:
    script = Script()
    (domain,) = SecureDomains(DOMAINS[:1])
    frame = sealed_frame(domain, bytes(opening(START)), source=THERE, destination=HERE)
    assert script.give_frame(frame) == []
    assert script.counters["rx_drop_unsupported_type"] == 1


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.conformance("C-132")
def test_keys_change_under_traffic() -> None:
    """Make before break, each end in its own time: nothing is lost by it, no timer runs out."""
    network, memory = pair(5)
    data = random.Random(5).randbytes(30_000)
    done = 0

    def advance(messages: int) -> None:
        nonlocal done
        done += messages
        for source, target in ((HERE, THERE), (THERE, HERE)):
            for _ in range(messages):
                network.endpoints[source].post(
                    WriteRequest(peer=target, key=KEY, offset=0, payload=memoryview(data))
                )
        end = network.now + 5 * US
        network.run(lambda: network.now >= end)

    records = {}
    for address, fep in network.endpoints.items():
        assert fep.domains is not None
        records[address] = fep.domains.find(SDI)
    seen = []
    for generation in range(1, 4):
        an = generation & 1
        advance(2)
        for there in records.values():
            assert there is not None
            there.set_key(an, bytes([generation]) * 32)
        advance(1)
        for there in records.values():
            assert there is not None
            assert there.position(an) == (0, 0)
            there.rotate(an)
            advance(1)
        network.run(lambda: all(not f.initiator.open_messages for f in network.endpoints.values()))
        for there in records.values():
            assert there is not None
            there.retire(an ^ 1)
        seen.append(len(network.sent))
    network.settle()
    for address, fep in network.endpoints.items():
        assert [c.error for c in network.completions[address]] == [None] * done
        assert memory[address][:30_000] == data
        counts = fep.counters()
        assert not [n for n in counts if n.startswith("tss_") and counts[n]]
        assert counts.get("tx_retransmitted_packets", 0) == 0
    # The counter began anew with each key.
    first = {counter_of(frame)[1:] for frame in network.sent[seen[0] :]}
    assert (0, bytes(8)) in first
    assert (1, bytes(8)) in first


def exhaust(fep: Any, left: int) -> None:
    """Leave so many packets under the present key."""
    (records,) = (r for r in fep.domains if r.domain.sdi == SDI)
    records.ring(records.an).counter = COUNTER_LIMIT - left


@pytest.mark.conformance("C-138")
def test_an_exhausted_counter_ends_the_pdc() -> None:
    """What is under way fails by name; nothing is raised, sent again for ever, or left behind."""
    script = SecureScript()
    script.establish_initiator()
    exhaust(script.fep, 3)
    script.post(bytes(5 * MTU), context="under way")
    script.post(b"y", context="behind it")
    assert len(script.take()) == 3
    assert {c.context: c.error for c in script.completions} == {
        "under way": "TSS_COUNTER_EXHAUSTED",
        "behind it": "TSS_COUNTER_EXHAUSTED",
    }
    assert script.pdcs == []
    check_idle(script.fep)
    # A new key, and all is well.
    for records in (*script.fep.domains, script.there.find(SDI)):  # type: ignore[misc]
        if records.domain.sdi == SDI:
            records.set_key(1, bytes([1]) * 32)
            records.rotate(1)
    script.post(b"z", context="anew")
    (request,) = script.take()
    script.give(ack(request))
    assert [(c.context, c.error) for c in script.completions] == [("anew", None)]


@pytest.mark.conformance("C-138")
def test_an_exhausted_counter_at_a_target() -> None:
    """The target answers no more; its return data fails, and the PDC with it."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    own = answer.spdcid
    exhaust(script.fep, 1)
    (answer,) = script.give(rud(START + 1, dpdcid=own, ar=1) / read_request(100))
    assert answer.is_ack
    assert script.pdcs == []
    assert script.give(rud(START + 2, dpdcid=own, ar=1) / write(b"x")) == []
    assert script.counters["tss_counter_exhausted"] >= 2
    assert script.fep.next_deadline() is None


@pytest.mark.parametrize("delivery", ["rudi", "uud"])
def test_an_exhausted_counter_without_a_pdc(delivery: str) -> None:
    script = SecureScript()
    exhaust(script.fep, 1)
    for context in ("first", "second"):
        if delivery == "rudi":
            script.post(b"x", key=KEY | IDEMPOTENT_SAFE, delivery="rudi", context=context)
        else:
            script.fep.post(
                SendRequest(peer=THERE, payload=memoryview(b"x"), delivery="uud", context=context)
            )
    assert len(script.take()) == 1
    ended = {c.context: c.error for c in script.completions}
    assert ended["second"] == "TSS_COUNTER_EXHAUSTED"
    assert ended.get("first") is None


def test_control_packets_of_an_exhausted_domain() -> None:
    script = SecureScript()
    script.establish_initiator()
    exhaust(script.fep, 0)
    assert not script.fep.probe(THERE)
    assert not script.fep.open_pdc(THERE)
    assert script.take() == []
    assert script.pdcs == []


def test_clear_refusals_of_rudi_need_leave() -> None:
    script = SecureScript()
    script.post(b"x", key=KEY | IDEMPOTENT_SAFE, delivery="rudi")
    (request,) = script.take()
    nack = UET_NACK(nt=1, nack_code=7, nack_pkt_id=request.pkt_id)
    for frame in (script.frame(nack, sdi=None), script.frame(nack, sdi=OTHER)):
        assert script.give_frame(frame) == []
    assert script.counters["tss_clear_refused"] == 1
    assert script.counters["rx_nacks_of_settled_psn"] == 1
