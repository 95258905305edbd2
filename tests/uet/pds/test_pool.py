"""The pool of PDCs: what happens when it is exhausted (UES 3.5.8)."""

import random
from collections import Counter

import pytest

from tests.harness.uet.invariants import check_idle
from tests.harness.uet.network import MACS, Network, endpoint
from tests.harness.uet.script import (
    ELSEWHERE,
    HERE,
    KEY,
    MS,
    REGION,
    START,
    THERE,
    Script,
    ack,
    rud,
    write,
)
from uet.transport import WriteRequest
from uet.wire.codes import ControlType


@pytest.mark.conformance("C-213")
def test_an_idle_pdc_makes_room_for_a_new_peer() -> None:
    """The least recently used of those without work is closed; the request waits for that."""
    script = Script(max_pdcs=4)
    third = "10.0.1.4"
    script.post(b"a", peer=THERE)
    script.post(b"b", peer=ELSEWHERE)
    first, second = script.take()
    script.give(ack(first), source=THERE)
    script.give(ack(second), source=ELSEWHERE)
    script.post(b"a", peer=THERE)
    (again,) = script.take()
    script.give(ack(again), source=THERE)
    script.post(b"c", peer=third, context="waits")
    (close,) = script.take()
    assert close.control is ControlType.CLOSE_CMD
    assert close.spdcid == second.spdcid
    (request,) = script.give(ack(close, code=None), source=ELSEWHERE)
    assert request.syn == 1
    assert request.decoded.envelope.destination == third
    script.give(ack(request), source=third)
    assert [c.context for c in script.completions][-1] == "waits"


def test_a_busy_pdc_is_left_alone() -> None:
    """Though it was the least recently posted to: another one is idle."""
    script = Script(max_pdcs=4)
    script.post(b"a", peer=THERE)
    script.post(b"b", peer=ELSEWHERE)
    busy, idle = script.take()
    script.give(ack(busy, cack=busy.psn - 1, code=None), source=THERE)
    script.post(b"more", peer=THERE)
    script.take()
    script.post(b"b", peer=ELSEWHERE)
    (last,) = script.give(ack(idle), source=ELSEWHERE)
    script.give(ack(last), source=ELSEWHERE)
    script.post(b"c", peer="10.0.1.4")
    (close,) = script.take()
    assert (close.control, close.spdcid) == (ControlType.CLOSE_CMD, idle.spdcid)


def test_waiting_requests_have_a_deadline() -> None:
    """While everything is busy the endpoint must look again, or nobody would."""
    script = Script(max_pdcs=1, rto_init_time=1000 * MS)
    script.post(b"a", peer=THERE)
    (first,) = script.take()
    script.post(b"b", peer=ELSEWHERE)
    assert script.take() == []
    deadline = script.fep.next_deadline()
    assert deadline is not None
    assert deadline <= script.now + MS
    script.give(ack(first), source=THERE)
    (close,) = script.wait(2 * MS)
    assert close.control is ControlType.CLOSE_CMD


@pytest.mark.conformance("C-213")
def test_a_waiting_request_gets_the_place_of_a_quiet_target() -> None:
    """If only peers hold PDCs here, one of them is asked to give its own back."""
    script = Script(max_pdcs=1)
    own = script.establish_target()
    script.post(b"b", peer=ELSEWHERE)
    seen = script.wait(5 * MS)
    assert seen[0].control is ControlType.CLOSE_REQ
    assert seen[0].spdcid == own
    assert seen[-1].syn == 1  # the initiator did not answer
    script.give(ack(seen[-1]), source=ELSEWHERE)
    assert [c.error for c in script.completions] == [None]


@pytest.mark.conformance("C-213")
@pytest.mark.parametrize("max_pdcs", [1, 2, 3])
def test_more_peers_than_pdcs(max_pdcs: int) -> None:
    """One endpoint writes to seven peers, over and over, with fewer PDCs than peers."""
    feps = {a: endpoint(a, seed=k) for k, a in enumerate(MACS) if a != HERE}
    feps[HERE] = endpoint(HERE, seed=77, max_pdcs=max_pdcs)
    network = Network(feps, random.Random(1))
    memory = {a: bytearray(REGION) for a in feps}
    for address, fep in feps.items():
        fep.register(memoryview(memory[address]), key=KEY)
    rng = random.Random(2)
    expected: dict[str, bytes] = {}
    for number in range(60):
        peer = rng.choice([a for a in feps if a != HERE])
        expected[peer] = rng.randbytes(20_000)
        feps[HERE].post(
            WriteRequest(
                peer=peer, key=KEY, offset=0, payload=memoryview(expected[peer]), context=number
            )
        )
    network.settle()
    assert Counter(c.context for c in network.completions[HERE]) == Counter(range(60))
    assert {c.error for c in network.completions[HERE]} == {None}
    for peer, data in expected.items():
        assert memory[peer][:20_000] == data
    check_idle(feps[HERE])
    feps[HERE].close()
    network.settle()
    assert feps[HERE].closed
    assert all(len(fep.table) == 0 for fep in feps.values())


def test_everybody_writes_to_everybody_with_few_pdcs() -> None:
    """Refusals, retries and closes all at once: every message ends, whole or with a name."""
    feps = {
        a: endpoint(a, seed=k, max_pdcs=4, max_nack_retx_cnt=31, max_rto_retx_cnt=15)
        for k, a in enumerate(list(MACS)[:6])
    }
    network = Network(feps, random.Random(1))
    memory = {a: bytearray(REGION) for a in feps}
    for address, fep in feps.items():
        fep.register(memoryview(memory[address]), key=KEY)
    rng = random.Random(3)
    posted = dict.fromkeys(feps, 0)
    for _ in range(120):
        source, target = rng.sample(list(feps), 2)
        posted[source] += 1
        payload = memoryview(bytes(rng.choice((0, 100, 10_000))))
        feps[source].post(WriteRequest(peer=target, key=KEY, offset=0, payload=payload))
    assert network.run(lambda: all(len(network.completions[a]) == posted[a] for a in feps))
    errors = [c.error for a in feps for c in network.completions[a]]
    assert set(errors) <= {None, "CLOSING", "INV_DPDCID"}
    assert errors.count(None) > 100
    for fep in feps.values():
        fep.close()
    network.settle()
    assert all(fep.closed for fep in feps.values())
    for fep in feps.values():
        check_idle(fep)


def test_identifiers_are_used_in_turn() -> None:
    """Each identifier is free for as long as can be before it comes again."""
    script = Script(max_pdcs=3)
    ids = []
    for k in range(200):
        (answer,) = script.give(rud(START, syn=0, spdcid=k + 1) / write(b"x"))
        ids.append(answer.spdcid)
        script.pdc.closed()
    assert ids == [(ids[0] - 1 + k) % 65_535 + 1 for k in range(200)]
