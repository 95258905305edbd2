"""Every message of a trial: from whom to whom, how long, and when.

A message is one write (or copy) of a schedule.  It starts when its operation does and ends when
its receive is over: the data is in the receiver's memory and its checksum is right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.arithmetic import FlowProgress
from emulator.run.measures.matched_messages import Numbers
from emulator.run.measures.message_graph import MessageGraph
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule

#: Messages kept of one trial; of a longer one the earlier iterations are forgotten.
KEPT = 1_000_000


@dataclass(frozen=True)
class Iteration:
    """The messages of one iteration, one array element each.

    ``source`` and ``destination`` are ranks, ``length`` octets, ``start_ns`` and ``end_ns`` fabric
    time from the common start, which was at ``origin_ns`` of the run's clock.  ``send`` and
    ``receive`` are the indices of their operations in the schedules of these ranks, and ``writes``
    is whether they cross the fabric: the others are copies inside a server.
    """

    origin_ns: int
    source: Numbers
    destination: Numbers
    length: Numbers
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    send: Numbers
    receive: Numbers
    writes: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.length)

    def of(self, pairs: Collection[tuple[int, int]], *, others: bool = False) -> Iteration:
        """The messages between ``pairs`` of source and destination; ``others``: all but those."""
        if not pairs and others:
            return self
        chosen = np.full(len(self), others)
        for source, destination in pairs:
            chosen[(self.source == source) & (self.destination == destination)] = not others
        return self._chosen(chosen)

    def _chosen(self, chosen: npt.NDArray[np.bool_]) -> Iteration:
        return Iteration(
            self.origin_ns,
            source=self.source[chosen],
            destination=self.destination[chosen],
            length=self.length[chosen],
            send=self.send[chosen],
            receive=self.receive[chosen],
            writes=self.writes[chosen],
            start_ns=self.start_ns[chosen],
            end_ns=self.end_ns[chosen],
        )

    def delivered(self) -> Iteration:
        """Return the messages that arrived: all, unless the iteration was interrupted."""
        return self._chosen(self.end_ns >= 0)

    def flows(self) -> dict[tuple[int, int], FlowProgress]:
        """Return the delivered octets from each rank to each other, by (source, destination)."""
        starts: dict[tuple[int, int], int] = {}
        deliveries: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
        columns = (self.source, self.destination, self.length, self.start_ns, self.end_ns)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for source, destination, length, start, end in rows:
            flow = (source, destination)
            starts[flow] = min(starts.get(flow, start), start)
            deliveries[flow].append((end, length))
        return {flow: FlowProgress.of(starts[flow], ends) for flow, ends in deliveries.items()}


class Recorder:
    """Collects the messages of a trial's iterations, at most :data:`KEPT` of them.

    Processes have the schedules, and the times, of their own GPUs.  All call it alike, and the
    first one has the iterations.  ``graph`` is that of ``schedules``, for whom has it.
    """

    def __init__(self, schedules: Sequence[Schedule], graph: MessageGraph | None = None) -> None:
        graph = MessageGraph(schedules) if graph is None else graph
        self.division = graph.division
        self._messages = messages = graph.messages
        self._processes = self.division.processes
        self._sent = _Ends.of(graph, messages.send)
        self._received = _Ends.of(graph, messages.receive)
        here = np.flatnonzero(messages.receive >= 0)
        self._here = slice(None) if len(here) == len(messages) else here
        columns = (
            messages.source,
            messages.destination,
            messages.length,
            messages.send_places(graph),
            messages.receive_places(graph),
            messages.writes,
        )
        parts = self._processes.to_first("messages of all", [one[self._here] for one in columns])
        self._order: npt.NDArray[np.int32] | slice = slice(None)
        self._columns = parts[0] if parts else []
        if len(parts) > 1:
            joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
            _, destination, _, _, place, _ = joined
            self._order = np.lexsort((place, destination)).astype(np.int32)
            self._columns = [column[self._order] for column in joined]
        octets = int(messages.length[here].sum())
        totals = self._processes.gather("message totals", (len(here), octets))
        #: all messages of an iteration, and their octets
        self.total = sum(number for number, _ in totals)
        self.total_octets = sum(octets for _, octets in totals)
        self.clear()

    def clear(self) -> None:
        """Forget all iterations."""
        kept = max(1, KEPT // max(1, self.total))
        self._iterations: deque[Iteration] = deque(maxlen=kept)
        self._starts = np.zeros(0, np.int64)

    def anew(self) -> Recorder:
        """Return a recorder of the same schedules without any iteration."""
        other = copy(self)
        other.clear()
        return other

    def add(self, results: Sequence[RankResult]) -> None:
        """The results of one iteration, by rank."""
        origin = min(result.start_ns for result in results)
        by_rank = {result.rank: result for result in results}
        starts = np.empty(len(self._messages), np.int64)
        ends = np.empty(len(self._messages), np.int64)
        for rank, which, places in self._sent.by_rank():
            starts[which] = by_rank[rank].operation_start[places]
        for rank, which, places in self._received.by_rank():
            ends[which] = by_rank[rank].operation_end[places]
        self._messages.tell_receivers(starts)
        self._starts = starts
        here = self._here
        parts = self._processes.to_first("message times", (starts[here], ends[here]))
        if not parts:
            return
        all_starts, all_ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        source, destination, length, send, receive, writes = self._columns
        self._iterations.append(
            Iteration(
                origin_ns=origin,
                source=source,
                destination=destination,
                length=length,
                start_ns=all_starts[self._order] - origin,
                end_ns=all_ends[self._order] - origin,
                send=send,
                receive=receive,
                writes=writes,
            )
        )

    def sent_ns(self, rank: int, operations: int) -> npt.NDArray[np.int64]:
        """Return when the message of each of a rank's ``operations`` was begun; -1: it has none.

        It is of the latest iteration, by the run's clock, and of a GPU of this process.
        """
        found = np.full(operations, -1, np.int64)
        which, places = self._received.of_rank(rank)
        found[places] = self._starts[which]
        return found

    def delivered(self, results: Sequence[RankResult]) -> tuple[int, int]:
        """Return how many messages of own GPUs had arrived by their ``results``, and the octets."""
        by_rank = {result.rank: result for result in results}
        number = octets = 0
        for rank, which, places in self._received.by_rank():
            if rank in by_rank:
                there = by_rank[rank].operation_end[places] >= 0
                number += int(there.sum())
                octets += int(self._messages.length[which[there]].sum())
        return number, octets

    def take(self, interrupted: Recorder) -> None:
        """Take what arrived in the iterations of another recorder, whose schedules are others."""
        self._iterations.extend(one.delivered() for one in interrupted)

    def __iter__(self) -> Iterator[Iteration]:
        return iter(self._iterations)


_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True)
class _Ends:
    """The ends of messages that own GPUs have, in the order of their ranks.

    ``messages`` have their numbers, and ``places`` the indices in the schedules.  Those from
    ``firsts[i]`` to before ``firsts[i + 1]`` are of the GPU ``ranks[i]``.
    """

    messages: Numbers
    places: Numbers
    ranks: Sequence[int]
    firsts: Sequence[int]

    @classmethod
    def of(cls, graph: MessageGraph, operations: Numbers) -> _Ends:
        here = np.flatnonzero(operations >= 0).astype(np.int32)
        order = np.argsort(graph.rank(operations[here]), kind="stable")
        here = here[order]
        ranks = graph.rank(operations[here])
        found, firsts = np.unique(ranks, return_index=True)
        places = graph.index(operations[here])
        return cls(here, places, found.tolist(), [*firsts.tolist(), len(here)])

    def by_rank(self) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yield each rank with its messages, and where they stand in its schedule."""
        for rank, first, end in zip(self.ranks, self.firsts, self.firsts[1:], strict=False):
            yield rank, self.messages[first:end], self.places[first:end]

    def of_rank(self, rank: int) -> tuple[Numbers, Numbers]:
        """Return the messages of ``rank``, and where they stand in its schedule."""
        at = bisect_left(self.ranks, rank)
        if at == len(self.ranks) or self.ranks[at] != rank:
            return _NONE, _NONE
        first, end = self.firsts[at : at + 2]
        return self.messages[first:end], self.places[first:end]
