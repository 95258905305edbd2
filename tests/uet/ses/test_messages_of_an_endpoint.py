"""Messages of a whole endpoint: their order on a PDC, their refusal, and registered memory."""

import random
from typing import Any

import pytest

from tests.harness.uet.script import KEY, MS, MTU, START, Script, Seen, ack, rud, write
from uet.ses.memory.registered_memory import MemoryRegionError
from uet.ses.target.inbound import MOST_GAPS, InboundMessage
from uet.wire.codes import AckRequest, Opcode, ReturnCode


@pytest.mark.conformance("C-049")
def test_messages_are_not_interleaved() -> None:
    """On one PDC the packets of a message leave before those of the next one."""
    rng = random.Random(8)
    script = Script(window_bytes=5_000, short_message_packets=0)
    script.establish_initiator()
    for k in range(12):
        script.post(bytes(rng.choice((0, 500, 3_000, 9_000))), context=k)
    order: list[tuple[int, int]] = []
    waiting = script.take()
    while waiting:
        order += [(p.psn, p.ses.message_id) for p in waiting if not p.retx]
        request = waiting.pop(rng.randrange(len(waiting)))
        waiting = [p for p in waiting if p.psn != request.psn]
        answered = script.give(ack(request, cack=min([request, *waiting], key=_psn).psn - 1))
        waiting += answered
        order += [(p.psn, p.ses.message_id) for p in answered if not p.retx]
    by_psn = dict(order)
    ids = [by_psn[psn] for psn in sorted(by_psn)]
    assert sorted(by_psn) == list(range(min(by_psn), max(by_psn) + 1))
    seen = [a for a, b in zip(ids, [0, *ids], strict=False) if a != b]
    assert len(seen) == len(set(seen)) == 12


def _psn(seen: Seen) -> int:
    return seen.psn


@pytest.mark.conformance("C-079")
def test_a_refused_message_is_given_up() -> None:
    """One MSG_ERROR tells the target, where not everything has been sent; then the completion."""
    script = Script(window_bytes=3_000, short_message_packets=0)
    script.establish_initiator()
    script.post(bytes(100 * MTU), context="bad")
    script.post(b"good", context="good")
    packets = script.take()
    assert len(packets) == 3
    fields: dict[str, Any] = {"code": ReturnCode.BAD_ADDR, "req": AckRequest.CLEAR}
    (last, good) = script.give(ack(packets[1], cack=packets[0].psn - 1, **fields))
    assert (last.ses.opcode, last.ses.eom, last.ses.som) == (Opcode.MSG_ERROR, 1, 0)
    assert (last.ses.message_offset, last.ses.payload_length, last.payload) == (3 * MTU, 0, b"")
    assert last.ses.message_id == packets[0].ses.message_id
    assert last.ar == 1
    assert good.ses.message_id != last.ses.message_id
    # The other refusals of the same message change nothing more; a lost MSG_ERROR is repeated.
    script.give(ack(packets[0], cack=packets[0].psn - 1, code=ReturnCode.BAD_MKEY))
    script.give(ack(packets[2], cack=packets[0].psn - 1, **fields))
    assert script.completions == []
    again = script.wait(MS)
    assert [(p.psn, p.ses.opcode, p.retx) for p in again] == [
        (last.psn, Opcode.MSG_ERROR, 1),
        (good.psn, Opcode.WRITE, 1),
    ]
    script.give(ack(last))
    script.give(ack(good))
    assert [(c.context, c.error, c.length) for c in script.completions] == [
        ("bad", "BAD_ADDR", 100 * MTU),
        ("good", None, 4),
    ]
    assert script.pdc.peer.congestion.inflight == 0


def test_keys() -> None:
    """Keys are 64 bits and unique; memory must be flat octets, and writable where so announced."""
    script = Script()
    for key, memory, writable, sentence in (
        (KEY, bytearray(4), True, "in use"),
        (1 << 64, bytearray(4), True, "64 bits"),
        (5, bytes(4), True, "read-only"),
        (5, memoryview(bytearray(8)).cast("I"), True, "octets"),
    ):
        with pytest.raises(MemoryRegionError, match=sentence):
            script.fep.register(memoryview(memory), key=key, writable=writable)
    with pytest.raises(MemoryRegionError, match="not registered"):
        script.fep.unregister(77)
    script.fep.unregister(KEY)
    (answer,) = script.give(rud(START, syn=0) / write(b"x"))
    assert answer.answer is ReturnCode.BAD_MKEY


def test_gaps_in_a_message_are_bounded() -> None:
    """More of them than a receive window can have are hostile, and cost no more memory."""
    memory = memoryview(bytearray(200_000))
    message = InboundMessage(memory, word=0, to=0, key=1, offset=0, length=200_000)
    placed = sum(message.place(2 * k, memoryview(b"x")) for k in range(100_000))
    assert placed == len(message.ranges.starts) == MOST_GAPS + 1
    assert message.place(1, memoryview(b"y"))  # filling them still works
    assert len(message.ranges.starts) == MOST_GAPS
