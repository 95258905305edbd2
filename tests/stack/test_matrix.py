"""Every operation, in every delivery mode, over every wire, in every encapsulation."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any, Final

import pytest

from tests.stack.exchange import ENDS, PROTECTIONS, WIRES, Exchange
from tests.stack.operations import CARRIED, TOGETHER, Operation, write

Case = tuple[tuple[Operation, str], str, tuple[str, bool], str, bool]
CARRIERS: Final = tuple(product(ENDS, (False, True)))
ASKED: Final = tuple((what, mode) for what, modes in CARRIED.items() for mode in modes)


def is_sensible(case: tuple[Any, ...]) -> bool:
    """Without CRC or TSS nothing tells that octets have changed; UES asks for nothing there."""
    _, wire, _, protection, _ = case
    guarded = protection != "plain"
    return (wire not in ("corruption", "all") or guarded) and (wire != "all_but_corruption" or not guarded)


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
