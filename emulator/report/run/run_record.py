"""The files of a run folder, read for its report: each is there, or a reason why not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.report.run.observation_points import VALUES
from emulator.run.report import row_messages, row_ports
from emulator.run.report.row_ports import RowPorts
from emulator.run.results import SCHEMA
from emulator.topology_file import from_record
from topologies.model import Topology

#: Octets of a file that is read whole, at most.
LARGEST_FILE = 256 * 2**20
#: Keys of a row that hold numbers, and those of a flow.
NUMERIC = (
    *(value.key for value in VALUES if value.numeric),
    *("size_bytes", "iterations", "undisturbed_us"),
)
#: Keys that name a run, which every ``result.json`` has.
NAMING = {"scenario", "topology", "transport", "switch", "seed"}
_FLOW = ("bytes", "messages", "time_us", "goodput_gbps")
NO_ROW = "nothing was measured before the run ended"

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FaultMark:
    """A fault, or its end: ``at_us`` after the start of the iteration."""

    row: int
    at_us: float
    text: str


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run folder.  ``missing`` has a reason for each file that cannot be used."""

    path: Path
    result: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    topology: Topology | None = None
    timeline: Mapping[str, Any] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read the folder; UserError unless it has a ``result.json`` of this schema."""
        result = _object(path / "result.json")
        if result.get("schema") != SCHEMA:
            raise UserError(
                f"{path} is a run folder of another version ({str(result.get('schema'))[:40]}); "
                "run the scenario again"
            )
        if not _is_result(result):
            raise UserError(
                f"{path}/result.json is damaged: it lacks keys of a run, or has values of another "
                "kind; run the scenario again"
            )
        missing: dict[str, str] = {}
        return cls(
            path=path,
            result=result,
            events=_events(path / "events.jsonl", missing),
            environment=_optional(path / "environment.json", missing) or {},
            topology=_topology(path / "fabric.json", missing),
            timeline=_optional(path / "timeline.json", missing),
            missing=missing,
        )

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def by_host_clock(self) -> bool:
        """Whether the run went by the host's clock: its times are the machine's, dilated.

        A run in virtual time has the dilation 1, and a digest unless it failed.
        """
        judged = self.result["fidelity"].get("verdict") in ("ok", "host-limited")
        return judged or self.result.get("dilation") not in (None, 1)

    @property
    def rows(self) -> Sequence[Row]:
        rows: Sequence[Row] = self.result["rows"]
        return rows

    @cached_property
    def ports(self) -> Mapping[int, RowPorts]:
        """The counters of ports, by the number of the row from 1."""
        found = {}
        for event in self._of_rows(row_ports.EVENT):
            if _is_ports(event):  # a row of another version has no counters
                found[event["row"]] = RowPorts(
                    row=event["row"],
                    span_us=float(event["span_us"]),
                    observes=frozenset(event["observes"]),
                    ports=event["ports"],
                )
        return found

    @cached_property
    def messages(self) -> Mapping[int, Mapping[str, Any]]:
        """The messages event of each row that has one, by its number from 1."""
        return {
            event["row"]: event
            for event in self._of_rows(row_messages.EVENT)
            if _is_messages(event)
        }

    def times_us(self, number: int) -> Sequence[float]:
        """Return the iterations of a row, or none where the folder lacks them."""
        found: Sequence[float] = self.messages.get(number, {}).get("times_us", ())
        return found

    @cached_property
    def faults(self) -> Sequence[FaultMark]:
        """Each fault of each row once, and when goodput was restored; times of its iteration."""
        marks: dict[tuple[int, str], FaultMark] = {}
        row = 1
        for event in self.events:
            if event.get("event") == "row":
                row += 1
            elif event.get("event") == "fault" and isinstance(event.get("at_us"), int | float):
                text = str(event.get("said") or _words(event))
                marks.setdefault(
                    (row, text), FaultMark(row=row, at_us=float(event["at_us"]), text=text)
                )
        for number, facts in enumerate(self.rows, 1):
            for fault in facts.get("faults") or ():
                restored, judged = fault.get("restored_us"), fault.get("judged_us")
                if restored and _is_number(restored) and judged and _is_number(judged):
                    text = f"goodput restored after {fault.get('said')}"
                    at_us = float(judged + restored)
                    marks[number, text] = FaultMark(row=number, at_us=at_us, text=text)
        return list(marks.values())

    def _of_rows(self, kind: str) -> Iterator[Mapping[str, Any]]:
        for event in self.events:
            row = event.get("row")
            if event.get("event") == kind and isinstance(row, int) and 0 < row <= len(self.rows):
                yield event


def _words(event: Mapping[str, Any]) -> str:
    ports, changed = event.get("ports"), event.get("faults")
    ports = ", ".join(map(str, ports)) if isinstance(ports, list) else "?"
    faults = ", ".join(
        name if value is True else f"{name}={value}"
        for name, value in (changed.items() if isinstance(changed, dict) else ())
    )
    return f"{ports}: {faults or 'as before'}"


def _is_result(result: Mapping[str, Any]) -> bool:
    return (
        result.keys() >= NAMING
        and isinstance(result["scenario"], str)
        and all(isinstance(result.get(key, 1), int) for key in ("seed", "seeds"))
        and isinstance(result.get("rows"), list)
        and all(_is_row(row) for row in result["rows"])
        and isinstance(result.get("fidelity"), dict)
        and isinstance(result.get("errors"), list)
        and isinstance(result.get("warnings", []), list)
        and isinstance(result.get("endpoints", {}), dict)
        and all(map(_is_counts, result.get("endpoints", {}).values()))
    )


def _is_row(row: object) -> bool:
    """Whether ``row`` has numbers where a row of a run has them."""
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(key), str) for key in ("transport", "collective"))
        and isinstance(row.get("switch", 0), str | None)
        and isinstance(row.get("seed"), int)
        and all(_is_number(row.get(key)) for key in NUMERIC)
        and _lists(row.get("began_us") or [], int | float)
        and _lists(row.get("faults") or [], dict)
        and all(_is_counts(row.get(key) or {}) for key in ("drops", "lost_packets"))
    )


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _holds(container: object, kind: Any) -> bool:
    """Whether ``container`` is a list or an object whose members are all of ``kind``."""
    if not isinstance(container, list | dict):
        return False
    members = container.values() if isinstance(container, dict) else container
    return all(isinstance(one, kind) for one in members)


def _is_counts(container: object) -> bool:
    return isinstance(container, dict) and _holds(container, int)


def _lists(container: object, kind: Any) -> bool:
    return isinstance(container, list) and _holds(container, kind)


def _is_flow(flow: Mapping[str, Any]) -> bool:
    return {"from", "to", *_FLOW} <= flow.keys() and all(_is_number(flow[key]) for key in _FLOW)


def _is_messages(event: Mapping[str, Any]) -> bool:
    """Whether ``event`` is what :mod:`emulator.run.report.row_messages` writes."""
    flows, pairs = event.get("flows"), event.get("latency_us")
    return (
        isinstance(event.get("victims", {}), dict)
        and _lists(event.get("times_us", []), int | float)
        and _lists(pairs, list)
        and all(len(pair) == 2 and _lists(pair, int | float) for pair in pairs or ())
        and _lists(flows, dict)
        and all(map(_is_flow, flows or ()))
        and isinstance(event.get("flows_left_out", 0), int)
        and (not event.get("victims") or _is_messages(event["victims"]))
    )


def _is_ports(event: Mapping[str, Any]) -> bool:
    ports = event.get("ports")
    return (
        isinstance(event.get("span_us"), int | float)
        and _lists(event.get("observes"), str)
        and isinstance(ports, dict)
        and all(map(_is_counts, ports.values()))
    )


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; UserError if it has none."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path} has more than {LARGEST_FILE // 2**20} MiB; name another run")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}; name the folder of a run") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); name the folder of a run") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; name the folder of a run")
    return content


def _optional(path: Path, missing: dict[str, str]) -> dict[str, Any] | None:
    if not path.exists():
        missing[path.name] = f"the run folder has no {path.name}"
        return None
    try:
        return _object(path)
    except UserError:
        missing[path.name] = f"{path.name} is damaged or too large"
        return None


def _topology(path: Path, missing: dict[str, str]) -> Topology | None:
    data = _optional(path, missing)
    if data is None:
        return None
    try:
        return from_record(data)
    except (ValueError, KeyError, TypeError):
        missing[path.name] = f"{path.name} is of another version"
        return None


def _events(path: Path, missing: dict[str, str]) -> list[dict[str, Any]]:
    found = []
    try:
        if path.stat().st_size > LARGEST_FILE:
            missing[path.name] = f"{path.name} has more than {LARGEST_FILE // 2**20} MiB"
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        missing[path.name] = f"the run folder has no {path.name}"
        return []
    for line in lines:
        try:
            event = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError):
            continue  # the last line of a run that was killed
        if isinstance(event, dict):
            found.append(event)
    return found
