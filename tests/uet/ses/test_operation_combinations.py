"""Every operation, in every delivery mode, over every wire, in every encapsulation."""

import random
from itertools import combinations, product
from typing import Any, Final

import pytest

from tests.harness.nightly import nightly, nightly_beyond
from tests.harness.uet.exchange import ENDS, KEY, MTU, PROTECTIONS, WIRES, Exchange
from tests.harness.uet.operations import CARRIED, TOGETHER, Operation, fetch, send, write_one
from uet.ses.initiator.operation import PeerReads
from uet.transport import AtomicRequest, NoOperationRequest
from uet.wire.codes import AtomicOpcode, Datatype

Case = tuple[tuple[Operation, str], str, tuple[str, bool], str, bool]
CARRIERS: Final = tuple(product(ENDS, (False, True)))
ASKED: Final = tuple((what, mode) for what, modes in CARRIED.items() for mode in modes)


def is_sensible(case: tuple[Any, ...]) -> bool:
    """Without CRC or TSS nothing tells that octets have changed; UES asks for nothing there."""
    _, wire, _, protection, _ = case
    guarded = protection != "plain"
    return (wire not in ("corruption", "all") or guarded) and (
        wire != "all_but_corruption" or not guarded
    )


def pairwise_cover(dimensions: tuple[tuple[Any, ...], ...], rng: random.Random) -> list[Case]:
    """Cases in which any two values of two dimensions that can meet do meet."""
    cases = [case for case in product(*dimensions) if is_sensible(case)]
    rng.shuffle(cases)
    places = list(combinations(range(len(dimensions)), 2))
    missing = {(i, j, case[i], case[j]) for case in cases for i, j in places}
    chosen: list[Case] = []
    while missing:
        # The best of a few is nearly as good as the best of all.
        first = next(iter(sorted(missing, key=str)))
        i, j, one, two = first
        fitting = [case for case in cases if case[i] == one and case[j] == two]
        best = max(
            rng.sample(fitting, min(40, len(fitting))),
            key=lambda case: sum((i, j, case[i], case[j]) in missing for i, j in places),
        )
        missing -= {(i, j, best[i], best[j]) for i, j in places}
        chosen.append(best)
    return chosen


CASES: Final = pairwise_cover(
    (ASKED, tuple(WIRES), CARRIERS, tuple(PROTECTIONS), (False, True)), random.Random(2)
)


def name(case: Case) -> str:
    (operation, delivery), wire, (ip, native), protection, optimized = case
    carrier = ip + ("-native" if native else "-udp")
    short = ["-optimized"] if optimized else []
    return "-".join([operation.__name__, delivery, wire, carrier, protection]) + "".join(short)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_one_operation(case: Case) -> None:
    (operation, delivery), wire, (ip, native), protection, optimized = case
    exchange = Exchange(
        WIRES[wire],
        seed=CASES.index(case),
        ip=ip,
        native=native,
        optimized_headers=optimized,
        unexpected="keep" if CASES.index(case) % 2 else "refuse",
        rod_reorder=CASES.index(case) % 3 == 0,
        **PROTECTIONS[protection],
    )
    for side in exchange.sides:
        operation(exchange, side, delivery)
    exchange.prove()


def everything(exchange: Exchange, delivery: str | None = None) -> None:
    """Both sides ask for all operations, of one delivery mode or of all, in mixed order."""
    asked = [
        (side, operation, mode)
        for side in exchange.sides
        for operation, mode in TOGETHER
        if delivery in (None, mode) or (operation is send and mode != "rudi")
    ]
    exchange.rng.shuffle(asked)
    for side, operation, mode in asked:
        operation(exchange, side, delivery or mode)


BUSY: Final = [
    (wire, protection)
    for wire, protection in product(WIRES, PROTECTIONS)
    if is_sensible((None, wire, None, protection, None))
]


@pytest.mark.parametrize(
    ("wire", "protection"), [nightly(one) if one == ("all", "crc") else one for one in BUSY]
)
def test_everything_together(wire: str, protection: str) -> None:
    """All at once in both directions; the wire does what its name says, and keys change."""
    number = BUSY.index((wire, protection))
    exchange = Exchange(
        WIRES[wire],
        seed=1_000 + number,
        ip=("ipv4", "ipv6")[number % 2],
        native=bool(number & 2),
        optimized_headers=bool(number & 4),
        unexpected="keep" if number % 3 else "refuse",
        rod_reorder=bool(number & 8),
        **PROTECTIONS[protection],
    )
    everything(exchange)
    write_one(exchange, exchange.sides[0], "rud", 300 * MTU)
    exchange.prove()
    counters = [side.fep.counters() for side in exchange.sides]
    for each in counters:
        impairment = WIRES[wire]
        if impairment.trimming:
            assert each["rx_trimmed"] > 10
        if impairment.corrupt:
            assert each["rx_drop_bad_crc" if protection == "crc" else "tss_bad_tag"] > 10
        if not impairment.loses_nothing:
            assert each["tx_retransmitted_packets"] > 10


@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("wire", ["perfect", "all_but_corruption"])
@pytest.mark.parametrize("before", nightly_beyond(1, [7, 1, 2, 30]))
@pytest.mark.conformance("C-020")
def test_the_psn_wraps(delivery: str, wire: str, before: int) -> None:
    """PDCs pass from 2^32 - 1 to 0 in the middle of one operation or another."""
    exchange = Exchange(
        WIRES[wire],
        seed=before,
        start_psn=(1 << 32) - before,
        limit_psn_range=False,
        rod_reorder=(before, wire) not in ((7, "perfect"), (30, "all_but_corruption")),
    )
    everything(exchange, delivery)
    exchange.run()
    for side in exchange.sides:
        for pdc in side.fep.table.by_id.values():
            # A second PDC, for short messages, may have sent too few to come that far.
            if pdc.initiator and pdc.ordered is (delivery == "rod") and not pdc.second:
                assert pdc.source.window.next < 1 << 16
    exchange.prove()


def test_a_used_up_range_that_no_request_can_report() -> None:
    """All is answered and cleared, but no ACK has said so: what is posted then must not wait.

    A response that must not be lost holds the CACK back at the first PSN, until a CLEAR; nobody
    acknowledges that.
    """
    exchange = Exchange(WIRES["perfect"], 1, mpr=1)
    side, there = exchange.sides
    first = bytearray(8)
    offset = there.room(8)
    exchange.post(
        side, AtomicRequest, key=KEY, offset=offset, operation=AtomicOpcode.SUM,
        datatype=Datatype.UINT64, operand=b"1" * 8, result=memoryview(first),
    )  # fmt: skip
    for _ in range(127):
        exchange.post(side, NoOperationRequest)
    exchange.prove(close=False)
    (pdc,) = side.fep.table.by_id.values()
    assert pdc.source.window.outstanding == 0
    assert (pdc.source.window.next - pdc.source.requests.max_cack) == 129, (
        "the range must be used up"
    )
    exchange.post(side, NoOperationRequest)
    exchange.prove()


@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_a_renumbered_pdc_clears(delivery: str) -> None:
    """A target of a secured PDC that chose an earlier first PSN hears which answers are known."""
    exchange = Exchange(
        WIRES["perfect"],
        2,
        start_psn=(1 << 31) - 1,
        secure_start="1rtt",
        **PROTECTIONS["tss_direct"],
    )
    fetch(exchange, exchange.sides[0], delivery)
    exchange.prove(close=False)
    (pdc,) = exchange.sides[0].fep.table.by_id.values()
    assert pdc.start_psn < (1 << 31) - 1
    exchange.close()


def test_what_a_refused_read_has_read_does_not_count() -> None:
    """The data is read again: a rendezvous send must not end, and take its memory away, before."""
    reads = PeerReads()
    reads.add(1, 0, 500)
    reads.refuse(1)
    reads.add(1, 500, 800)
    reads.add(2, 800, 1_000)
    assert not reads.covers(0, 1_000)
    reads.add(2, 0, 800)
    assert reads.covers(0, 1_000)


def test_a_rendezvous_may_be_read_by_many_messages() -> None:
    reads = PeerReads()
    for number in range(100):
        assert not reads.covers(0, 1_000)
        reads.add(number, number * 10, number * 10 + 10)
    assert reads.covers(0, 1_000)
