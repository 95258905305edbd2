"""The division of a fabric among workers, and how far one may go without word from the others.

A worker owns leaf switches with the GPUs on them: a group of nodes that is never divided.  Whatever
reaches another group takes a cable's delay, or the latency of a scale-up network. The least of all
these is the lookahead: nothing that happens now changes what another worker does before then
(Chandy and Misra 1979).  Cables within a group may be as short as those of a rack.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from emulator.errors import UserError
from emulator.sim.event_queue import PS
from emulator.workers.forked.cable_load import group_load
from emulator.workers.forked.cut_refinement import cut, refined
from emulator.workers.forked.expected_traffic import ExpectedTraffic
from topologies.model import Role, Topology
from topologies.parts.scale_up import ScaleUpDomains

#: Fewer GPUs than this keep no worker busy for longer than the exchange with the others takes.
LEAST_GPUS = 4
LOADAVG = Path("/proc/loadavg")


@dataclass(frozen=True)
class PartShares:
    """Octets that cross cables and scale-up networks: ``cut`` between workers, of ``total``.

    ``away`` are those between each worker and all others, ``works`` its work
    (:mod:`emulator.workers.forked.cable_load`).  Both count groups of nodes: what stays within
    one, such as a leaf switch with its GPUs, is in the work alone.
    """

    cut: int
    total: int
    away: Sequence[int]
    works: Sequence[int]


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
    def of(cls, topology: Topology, workers: int, traffic: ExpectedTraffic | None = None) -> Self:
        """Share ``topology`` among ``workers`` at most, so that little of ``traffic`` crosses.

        GPUs that share a NIC stay together, and so does what is joined without any delay.  Without
        traffic neighbours stay together, as many GPUs at each worker as can be.
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
        first = {
            group: used.get(worker, min(worker, last)) for group, worker in sorted(owner.items())
        }
        if traffic is not None and last > 0:
            names = list(first)
            load = group_load(topology, names, groups, traffic)
            hosting = np.array([sizes[one] > 0 for one in names], np.int64)
            after = refined(load, np.array(list(first.values()), np.int64), hosting)
            first = dict(zip(names, after.tolist(), strict=True))
        return cls(
            worker_of={name: first[group] for name, group in groups.items()},
            lookahead_ps=lookahead_ps(topology),
        )

    @classmethod
    def by_hand(cls, topology: Topology, parts: Sequence[Sequence[str]]) -> Self:
        """Give each worker the switches that its part names, with the GPUs at them.

        Switches without GPUs that no part names follow in turn.  Raises UserError for a name that
        is none, for a switch with GPUs that is in no part, and for a part without GPUs.
        """
        groups = _groups(topology)
        owner: dict[str, int] = {}
        for number, names in enumerate(parts):
            for name in names:
                if name not in groups:
                    known = ", ".join(one.name for one in topology.nodes if one.is_switch)
                    raise UserError(
                        f"part {number} (line {number + 1}) names {name}, which the fabric does "
                        f"not have; its switches are {known}"
                    )
                group = groups[name]
                if owner.setdefault(group, number) != number:
                    raise UserError(
                        f"{name} is in part {number}, and in part {owner[group]} already, or what "
                        "it is joined with is: name it once"
                    )
        for gpu in topology.gpus:
            if groups[gpu.name] not in owner:
                near = [one for one in topology.nodes if groups[one.name] == groups[gpu.name]]
                switch = next((one for one in near if one.is_switch), gpu)
                raise UserError(f"GPU {gpu.name} is in no part: name {switch.name} in one")
        hosting = {owner[groups[gpu.name]] for gpu in topology.gpus}
        for number in range(len(parts)):
            if number not in hosting:
                raise UserError(f"part {number} has no GPU: give it a switch with GPUs")
        idle = [group for group in dict.fromkeys(groups.values()) if group not in owner]
        owner |= {group: number % len(parts) for number, group in enumerate(idle)}
        return cls(
            worker_of={name: owner[group] for name, group in groups.items()},
            lookahead_ps=lookahead_ps(topology),
        )

    def shares(self, topology: Topology, traffic: ExpectedTraffic) -> PartShares:
        """Return what of ``traffic`` crosses, and how the work is shared."""
        groups = _groups(topology)
        names = list(dict.fromkeys(groups.values()))
        load = group_load(topology, names, groups, traffic)
        owner = np.array([self.worker_of[one] for one in names], np.int64)
        works = np.zeros(self.workers, np.int64)
        np.add.at(works, owner, load.work)
        away = [
            int(load.between[owner == one][:, owner != one].sum()) for one in range(self.workers)
        ]
        return PartShares(cut(load, owner), int(load.between.sum()) // 2, away, works.tolist())


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
    """The least time (ps) above 0 in which something gets from one worker's nodes to another's.

    It holds for every division, and is that of all cables and networks where none is possible.
    """
    groups, domains = _groups(topology), topology.scale_up_domains
    cables = [
        (round(link.delay_ns * PS), len({groups[end.node] for end in link.ends}) > 1)
        for link in topology.links
    ]
    reached: dict[str, set[str]] = {}
    for gpu, domain in domains.items():
        reached.setdefault(domain, set()).add(groups[gpu])
    networks = [
        (server.scale_up.latency_ns * PS, len(reached[domains[gpu]]) > 1)
        for server in topology.servers
        for gpu in server.gpus[:1]
    ]
    times = [(time, divided) for time, divided in cables + networks if time > 0]
    between = [time for time, divided in times if divided]
    return min(between or [time for time, _ in times], default=0)


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
