"""What becomes of a call at its members, and the table of all calls by the lines of the script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import (
    Barrier,
    Compute,
    Operation,
    Schedule,
    ScheduleSpan,
)
from emulator.torch_backend.calls import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    REDUCESCATTER,
    Call,
)
from emulator.torch_backend.compiled_calls import CallKey


@dataclass
class CallRecord:
    """One collective or message: the ``calls`` of its members by rank, and when each was there.

    ``places`` are its buffers by rank, and ``results`` where results begin in them.  ``relaying``
    have not sent on yet all that others write, and ``launch_ns`` is what a launch takes.  Times are
    ns: ``begun`` when a member's part began, ``ended`` when its result was known there, and
    ``waited`` how long the member stood still in waits for it.
    """

    number: int
    name: str
    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    key: CallKey | None = None
    algorithm: str = ""
    places: dict[int, dict[str, int]] = field(default_factory=dict)
    results: dict[int, int] = field(default_factory=dict)
    relaying: set[int] = field(default_factory=set)
    launch_ns: int = 0
    begun: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    waited: dict[int, int] = field(default_factory=dict)

    @property
    def go(self) -> str:
        """Return the name of the barrier before it."""
        return f"go {self.number}"

    @property
    def over(self) -> str:
        """Return the name of the barrier behind it."""
        return f"over {self.number}"

    @property
    def relayed(self) -> str:
        """Return the name of the barrier behind what is sent on for others."""
        return f"relayed {self.number}"

    @property
    def first(self) -> Call:
        """Return the call that came first."""
        return next(iter(self.calls.values()))


#: When something began and ended (ns), and its name.
Span = tuple[int, int, str]


def executed(
    ranks: int,
    records: Iterable[CallRecord],
    computing: Mapping[int, Sequence[Span]],
    began_ns: int,
) -> tuple[list[Schedule], list[RankResult]]:
    """Return what ``ranks`` GPUs have done, as schedules for the timeline, from ``began_ns`` on."""
    calls: dict[int, list[Span]] = {}
    for one in records:
        for rank, ended in one.ended.items():
            call = one.calls[rank]
            name = f"{call.kind} {call.site}"
            calls.setdefault(rank, []).append((one.begun[rank], ended, name))
    schedules, results = [], []
    for rank in range(ranks):
        computed, called = list(computing.get(rank, ())), calls.get(rank, [])
        operations: list[Operation] = [Compute(duration_ns=end - at) for at, end, _ in computed]
        operations += [Barrier(name="") for _ in called]
        spans = [
            ScheduleSpan(name, number, number + 1)
            for number, (_, _, name) in enumerate(called, len(computed))
        ]
        times = np.array([one[:2] for one in (*computed, *called)], np.int64).reshape(-1, 2)
        schedules.append(Schedule(rank=rank, buffers={}, operations=operations, spans=tuple(spans)))
        results.append(
            RankResult(
                rank=rank,
                node="",
                execution=1,
                start_ns=began_ns,
                end_ns=int(times[:, 1].max(initial=began_ns)),
                operation_start=times[:, 0].copy(),
                operation_end=times[:, 1].copy(),
            )
        )
    return schedules, results


def bus_factor(kind: str, members: int) -> float:
    """Return what nccl-tests multiply size / time by for the bus bandwidth of ``kind``."""
    if kind == ALLREDUCE:
        return 2 * (members - 1) / members
    if kind in (ALLGATHER, REDUCESCATTER, ALLTOALL):
        return (members - 1) / members
    return 1.0


def by_site(records: Iterable[CallRecord]) -> list[dict[str, object]]:
    """Return a row for each line of the script, kind, type and size of group, the longest first.

    Times are from the last member's call to the last member's result, summed and at most.  A member
    has its own time, from its call to its result: ``exposed_us`` of it the member stood still for
    it, and ``overlapped_us`` it did not; both are means over members, summed.
    """
    found: dict[tuple[str, str, str, int], list[CallRecord]] = {}
    for one in records:
        call = one.first
        kind = "sendrecv" if call.kind in ("send", "recv") else call.kind
        found.setdefault((call.site, kind, call.dtype, len(one.members)), []).append(one)
    rows: list[dict[str, object]] = []
    for (site, kind, dtype, members), ones in found.items():
        took = [max(one.ended.values()) - max(one.begun.values()) for one in ones]
        octets = sum(_octets(one) for one in ones)
        total = sum(took)
        exposed = sum(sum(one.waited.values()) for one in ones)
        whole = sum(at - one.calls[rank].clock_ns for one in ones for rank, at in one.ended.items())
        rows.append(
            {
                "site": site,
                "kind": kind,
                "dtype": dtype,
                "members": members,
                "calls": len(ones),
                "bytes": octets,
                "time_us": total / 1000,
                "longest_us": max(took) / 1000,
                "exposed_us": exposed / members / 1000,
                "overlapped_us": (whole - exposed) / members / 1000,
                "busbw_gbps": octets / total * bus_factor(kind, members) if total else None,
                "algorithms": ",".join(sorted({one.algorithm for one in ones})),
            }
        )
    return sorted(rows, key=lambda row: (-float(str(row["time_us"])), str(row["site"])))


def _octets(record: CallRecord) -> int:
    return record.first.octets or max(one.source_octets for one in record.calls.values())
