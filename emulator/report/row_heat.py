"""One row of a run as a drawing's colours, and as a table of its busiest links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.report.run_folder import RunRecord
from emulator.run_files import PAUSES, SWITCH, TRAFFIC, RowPorts
from topologies.exports.heat import Heat
from topologies.model import CableEnd, Link
from topologies.units import format_size


@dataclass(frozen=True)
class Measure:
    """Something that a port is coloured by."""

    title: str
    unit: str
    #: what must have been counted, and the refusal if it was not
    needs: str
    missing: str
    value: Callable[[RowPorts, str, Link], float]
    most: float | None = None


def _count(name: str) -> Callable[[RowPorts, str, Link], float]:
    return lambda row, port, link: float(row.ports.get(port, {}).get(name, 0))


NO_SWITCH = "its switches are plain Linux queues (--switch none), which are not modelled"
MEASURES: Mapping[str, Measure] = {
    "utilisation": Measure(
        "utilisation of links",
        "%",
        TRAFFIC,
        "nothing was counted",
        lambda row, port, link: 100 * row.utilisation(port, link.rate_bps),
        most=100.0,
    ),
    "marks": Measure("packets marked CE (ECN)", "packets", SWITCH, NO_SWITCH, _count("marked")),
    "trims": Measure("packets trimmed", "packets", SWITCH, NO_SWITCH, _count("trimmed")),
    "drops": Measure("packets dropped", "packets", SWITCH, NO_SWITCH, _count("dropped")),
    "pauses": Measure(
        "time that ports were paused (PFC)",
        "us",
        PAUSES,
        "its switches do not pause (take --switch lossless)",
        lambda row, port, link: row.ports.get(port, {}).get("paused_ns", 0) / 1000,
    ),
}


@dataclass(frozen=True, kw_only=True)
class HeatDirection:
    """One direction of a link: what left ``port`` towards ``to``; None is what nobody counted."""

    port: CableEnd
    to: CableEnd
    utilisation: float  # share of the time
    marked: int | None
    trimmed: int | None
    dropped: int | None
    paused_us: float | None


def heat(run: RunRecord, number: int | None, colour: str) -> Heat:
    """The colours of a row (:meth:`RunRecord.ports_of`) by one of MEASURES.

    Raises UserError where the row has no record of it.
    """
    links = run.fabric.links
    row, measure = run.ports_of(number), _measure(run, number, colour)
    values = {str(end): measure.value(row, str(end), link) for link in links for end in link.ends}
    return Heat(
        title=f"{measure.title}, {describe(run, row)}",
        unit=measure.unit,
        values=values,
        most=measure.most,
    )


def busiest(run: RunRecord, number: int | None, colour: str) -> list[HeatDirection]:
    """All directions of links, those with the most of ``colour`` first; raises as :func:`heat`."""
    links = run.fabric.links
    row, measure = run.ports_of(number), _measure(run, number, colour)
    found = []
    for link in links:
        for port, to in (link.ends, link.ends[::-1]):
            order = (
                -measure.value(row, str(port), link),
                -row.utilisation(str(port), link.rate_bps),
            )
            found.append((order, _direction(row, port, to, link)))
    return [direction for _, direction in sorted(found, key=lambda item: item[0])]


def describe(run: RunRecord, row: RowPorts) -> str:
    """Return which row it is, as the title of a drawing."""
    facts = run.rows[row.row - 1]
    size = facts.get("size_bytes")
    what = [
        f"row {row.row} of {len(run.rows)}",
        str(facts.get("collective") or run.result["scenario"]),
        *([format_size(size)] if isinstance(size, int) else []),
        str(facts.get("transport") or ""),
        str(facts.get("switch") or ""),
        f"{row.span_us:.4g} us",
    ]
    return ", ".join(filter(None, what))


def _measure(run: RunRecord, number: int | None, colour: str) -> Measure:
    measure, row = MEASURES[colour], run.ports_of(number)
    if measure.needs not in row.observes:
        raise UserError(
            f"--colour {colour}: row {row.row} of {run.path} has none: {measure.missing}"
        )
    return measure


def _direction(row: RowPorts, port: CableEnd, to: CableEnd, link: Link) -> HeatDirection:
    counts = row.ports.get(str(port), {})

    def reported(name: str, by: str) -> int | None:
        return counts.get(name, 0) if by in row.observes else None

    paused = reported("paused_ns", PAUSES)
    return HeatDirection(
        port=port,
        to=to,
        utilisation=row.utilisation(str(port), link.rate_bps),
        marked=reported("marked", SWITCH),
        trimmed=reported("trimmed", SWITCH),
        dropped=reported("dropped", SWITCH),
        paused_us=None if paused is None else paused / 1000,
    )
