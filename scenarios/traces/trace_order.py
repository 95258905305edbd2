"""The order in which a trace's operations start: who goes with whom, and whose turn it is.

Everything is gone through once, by time, as if messages and collectives took none.  So circles
come out, and computations of one stream get their turns: the one that can begin first is first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from scenarios.traces.trace_model import (
    Trace,
    TraceCollective,
    TraceCompute,
    TraceReceive,
    TraceSend,
    check,
    place,
)

#: A rank, and the place of an operation in its list.
Place = tuple[int, int]


@dataclass
class TraceOrder:
    """The places of all operations in the order of their start, each collective once.

    ``receive_of`` has the receive of each send.  ``members`` has for the first member of each
    collective all of them.  ``turn_after`` is the computation that has the stream before.
    """

    starts: list[Place] = field(default_factory=list)
    receive_of: dict[Place, Place] = field(default_factory=dict)
    members: dict[Place, list[Place]] = field(default_factory=dict)
    turn_after: dict[Place, Place] = field(default_factory=dict)


def in_order(trace: Trace) -> TraceOrder:
    """Return the order of all operations of ``trace``; TraceRefusal if they do not fit together."""
    check(trace)
    order = TraceOrder()
    _pair_messages(trace, order)
    leader = _pair_collectives(trace, order)
    _Passage(trace, order, leader).run()
    return order


def _pair_messages(trace: Trace, order: TraceOrder) -> None:
    waiting: dict[tuple[int, int, int], deque[Place]] = defaultdict(deque)
    for rank, operations in enumerate(trace.operations):
        for index, operation in enumerate(operations):
            if isinstance(operation, TraceSend):
                waiting[rank, operation.peer, operation.tag].append((rank, index))
    for rank, operations in enumerate(trace.operations):
        for index, operation in enumerate(operations):
            if not isinstance(operation, TraceReceive):
                continue
            sends = waiting.get((operation.peer, rank, operation.tag))
            if not sends:
                raise trace.wrong(
                    operation,
                    rank,
                    f"rank {operation.peer} sends nothing with tag {operation.tag} for this "
                    "receive; add the send, or the file of that rank",
                )
            source, number = send = sends.popleft()
            sent = trace.operations[source][number]
            assert isinstance(sent, TraceSend)
            if sent.octets != operation.octets:
                raise trace.wrong(
                    operation,
                    rank,
                    f"it receives {operation.octets} B, but {place(sent, source)} sends "
                    f"{sent.octets} B; make them equal",
                )
            order.receive_of[send] = rank, index
    for sends in waiting.values():
        if sends:
            rank, index = sends[0]
            operation = trace.operations[rank][index]
            assert isinstance(operation, TraceSend)
            raise trace.wrong(
                operation,
                rank,
                f"rank {operation.peer} has no receive with tag {operation.tag} for this send; "
                "add the receive, or the file of that rank",
            )


def _pair_collectives(trace: Trace, order: TraceOrder) -> dict[Place, Place]:
    """Return for each collective's member the first of its members."""
    of_group: dict[str, dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for rank, operations in enumerate(trace.operations):
        for index, operation in enumerate(operations):
            if isinstance(operation, TraceCollective):
                of_group[operation.group][rank].append((rank, index))
    leader: dict[Place, Place] = {}
    for name, by_rank in of_group.items():
        ranks = trace.groups[name]
        most = max(ranks, key=lambda rank: len(by_rank.get(rank, ())))
        for number, (rank, index) in enumerate(by_rank[most]):
            first = trace.operations[rank][index]
            assert isinstance(first, TraceCollective)
            members = []
            for member in ranks:
                theirs = by_rank.get(member, [])
                if number >= len(theirs):
                    raise trace.wrong(
                        first,
                        rank,
                        f"rank {member} of group {name!r} does not take part in this "
                        f"{first.kind.value}: it has {len(theirs)} collectives of the group and "
                        f"rank {rank} has {len(by_rank[rank])}; complete it",
                    )
                _, at = theirs[number]
                other = trace.operations[member][at]
                assert isinstance(other, TraceCollective)
                if (other.kind, other.octets, other.root) != (
                    first.kind,
                    first.octets,
                    first.root,
                ):
                    raise trace.wrong(
                        other,
                        member,
                        f"collective {number + 1} of group {name!r} is a {other.kind.value} of "
                        f"{other.octets} B here, but a {first.kind.value} of {first.octets} B at "
                        f"{place(first, rank)}; make them equal",
                    )
                members.append((member, at))
            order.members[members[0]] = members
            for one in members:
                leader[one] = members[0]
    return leader


class _Passage:
    """One passage through the trace, by time."""

    def __init__(self, trace: Trace, order: TraceOrder, leader: dict[Place, Place]) -> None:
        self._trace, self._order, self._leader = trace, order, leader
        self._sender = {receive: send for send, receive in order.receive_of.items()}
        self._entered: dict[Place, int] = defaultdict(int)
        self._free: dict[tuple[int, int], tuple[int, Place]] = {}
        self._ends: list[tuple[int, int, Place]] = []
        self._count = 0
        self._waits: list[list[int]] = []
        self._followers: list[dict[int, list[int]]] = []

    def run(self) -> None:
        begin = []
        for rank, operations in enumerate(self._trace.operations):
            waits, followers = [], defaultdict(list)
            for index, operation in enumerate(operations):
                needs = set(operation.after)
                for earlier in needs:
                    followers[earlier].append(index)
                waits.append(len(needs) + isinstance(operation, TraceReceive))
                if not waits[-1]:
                    begin.append((rank, index))
            self._waits.append(waits)
            self._followers.append(followers)
        for at in begin:
            self._ready(at, 0)
        over = 0
        while self._ends:
            now, _, at = heapq.heappop(self._ends)
            over += 1
            self._over(at, now)
        if over < len(self._trace):
            self._explain()

    def _ready(self, at: Place, now: int) -> None:
        rank, index = at
        operation = self._trace.operations[rank][index]
        if isinstance(operation, TraceCollective):
            first = self._leader[at]
            self._entered[first] += 1
            members = self._order.members[first]
            if self._entered[first] == len(members):
                self._order.starts.append(first)
                for member in members:
                    self._end(member, now)
            return
        self._order.starts.append(at)
        if not isinstance(operation, TraceCompute):
            self._end(at, now)
            return
        if operation.stream is not None:
            free = self._free.get((rank, operation.stream))
            if free is not None:
                now, self._order.turn_after[at] = max(now, free[0]), free[1]
            self._free[rank, operation.stream] = now + operation.duration_ns, at
        self._end(at, now + operation.duration_ns)

    def _end(self, at: Place, now: int) -> None:
        self._count += 1
        heapq.heappush(self._ends, (now, self._count, at))

    def _over(self, at: Place, now: int) -> None:
        rank, index = at
        following = [(rank, one) for one in self._followers[rank].get(index, ())]
        receive = self._order.receive_of.get(at)
        if receive is not None:
            following.append(receive)
        for other, one in following:
            self._waits[other][one] -= 1
            if not self._waits[other][one]:
                self._ready((other, one), now)

    def _explain(self) -> None:
        """Raise TraceRefusal that names a few of those that wait for each other."""
        done = {(at, one) for at, rows in enumerate(self._waits) for one, n in enumerate(rows) if n}
        pending = done | {
            member
            for first, members in self._order.members.items()
            if self._entered[first] < len(members)
            for member in members
        }
        at = min(pending)
        seen: dict[Place, int] = {}
        path: list[Place] = []
        while at not in seen:
            seen[at] = len(path)
            path.append(at)
            at = self._blocker(at, pending)
        circle = path[seen[at] :]
        shown = [place(self._trace.operations[rank][one], rank) for rank, one in circle]
        names = " waits for ".join([*_few(shown), shown[0]])
        rank, one = circle[0]
        raise self._trace.wrong(
            self._trace.operations[rank][one],
            rank,
            f"operations wait for each other in a circle ({names}); break it",
        )

    def _blocker(self, at: Place, pending: set[Place]) -> Place:
        """Return a pending operation that ``at`` waits for."""
        rank, index = at
        operation = self._trace.operations[rank][index]
        for earlier in operation.after:
            if (rank, earlier) in pending:
                return rank, earlier
        if isinstance(operation, TraceReceive):
            return self._sender[at]
        for member in self._order.members[self._leader[at]]:
            if self._waits[member[0]][member[1]]:
                return member
        raise AssertionError(f"{at} waits for nothing")


def _few(shown: Sequence[str], most: int = 6) -> list[str]:
    return list(shown) if len(shown) <= most else [*shown[: most - 1], "..."]
