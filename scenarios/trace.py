"""Trace: what a job of another tool does, replayed over this fabric.

::

    uetemu run trace step.goal                          uetemu run trace job.0.et job.1.et ...

    rank 0   [ compute ][ all-reduce of group a       ][ send to 3 ]
    rank 1   [ compute  ][                             ][ compute   ]
    rank 2   [ compute     ][                       ][ compute ]
    rank 3   [ compute ]                    [ receive from 0    ]

Traffic: that of the file.  Rank r of the trace is GPU r, in the order of the fabric; GPUs beyond
the last rank are idle.  An operation starts when what it depends on is over.  Messages are writes
of real data.  Collectives become rings, rounds and pairs as the scenarios of the collectives have
them (``scenarios.traces.collective_replay``).  Every element that arrives is compared.

Computations take ``compute_scale`` times as long as in the file, and those of one stream take
turns.  ``size_scale`` makes messages smaller, since a job moves more than a machine holds.  What a
file leaves open is refused with its place (the manual of the formats is
``scenarios/traces/README.md``).

Measured: the time from a common start until the last rank is done; the ideal, a lower bound from
the dependencies, durations, link rates and delays (``emulator.run.measures.ideal``), and how close
the run came to it; the computing of the busiest rank, and the share of the time that is not
computing of that rank (``exposed``).  Of messages that the trace itself has, such as the flows of a
matrix: mean, p50, p99 and the largest of their completion times, from the start of a message until
its data are verified in memory.  ``result.json`` has each collective with its start, end and
bandwidth.

What should be seen: with ``compute_scale=0`` only communication is left, and the time is that of
the fabric.  With 1 the time is at least the longest chain of computations and messages.

``write=PATH,...`` writes what ran: messages as GOAL text or as an htsim matrix, operations as
Chakra files, collectives as NCCL Inspector records, by the suffix of the path.  Where a run has
several rows of the trace (transports, seeds), the files are those of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.measures import flow_times
from emulator.run.report.result_table import FABRIC_COLUMNS, FLOW_COLUMNS
from emulator.scenario import Outcome, Trial, parameter
from scenarios.traces import trace_report
from scenarios.traces.format_registry import ReadOptions
from scenarios.traces.replay import Replay, ReplayChoice
from scenarios.traces.trace_loading import FACTOR, PATH, WORD, load_traces
from scenarios.traces.trace_model import Trace, with_sizes, without_idle_ranks
from scenarios.workloads.flows import WARMUPS
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, NUMBER, SIZE

_NAMED = ("mean", "p50", "p99", "max")
_ALWAYS = [f"fct_{name}_us" for name in _NAMED]
COLUMNS = (
    TableColumn("trace", "trace", "", 20),
    TableColumn("ranks", "ranks", "", 6),
    TableColumn("operations", "operations", "", 10, rank=3),
    TableColumn("collectives", "coll.", "", 6),
    TableColumn("messages", "messages", "", 8),
    TableColumn("size_bytes", "size", "(B)", 11),
    TableColumn("size_scale", "size", "scale", 8, digits=3),
    TableColumn("compute_scale", "compute", "scale", 8, digits=3, rank=4),
    TableColumn("compute_us", "compute", "(us)", rank=2),
    TableColumn("time_us", "time", "(us)"),
    TableColumn("fct_mean_us", "FCT", "mean", 8),
    *(replace(column, rank=0 if column.key in _ALWAYS else 30) for column in FLOW_COLUMNS),
    *FABRIC_COLUMNS[:2],
    TableColumn(
        "exposed",
        "exposed",
        "(%)",
        8,
        1,
        percent=True,
        words="communication was exposed for {} % of the time",
    ),
    *FABRIC_COLUMNS[2:],
    TableColumn("wrong", "#wrong", "", 7),
)
#: From so many ranks on, a server of the default fabric has four GPUs.
SEVERAL = 8
#: Hosts for which the default fabric has addresses as it is.
MOST_HOSTS = 253


@dataclass(frozen=True, kw_only=True)
class Parameters:
    files: tuple[str, ...] = parameter((), PATH, many=True, help="the files of the trace")
    format: str = parameter("", WORD, help="their format, if their names do not say it")
    groups: str = parameter("", PATH, help="JSON file with the ranks of each group")
    ranks: int = parameter(0, NUMBER, help="number of ranks, if the file does not say it")
    idle_ranks: str = parameter(
        "keep", choices=("keep", "drop"), help="ranks that do nothing; drop: others are renumbered"
    )
    root: int = parameter(-1, NUMBER, help="position of roots, if the file does not say it")
    gathered: str = parameter(
        "unstated", choices=("unstated", "whole", "part"), help="what sizes of all-gathers are"
    )
    ctrl_deps: str = parameter(
        "ignore", choices=("ignore", "wait"), help="of Chakra: wait for data_deps alone, or these"
    )
    unpacked: int = parameter(0, SIZE, help="most octets of a file, unpacked, in place of bounds")
    size_scale: float = parameter(1.0, FACTOR, help="factor of the sizes of all messages")
    compute_scale: float = parameter(1.0, FACTOR, help="factor of all computations")
    slice_bytes: int = parameter(64 * 2**10, SIZE, help="pieces in which a collective moves on")
    write: tuple[str, ...] = parameter((), PATH, many=True, help="files to write of what ran")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="iterations that count, for each trace")

    def traces(self) -> list[Trace]:
        options = ReadOptions(
            ranks=self.ranks,
            groups=self.groups,
            timeless=not self.compute_scale,
            root=None if self.root < 0 else self.root,
            gathered=self.gathered,
            unpacked=self.unpacked,
            ctrl_deps=self.ctrl_deps == "wait",
        )
        traces = load_traces(self.files, self.format, options)
        if self.idle_ranks == "drop":
            traces = [without_idle_ranks(trace) for trace in traces]
        return [with_sizes(trace, self.size_scale) for trace in traces]


def topology(parameters: Parameters) -> str:
    """The fabric has a GPU for each rank: one in each host below 8 ranks, else four."""
    largest = max(parameters.traces(), key=lambda trace: trace.ranks)
    ranks, busy = largest.ranks, len(largest.busy_ranks)
    if ranks < SEVERAL:
        return f"rail_clos:hosts={max(2, ranks)},gpus_per_host=1"
    hosts = -(-ranks // 4)
    if hosts <= MOST_HOSTS:
        return f"rail_clos:hosts={hosts},gpus_per_host=4"
    if busy <= ranks // 2:
        raise UserError(
            f"{largest.name} has {ranks} ranks and {busy} of them do anything; take "
            f"--param idle_ranks=drop for these alone, or name a --topology with {ranks} GPUs"
        )
    return f"rail_clos:hosts={hosts},gpus_per_host=4,subnet_prefix=/20"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each trace."""
    choice = ReplayChoice(
        compute_scale=parameters.compute_scale, slice_bytes=parameters.slice_bytes, seed=seed
    )
    traces = parameters.traces()
    trace_report.check_written(parameters.write, len(traces))
    replays = [Replay(trace, topology, choice) for trace in traces]
    return [_trial(parameters, replay) for replay in replays]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    assert isinstance(trial, TraceTrial)
    replay = trial.replay
    runs = replay.runs(outcome.iterations[-1]) if outcome.iterations else []
    written = trace_report.write_files(parameters.write, replay, runs, outcome)
    busy = float(replay.compute_ns())
    flows = flow_times.measured(topology, outcome, each_message=True, own=replay.own_messages)
    if flows:
        flows["flows"] = replay.messages
        # The names of these values in a trace, from before other scenarios had them.
        flows |= {f"message_{name}_us": flows[f"fct_{name}_us"] for name in _NAMED}
    return {
        **flows,
        "exposed": 1 - busy / outcome.mean_ns,
        "collective_times": trace_report.collective_rows(runs),
        "written": written,
    }


@dataclass(frozen=True, kw_only=True)
class TraceTrial(Trial):
    """A row of the table, with the replay that it is made of."""

    replay: Replay


def _trial(parameters: Parameters, replay: Replay) -> Trial:
    return TraceTrial(
        replay=replay,
        collective="trace",
        size_bytes=replay.message_octets,
        compile=replay.compile,
        inputs=replay.inputs,
        expected=replay.expected,
        memory_bytes=replay.memory_octets,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        facts={
            "trace": replay.trace.name,
            "ranks": replay.trace.ranks,
            "operations": len(replay.trace),
            "collectives": len(replay.collectives),
            "messages": replay.messages,
            "empty_messages": replay.empty_messages,
            "size_scale": parameters.size_scale,
            "compute_scale": replay.choice.compute_scale,
            "compute_us": replay.compute_ns() / 1000,
        },
        fresh=True,
        warnings=replay.warnings,
        observe=trace_report.observed_operations if parameters.write else None,
    )


def recorded_collectives(files: Sequence[str]) -> list[dict[str, Any]]:
    """Return the collectives in ``files`` with the times that they took where they ran.

    Each has ``collective``, ``members``, ``size_bytes`` as nccl-tests counts it, ``time_us``,
    ``algbw_gbps`` and ``busbw_gbps``.  Raises UserError for files that are no trace.
    """
    return trace_report.recorded_rows(load_traces(files, "", ReadOptions()))
