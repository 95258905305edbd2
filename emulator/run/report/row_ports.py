"""The ports' counters for each row of a run: written while it runs, read for drawings.

``events.jsonl`` has a line for each row, right behind the row itself::

    {"event": "ports", "row": 2, "span_us": 364.4, "observes": ["traffic", "switch", "pauses"],
     "ports": {"rail0:down0": {"tx_packets": 310, "tx_bytes": 1284310, "marked": 12}, ...}}

``row`` counts from 1.  ``span_us`` is the fabric time of its iterations together, in which the
counts came about.  ``observes`` names what was counted at all: a count that is left out was 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.errors import UserError
from emulator.topology_file import from_record
from topologies.ethernet import FRAMING_OCTETS
from topologies.model import Topology

if TYPE_CHECKING:
    from emulator.scenario import Outcome

EVENT = "ports"
TRAFFIC, SWITCH, PAUSES = "traffic", "switch", "pauses"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPorts:
    """One row; ``ports`` holds the counters by ``node:port``, those of 0 left out."""

    row: int
    span_us: float
    observes: frozenset[str]
    ports: Mapping[str, Mapping[str, int]]

    def utilisation(self, port: str, rate_bps: int) -> float:
        """Share of the time (1 is all) in which ``port`` sent, preamble and gap included."""
        counts = self.ports.get(port, {})
        octets = counts.get("tx_bytes", 0) + FRAMING_OCTETS * counts.get("tx_packets", 0)
        return octets * 8e6 / (rate_bps * self.span_us) if self.span_us else 0.0


def ports_of(row: int, outcome: Outcome) -> dict[str, object]:
    """The event of the ``row``-th row (from 1)."""
    records = outcome.ports.values()
    observes = [TRAFFIC]
    if any(port.asic is not None for port in records):
        observes.append(SWITCH)
    if any(port.pause is not None for port in records):
        observes.append(PAUSES)
    return {
        "row": row,
        "span_us": sum(outcome.times_ns) / 1000,
        "observes": observes,
        "ports": {name: port.as_dict() for name, port in outcome.ports.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run folder as far as its drawing needs it: nothing else is looked at."""

    path: Path
    topology: Topology
    scenario: str
    rows: tuple[Mapping[str, object], ...]
    ports: Mapping[int, RowPorts]

    @classmethod
    def read(cls, path: Path) -> RecordedRun:
        """Raises UserError, which names the file, for what is no run folder."""
        result = _json(path / "result.json")
        fabric = _json(path / "fabric.json")
        try:
            topology = from_record(fabric)
            rows, scenario = tuple(result["rows"]), str(result["scenario"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is a run folder of another version ({error}); run the scenario again"
            ) from None
        return cls(path=path, topology=topology, scenario=scenario, rows=rows, ports=_events(path))

    def row(self, number: int | None) -> RowPorts:
        """The ``number``-th row from 1, or from the end if negative; None is the last."""
        count = len(self.rows)
        if not count:
            raise UserError(f"{self.path} has no row: nothing was measured before the run ended")
        requested = count if number is None else number + count + 1 if number < 0 else number
        if not 1 <= requested <= count:
            raise UserError(f"--row {number}: {self.path} has rows 1 to {count}")
        if requested not in self.ports:
            raise UserError(
                f"{self.path} does not tell what ports saw of row {requested}: it was made by an "
                "older version; run the scenario again"
            )
        return self.ports[requested]


def is_run_folder(path: Path) -> bool:
    try:
        return (path / "result.json").is_file() and (path / "fabric.json").is_file()
    except OSError:  # a name that no file can have
        return False


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}; name the folder of a run") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); name the folder of a run") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; name the folder of a run")
    return content


def _events(path: Path) -> dict[int, RowPorts]:
    found = {}
    try:
        lines = (path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path}/events.jsonl cannot be read: {error.strerror}") from None
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line of a run that was killed
        if isinstance(event, dict) and event.get("event") == EVENT:
            found[event["row"]] = RowPorts(
                row=event["row"],
                span_us=event["span_us"],
                observes=frozenset(event["observes"]),
                ports=event["ports"],
            )
    return found
