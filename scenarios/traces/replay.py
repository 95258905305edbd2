"""A trace as schedules of a fabric's GPUs: rank r is GPU r, and every message carries real data.

Messages between two ranks have a region of their own at each end.  Each collective has buffers of
its own.  What has to be in them in the end follows from the run's seed.

The order in which a trace's operations start: who goes with whom, and whose turn it is.

Everything is gone through once, by time, as if messages and collectives took none.  So circles
come out, and computations of one stream get their turns: the one that can begin first is first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from emulator.errors import UserError
from emulator.run.measures.message_times import Iteration
from emulator.scenario import Contents
from emulator.sim.endpoint.operations.schedule import (
    Compute,
    Schedule,
    only_operations_of,
)
from scenarios.collectives import ring
from scenarios.collectives.blocks import Ring
from scenarios.collectives.program import Program
from scenarios.traces.collective_replay import (
    CollectivePayload,
    ReplayedCollective,
    Splits,
    split_equally,
)
from scenarios.traces.trace_model import (
    Collective,
    CollectiveRun,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceReceive,
    TraceSend,
    check,
    place,
)
from topologies.model import Topology

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
                same_size = other.octets == first.octets or other.splits or first.splits
                if (other.kind, other.root) != (first.kind, first.root) or not same_size:
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


#: Operations of a rank that have names in the timeline, which shows no more of all ranks together.
MOST_NAMED = 250_000
#: Beyond this, a replay would take hours.
MOST_SCHEDULED = 2_000_000
#: The elements of a barrier, and of a message that carries nothing.
BARRIER_OCTETS, EMPTY_OCTETS = 4, 1
_SENT, _RECEIVED = "sent", "received"


@dataclass(frozen=True, kw_only=True)
class ReplayChoice:
    """The choices of a replay; computations take ``compute_scale`` times as long."""

    compute_scale: float
    slice_bytes: int
    seed: int


@dataclass
class _Span:
    """A collective, and for each member the operations ``[first, behind)`` that it became."""

    leader: Place
    number: int
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)


class Replay:
    def __init__(self, trace: Trace, topology: Topology, choice: ReplayChoice) -> None:
        gpus = len(topology.gpus)
        if trace.ranks > gpus:
            busy = len(trace.busy_ranks)
            way_out = f"take a fabric with {trace.ranks} or more, or leave --topology out"
            if busy <= gpus:
                way_out = (
                    f"take --param idle_ranks=drop for the {busy} that do anything, or a fabric "
                    f"with {trace.ranks}"
                )
            raise UserError(
                f"{trace.name} has {trace.ranks} ranks and topology {topology.name} has {gpus} "
                f"GPUs; {way_out}"
            )
        self.trace, self.topology, self.choice = trace, topology, choice
        self._order = in_order(trace)
        self._check_count()

    # -- what it is ------------------------------------------------------------------------------

    @cached_property
    def collectives(self) -> list[Place]:
        """The collectives in the order of their start, each by its first member."""
        return [at for at in self._order.starts if at in self._order.members]

    @cached_property
    def messages(self) -> int:
        return len(self._order.receive_of)

    @property
    def empty_messages(self) -> int:
        """Return the number of messages without any octet, which carry one here."""
        return sum(not self._send(at).octets for at in self._order.receive_of)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what the trace has and nobody would expect."""
        alone = sum(
            len(self.trace.groups[self._collective(at).group]) < 2 for at in self.collectives
        )
        if not alone:
            return self.trace.warnings
        stated = (
            f"{self.trace.name}: {alone} of {len(self.collectives)} collectives are of groups of "
            "one rank and move nothing; if they should, give the trace more ranks"
        )
        return (*self.trace.warnings, stated)

    def compute_ns(self) -> int:
        """Return the time for which the busiest stream of all ranks computes."""
        busy: dict[tuple[int, int], int] = {}
        for rank, operations in enumerate(self.trace.operations):
            for one in operations:
                if isinstance(one, TraceCompute) and one.stream is not None:
                    key = rank, one.stream
                    busy[key] = busy.get(key, 0) + self._scaled(one)
        return max(busy.values(), default=0)

    @property
    def message_octets(self) -> int:
        """Return the octets of all messages and collectives, as the trace states them."""
        sent = sum(self._send(at).octets for at in self._order.receive_of)
        return sent + sum(self._recorded(at).octets for at in self.collectives)

    @cached_property
    def memory_octets(self) -> int:
        """About what the buffers of the busiest GPU take."""
        held = [0] * self.trace.ranks
        for send, receive in self._order.receive_of.items():
            octets = max(EMPTY_OCTETS, self._send(send).octets)
            held[send[0]] += octets
            held[receive[0]] += octets
        for _, payload in self._all_payloads:
            for rank in payload.ranks:
                held[rank] += payload.memory_octets(rank)
        return max(held)

    # -- schedules and data ----------------------------------------------------------------------

    def compile(self) -> Sequence[Schedule]:
        """Return the schedule of each GPU, also of those that the trace has no rank for."""
        return self._written()[0]

    def inputs(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` hold at the start."""
        if rank >= self.trace.ranks:
            return {}
        found: dict[str, np.ndarray] = {}
        if self._sent_by[rank]:
            found[_SENT] = np.concatenate(
                [self._payload(rank, number) for number in range(len(self._sent_by[rank]))]
            )
        for number, payload in self._payloads(rank):
            for name, content in payload.inputs(rank).items():
                found[f"{name}{number}"] = content
        return found

    def expected(self, rank: int) -> Contents:
        """Return what the buffers of ``rank`` must hold in the end."""
        if rank >= self.trace.ranks:
            return {}
        found: dict[str, np.ndarray] = {}
        if self._received_by[rank]:
            parts = [self._payload(source, number) for source, number in self._received_by[rank]]
            found[_RECEIVED] = np.concatenate(parts)
        for number, payload in self._payloads(rank):
            for name, content in payload.expected(rank).items():
                found[f"{name}{number}"] = content
        return found

    def runs(self, iteration: Iteration) -> list[CollectiveRun]:
        with only_operations_of(()):
            _, spans = self._written()
        begins: list[dict[int, int]] = [{} for _ in spans]
        ends: list[dict[int, int]] = [{} for _ in spans]
        starts = {
            rank: sorted((span.spans[rank][0], place) for place, span in enumerate(spans)
                         if rank in span.spans)
            for rank in range(self.trace.ranks)
        }  # fmt: skip
        both = (
            (iteration.source, iteration.send),
            (iteration.destination, iteration.receive),
        )
        times = iteration.start_ns.tolist(), iteration.end_ns.tolist()
        for (ranks, indices), sends in zip(both, (True, False), strict=True):
            for message, (rank, index) in enumerate(
                zip(ranks.tolist(), indices.tolist(), strict=True)
            ):
                place = bisect_right(starts[rank], (index, len(spans))) - 1
                if place < 0:
                    continue
                number = starts[rank][place][1]
                if index >= spans[number].spans[rank][1]:
                    continue
                begin, end = begins[number], ends[number]
                if sends:
                    begin[rank] = min(begin.get(rank, times[0][message]), times[0][message])
                end[rank] = max(end.get(rank, 0), times[1][message])
                begin.setdefault(rank, times[0][message])
        return [
            CollectiveRun(
                collective=self._recorded(span.leader),
                ranks=self.trace.groups[self._collective(span.leader).group],
                number=span.number,
                begins_ns=begin,
                ends_ns=end,
            )
            for span, begin, end in zip(spans, begins, ends, strict=True)
            if begin
        ]

    def own_messages(self, iteration: Iteration) -> npt.NDArray[np.bool_]:
        """Return which messages of ``iteration`` are the trace's own, and not of collectives."""
        of_collective = np.zeros(len(iteration), bool)
        with only_operations_of(()):
            spans = self._written()[1] if self.collectives else []
        by_rank: dict[int, list[tuple[int, int]]] = {}
        for span in spans:
            for rank, ends in span.spans.items():
                by_rank.setdefault(rank, []).append(ends)
        for rank, ends_of in by_rank.items():
            here = np.flatnonzero(iteration.source == rank)
            firsts, behinds = np.array(sorted(ends_of)).T
            at = np.searchsorted(firsts, iteration.send[here], "right") - 1
            of_collective[here] = (at >= 0) & (iteration.send[here] < behinds[at])
        return ~of_collective

    # -- how it is made --------------------------------------------------------------------------

    def _written(self) -> tuple[Sequence[Schedule], list[_Span]]:
        program = Program.on(self.topology)
        done: list[dict[int, tuple[int, ...]]] = [{} for _ in self.trace.operations]
        spans: list[_Span] = []
        counts: dict[str, int] = {}
        for at in self._order.starts:
            rank, index = at
            operation = self.trace.operations[rank][index]
            if isinstance(operation, TraceCollective):
                number = counts[operation.group] = counts.get(operation.group, -1) + 1
                span = _Span(at, number)
                self._write_collective(program, done, span, len(spans))
                spans.append(span)
                continue
            first = program.operations(rank)
            needs = self._needs(program, done, at)
            if isinstance(operation, TraceCompute):
                turn = self._order.turn_after.get(at)
                before = () if turn is None else done[rank][turn[1]]
                length = self._scaled(operation)
                done[rank][index] = (_compute(program, rank, length, (*needs, *before)),)
            elif isinstance(operation, TraceSend):
                self._write_message(program, done, at, needs)
            else:
                done[rank][index] = (*needs, *done[rank][index])
            _name(program, rank, first, operation.name)
        return program.schedules(), spans

    def _needs(
        self, program: Program, done: list[dict[int, tuple[int, ...]]], at: Place
    ) -> tuple[int, ...]:
        """Return what completes all that the operation waits for, as one operation at most."""
        rank, index = at
        after = self.trace.operations[rank][index].after
        needs = sorted({one for earlier in after for one in done[rank][earlier]})
        return tuple(needs) if len(needs) < 2 else (_compute(program, rank, 0, needs),)

    def _write_message(
        self,
        program: Program,
        done: list[dict[int, tuple[int, ...]]],
        at: Place,
        needs: tuple[int, ...],
    ) -> None:
        receive = self._order.receive_of[at]
        octets = max(EMPTY_OCTETS, self._send(at).octets)
        first = program.operations(receive[0])
        send, received = program.transfer(
            at[0],
            receive[0],
            program.allocate(at[0], _SENT, octets),
            program.allocate(receive[0], _RECEIVED, octets),
            after=needs,
        )
        done[at[0]][at[1]] = (send,)
        done[receive[0]][receive[1]] = (received,)
        named = self.trace.operations[receive[0]][receive[1]].name or self._send(at).name
        _name(program, receive[0], first, named)

    def _write_collective(
        self, program: Program, done: list[dict[int, tuple[int, ...]]], span: _Span, number: int
    ) -> None:
        members = self._order.members[span.leader]
        payload = self._payload_of(span.leader, number)
        entry = {}
        first = {}
        for at in members:
            first[at[0]] = program.operations(at[0])
            entry[at[0]] = self._needs(program, done, at)
            for name, octets in payload.buffers(at[0]).items():
                program.allocate(at[0], f"{name}{number}", octets)
        ends: dict[int, list[int]] = {rank: [] for rank, _ in members}
        ranks = tuple(rank for rank, _ in members)
        ReplayedCollective(
            program=program,
            kind=payload.kind,
            ranks=ranks,
            rings=self._rings(ranks),
            octets=payload.octets,
            splits=payload.splits,
            element=payload.dtype.itemsize,
            dtype=payload.dtype.name,
            root=payload.root,
            source=f"input{number}",
            result=f"output{number}",
            staging=f"staging{number}",
            slice_bytes=self.choice.slice_bytes,
            entry=entry,
            ends=ends,
        ).write()
        for rank, index in members:
            over = [*entry[rank], *ends[rank]]
            done[rank][index] = (
                (_compute(program, rank, 0, over),) if len(over) > 1 else tuple(over)
            )
            span.spans[rank] = first[rank], program.operations(rank)
            own = self.trace.operations[rank][index]
            _name(program, rank, first[rank], f"{own.name or own.where} {payload.kind.value}")

    def _rings(self, ranks: tuple[int, ...]) -> list[Ring]:
        """Return rings of ``ranks``, on their rails if all servers have equally many of them."""
        servers: dict[str, list[int]] = {}
        for rank in ranks:
            servers.setdefault(str(self.topology.gpus[rank].server), []).append(rank)
        hosts = list(servers.values())
        if len({len(host) for host in hosts}) > 1:
            return [tuple(rank for host in hosts for rank in host)]
        return ring.rail_rings(hosts, shape=ring.shape_of(self.topology))

    def _send(self, at: Place) -> TraceSend:
        operation = self.trace.operations[at[0]][at[1]]
        assert isinstance(operation, TraceSend)
        return operation

    def _collective(self, at: Place) -> TraceCollective:
        operation = self.trace.operations[at[0]][at[1]]
        assert isinstance(operation, TraceCollective)
        return operation

    def _recorded(self, at: Place) -> TraceCollective:
        """Return the collective with the longest time, and the size, that any member has."""
        members = [self._collective(one) for one in self._order.members[at]]
        return replace(
            self._collective(at),
            octets=max(one.octets for one in members),
            recorded_ns=max(one.recorded_ns for one in members),
        )

    def _scaled(self, operation: TraceCompute) -> int:
        if operation.stream is None:
            return operation.duration_ns
        return round(operation.duration_ns * self.choice.compute_scale)

    def _payload_of(self, at: Place, number: int) -> CollectivePayload:
        one = self._collective(at)
        ranks = self.trace.groups[one.group]
        octets = BARRIER_OCTETS if one.kind is Collective.BARRIER else one.octets
        root = ranks[0] if one.root is None else one.root
        key = self.choice.seed, 1, number
        return CollectivePayload(one.kind, ranks, octets, root, key, self._splits(at))

    def _splits(self, at: Place) -> Splits:
        """Return what each member sends to each, if any member says it."""
        members = [self._collective(one) for one in self._order.members[at]]
        if not any(one.splits for one in members):
            return ()
        return tuple(one.splits or split_equally(one.octets, len(members)) for one in members)

    def _payloads(self, rank: int) -> list[tuple[int, CollectivePayload]]:
        return [one for one in self._all_payloads if rank in one[1].ranks]

    @cached_property
    def _all_payloads(self) -> list[tuple[int, CollectivePayload]]:
        return [
            (number, self._payload_of(at, number)) for number, at in enumerate(self.collectives)
        ]

    @cached_property
    def _sent_by(self) -> list[list[int]]:
        """The octets of what each rank sends, in the order of its buffer."""
        return self._messages_of_ranks[0]

    @cached_property
    def _received_by(self) -> list[list[tuple[int, int]]]:
        """The sender of each message that a rank receives, and its number there."""
        return self._messages_of_ranks[1]

    @cached_property
    def _messages_of_ranks(self) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
        sent: list[list[int]] = [[] for _ in self.trace.operations]
        received: list[list[tuple[int, int]]] = [[] for _ in self.trace.operations]
        for at in self._order.starts:
            receive = self._order.receive_of.get(at)
            if receive is not None:
                received[receive[0]].append((at[0], len(sent[at[0]])))
                sent[at[0]].append(max(EMPTY_OCTETS, self._send(at).octets))
        return sent, received

    def _payload(self, source: int, number: int) -> np.ndarray:
        rng = np.random.default_rng((self.choice.seed, 0, source, number))
        return np.frombuffer(rng.bytes(self._sent_by[source][number]), np.uint8)

    def _check_count(self) -> None:
        """Raise UserError if the schedules would have too many operations."""
        count = 2 * len(self.trace)
        for at in self.collectives:
            one = self._collective(at)
            ranks = self.trace.groups[one.group]
            rings = len(self._rings(ranks))
            count += _operations(one, len(ranks), rings, self.choice.slice_bytes)
            if count > MOST_SCHEDULED:
                raise self.trace.wrong(
                    one,
                    at[0],
                    f"up to here the replay has more than {MOST_SCHEDULED} operations; take a "
                    "larger slice_bytes, a fabric with fewer GPUs in a server (each has a ring), "
                    "or cut the trace",
                )


def _name(program: Program, rank: int, first: int, name: str) -> None:
    if name and first < MOST_NAMED:
        program.name(rank, first, name)


def _compute(program: Program, rank: int, duration_ns: int, after: Sequence[int]) -> int:
    return program.append(rank, Compute(duration_ns=duration_ns, after=tuple(after)))


def _operations(one: TraceCollective, members: int, rings: int, slice_bytes: int) -> int:
    """Return about how many operations ``one`` becomes at all its members together."""
    if one.kind is Collective.ALL_TO_ALL:
        return 2 * members * members
    if one.kind in (Collective.GATHER, Collective.SCATTER):
        return 2 * members * -(-one.octets // (members * slice_bytes))
    if one.kind in (Collective.BROADCAST, Collective.REDUCE):
        return 3 * members * rings * -(-one.octets // (rings * slice_bytes))
    pieces = -(-one.octets // (members * rings * slice_bytes))
    steps = {Collective.ALL_GATHER: 2, Collective.REDUCE_SCATTER: 3}.get(one.kind, 5)
    return steps * members * members * rings * pieces
