"""The report of a run: verdict and sections as one HTML page, and the data of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from emulator.html_page import page_environment, policy_hash, source_of
from emulator.metrics import MEANINGS
from emulator.report.run.figures import vega_lite
from emulator.report.run.figures.figure import Figure
from emulator.report.run.figures.over_time import fault_records, line_figures, time_figures
from emulator.report.run.figures.packets import packet_figures
from emulator.report.run.figures.ports import drawing_figure, loss_figure
from emulator.report.run.figures.results import message_figures, result_figures
from emulator.report.run.figures.traffic import traffic_figures
from emulator.report.run.report_tables import (
    ReportTable,
    command_of,
    endpoint_table,
    fact_table,
    figure_table,
    link_table,
    nccl_table,
    row_table,
)
from emulator.report.run_folder import RunRecord, drawn_rows
from emulator.result_rows import summary
from emulator.run_files import CAPTURE, EVENTS
from emulator.whole_file import MEND, write_whole

GOOD, LIMITED, BAD = "good", "limited", "bad"
#: Characters of one fact of an unfinished trial.
MOST_SHOWN = 300


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run.

    ``kind`` is one of GOOD, LIMITED, BAD; ``word`` and ``sentence`` express it.
    """

    kind: str
    word: str
    sentence: str
    lines: Sequence[str] = ()


def verdict_of(record: RunRecord) -> Verdict:
    """Judge the run by its errors, its wrong elements and its fidelity, in this order."""
    rows, errors = record.rows, record.errors
    wrong = sum(row["wrong"] for row in rows if isinstance(row.get("wrong"), int))
    lines = _headlines(record)
    unfinished = record.result.get("unfinished")
    if isinstance(unfinished, Mapping):
        lines.append(
            "The trial that failed: "
            + "; ".join(f"{name} {_short(value)}" for name, value in unfinished.items())
        )
    if errors:
        lines += errors[1:]
        word = "Failed" if rows else "Failed before the first row"
        return Verdict(BAD, word, errors[0], lines)
    if not rows:
        return Verdict(BAD, "Nothing measured", "The run ended without a row and without an error.")
    if wrong:
        sentence = f"{wrong} elements are not what numpy computes; see the column #wrong."
        return Verdict(BAD, "Wrong data", sentence, lines)
    told = record.fidelity.get("reasons")
    reasons = "; ".join(map(str, told)) if isinstance(told, list) else ""
    word = record.verdict
    if word == "exact":
        account = record.account
        modelled = record.result.get("fabric") == "model"
        nodes = "the nodes of a model, which no kernel ran" if modelled else "namespaces"
        sentence = (
            "Every element is right, and every frame is accounted for: "
            f"{account.get('injected', 'n/a')} went into {nodes}, "
            f"{account.get('delivered', 'n/a')} came out, "
            f"{_dropped(account.get('dropped'))} were dropped. Times are computed and repeat."
        )
        return Verdict(GOOD, "Exact", sentence, lines)
    if word == "ok":
        sentence = "Every element is right, and this machine kept up with the fabric."
        return Verdict(GOOD, "OK", sentence, lines)
    sentence = f"Every element is right, but do not trust the times: {reasons or 'unknown'}."
    return Verdict(LIMITED, word, sentence, lines)


def _dropped(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return sum(one for one in value.values() if isinstance(one, int))


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        value = " ".join(f"{name} {_short(one)}" for name, one in value.items())
    if isinstance(value, list):
        value = ", ".join(map(_short, value)) or "none"
    words = str(value)
    return words if len(words) <= MOST_SHOWN else f"{words[:MOST_SHOWN]}..."


def _headlines(record: RunRecord) -> list[str]:
    """Return sentences on the best and worst row, losses, and transports side by side."""
    rows = record.rows
    lines: list[str] = []
    judged = [
        (row["efficiency"], name)
        for row, name in zip(rows, record.labels, strict=True)
        if isinstance(row.get("efficiency"), int | float)
    ]
    if judged:
        (least, worst), (most, best) = min(judged), max(judged)
        lines.append(
            f"Closest to its ideal was row {best} ({100 * most:.1f} %)"
            + (f", farthest row {worst} ({100 * least:.1f} %)." if len(judged) > 1 else ".")
        )
    busbw = [row["busbw_gbps"] for row in rows if isinstance(row.get("busbw_gbps"), int | float)]
    if busbw:
        lines.append(f"Bus bandwidth: {max(busbw):.2f} GB/s at most.")
    lines += _counts(rows)
    if len({str(row.get("transport")) for row in rows}) > 1:
        timed = [row for row in rows if isinstance(row.get("time_us"), int | float)]
        if len(timed) == len(rows):
            lines = [*summary(rows), *lines]
    return lines


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {
        "dropped_packets": "dropped by switches",
        "trimmed_packets": "trimmed by switches",
        "marked_packets": "marked by switches",
        "retransmitted_packets": "sent again by endpoints",
    }
    told = []
    for key, words in names.items():
        counts = [row[key] for row in rows if isinstance(row.get(key), int)]
        if counts:
            told.append(f"{sum(counts)} {words}")
    return [f"Packets over all rows: {', '.join(told)}."] if told else []


PAGE, FIGURES = "report.html", "report-figures"
_LOSSES = {"label": "row", "port": "port", "reason": "reason", "why": "why", "packets": "packets"}
_FAULTS = {"row": "row", "t_us": "at (us)", "event": "event"}


@dataclass(frozen=True)
class Section:
    """A part of the report: its figures and tables, in the order of reading."""

    name: str
    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[ReportTable] = ()


def sections_of(record: RunRecord) -> list[Section]:
    """Return the parts of a run's report; without rows those about its end."""
    losses = loss_figure(record)
    end = Section(
        "losses",
        "Losses, faults and counters",
        [],
        [figure_table(losses, _LOSSES), _faults(record), endpoint_table(record)],
    )
    if not record.rows:
        return [Section("results", "Results", [], [row_table(record)]), end]
    ideal, busbw, timeline = result_figures(record)
    load, queues, congestion = time_figures(record)
    nics, paused, pauses = line_figures(record, fault_records(record))
    latency, flows, slowdowns, fairness = message_figures(record)
    between, ladder = packet_figures(record)
    traffic, traffic_tables = traffic_figures(record)
    drawing = drawing_figure(record)
    return [
        Section("results", "Results", [ideal, busbw], [row_table(record), nccl_table(record)]),
        Section("fabric", "Fabric", [drawing, load, nics], [link_table(drawing)]),
        Section("congestion", "Queues and congestion", [queues, congestion, paused, pauses]),
        Section("latency", "Latency", [latency, between]),
        Section("flows", "Flows", [flows, slowdowns, fairness]),
        Section("traffic", "Traffic", traffic, traffic_tables),
        Section("iteration", "Timeline", [timeline]),
        Section("packets", "Packets", [ladder]),
        end,
    ]


def _faults(record: RunRecord) -> ReportTable:
    reason = record.missing.get(EVENTS) or "no fault was asked for, by --fault or a scenario"
    figure = Figure(
        name="faults",
        title="Faults and other events",
        point="iteration of the row",
        records=fault_records(record),
        reason=None if record.faults else reason,
    )
    return figure_table(figure, _FAULTS)


def html_of(record: RunRecord, sections: Sequence[Section]) -> str:
    """Return the page.  It needs no other file and no network."""
    specs = {
        figure.name: {
            **figure.spec,
            "data": {"values": list(figure.records)},
            "config": vega_lite.CONFIG,
        }
        for section in sections
        for figure in section.figures
        if figure.spec is not None
    }
    names = record.labels
    return rendered(
        "report.html.j2",
        bool(specs),
        record=record,
        sections=sections,
        specs=specs,
        verdict=verdict_of(record),
        switches=_switches(record),
        facts=fact_table(record),
        command=command_of(record),
        rows=[(number, names[number - 1]) for number in drawn_rows(len(names)) if names],
        has_capture=(record.path / CAPTURE).exists(),
        warnings=record.result.get("warnings") or (),
        meanings=MEANINGS,
    )


def _switches(record: RunRecord) -> list[tuple[str, str]]:
    """Return each transport of a comparison with its switch."""
    used: dict[str, dict[str, None]] = {}
    for row in record.rows:
        used.setdefault(str(row.get("transport")), {})[str(row.get("switch"))] = None
    if len(used) < 2:
        return []
    return [(name, ", ".join(found)) for name, found in used.items()]


def rendered(template: str, drawn: bool, **content: Any) -> str:
    """Return a page from its template.  Only this room's own scripts may run in it."""
    environment = page_environment(__package__)
    own, style = source_of(__package__, "report.js"), source_of(__package__, "report.css")
    scripts = [*([vega_lite.script()] if drawn else []), own]
    allowed = " ".join(map(policy_hash, scripts))
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"
    return environment.get_template(template).render(
        policy=policy,
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        **content,
    )


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of a run folder; return the page's path.

    The page is ``report.html`` in the folder, or ``output``; the data of its figures are beside it.
    """
    return write_page(RunRecord.read(folder), output)


def write_page(record: RunRecord, output: Path | None = None) -> Path:
    """Write the report of a run that was read, as :func:`write_report` does."""
    sections = sections_of(record)
    figures = [figure for section in sections for figure in section.figures]
    return write_with_data(
        html_of(record, sections), record.path, output, [*figures, loss_figure(record)]
    )


def write_with_data(
    text: str, folder: Path, output: Path | None, figures: Sequence[Figure]
) -> Path:
    """Write a page of ``folder``, and the data of its figures beside it; return its path."""
    page = output or folder / PAGE
    beside = page.with_name(FIGURES if output is None else f"{page.stem}-figures")
    files = {page: text}
    for figure in figures:
        files[beside / f"{figure.name}.json"] = figure.as_json()
        files[beside / f"{figure.name}.csv"] = figure.as_csv()
    write_files(files)
    return page


def write_files(files: Mapping[Path, str], option: str = "--output") -> None:
    """Write all files, each in one step; UserError names the one that cannot be written.

    ``option`` is that which chooses their place.
    """
    for path, content in files.items():
        write_whole(path, content, f"{MEND} with {option}", parents=True)
