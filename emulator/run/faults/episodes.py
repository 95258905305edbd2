"""Episodes: moments of a timeline that the report takes together.

Goodput can be judged between two moments only if there is time between them.  Clauses of the same
instant are one episode, therefore, and so are all steps of a flap, which has ended with the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.run.faults.grammar import Moment


@dataclass(frozen=True)
class Episode:
    """Clauses of the same instants, as the user wrote them: one, or ``steps`` of a flap.

    ``places`` are those of its moments in the timeline.  ``began`` is the one at which all of its
    clauses have come for the first time. From ``judged`` on, the last of any clause at its last
    instant, goodput is judged.
    """

    stated: str
    steps: int
    places: Sequence[int]
    began: int
    judged: int


def episodes(moments: Sequence[Moment]) -> list[Episode]:
    """The episodes of ``moments`` (in order of time), in the order in which they begin."""
    clauses: dict[str, list[int]] = {}
    for place, moment in enumerate(moments):
        clauses.setdefault(moment.clause, []).append(place)
    together: dict[tuple[int, ...], list[str]] = {}
    for clause, places in clauses.items():
        steps = tuple(dict.fromkeys(moments[place].at_ns for place in places))
        together.setdefault(steps, []).append(clause)
    last = {moment.at_ns: place for place, moment in enumerate(moments)}
    found = []
    for instants, stated in together.items():
        own = sorted(place for clause in stated for place in clauses[clause])
        found.append(
            Episode(
                stated="; ".join(stated),
                steps=len(instants),
                places=own,
                began=max(place for place in own if moments[place].at_ns == instants[0]),
                judged=last[instants[-1]],
            )
        )
    return found
