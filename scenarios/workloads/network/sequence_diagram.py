"""Draws who sends to whom, and when: a line for each message, a column for each GPU.

::

    start    end    h0g0    h0g1    h1g0    h1g1
     1.00   1.43      o=======>                     128 B outputs to the next stage
     2.43   5.08              o------->             128 B outputs to the next stage

Times are microseconds of fabric time from the common start: when the message was posted, and when
its data were there.  ``=`` is NVLink, ``-`` the fabric.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from emulator.run.measures.message_times import Iteration
from scenarios.workloads.network.tensors import Exchange

_COLUMN = 8


def drawn(names: Sequence[str], exchanges: Sequence[Exchange], iteration: Iteration) -> list[str]:
    """Return the lines for ``exchanges``, which are the first of each pair in ``iteration``.

    ``names`` are those of the GPUs by rank.  Only GPUs that send or receive have a column.
    """
    if not exchanges:
        return []
    ranks = sorted({rank for one in exchanges for rank in (one.source, one.destination)})
    at = {rank: _COLUMN * place + _COLUMN // 2 for place, rank in enumerate(ranks)}
    places = _places(exchanges, iteration)
    lines = []
    for exchange, place in zip(exchanges, places, strict=True):
        start, end = (int(times[place]) / 1000 for times in (iteration.start_ns, iteration.end_ns))
        arrow = _arrow(at[exchange.source], at[exchange.destination], exchange.nvlink)
        picture = arrow.ljust(_COLUMN * len(ranks))
        lines.append(
            (start, f"{start:9.2f} {end:9.2f} {picture} {exchange.octets} B {exchange.what}")
        )
    heading = "".join(f"{names[rank]:^{_COLUMN}}" for rank in ranks)
    ordered = [line for _, line in sorted(lines, key=lambda one: one[0])]
    return ["", f"{'start':>9} {'end':>9} {heading} (us; = NVLink, - fabric)", *ordered]


def _places(exchanges: Sequence[Exchange], iteration: Iteration) -> list[int]:
    """Return where the message of each exchange stands: a pair's are in their order."""
    sent: dict[tuple[int, int], int] = defaultdict(int)
    of: dict[tuple[int, int], np.ndarray] = {}
    places = []
    for one in exchanges:
        pair = one.source, one.destination
        if pair not in of:
            chosen = (iteration.source == one.source) & (iteration.destination == one.destination)
            of[pair] = np.flatnonzero(chosen)
        places.append(int(of[pair][sent[pair]]))
        sent[pair] += 1
    return places


def _arrow(source: int, destination: int, nvlink: bool) -> str:
    """Return an arrow from one column to another, with the blanks before it."""
    line = ("=" if nvlink else "-") * (abs(source - destination) - 1)
    if source < destination:
        return " " * source + "o" + line + ">"
    return " " * destination + "<" + line + "o"
