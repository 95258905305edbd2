"""The division of a fabric among workers, and how far one may go without word from the others.

A worker owns leaf switches with the GPUs on them.  Whatever reaches a node of another worker takes
a cable's delay, or the latency of a scale-up network. The least of all these is the lookahead:
nothing that happens now changes what another worker does before then (Chandy and Misra 1979).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from emulator.engine.event_queue import PS
from topologies.model import Role, Topology
from topologies.parts.scale_up import ScaleUpDomains

#: Fewer GPUs than this keep no worker busy for longer than the exchange with the others takes.
LEAST_GPUS = 4
MOST_WORKERS = 256
LOADAVG = Path("/proc/loadavg")


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The owner of every node by its name, and the lookahead in ps.

    The lookahead follows from the topology alone, so that it is the same for any number of workers.
    """

    worker_of: Mapping[str, int]
    lookahead_ps: int

    @property
    def workers(self) -> int:
        """Return how many workers there are."""
        return 1 + max(self.worker_of.values(), default=0)

    @classmethod
    def of(cls, topology: Topology, workers: int) -> Self:
        """Share ``topology`` among ``workers`` at most.

        GPUs that share a NIC stay together, and so does what is joined without any delay.
        """
        groups = _groups(topology)
        sizes = dict.fromkeys(groups.values(), 0)
        for gpu in topology.gpus:
            sizes[groups[gpu.name]] += 1
        busy = [group for group, size in sizes.items() if size]
        idle = [group for group, size in sizes.items() if not size]
        count = max(1, min(workers, len(busy)))
        owner = {group: number * count // len(idle) for number, group in enumerate(idle)}
        before, total = 0, sum(sizes.values())
        for group in busy:  # neighbours in the order of the topology stay with one worker
            owner[group] = (2 * before + sizes[group]) * count // (2 * total)
            before += sizes[group]
        used = {worker: rank for rank, worker in enumerate(sorted({owner[one] for one in busy}))}
        last = max(used.values(), default=0)
        return cls(
            worker_of={
                name: used.get(owner[group], min(owner[group], last))
                for name, group in groups.items()
            },
            lookahead_ps=lookahead_ps(topology),
        )


def automatic(topology: Topology) -> int:
    """Return how many workers suit ``topology`` on this machine now: one for each idle processor.

    Workers wait for each other at the end of each window. So a worker that shares its processor
    with another process holds up all.
    """
    runnable = int(
        LOADAVG.read_text().split()[3].partition("/")[0]
    )  # this process is one (proc(5))
    idle = len(os.sched_getaffinity(0)) - (runnable - 1)
    return max(1, min(idle, len(topology.gpus) // LEAST_GPUS))


def lookahead_ps(topology: Topology) -> int:
    """The least time (ps) above 0 in which something crosses a cable or a scale-up network."""
    times = [round(link.delay_ns * PS) for link in topology.links]
    times += [server.scale_up.latency_ns * PS for server in topology.servers]
    return min((time for time in times if time > 0), default=0)


def _groups(topology: Topology) -> dict[str, str]:
    """A group for each node, named after its first: GPUs go with the switch that they are at."""
    joined = {node.name: node.name for node in topology.nodes}

    def first(name: str) -> str:
        while joined[name] != name:
            name = joined[name]
        return name

    def join(one: str, other: str) -> None:
        joined[first(one)] = first(other)

    domains = ScaleUpDomains(topology)
    homed: set[str] = set()
    for link in topology.links:
        if not link.delay_ns:
            join(*(end.node for end in link.ends))
        for here, there in (link.ends, link.ends[::-1]):
            near, far = topology.node(here.node), topology.node(there.node)
            at_leaf = near.role is Role.GPU or (not near.is_switch and far.is_switch)
            if at_leaf and near.name not in homed:
                homed.add(near.name)
                join(near.name, far.name)
    for gpu in topology.gpus:
        if not domains.network(gpu.name).latency_ns:
            for peer in domains.peers(gpu.name):
                join(gpu.name, peer)
    return {node.name: first(node.name) for node in topology.nodes}
