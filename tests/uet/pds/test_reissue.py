"""Test what is issued again on a new PDC after a fatal NACK (UES Tables 3-58 to 3-61).

Nothing is carried out twice that somebody could notice: only what the target has certainly not
carried out, and what changes nothing, or nothing but a region that is safe for it.
"""

import random
from typing import Any

import pytest

from tests.harness.uet.network import Impairment, Network, endpoint
from tests.harness.uet.script import KEY, MS, Script, Seen, ack, refusal
from uet.pds.nacks import PROVES_NOTHING, REISSUED
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import ReadRequest, ReceiveRequest, SendRequest
from uet.wire.codes import ErrorClass, NackCode

SAFE = IDEMPOTENT_SAFE | KEY
FATAL = [code for code in NackCode if code.error_class is ErrorClass.PDC_FATAL]
GONE = NackCode.INV_DPDCID
RTO = 10 * MS
HERE, THERE = "10.0.1.1", "10.0.1.2"


class Line:
    """An endpoint with an established PDC, and what has become of what it posted."""

    def __init__(self, delivery: str = "rud", **parameters: Any) -> None:
        self.delivery = delivery
        self.script = Script(rto_init_time=RTO, window_bytes=10**9, **parameters)
        self.ended: dict[object, str | None] = {}
        (request,) = self.write(1, "opening")
        self.script.give(ack(request))
        assert self.ends == {"opening": None}

    def write(self, length: int, context: object, **fields: Any) -> list[Seen]:
        """Post a WRITE; what leaves."""
        fields.setdefault("delivery", self.delivery)
        self.script.post(bytes(length), context=context, **fields)
        return self.script.take()

    def refuse(self, *packets: Seen, code: NackCode = GONE) -> list[Seen]:
        return [seen for p in packets for seen in self.script.give(refusal(p, code=code))]

    @property
    def ends(self) -> dict[object, str | None]:
        self.ended |= {c.context: c.error for c in self.script.completions}
        return self.ended


def fresh(seen: list[Seen]) -> list[int]:
    """Payload lengths of the requests that have opened another PDC, in order."""
    return [len(s.payload) for s in seen if s.is_request and s.syn and not s.retx]


@pytest.mark.conformance("C-204")
@pytest.mark.parametrize("code", FATAL, ids=lambda code: code.name)
@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_a_refused_request_goes_to_a_new_pdc(code: NackCode, delivery: str) -> None:
    """If its one copy was refused, and the code allows it."""
    line = Line(delivery)
    seen = line.refuse(*line.write(8, "one"), code=code)
    if code in REISSUED - PROVES_NOTHING:
        assert "one" not in line.ends
        assert fresh(seen) == [8]
        assert line.script.counters["tx_messages_reissued"] == 1
    else:
        assert line.ends["one"] == code.name
        assert fresh(seen) == []
    assert line.script.counters["pdc_errors"] == 1


@pytest.mark.conformance("C-204")
def test_without_order_each_packet_counts_for_itself() -> None:
    line = Line()
    twice = line.write(8, "sent twice")
    line.script.wait(RTO)
    others = [line.write(9, "short"), line.write(2_000, "long"), line.write(10, "answered")]
    seen = line.refuse(*twice, *others[0], *others[1])
    assert fresh(seen) == []
    assert set(line.ends) == {"opening"}
    seen = line.script.give(ack(others[2][0], cack=twice[0].psn - 1))
    assert line.ends == {"opening": None, "answered": None, "sent twice": GONE.name}
    assert fresh(seen) == [9, 1_024, 976]


@pytest.mark.conformance("C-204")
def test_what_nobody_has_heard_of_is_waited_for_and_fails() -> None:
    """For an RTO, without a resend; what was not sent goes elsewhere at once."""
    line = Line()
    refused, silent = line.write(8, "refused"), line.write(9, "silent")
    assert line.refuse(*refused) == []
    assert silent
    assert fresh(line.write(11, "new")) == [11]
    assert [s for s in line.script.wait(RTO - 1) if s.is_request] == []
    assert line.ends == {"opening": None}
    assert fresh(line.script.wait(1)) == [8]
    assert line.ends == {"opening": None, "silent": GONE.name}
    assert line.script.counters["tx_messages_reissued"] == 1


@pytest.mark.conformance("C-204")
def test_what_has_arrived_in_part_fails() -> None:
    """Answered, or reported by SACK: the target has had it."""
    line = Line()
    answered, reported = line.write(2_000, "answered"), line.write(9, "reported")
    other = line.write(10, "other")
    before = answered[0].psn - 1
    line.script.give(ack(answered[0]))
    line.script.give(ack(other[0], cack=before + 1, sack=(reported[0].psn, 0b11)))
    seen = line.refuse(answered[1], reported[0])
    assert line.ends == {
        "opening": None,
        "other": None,
        "answered": GONE.name,
        "reported": GONE.name,
    }
    assert fresh(seen) == []


@pytest.mark.conformance("C-204")
@pytest.mark.parametrize("heard", [False, True])
def test_with_order_nothing_behind_a_refused_request_was_carried_out(heard: bool) -> None:
    line = Line("rod")
    first, second = line.write(8, "first"), line.write(2_000, "second")
    line.write(9, "third")
    seen = line.script.give(ack(first[0])) if heard else []
    seen += line.refuse(second[0])
    if not heard:
        assert fresh(seen) == []
        seen += line.script.wait(RTO)
    assert fresh(seen) == [1_024, 976, 9]
    assert line.ends == {"opening": None, "first": None if heard else GONE.name}


@pytest.mark.conformance("C-204")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_what_may_be_repeated(delivery: str) -> None:
    """A READ, and a WRITE to a safe region that tells nobody, where order does not count."""
    line = Line(delivery)
    line.write(8, "safe", key=SAFE)
    line.write(9, "announced", key=SAFE, header_data=1)
    line.script.fep.post(
        ReadRequest(peer=THERE, key=KEY, offset=0, memory=memoryview(bytearray(10)), context="read",
             delivery=delivery)
    )  # fmt: skip
    line.script.take()
    line.script.wait(RTO)  # all of it leaves once more
    seen = line.refuse(*line.write(11, "refused"))
    seen += line.script.wait(RTO)
    if delivery == "rud":
        assert line.ends == {"opening": None, "announced": GONE.name}
        assert sorted(fresh(seen)) == [0, 8, 11]
    else:
        assert line.ends == {
            "opening": None, "safe": GONE.name, "announced": GONE.name, "read": GONE.name,
        }  # fmt: skip
        assert fresh(seen) == [11]


@pytest.mark.conformance("C-204")
@pytest.mark.parametrize("limit", [0, 2])
def test_a_target_that_always_refuses_ends_it(limit: int) -> None:
    """Max_NACK_Retx_Cnt PDCs may do so; one more is an error."""
    line = Line(max_nack_retx_cnt=limit)
    packets = line.write(8, "one")
    for _ in range(limit):
        packets = line.refuse(*packets, code=NackCode.PDC_MODE_MISMATCH)
        packets = [s for s in packets if s.is_request]
        assert fresh(packets) == [8]
        assert "one" not in line.ends
    line.refuse(*packets, code=NackCode.PDC_MODE_MISMATCH)
    assert line.ends["one"] == "PDC_MODE_MISMATCH"


@pytest.mark.conformance("C-204")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("seed", range(3))
def test_a_target_that_was_restarted(seed: int, delivery: str) -> None:
    """What is posted next finds no PDC there, and arrives all the same, once and in order."""
    feps = {address: endpoint(address, seed=seed + k) for k, address in enumerate((HERE, THERE))}
    network = Network(feps, random.Random(seed), Impairment(jitter_ns=3_000), delay_ns=5_000)
    done = network.completions

    def send(count: int) -> None:
        for number in range(count):
            payload = memoryview(bytes([number]) * 9_000)
            feps[HERE].post(
                SendRequest(peer=THERE, payload=payload, delivery=delivery, context=number)
            )

    memory = [bytearray(9_000) for _ in range(5)]
    feps[THERE].post_receive(ReceiveRequest(memory=memoryview(memory[0])))
    send(1)
    assert network.run(lambda: len(done[HERE]) == 1, horizon_ns=10 * MS)
    feps[THERE] = endpoint(THERE, seed=seed + 9)
    for number, into in enumerate(memory):
        feps[THERE].post_receive(ReceiveRequest(memory=memoryview(into), context=number))
    send(5)
    assert network.run(lambda: len(done[HERE]) == 6, horizon_ns=1_000 * MS)
    assert [c.error for c in done[HERE]] == [None] * 6
    received = [c for c in done[THERE] if c.context is not None]
    assert [c.error for c in received] == [None] * 5
    firsts = sorted(into[0] for into in memory)
    assert firsts == list(range(5))
    assert all(into == bytes([into[0]]) * 9_000 for into in memory)
    if delivery == "rod":
        assert [into[0] for into in memory] == firsts
