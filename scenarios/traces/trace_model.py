"""Traces in a common form: what every rank does, and what it waits for.

Each rank has a list of operations.  ``after`` of an operation are places in the list of its own
rank, in any order: it starts when those are over.  Ranks wait for each other by messages and by
collectives only.

- A send and a receive of the same two ranks and the same tag belong together. They pair in the
  order in which each list has them.
- A collective of a group is the n-th of that group at each of its members.  No member finishes one
  before all have entered it.

Sizes are in octets.  Of a collective they are those of the NCCL tests: all-reduce, broadcast,
reduce: the buffer of a rank; all-gather, gather: the gathered whole; reduce-scatter, scatter: the
whole input; all-to-all: the send buffer of a rank.  An all-to-all whose parts differ has ``splits``
at its members, what each sends to whom; its size is then the send buffer of that rank.

Replayed traces as writers of traces get them.

Traces with smaller messages: a job's sizes are more than the memory of one machine holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from emulator.errors import UserError

#: Operations of all ranks together: what is more would take hours to replay.
MOST_OPERATIONS = 1_000_000
#: Ranks that a trace has at most.
MOST_RANKS = 16_384
#: The largest size (octets), and the longest duration (ns: a day).
LARGEST_SIZE = 2**40
LONGEST_NS = 86_400 * 10**9


class Collective(Enum):
    """The collectives of a trace; values are their names in plain lists."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    BARRIER = "barrier"

    @property
    def rooted(self) -> bool:
        return self in _ROOTED

    @property
    def divided(self) -> bool:
        """Return whether each rank has one part of the size."""
        return self in _DIVIDED


_ROOTED = {Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER}
_DIVIDED = {
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.GATHER,
    Collective.SCATTER,
}


class TraceRefusal(UserError):
    """A trace that cannot be used: the file, the place in it, what is wrong, and a way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOperation:
    """An operation of one rank; ``where`` is its place in the file, such as ``line 7``."""

    where: str
    after: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCompute(TraceOperation):
    """The GPU computes for ``duration_ns``.

    Computations of one ``stream`` of a rank take turns.  Without a stream it is a delay, which
    occupies nothing and is never scaled.
    """

    duration_ns: int
    stream: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSend(TraceOperation):
    """``octets`` to rank ``peer``; it is over when the peer has acknowledged them."""

    peer: int
    octets: int
    tag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReceive(TraceOperation):
    """``octets`` from rank ``peer``; it is over when they are in memory."""

    peer: int
    octets: int
    tag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCollective(TraceOperation):
    """A collective of the ``group`` with that name; ``root`` is a rank of the trace.

    ``recorded_ns`` is the time that it took where the trace was recorded, 0 if unknown.
    ``splits`` of an all-to-all are the octets to each member, in the order of the group; a member
    without them sends equal parts.
    """

    kind: Collective
    octets: int
    group: str
    root: int | None = None
    recorded_ns: int = 0
    splits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """The operations of each rank, and the ranks of each group by its name.

    ``warnings`` are sentences on what the file has and nobody would expect.
    """

    name: str
    operations: tuple[Sequence[TraceOperation], ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.operations)

    @property
    def busy_ranks(self) -> list[int]:
        return [rank for rank, operations in enumerate(self.operations) if operations]

    def __len__(self) -> int:
        return sum(map(len, self.operations))

    def wrong(self, operation: TraceOperation, rank: int, stated: str) -> TraceRefusal:
        return TraceRefusal(f"{self.name}: {place(operation, rank)}: {stated}")


def place(operation: TraceOperation, rank: int) -> str:
    """Return where ``operation`` stands: its place in the file, and its rank."""
    return f"{operation.where} (rank {rank})"


def check(trace: Trace) -> None:
    """Raise TraceRefusal unless every operation of ``trace`` makes sense by itself.

    :func:`scenarios.traces.replay.in_order` checks whether they fit together.
    """
    if not trace.ranks:
        raise TraceRefusal(f"{trace.name}: no rank has any operation; give a trace that has some")
    if not len(trace):
        raise TraceRefusal(f"{trace.name}: no rank does anything; give a trace that has operations")
    for name, group in trace.groups.items():
        lost = [rank for rank in group if not 0 <= rank < trace.ranks]
        if lost:
            raise TraceRefusal(
                f"{trace.name}: group {name!r} has rank {lost[0]} and the trace has ranks 0 to "
                f"{trace.ranks - 1}; add the file of that rank, or take it out of the group"
            )
        if len(set(group)) != len(group) or not group:
            raise TraceRefusal(
                f"{trace.name}: group {name!r} is empty or names a rank twice; name each one once"
            )
    for rank, operations in enumerate(trace.operations):
        for operation in operations:
            stated = _fault(trace, operation, rank, len(operations))
            if stated:
                raise trace.wrong(operation, rank, stated)


def _fault(trace: Trace, operation: TraceOperation, rank: int, count: int) -> str:
    if any(not 0 <= one < count for one in operation.after):
        return "it waits for an operation that its rank does not have; take that out"
    match operation:
        case TraceCompute(duration_ns=duration):
            if not 0 <= duration <= LONGEST_NS:
                return f"it computes for {duration} ns; a duration is from 0 to {LONGEST_NS} ns"
        case TraceSend(peer=peer, octets=octets) | TraceReceive(peer=peer, octets=octets):
            if not 0 <= peer < trace.ranks:
                return f"there is no rank {peer}: the trace has ranks 0 to {trace.ranks - 1}"
            if peer == rank:
                return "its peer is the rank itself; make it a computation, or leave it out"
            return _size_fault(octets)
        case TraceCollective():
            return _collective_fault(trace, operation, rank)
    return ""


def _size_fault(octets: int) -> str:
    if not 0 <= octets <= LARGEST_SIZE:
        return f"its size is {octets} B; a size is from 0 to {LARGEST_SIZE} B"
    return ""


def _collective_fault(trace: Trace, operation: TraceCollective, rank: int) -> str:
    group = trace.groups.get(operation.group)
    if group is None:
        return (
            f"nothing says which ranks the group {operation.group!r} has; give the file with the "
            "groups beside the trace"
        )
    if rank not in group:
        return f"rank {rank} is not in the group {operation.group!r} of this collective"
    if operation.kind.rooted and operation.root not in group:
        return (
            f"its root is {operation.root}, which is no rank of group {operation.group!r}; name "
            f"one of them, such as {group[0]}"
        )
    if operation.splits:
        return _splits_fault(operation, len(group))
    if operation.kind.divided and operation.octets % len(group):
        return (
            f"{operation.octets} B cannot be divided by the {len(group)} ranks of group "
            f"{operation.group!r}; give a multiple of {len(group)} B"
        )
    return _size_fault(operation.octets)


def _splits_fault(operation: TraceCollective, members: int) -> str:
    splits = operation.splits
    if operation.kind is not Collective.ALL_TO_ALL:
        return f"a {operation.kind.value} has no splits; leave them out"
    if len(splits) != members:
        return (
            f"it has splits for {len(splits)} ranks and group {operation.group!r} has {members}; "
            "give one for each"
        )
    if sum(splits) != operation.octets:
        return f"its splits come to {sum(splits)} B and its size is {operation.octets} B"
    faults = (_size_fault(octets) for octets in (*splits, operation.octets))
    return next(filter(None, faults), "")


@dataclass(frozen=True, kw_only=True)
class CollectiveRun:
    """One collective of one iteration; times are ns of fabric time from the common start.

    ``number`` counts the collectives of the group from 0 on.  ``begins_ns`` has by member the
    start of its first message, ``ends_ns`` the arrival of its last one.
    """

    collective: TraceCollective
    ranks: tuple[int, ...]
    number: int
    begins_ns: dict[int, int]
    ends_ns: dict[int, int]

    @property
    def start_ns(self) -> int:
        """Return when the first member began."""
        return min(self.begins_ns.values())

    @property
    def end_ns(self) -> int:
        """Return when the last member was done."""
        return max(self.ends_ns.values())


@dataclass(frozen=True, kw_only=True)
class TraceRun:
    """A replayed trace.

    ``messages`` is the trace with every collective as the messages that it became. ``collectives``
    are those of the last iteration, and ``servers`` has the server of each rank.  ``origin_us`` is
    the fabric time of its start.
    """

    trace: Trace
    messages: Trace
    collectives: Sequence[CollectiveRun]
    servers: Sequence[str]
    origin_us: int


#: Octets of an element of a collective.
ELEMENT = 4


def with_sizes(trace: Trace, factor: float) -> Trace:
    """Return ``trace`` with all sizes multiplied by ``factor``, in whole elements.

    No message becomes empty, and every rank of a collective keeps a part of it.
    """
    if factor == 1:
        return trace
    if not factor:
        raise UserError("size_scale is 0, which leaves nothing to send; give a factor such as 1/64")
    lists = [[_scaled(trace, one, factor) for one in each] for each in trace.operations]
    return replace(trace, operations=tuple(lists))


def without_idle_ranks(trace: Trace) -> Trace:
    """Return ``trace`` with the ranks that do anything alone, numbered anew in their order."""
    place = {rank: number for number, rank in enumerate(trace.busy_ranks)}
    if len(place) == trace.ranks:
        return trace

    def moved(one: TraceOperation) -> TraceOperation:
        match one:
            case TraceSend(peer=peer) | TraceReceive(peer=peer):
                return replace(one, peer=place.get(peer, peer))
            case TraceCollective(root=int() as root):
                return replace(one, root=place.get(root, root))
        return one

    return replace(
        trace,
        operations=tuple([moved(one) for one in trace.operations[rank]] for rank in place),
        groups={
            name: tuple(place[rank] for rank in ranks)
            for name, ranks in trace.groups.items()
            if all(rank in place for rank in ranks)
        },
    )


def _scaled(trace: Trace, one: TraceOperation, factor: float) -> TraceOperation:
    match one:
        case TraceSend(octets=octets) | TraceReceive(octets=octets) if octets:
            return replace(one, octets=max(1, int(octets * factor)))
        case TraceCollective(splits=splits) if splits:
            scaled = tuple(_scaled_part(octets, factor) for octets in splits)
            return replace(one, splits=scaled, octets=sum(scaled))
        case TraceCollective(octets=octets, group=group) if octets:
            members = len(trace.groups.get(group, ())) or 1
            unit = members * ELEMENT if one.kind.divided else ELEMENT
            if octets % unit == 0:
                return replace(one, octets=max(unit, int(octets * factor) // unit * unit))
            return replace(one, octets=max(unit // ELEMENT, int(octets * factor) // unit * unit))
    return one


def _scaled_part(octets: int, factor: float) -> int:
    unit = 1 if octets % ELEMENT else ELEMENT
    return max(unit, int(octets * factor) // unit * unit) if octets else 0


def bus_factor(kind: Collective, members: int) -> float:
    """Return what the NCCL tests multiply algbw by to get busbw."""
    if kind is Collective.ALL_REDUCE:
        return 2 * (members - 1) / members
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        return (members - 1) / members
    return 1.0
