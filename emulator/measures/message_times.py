"""Every message of a trial: from whom to whom, how long, and when.

A message is one write (or copy) of a schedule.  It starts when its operation does and ends when
its receive is over: the data is in the receiver's memory and its checksum is right.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.endpoint.operations.operation_table import WRITE
from emulator.endpoint.operations.rank_result import RankResult
from emulator.endpoint.operations.schedule import Schedule
from emulator.measures.message_graph import MessageGraph, Numbers
from emulator.measures.metrics import FlowProgress

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
    """Collects the messages of a trial's iterations, at most :data:`KEPT` of them."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        graph = MessageGraph(schedules)
        self._source, self._destination = graph.rank(graph.send), graph.rank(graph.receive)
        self._send, self._receive = graph.index(graph.send), graph.index(graph.receive)
        self._length = graph.column("near_octets")[graph.send]
        self._writes = graph.kind[graph.send] == WRITE
        self._sent_by = _by_rank(self._source)
        self._received_by = _by_rank(self._destination)
        kept = max(1, KEPT // max(1, len(self._length)))
        self._iterations: deque[Iteration] = deque(maxlen=kept)

    def add(self, results: Sequence[RankResult]) -> None:
        """The results of one iteration, by rank."""
        origin = min(result.start_ns for result in results)
        starts = np.empty(len(self._length), dtype=np.int64)
        ends = np.empty(len(self._length), dtype=np.int64)
        for result in results:
            sent = self._sent_by.get(result.rank, _NONE)
            received = self._received_by.get(result.rank, _NONE)
            starts[sent] = result.operation_start[self._send[sent]]
            ends[received] = result.operation_end[self._receive[received]]
        self._iterations.append(
            Iteration(
                origin_ns=origin,
                source=self._source,
                destination=self._destination,
                length=self._length,
                send=self._send,
                receive=self._receive,
                writes=self._writes,
                start_ns=starts - origin,
                end_ns=ends - origin,
            )
        )

    def sent_ns(self, rank: int, operations: int) -> npt.NDArray[np.int64]:
        """Return when the message of each of a rank's ``operations`` was begun; -1: it has none.

        It is of the latest iteration, by the run's clock.
        """
        found = np.full(operations, -1, np.int64)
        received = self._received_by.get(rank, _NONE)
        latest = self._iterations[-1]
        found[self._receive[received]] = latest.start_ns[received] + latest.origin_ns
        return found

    def take(self, interrupted: Recorder) -> None:
        """Take what arrived in the iterations of another recorder, whose schedules are others."""
        self._iterations.extend(one.delivered() for one in interrupted)

    def __iter__(self) -> Iterator[Iteration]:
        return iter(self._iterations)


_NONE = np.zeros(0, np.int64)


def _by_rank(ranks: Numbers) -> dict[int, npt.NDArray[np.intp]]:
    """Return where each of ``ranks`` stands."""
    order = np.argsort(ranks, kind="stable")
    found, begins = np.unique(ranks[order], return_index=True)
    if not len(found):  # numpy would split nothing into one part
        return {}
    return dict(zip(found.tolist(), np.split(order, begins[1:]), strict=True))
