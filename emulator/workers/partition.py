"""The division of a fabric among workers, and how far one may go without word from the others.

A worker owns leaf switches with the GPUs on them: a group of nodes that is never divided.  Whatever
reaches another group takes a cable's delay, or the latency of a scale-up network. The least of all
these is the lookahead: nothing that happens now changes what another worker does before then
(Chandy and Misra 1979).  Cables within a group may be as short as those of a rack.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from emulator.errors import UserError
from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, OperationTable
from emulator.sim.event_queue import PS
from topologies.model import Role, Topology
from topologies.parts.scale_up import ScaleUpDomains

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ExpectedTraffic:
    """Octets from ``sender`` to ``receiver`` (ranks), a row for each pair that has any.

    ``written`` cross the fabric, ``copied`` the scale-up network.
    """

    sender: Numbers
    receiver: Numbers
    written: Numbers
    copied: Numbers

    @classmethod
    def of(cls, tables: Iterable[OperationTable]) -> Self:
        """The traffic of one execution; the tables are those of ranks 0, 1, ..."""
        rows: list[Numbers] = [np.zeros((4, 0), np.int64)]
        for rank, table in enumerate(tables):
            for kind, row in ((WRITE, 2), (COPY, 3)):
                chosen = table.where(kind)
                peers = np.asarray(table.columns["peer"][chosen], np.int64)
                receivers, place = np.unique(peers, return_inverse=True)
                part = np.zeros((4, len(receivers)), np.int64)
                part[0], part[1] = rank, receivers
                octets = np.asarray(table.columns["near_octets"][chosen], np.int64)
                np.add.at(part[row], place, octets)
                rows.append(part)
        return cls(*np.concatenate(rows, axis=1))

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """All ``parts`` one behind the other."""
        columns = [np.stack((one.sender, one.receiver, one.written, one.copied)) for one in parts]
        return cls(*np.concatenate([np.zeros((4, 0), np.int64), *columns], axis=1))

    def by_sender(self) -> Self:
        """The rows in the order of their senders."""
        order = np.argsort(self.sender, kind="stable")
        columns = self.sender, self.receiver, self.written, self.copied
        return type(self)(*(column[order] for column in columns))


#: Work of an endpoint on an octet that it sends or takes, where a switch on the way has 1 for it at
#: each of its two ports.  Processor times of permutations came to 4.4 to 5.0 with UET, and to 3.0
#: to 4.0 with RoCEv2; parts by any of these differ by a few percent of their work.
ENDPOINT_WORK = 4


@dataclass(frozen=True)
class GroupLoad:
    """``between`` are octets between two groups, both ways; ``work`` is what each group has to do.

    Both are integers, so that every machine comes to the same.  Groups are what workers own whole,
    such as a leaf switch with its GPUs, or a spine.
    """

    between: Numbers
    work: Numbers


def group_load(
    topology: Topology, groups: Sequence[str], group_of: Mapping[str, str], traffic: ExpectedTraffic
) -> GroupLoad:
    """Return the load of ``groups``, which nodes belong to by ``group_of``.

    A flow takes all shortest ways between two groups in equal parts, as ECMP shares many flows, and
    each cable of a step takes as much as the next.
    """
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


#: A worker's largest part of an equal share of the work, in percent.
SLACK = 110
#: Steps for each group at most, so that a large fabric is divided in seconds.
_STEPS = 2


def cut(load: GroupLoad, owner: Numbers) -> int:
    """Return the octets between groups of different owners."""
    return int(load.between[owner[:, None] != owner[None, :]].sum()) // 2


def refined(load: GroupLoad, owner: Numbers, busy: Numbers) -> Numbers:
    """Return the owner of each group after all steps from ``owner``.

    In a step a group goes to another worker, or two groups change places.  The first steps take
    work off whoever has most, until that is :data:`SLACK` times an equal share or no step helps.
    Then each is the one that takes most off the cut (Kernighan and Lin 1970, Fiduccia and
    Mattheyses 1982, without their uphill steps), and leaves nobody with more work than that.

    Every worker keeps one of the groups at least for which ``busy`` is 1.
    """
    owner = owner.copy()
    workers = int(owner.max(initial=0)) + 1
    works = np.zeros(workers, np.int64)
    np.add.at(works, owner, load.work)
    most = int(load.work.sum()) * SLACK // (100 * workers)
    for _ in range(_STEPS * len(owner)):
        if works.max() <= most or not _ease(load, owner, busy, works):
            break
    most = max(int(works.max()), most)
    for _ in range(_STEPS * len(owner)):
        if not (_move(load, owner, busy, works, most) or _swap(load, owner, busy, works, most)):
            break
    return owner


def _last(owner: Numbers, busy: Numbers, workers: int) -> npt.NDArray[np.bool_]:
    """Return which groups are the only busy one of their worker."""
    holders = np.zeros(workers, np.int64)
    np.add.at(holders, owner, busy)
    last: npt.NDArray[np.bool_] = (busy == 1) & (holders[owner] == 1)
    return last


def _ease(load: GroupLoad, owner: Numbers, busy: Numbers, works: Numbers) -> bool:
    """Take the step of the fullest worker after which it and the other have least, if one helps."""
    fullest = int(works.argmax())
    mine, most = owner == fullest, int(works[fullest])
    left = most - load.work
    moved = np.maximum(left[:, None], works[None, :] + load.work[:, None])
    moved[~mine | _last(owner, busy, len(works))] = most
    group, worker = divmod(int(moved.argmin()), len(works))
    more = load.work[None, :] - load.work[:, None]
    swapped = np.maximum(most + more, works[owner][None, :] - more)
    allowed = mine[:, None] & ~mine[None, :] & (busy[:, None] == busy[None, :])
    swapped = np.where(allowed, swapped, most)
    one, other = divmod(int(swapped.argmin()), len(owner))
    if min(moved[group, worker], swapped[one, other]) >= most:
        return False
    if moved[group, worker] <= swapped[one, other]:
        _give(load, owner, works, group, worker)
    else:
        _give(load, owner, works, one, int(owner[other]))
        _give(load, owner, works, other, fullest)
    return True


def _give(load: GroupLoad, owner: Numbers, works: Numbers, group: int, worker: int) -> None:
    """Let ``worker`` be the owner of ``group``, with its work."""
    works[owner[group]] -= load.work[group]
    works[worker] += load.work[group]
    owner[group] = worker


def _gains(load: GroupLoad, owner: Numbers, workers: int) -> Numbers:
    """Octets that leave the cut when a group (row) goes to a worker (column)."""
    mine = np.zeros((len(owner), workers), np.int64)
    for worker in range(workers):
        mine[:, worker] = load.between[:, owner == worker].sum(axis=1)
    gains: Numbers = mine - mine[np.arange(len(owner)), owner][:, None]
    return gains


def _move(load: GroupLoad, owner: Numbers, busy: Numbers, works: Numbers, most: int) -> bool:
    """Take the best step of one group, if one is any good."""
    gains = _gains(load, owner, len(works))
    last = _last(owner, busy, len(works))
    allowed = (works[None, :] + load.work[:, None] <= most) & ~last[:, None]
    gains = np.where(allowed, gains, 0)
    group, worker = divmod(int(gains.argmax()), len(works))
    if gains[group, worker] <= 0:
        return False
    _give(load, owner, works, group, worker)
    return True


def _swap(load: GroupLoad, owner: Numbers, busy: Numbers, works: Numbers, most: int) -> bool:
    """Let the two groups change places that gain most, if any two do; busy ones with busy ones."""
    gains = _gains(load, owner, len(works))
    away = gains[:, owner]  # the row's group to the owner of the column's
    both = away + away.T - 2 * load.between
    more = load.work[None, :] - load.work[:, None]  # that the row's owner gets
    fits = works[owner][:, None] + more <= most
    allowed = fits & fits.T & (busy[:, None] == busy[None, :]) & (owner[:, None] != owner[None, :])
    both = np.where(allowed, both, 0)
    one, other = divmod(int(both.argmax()), len(owner))
    if both[one, other] <= 0:
        return False
    here, there = int(owner[one]), int(owner[other])
    _give(load, owner, works, one, there)
    _give(load, owner, works, other, here)
    return True


#: Fewer GPUs than this keep no worker busy for longer than the exchange with the others takes.
LEAST_GPUS = 4
LOADAVG = Path("/proc/loadavg")


@dataclass(frozen=True)
class PartShares:
    """Octets that cross cables and scale-up networks: ``cut`` between workers, of ``total``.

    ``away`` are those between each worker and all others, ``works`` its work
    (:func:`group_load`).  Both count groups of nodes: what stays within
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
                        f"part {number} (from 0 on) names {name}, which the fabric does "
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
