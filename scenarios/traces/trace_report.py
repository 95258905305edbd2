"""Reports of a replay: times of its collectives, and files in formats of traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

from emulator.run.measures.gpu_execution import GpuExecution
from emulator.scenario import Outcome
from emulator.sim.endpoint.operations import schedule as ops
from emulator.whole_file import write_whole
from scenarios.traces.format_registry import writer_of
from scenarios.traces.replay import Replay
from scenarios.traces.trace_model import (
    CollectiveRun,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRefusal,
    TraceRun,
    TraceSend,
    bus_factor,
)

#: Collectives whose times are listed one by one.
MOST_SHOWN = 10_000
#: The stream of what takes no time, and of a GPU's computations.
JOINS, COMPUTING = 1, 0


def collective_rows(runs: Sequence[CollectiveRun]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for run in runs[:MOST_SHOWN]:
        one = run.collective
        length = run.end_ns - run.start_ns
        algbw = one.octets / length if length else 0.0
        rows.append(
            {
                "where": one.where,
                "name": one.name,
                "collective": one.kind.value,
                "group": one.group,
                "members": len(run.ranks),
                "size_bytes": one.octets,
                "start_us": run.start_ns / 1000,
                "end_us": run.end_ns / 1000,
                "recorded_us": one.recorded_ns / 1000 if one.recorded_ns else None,
                "algbw_gbps": algbw,
                "busbw_gbps": algbw * bus_factor(one.kind, len(run.ranks)),
            }
        )
    return rows


def recorded_rows(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return each collective with a recorded time once, however many ranks recorded it."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for trace in traces:
        for operation in chain.from_iterable(trace.operations):
            if not isinstance(operation, TraceCollective) or not operation.recorded_ns:
                continue
            members = len(trace.groups.get(operation.group, range(trace.ranks)))
            algbw = operation.octets / operation.recorded_ns
            rows[trace.name, operation.where] = {
                "collective": operation.kind.value,
                "members": members,
                "size_bytes": operation.octets,
                "time_us": operation.recorded_ns / 1000,
                "algbw_gbps": algbw,
                "busbw_gbps": algbw * bus_factor(operation.kind, members),
            }
    return list(rows.values())


def check_written(paths: Sequence[str], traces: int) -> None:
    """Raise TraceRefusal unless ``paths`` can be written from a run of so many traces."""
    if paths and traces > 1:
        raise TraceRefusal(
            f"write={','.join(paths)} is for one trace and {traces} are given; run them one by one"
        )
    for path in map(Path, paths):
        writer_of(path)
        if not path.parent.is_dir():
            raise TraceRefusal(f"{path} cannot be written: there is no folder {path.parent}")


def write_files(
    paths: Sequence[str], replay: Replay, runs: Sequence[CollectiveRun], outcome: Outcome
) -> list[str]:
    """Write what ran into ``paths``, each in the format of its suffix; return the files.

    The trial has observed :func:`observed_operations`.
    """
    if not paths:
        return []
    run = TraceRun(
        trace=replay.trace,
        messages=Trace(replay.trace.name, _observed(outcome, replay.trace.ranks)),
        collectives=runs,
        servers=[str(gpu.server) for gpu in replay.topology.gpus],
        origin_us=outcome.iterations[-1].origin_ns // 1000 if outcome.iterations else 0,
    )
    written = []
    for path in map(Path, paths):
        suffix, write = writer_of(path)
        stem = path.name.removesuffix(suffix)
        for part, content in write(run).items():
            file = path.with_name(f"{stem}{part}{suffix}")
            write_whole(file, content)
            written.append(str(file))
    return written


def as_operations(schedule: ops.Schedule) -> list[TraceOperation]:
    """Return the messages and computations of ``schedule`` as operations of a trace.

    A sum in memory takes no time of the fabric, and is a computation of 0 ns.
    """
    return [_operation(index, one) for index, one in enumerate(schedule.operations)]


def observed_operations(gpu: GpuExecution) -> list[TraceOperation]:
    """Return the operations of a GPU in an iteration, for :func:`write_files`."""
    return as_operations(gpu.schedule)


def _observed(outcome: Outcome, ranks: int) -> tuple[list[TraceOperation], ...]:
    observed = cast(Mapping[int, list[TraceOperation]], outcome.observed[-1])
    return tuple(observed[rank] for rank in range(ranks))


def _operation(index: int, one: ops.Operation) -> TraceOperation:
    where, after = f"operation {index}", one.after
    match one:
        case (
            ops.Write(peer=peer, tag=tag, local=region) | ops.Copy(peer=peer, tag=tag, local=region)
        ):
            return TraceSend(where=where, after=after, peer=peer, tag=tag, octets=region.length)
        case ops.Receive(peer=peer, tag=tag, into=region):
            return TraceReceive(where=where, after=after, peer=peer, tag=tag, octets=region.length)
        case ops.Compute(duration_ns=duration):
            stream = COMPUTING if duration else JOINS
            return TraceCompute(where=where, after=after, duration_ns=duration, stream=stream)
        case ops.Reduce():
            return TraceCompute(where=where, after=after, duration_ns=0, stream=JOINS)
    raise TypeError(f"{type(one).__name__} has no place in a trace")
