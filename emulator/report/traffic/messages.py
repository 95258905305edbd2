"""What GPUs post: messages with phase, network, ends, octets and times.

They are read from a run's ``timeline.json``, or from schedules, which have no times.  The phase of
a message is the last part of its name in the timeline, without numbers: ``TP AllGather`` of
``micro-batch 1, layer 3 forward, TP AllGather``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.report.traffic.measures import Counts, Numbers, union
from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, OperationTable, of_kinds
from emulator.sim.endpoint.operations.schedule import Schedule
from topologies.model import Topology

FABRIC, SCALE_UP = "backend", "scale-up"
#: Categories of a timeline's messages.
_NETWORKS = {"NIC": True, "NVLink": False}
_COMPUTE = "compute"
_NUMBER = re.compile(r"\s*\d+")


def phase_of(label: str) -> str:
    """Return the phase that a label stands for."""
    return _NUMBER.sub("", label.rpartition(", ")[2]).strip() or "messages"


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Messages in columns; ``source`` and ``destination`` are ranks, ``phase`` a number of a name.

    ``begin_us`` is when a message was posted, ``end_us`` when its receiver had it, ``over_us`` when
    its sender knew that, too.  They are None for schedules that were not run.  ``computing`` has
    the times (us) in which each GPU computed, and ``left_out`` says what is missing.
    """

    gpus: Sequence[str]
    phases: Sequence[str]
    phase: Counts
    source: Counts
    destination: Counts
    octets: Counts
    over_fabric: npt.NDArray[np.bool_]
    begin_us: Numbers | None = None
    end_us: Numbers | None = None
    over_us: Numbers | None = None
    computing: Mapping[str, tuple[Numbers, Numbers]] = field(default_factory=dict)
    span_us: float = 0.0
    left_out: str = ""

    def __len__(self) -> int:
        return len(self.octets)

    def of(self, phase: str) -> Messages:
        """Return the messages of a phase."""
        chosen = self.phase == self.phases.index(phase)

        def times(column: Numbers | None) -> Numbers | None:
            return None if column is None else column[chosen]

        return replace(
            self,
            phase=self.phase[chosen],
            source=self.source[chosen],
            destination=self.destination[chosen],
            octets=self.octets[chosen],
            over_fabric=self.over_fabric[chosen],
            begin_us=times(self.begin_us),
            end_us=times(self.end_us),
            over_us=times(self.over_us),
        )


class _Columns:
    """Messages while they are read."""

    def __init__(self) -> None:
        self._phases: dict[str, int] = {}
        self.rows: list[tuple[int, int, int, int, bool]] = []

    def phase(self, label: str) -> int:
        return self._phases.setdefault(phase_of(label), len(self._phases))

    def messages(self, gpus: Sequence[str], **more: Any) -> Messages:
        table = np.array(self.rows, np.int64).reshape(-1, 5).T
        used, phase = np.unique(table[0], return_inverse=True)
        names = list(self._phases)
        return Messages(
            gpus=gpus,
            phases=tuple(names[one] for one in used),
            phase=phase,
            source=table[1],
            destination=table[2],
            octets=table[3],
            over_fabric=table[4].astype(bool),
            **more,
        )


def of_timeline(timeline: Mapping[str, Any], topology: Topology) -> Messages:
    """Return the messages of a run's timeline; ValueError if it is another program's."""
    gpus = [gpu.name for gpu in topology.gpus]
    ranks = {name: rank for rank, name in enumerate(gpus)}
    columns = _Columns()
    times: list[tuple[float, float, float]] = []
    flows: dict[str, int] = {}
    computing: dict[int, list[tuple[float, float]]] = {}
    shown: set[int] = set()
    span = 0.0
    try:
        for event in timeline["traceEvents"]:
            kind = event.get("cat")
            if event["ph"] != "X" or event["pid"] > len(gpus):
                continue
            begin, end = event["ts"], event["ts"] + event["dur"]
            rank = event["pid"] - 1
            shown.add(rank)
            span = max(span, end)
            if kind == _COMPUTE:
                computing.setdefault(rank, []).append((begin, end))
            elif kind in _NETWORKS and event.get("flow_out"):
                label, _, peer = event["name"].rpartition(" to ")
                flows[event["bind_id"]] = len(columns.rows)
                octets = event["args"]["bytes"]
                row = (columns.phase(label), rank, ranks[peer], octets, _NETWORKS[kind])
                columns.rows.append(row)
                times.append((begin, end, end))
            elif kind in _NETWORKS and event.get("flow_in"):
                place = flows[event["bind_id"]]
                posted, _, known = times[place]
                times[place] = (posted, begin, max(begin, known))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"timeline.json is of another version ({error!r})") from None
    ends = np.array(times, float).reshape(-1, 3).T
    busy = {gpus[rank]: _joined(computing.get(rank, ())) for rank in sorted(shown)}
    facts = timeline.get("otherData") or {}
    return columns.messages(
        gpus,
        begin_us=ends[0],
        end_us=ends[1],
        over_us=ends[2],
        computing=busy,
        span_us=span,
        left_out=f"timeline.json has {facts['gpus']}" if "gpus" in facts else "",
    )


def _joined(times: Iterable[tuple[float, float]]) -> tuple[Numbers, Numbers]:
    table = np.array(list(times), float).reshape(-1, 2).T
    return union(table[0], table[1])


def of_schedules(schedules: Sequence[Schedule], topology: Topology, collective: str) -> Messages:
    """Return the messages of compiled schedules; ``collective`` names what has no name."""
    columns = _Columns()
    for schedule in schedules:
        table = OperationTable.of(schedule.operations)
        kinds = table.columns["kind"]
        labels = np.full(len(table), columns.phase(collective))
        for span in sorted(schedule.spans, key=lambda one: one.end - one.first)[::-1]:
            labels[span.first : span.end] = columns.phase(span.name)
        sends = np.flatnonzero(of_kinds(kinds, WRITE, COPY))
        peers, octets = table.columns["peer"][sends], table.columns["near_octets"][sends]
        columns.rows += zip(
            labels[sends].tolist(),
            [schedule.rank] * len(sends),
            peers.tolist(),
            octets.tolist(),
            (kinds[sends] == WRITE).tolist(),
            strict=True,
        )
    return columns.messages([gpu.name for gpu in topology.gpus])


def relation(topology: Topology, source: str, destination: str) -> str:
    """Return how two GPUs stand to each other: ``server``, ``rail`` or ``across rails``."""
    ours, theirs = topology.server_of(source), topology.server_of(destination)
    if ours.name == theirs.name:
        return "server"
    same = ours.gpus.index(source) == theirs.gpus.index(destination)
    return "rail" if same else "across rails"
