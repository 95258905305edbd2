"""No PDC ever waits for nothing: random exchanges under everything that may hold a PDC up.

Packets are trimmed and lost, targets have no PDC, no room for a message and small pools, windows
are of 2 to 10 packets, and several PDCs share each of them.  After every step each PDC that has
work has a deadline, or another one of its context has octets in flight; and all of it ends, soon.
"""

import random
from typing import Any

import pytest

from tests.harness.uet.exchange import KEY, MS, MTU, US, Exchange, Side, Wire, trimmed
from tests.harness.uet.invariants import check, check_alive
from tests.harness.uet.operations import other
from uet.pds.semantics import NO_ROOM, Answer
from uet.transport import ReadRequest, WriteRequest
from uet.wire.codes import PacketType

RUD = (PacketType.RUD_REQ, PacketType.RUD_CC_REQ)
#: Nominal octets of a full packet.
FULL = MTU + 108
BASE_RTT = 12 * US
#: All is through by then: no timer has run out in vain for more than a few times.
SOON = 400 * MS


def windows(control: str, packets: int) -> dict[str, Any]:
    """Parameters that give a context a window of so many full packets."""
    if control == "none":
        return {"window_bytes": packets * FULL}
    return {"base_rtt": BASE_RTT, "link_rate": int(packets * FULL * 8 / 1.5 / BASE_RTT * 1e9)}


def refuse_at_random(side: Side, rng: random.Random, until: int) -> None:
    """For that time ``side`` often has no PDC for a peer, or no room for a message."""
    fep = side.fep
    accept, deliver = fep.table.accept, fep.deliver

    def accept_some(*args: Any, **fields: Any) -> Any:
        return None if fep.time.now < until and rng.random() < 0.5 else accept(*args, **fields)

    def deliver_some(*args: Any, **fields: Any) -> Answer:
        some = fep.time.now < until and rng.random() < 0.15
        return NO_ROOM if some else deliver(*args, **fields)

    fep.table.accept = accept_some  # type: ignore[method-assign]
    fep.deliver = deliver_some


def post_at_random(exchange: Exchange, rng: random.Random, deliveries: tuple[str, ...]) -> None:
    """Writes and reads of 0 to 20 packets, both ways, now and then."""
    for side in exchange.sides:
        there = other(exchange, side)
        for _ in range(rng.randint(2, 7)):
            length = rng.choice((0, 1, MTU, 3 * MTU, 9_000, 20 * MTU))
            delivery, reads = rng.choice(deliveries), rng.random() < 0.3
            at, data = there.room(length), exchange.data(length)
            fields: dict[str, Any] = {"key": KEY, "offset": at, "delivery": delivery}

            def act(
                side: Side = side,
                there: Side = there,
                reads: bool = reads,
                data: bytes = data,
                at: int = at,
                fields: dict[str, Any] = fields,
            ) -> None:
                end = at + len(data)
                if reads:
                    there.region[at:end] = data
                    memory = bytearray(len(data))
                    exchange.post(side, ReadRequest, memory=memoryview(memory), **fields)
                    exchange.checks.append(lambda: _same(memory, data))
                else:
                    exchange.post(side, WriteRequest, payload=memoryview(data), **fields)
                    exchange.checks.append(lambda: _same(there.region[at:end], data))

            if rng.random() < 0.5:
                act()
            else:
                exchange.later.append(act)


def _same(found: bytes | bytearray, expected: bytes) -> None:
    assert found == expected


def lively(exchange: Exchange) -> None:
    """Check after each step that nothing waits in vain."""

    def look(now: int) -> None:
        for side in exchange.sides:
            check(side.fep, now)
            check_alive(side.fep, now)

    exchange.network.watch = look


@pytest.mark.conformance("C-215")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("deliveries", [("rud",), ("rod",), ("rud", "rod")], ids="-".join)
@pytest.mark.parametrize("control", ["none", "nscc", "rccc", "both"])
def test_nothing_waits_in_vain(control: str, deliveries: tuple[str, ...], seed: int) -> None:
    rng = random.Random(f"{control} {deliveries} {seed}")
    packets = rng.randint(2, 10)
    wire = Wire(
        loss=rng.choice((0, 0, 0.05)),
        trimming=rng.choice((0, 0.1, 0.3)),
        jitter_ns=rng.choice((0, 0, 20 * US)),
        duplicate=rng.choice((0, 0.05)),
    )
    exchange = Exchange(
        wire,
        rng.getrandbits(30),
        cc=control,
        rod_reorder=rng.random() < 0.3,
        max_pdcs=rng.choice((4, 8, 1_000)),
        max_inbound_messages=rng.choice((2, 4_096)),
        tail_loss_time=rng.choice((0, 200 * US)),
        max_nack_retx_cnt=31,
        max_rto_retx_cnt=15,
        **windows(control, packets),
    )
    for side in exchange.sides:
        refuse_at_random(side, rng, until=rng.choice((0, MS, 5 * MS)))
    lively(exchange)
    post_at_random(exchange, rng, deliveries)
    exchange.prove()
    ends = exchange.network.ended_at
    assert ends < SOON, (ends, exchange.story())


@pytest.mark.conformance("C-214", "C-215")
@pytest.mark.parametrize("control", ["none", "nscc", "rccc", "both"])
def test_refusals_of_ordered_packets_do_not_fill_the_window(control: str) -> None:
    """The target has no PDC for a while, and a switch trims one packet of another PDC."""
    exchange = Exchange(Wire(), 1, cc=control, max_rto_retx_cnt=5, **windows(control, 4))
    here, there = exchange.sides
    network = exchange.network
    accept = there.fep.table.accept
    there.fep.table.accept = (  # type: ignore[method-assign]
        lambda *args, ordered=False, **fields: (
            None if ordered and network.now < 100 * US else accept(*args, ordered=ordered, **fields)
        )
    )
    cut: list[int] = []

    def trim_one(frame: bytes, now: int) -> list[bytes]:
        if len(frame) > 500 and frame[42] >> 3 in RUD and not cut:
            cut.append(now)
            return [trimmed(frame, 4)]
        return [frame]

    network.tap = trim_one
    lively(exchange)
    fields: dict[str, Any] = {"peer": there.address, "key": KEY}
    data = memoryview(exchange.data(8 * MTU))
    here.fep.post(WriteRequest(offset=0, payload=data, delivery="rod", context="rod", **fields))
    network.run(lambda: False, horizon_ns=20 * US)
    here.fep.post(
        WriteRequest(offset=16_384, payload=data[:MTU], delivery="rud", context="rud", **fields)
    )
    network.run(lambda: False, horizon_ns=20 * MS)  # far more than it takes
    assert cut
    assert {(c.context, c.error) for c in network.completions[here.address]} == {
        ("rod", None),
        ("rud", None),
    }
    assert there.region[: 8 * MTU] == data
    assert network.ended_at < 2 * MS  # NACK_Retx_Time, and no timer
