"""The cables between a dragonfly's groups: which global ports they join.

A group has ``ports`` global ports, counted over its routers in their order (h each: port q stands
at router q // h).  With g groups they are used in rounds of g - 1, one port for each other group;
ports beyond the last whole round stay empty, so that every two groups have equally many links.
Port k of a round of group i leads

``absolute``
    to group k, or k + 1 from i on: the others in their order (what Kim et al. draw).
``relative``
    to group (i + k + 1) mod g: the others counted from the own one.

Hastings et al., "Comparing Global Link Arrangements for Dragonfly Networks", IEEE CLUSTER 2015,
compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ARRANGEMENTS = ("absolute", "relative")


class GlobalPort(NamedTuple):
    group: int
    port: int


def rounds(groups: int, ports: int) -> int:
    """Links between every two of ``groups`` groups of ``ports`` global ports each."""
    return ports // (groups - 1) if groups > 1 else 0


def global_links(
    groups: int, ports: int, arrangement: str
) -> Iterator[tuple[GlobalPort, GlobalPort]]:
    """Every global link, from the group of the lower number to the other."""
    for number in range(rounds(groups, ports)):
        first = number * (groups - 1)
        for group in range(groups):
            for other in range(group + 1, groups):
                yield (
                    GlobalPort(group, first + _port(group, other, groups, arrangement)),
                    GlobalPort(other, first + _port(other, group, groups, arrangement)),
                )


def _port(group: int, other: int, groups: int, arrangement: str) -> int:
    """The port within a round by which ``group`` is joined to ``other``."""
    if arrangement == "relative":
        return (other - group - 1) % groups
    return other if other < group else other - 1
