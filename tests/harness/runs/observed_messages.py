"""Iterations and outcomes made of given times of messages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.run.measures.gpu_execution import GpuExecution
from emulator.run.measures.message_graph import MessageGraph
from emulator.run.measures.message_times import Iteration
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.operation_table import WRITE
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule


def columns_of(*columns: Any, origin_ns: int = 0) -> Iteration:
    """Return writes with sources, destinations, octets, starts and ends, of no certain operations.

    Without ``columns`` there are none.
    """
    arrays = [np.asarray(column, np.int64) for column in columns] or [np.zeros(0, np.int64)] * 5
    source, destination, length, start, end = arrays
    unknown = np.full(len(length), -1)
    return Iteration(
        origin_ns,
        source=source,
        destination=destination,
        length=length,
        start_ns=start,
        end_ns=end,
        send=unknown,
        receive=unknown,
        writes=np.ones(len(length), bool),
    )


def iteration_of(
    schedules: Sequence[Schedule], start_ns: npt.ArrayLike, end_ns: npt.ArrayLike
) -> Iteration:
    """Return the messages of ``schedules``, with times in the order of :class:`MessageGraph`."""
    graph = MessageGraph(schedules)
    count = len(graph.send)
    return Iteration(
        0,
        source=graph.rank(graph.send),
        destination=graph.rank(graph.receive),
        length=graph.column("near_octets")[graph.send],
        start_ns=np.broadcast_to(np.asarray(start_ns, np.int64), (count,)),
        end_ns=np.broadcast_to(np.asarray(end_ns, np.int64), (count,)),
        send=graph.index(graph.send),
        receive=graph.index(graph.receive),
        writes=graph.kind[graph.send] == WRITE,
    )


def gpu_in(schedule: Schedule, iteration: Iteration) -> GpuExecution:
    """Return the part of a GPU in ``iteration``: the times of its sends and receives alone."""
    count, rank = len(schedule.operations), schedule.rank
    starts, ends, sent = (np.full(count, -1, np.int64) for _ in range(3))
    own, came = iteration.source == rank, iteration.destination == rank
    origin = iteration.origin_ns
    starts[iteration.send[own]] = iteration.start_ns[own] + origin
    ends[iteration.receive[came]] = iteration.end_ns[came] + origin
    sent[iteration.receive[came]] = iteration.start_ns[came] + origin
    return GpuExecution(
        schedule=schedule,
        result=RankResult(
            rank=rank,
            node="",
            execution=0,
            start_ns=origin,
            end_ns=origin,
            operation_start=starts,
            operation_end=ends,
        ),
        sent_ns=sent,
        origin_ns=origin,
    )


def observed_in(
    trial: Trial, schedules: Sequence[Schedule], iteration: Iteration
) -> Mapping[int, object]:
    """Return what ``trial`` observes in ``iteration`` of its ``schedules``, by rank."""
    assert trial.observe is not None
    return {one.rank: trial.observe(gpu_in(one, iteration)) for one in schedules}
