"""The octets that are expected between groups of nodes, and the work that they make.

Groups are what workers own whole, such as a leaf switch with its GPUs, or a spine.  A flow takes
all shortest ways between two groups in equal parts, as ECMP shares many flows, and each cable of a
step takes as much as the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.workers.forked.expected_traffic import ExpectedTraffic, Numbers
from topologies.model import Topology

#: Work of an endpoint on an octet that it sends or takes, where a switch on the way has 1 for it at
#: each of its two ports.  An estimate: transports do more than switches do.
ENDPOINT_WORK = 4


@dataclass(frozen=True)
class GroupLoad:
    """``between`` are octets between two groups, both ways; ``work`` is what each group has to do.

    Both are integers, so that every machine comes to the same.
    """

    between: Numbers
    work: Numbers


def group_load(
    topology: Topology, groups: Sequence[str], group_of: Mapping[str, str], traffic: ExpectedTraffic
) -> GroupLoad:
    """Return the load of ``groups``, which nodes belong to by ``group_of``."""
    place = {name: number for number, name in enumerate(groups)}
    count = len(groups)
    home = np.array([place[group_of[gpu.name]] for gpu in topology.gpus], np.int64)
    between, work = np.zeros((count, count), np.int64), np.zeros(count, np.int64)
    senders, receivers = home[traffic.sender], home[traffic.receiver]
    np.add.at(between, (senders, receivers), traffic.copied)
    written = np.zeros((count, count), np.int64)
    np.add.at(written, (senders, receivers), traffic.written)
    for ends in (senders, receivers):
        np.add.at(work, ends, traffic.written * ENDPOINT_WORK)
    cables: Counter[tuple[int, int]] = Counter()
    for link in topology.links:
        one, other = (place[group_of[end.node]] for end in link.ends)
        if one != other:
            cables[one, other] += 1
            cables[other, one] += 1
    beside: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (one, other), parallel in sorted(cables.items()):
        beside[one].append((other, parallel))
    for source in np.flatnonzero(written.any(axis=1)).tolist():
        steps = _steps(source, written[source].tolist(), beside)
        for (one, other), octets in steps.items():
            between[one, other] += octets
            work[one] += octets
            work[other] += octets
    both = between + between.T
    np.fill_diagonal(both, 0)
    return GroupLoad(both, work)


def _steps(
    source: int, octets: Sequence[int], beside: Mapping[int, Sequence[tuple[int, int]]]
) -> dict[tuple[int, int], int]:
    """Octets from ``source``, as many to each group as ``octets`` has, by the step they take."""
    far, ways, order = {source: 0}, {source: 1}, [source]
    before: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in order:
        for other, parallel in beside.get(one, ()):
            if other not in far:
                far[other], ways[other] = far[one] + 1, 0
                order.append(other)
            if far[other] == far[one] + 1:
                ways[other] += ways[one] * parallel
                before[other].append((one, parallel))
    arriving = {one: float(octets[one]) for one in order}
    found: dict[tuple[int, int], int] = {}
    for other in reversed(order):
        for one, parallel in before[other]:
            share = arriving[other] * (ways[one] * parallel / ways[other])
            arriving[one] += share
            found[one, other] = round(share)
    return found
