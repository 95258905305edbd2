"""Dependencies of GOAL on the start of an operation, as dependencies on ends.

An operation starts when all that it waits for is over.  So who may start after its start waits for
the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.traces.trace_model import MOST_OPERATIONS


def start_together(
    after: list[set[int]], starts: Sequence[tuple[int, int]]
) -> tuple[int, str] | None:
    """Let the first of each pair in ``starts`` wait for what the second waits for.

    Return None, or an operation and what is wrong with it.
    """
    follows: dict[int, list[int]] = {}
    waits = dict.fromkeys((one for pair in starts for one in pair), 0)
    for later, earlier in starts:
        follows.setdefault(earlier, []).append(later)
        waits[later] += 1
    ready = [one for one, count in waits.items() if not count]
    copied = 0
    while ready:
        earlier = ready.pop()
        for later in follows.get(earlier, ()):
            after[later] |= after[earlier]
            copied += len(after[earlier])
            if copied > MOST_OPERATIONS:
                return later, (
                    f"irequires leads to more than {MOST_OPERATIONS} dependencies; write requires"
                )
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    circle = next((one for one, count in waits.items() if count), None)
    if circle is None:
        return None
    return circle, "operations start after each other in a circle; break it"
