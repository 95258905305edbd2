"""A run folder, read back: its result, events, machine, fabric and timeline, and its rows' names.

``result.json`` must be there, whole and of this version.  Of the other files each is there, or a
reason why not.  Folders of runs by the host's clock, which older versions made, are read as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.metrics import INPUT, METRICS, Metric, known, readable
from emulator.result_rows import short_names
from emulator.run_files import (
    ENVIRONMENT,
    EVENTS,
    FABRIC,
    MESSAGES,
    PORTS,
    RESULT,
    ROW,
    SCHEMA,
    TIMELINE,
    UNITS,
    Event,
    RowPorts,
    events_of,
    read_object,
)
from emulator.topology_file import from_record
from topologies.model import Topology
from topologies.units import format_size

#: Octets of a file that is read whole, at most.
LARGEST_FILE = 256 * 2**20
#: Keys that name a run, which every ``result.json`` has.
NAMING = {"scenario", "topology", "transport", "switch", "seed"}
#: Numbers of a flow.
_FLOW = ("bytes", "messages", "time_us", "goodput_gbps")
NO_ROW = "nothing was measured before the run ended"
#: Rows whose time is drawn, at most: a reader chooses among them.
MOST_DRAWN = 24
#: Keys that part no rows, beside what is measured.
_NOT_FACTS = {
    *("transport", "switch", "collective", "size_bytes", "endpoints", "flows", "digest"),
    *("communicators", "relayed_messages", "max_queue_port", "goodput_at", "count", "iterations"),
    *("held_writes", "total_bytes"),
}
#: Parts of names that only measures have.
_UNITS = tuple(end for end in UNITS if end.startswith("_"))

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
    events: Sequence[Event] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    topology: Topology | None = None
    timeline: Mapping[str, Any] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read the folder; UserError unless it has a ``result.json`` of this schema."""
        result = _object(path / RESULT)
        if result.get("schema") != SCHEMA:
            raise UserError(
                f"{path} is no run folder of this version ({str(result.get('schema'))[:40]}); "
                "name the folder of a run, or run the scenario again"
            )
        if not _is_result(result):
            raise UserError(
                f"{path}/{RESULT} is damaged: it lacks keys of a run, or has values of another "
                "kind; run the scenario again"
            )
        missing: dict[str, str] = {}
        return cls(
            path=path,
            result=result,
            events=_events(path / EVENTS, missing),
            environment=_optional(path / ENVIRONMENT, missing) or {},
            topology=_topology(path / FABRIC, missing),
            timeline=_optional(path / TIMELINE, missing),
            missing=missing,
        )

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def fabric(self) -> Topology:
        """The topology; UserError where the folder does not have it."""
        if self.topology is None:
            raise UserError(f"{self.missing[FABRIC]}; name the folder of a whole run")
        return self.topology

    @property
    def fidelity(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.result["fidelity"]
        return found

    @property
    def verdict(self) -> str:
        return str(self.fidelity.get("verdict"))

    @property
    def account(self) -> Mapping[str, Any]:
        """What became of all frames; empty where the run did not account for them."""
        return _mapping(self.fidelity.get("account"))

    @property
    def errors(self) -> list[str]:
        return [str(error) for error in self.result["errors"]]

    @property
    def plugins(self) -> dict[str, str]:
        """Return the SHA-256 of the plug-ins' files that the run had, by name."""
        noted = self.environment.get("plugins")
        files = noted if isinstance(noted, list) else []
        return {
            str(one.get("file")): str(one.get("sha256")) for one in files if isinstance(one, dict)
        }

    @cached_property
    def metrics(self) -> Mapping[str, Metric[Any]]:
        """The metrics of the run by key, those of users' files as the folder describes them."""
        return known(self.result.get("metrics", ()))

    @cached_property
    def labels(self) -> list[str]:
        """A name for each row."""
        return labels(self.rows, self.metrics)

    @cached_property
    def parting_facts(self) -> list[str]:
        """The scenario's own keys that differ between rows and are no measured values."""
        return parting_facts(self.rows, self.metrics)

    @property
    def command(self) -> list[str]:
        """The words of the command that made the run; none where they are unknown."""
        words = self.environment.get("command")
        return [str(word) for word in words] if isinstance(words, list) else []

    @property
    def parameters(self) -> Mapping[str, Any]:
        return _mapping(self.result.get("parameters"))

    @property
    def by_host_clock(self) -> bool:
        """Whether the run went by the host's clock: its times are the machine's, dilated.

        A run in virtual time has the dilation 1, and a digest unless it failed.
        """
        judged = self.verdict in ("ok", "host-limited")
        return judged or self.result.get("dilation") not in (None, 1)

    @property
    def rows(self) -> Sequence[Row]:
        rows: Sequence[Row] = self.result["rows"]
        return rows

    @cached_property
    def ports(self) -> Mapping[int, RowPorts]:
        """The counters of ports, by the number of the row from 1."""
        return {
            event["row"]: RowPorts(
                row=event["row"],
                span_us=float(event["span_us"]),
                observes=frozenset(event["observes"]),
                ports=event["ports"],
            )
            for event in self._of_rows(PORTS)
            if _is_ports(event)  # a row of another version has no counters
        }

    def ports_of(self, number: int | None) -> RowPorts:
        """Return the counters of the ``number``-th row; None is the last, -1 as well.

        Raises UserError where there is no such row, or no counter of it.
        """
        count = len(self.rows)
        if not count:
            raise UserError(f"{self.path} has no row: {NO_ROW}")
        requested = count if number is None else number + count + 1 if number < 0 else number
        if not 1 <= requested <= count:
            raise UserError(f"--row {number}: {self.path} has rows 1 to {count}")
        if requested not in self.ports:
            raise UserError(
                f"{self.path} does not tell what ports saw of row {requested}: it was made by an "
                "older version; run the scenario again"
            )
        return self.ports[requested]

    @cached_property
    def messages(self) -> Mapping[int, Event]:
        """The messages event of each row that has one, by its number from 1."""
        return {event["row"]: event for event in self._of_rows(MESSAGES) if _is_messages(event)}

    def began_us(self, number: int) -> Sequence[float]:
        """Return when each iteration of a row began on the run's clock, if the row has it."""
        found: Sequence[float] = self.rows[number - 1].get("began_us") or ()
        return found

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
            if event.get("event") == ROW:
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

    def _of_rows(self, kind: str) -> Iterator[Event]:
        for event in self.events:
            row = event.get("row")
            if event.get("event") == kind and isinstance(row, int) and 0 < row <= len(self.rows):
                yield event


def is_run_folder(path: Path) -> bool:
    """Return whether a folder has the files of a run."""
    try:
        return (path / RESULT).is_file() and (path / FABRIC).is_file()
    except OSError:  # a name that no file can have
        return False


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, LARGEST_FILE)
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}; name the folder of a run") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); name the folder of a run") from None


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


def _events(path: Path, missing: dict[str, str]) -> list[Event]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            missing[path.name] = f"{path.name} has more than {LARGEST_FILE // 2**20} MiB"
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        missing[path.name] = f"the run folder has no {path.name}"
        return []
    return list(events_of(lines))


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
        and _are_metrics(result.get("metrics", []))
        and isinstance(result.get("warnings", []), list)
        and isinstance(result.get("endpoints", {}), dict)
        and all(map(_is_counts, result.get("endpoints", {}).values()))
    )


def _are_metrics(described: object) -> bool:
    if not isinstance(described, list) or not _holds(described, dict):
        return False
    try:
        known(described)
    except ValueError:
        return False
    return True


def _is_row(row: object) -> bool:
    """Whether ``row`` has numbers where a row of a run has them."""
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(key), str) for key in ("transport", "collective"))
        and isinstance(row.get("switch", 0), str | None)
        and isinstance(row.get("seed"), int)
        and all(_is_number(row.get(key)) for key in _numeric())
        and _lists(row.get("began_us") or [], int | float)
        and _lists(row.get("faults") or [], dict)
        and all(_is_counts(row.get(key) or {}) for key in ("drops", "lost_packets"))
    )


@cache
def _numeric() -> list[str]:
    """Return the keys of a row that hold numbers."""
    metrics = [one.key for one in readable(METRICS.values()) if one.numeric]
    return [*metrics, "size_bytes", "iterations", "undisturbed_us"]


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
    """Whether ``event`` is what :mod:`emulator.run_files` describes."""
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


def labels(rows: Sequence[Row], metrics: Mapping[str, Metric[Any]] = METRICS) -> list[str]:
    """Return a name for each row: its number, and what distinguishes it from the others.

    Values of ``metrics`` distinguish none.
    """
    names = short_names([str(row.get("transport")) for row in rows])
    facts = parting_facts(rows, metrics)
    found = []
    for number, row in enumerate(rows, 1):
        words = [names[str(row.get("transport"))], str(row.get("collective"))]
        if isinstance(row.get("size_bytes"), int):
            words.append(format_size(row["size_bytes"]))
        words += [f"{key} {row.get(key)}" for key in facts]
        found.append(f"{number}: {', '.join(words)}")
    return found


def parting_facts(rows: Sequence[Row], metrics: Mapping[str, Metric[Any]] = METRICS) -> list[str]:
    """Return the scenario's own keys that differ between rows and are no values of ``metrics``."""
    measured = {one.key for one in metrics.values() if one.observed_at not in ("", INPUT)}
    left_out = measured | _NOT_FACTS
    keys = dict.fromkeys(key for row in rows for key in row if key not in left_out)
    return [
        key
        for key in keys
        if not any(unit in key for unit in _UNITS)
        and all(_plain(row.get(key)) for row in rows)
        and len({str(row.get(key)) for row in rows}) > 1
    ]


def _plain(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def drawn_rows(count: int) -> list[int]:
    """Return the numbers of the rows that are drawn over time: all, or the last ones of many."""
    return list(range(max(1, count - MOST_DRAWN + 1), count + 1))
