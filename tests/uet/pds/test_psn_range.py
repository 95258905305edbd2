"""A PDC does not live for ever: Limit_PSN_Range (UES Table 3-28), and what takes its place."""

import random
from typing import Any

import pytest

from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import Impairment, Network, endpoint
from tests.harness.uet.script import HERE, KEY, MASK, MTU, TARGET, THERE, US, Script, ack
from tests.harness.uet.secured import DOMAINS, SDI
from tests.harness.uet.stub import watch
from uet.pds import source as source_module
from uet.pds.pdc import Pdc, PdcState
from uet.pds.source import PSN_LIMIT, PSN_LIMIT_MARGIN, RequestSource
from uet.transport import ReadRequest, WriteRequest
from uet.wire.codes import ControlType


def jump(pdc: Pdc, psn: int) -> None:
    """Act as if everything before ``psn`` had been sent and acknowledged."""
    source: RequestSource = pdc.source
    window = source.window
    assert source.idle
    window.base = window.next = psn & MASK
    source.requests.max_cack = source.requests.clear_sent = (psn - 1) & MASK
    source.timer.restart()


@pytest.mark.conformance("C-064")
def test_a_pdc_takes_no_more_messages_near_its_last_psn() -> None:
    """What is under way ends on it, then it closes; the next message opens another one."""
    script = Script()
    own = script.establish_initiator()
    start = script.pdc.start_psn
    jump(script.pdc, start + PSN_LIMIT - PSN_LIMIT_MARGIN - 2)
    script.post(bytes(MTU), context="before")
    (before,) = script.take()
    assert before.psn == (start + PSN_LIMIT - PSN_LIMIT_MARGIN - 2) & MASK
    script.give(ack(before))
    script.post(bytes(2 * MTU), context="the last")
    last = script.take()
    assert [s.spdcid for s in last] == [own] * 2
    assert script.pdc.state is PdcState.QUIESCE
    script.post(b"x", context="the next")
    (fresh,) = script.take()
    assert (fresh.syn, fresh.spdcid != own) == (1, True)
    (close,) = script.give(ack(last[-1]))
    assert (close.control, close.spdcid, close.psn) == (
        ControlType.CLOSE_CMD, own, (last[-1].psn + 1) & MASK
    )  # fmt: skip
    script.give(ack(close, code=None))
    script.give(ack(fresh, spdcid=TARGET + 1))
    assert [c.context for c in script.completions] == [None, "before", "the last", "the next"][1:]
    assert [pdc.id for pdc in script.pdcs] == [fresh.spdcid]
    assert script.counters["pdcs_worn_out"] == 1
    check_idle(script.fep)


@pytest.mark.conformance("C-064")
def test_what_was_queued_goes_to_the_next_pdc() -> None:
    """However much it is, no PSN beyond the range is used."""
    script = Script(window_bytes=3 * MTU)
    own = script.establish_initiator()
    jump(script.pdc, script.pdc.start_psn + PSN_LIMIT - PSN_LIMIT_MARGIN - 1)
    for k in range(4):
        script.post(bytes(2 * MTU), context=k)
    first = script.take()
    assert first[0].spdcid == own
    for _ in range(10):
        for seen in first:
            if seen.control is ControlType.CLOSE_CMD:
                script.give(ack(seen, code=None))
        packets = [s for s in first if s.is_request]
        if not packets:
            break
        first = []
        for packet in packets:
            peer_id = TARGET if packet.spdcid == own else TARGET + 1
            first += script.give(ack(packet, spdcid=peer_id))
    assert [(c.context, c.error) for c in script.completions] == [(k, None) for k in range(4)]
    assert len(script.pdcs) == 1
    assert script.pdc.id != own
    check_idle(script.fep)


@pytest.mark.parametrize("limited", [False, True])
def test_without_the_limit_a_pdc_goes_on(limited: bool) -> None:
    """All the way around: 32 bits wrap."""
    script = Script(limit_psn_range=limited)
    own = script.establish_initiator()
    jump(script.pdc, script.pdc.start_psn + PSN_LIMIT + 5)
    script.post(bytes(MTU))
    (packet,) = script.take()
    script.give(ack(packet))
    script.post(bytes(MTU))
    (packet,) = [s for s in script.take() if s.is_request]
    assert (packet.spdcid == own) is not limited


@pytest.mark.conformance("C-064")
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_pdc_after_pdc_under_traffic(
    delivery: str, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a range of 64 PSNs, on a bad network: a secured PDC keeps to it in any case."""
    monkeypatch.setattr(source_module, "PSN_LIMIT_MARGIN", PSN_LIMIT - 64)
    parameters: dict[str, Any] = {
        "domains": DOMAINS, "sdi": SDI, "payload_mtu": 1024, "delivery": delivery,
        "limit_psn_range": limited, "max_rto_retx_cnt": 15, "window_bytes": 16_384,
    }  # fmt: skip
    feps = {a: endpoint(a, seed=k, **parameters) for k, a in enumerate((HERE, THERE))}
    network = Network(
        feps, random.Random(1), Impairment(loss=0.02, duplicate=0.02, jitter_ns=2 * US)
    )
    memory = bytearray(80_000)
    feps[THERE].register(memoryview(memory), key=KEY)
    taken = watch(feps[THERE])
    rng = random.Random(2)
    data = rng.randbytes(60_000)
    reads = []
    for k in range(60):
        part = memoryview(data)[k * 1_000 : (k + 1) * 1_000]
        feps[HERE].post(
            WriteRequest(peer=THERE, key=KEY, offset=k * 1_000, payload=part, context=k)
        )
        if k % 5 == 0:
            mine = bytearray(3_000)
            reads.append(mine)
            feps[HERE].post(
                ReadRequest(peer=THERE, key=KEY, offset=70_000, memory=memoryview(mine), context=k)
            )
    for _ in range(3):
        network.settle()
        for k in range(20):
            part = memoryview(data)[k * 1_000 : (k + 1) * 1_000]
            feps[HERE].post(WriteRequest(peer=THERE, key=KEY, offset=k * 1_000, payload=part))
    network.settle()
    assert {c.error for c in network.completions[HERE]} == {None}
    assert len(network.completions[HERE]) == 60 + 12 + 60
    assert memory[:60_000] == data
    assert len(taken) == len(set(taken))
    pdcs = {number for number, _ in taken}
    assert len(pdcs) >= 2
    for number in pdcs:
        psns = [psn for own, psn in taken if own == number]
        # The last message may begin just below the limit, no other above it.
        assert max(psns) - min(psns) < 64 + 20
    assert feps[HERE].counters()["pdcs_worn_out"] == len(pdcs) - 1
    assert feps[HERE].counters()["pdcs_open"] == 1
    for fep in feps.values():
        check_idle(fep)
        check(fep, network.now)
