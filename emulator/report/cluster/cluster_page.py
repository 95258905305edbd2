"""The report of a cluster's run as files: one HTML page, and the data of its figures beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.report.cluster.cluster_record import ClusterRecord
from emulator.report.cluster.job_start_figure import job_start_figures
from emulator.report.cluster.network_figures import network_figures
from emulator.report.cluster.storage_figure import storage_figures
from emulator.report.cluster.virtual_run_figures import virtual_run_figures
from emulator.report.run.figures import vega_lite
from emulator.report.run.figures.figure import Figure
from emulator.report.run.page import FIGURES, PAGE, rendered, write_files
from emulator.report.run.report_tables import ReportTable


@dataclass(frozen=True)
class FigureSection:
    """Figures of the page below one heading; ``name`` is its anchor."""

    name: str
    heading: str
    figures: Sequence[Figure]


def cluster_tables(record: ClusterRecord) -> Iterator[ReportTable]:
    """Yield the rows of the result, a table for each set of columns, then what surrounds them."""
    groups: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for row in record.result.get("rows", ()):
        groups.setdefault(tuple(row), []).append([_cell(value) for value in row.values()])
    for number, (columns, rows) in enumerate(groups.items(), start=1):
        title = str(rows[0][0]) if len(rows) == 1 else f"{rows[0][0]} and {len(rows) - 1} more"
        yield _table(f"rows-{number}", title[:1].upper() + title[1:], columns, rows)
    yield _listed("networks", "Networks and their clocks", record.result.get("networks", ()))
    yield _listed("events", "Events", record.result.get("events", ()))
    yield _listed("services", "Services", record.result.get("services", ()))


def write_cluster_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of the folder of a cluster's run; return the page's path.

    The page is ``report.html`` in the folder, or ``output``; the data of its figures are beside it.
    """
    record = ClusterRecord.read(folder)
    sections = [
        FigureSection("compared", "Over TCP and by RDMA", list(storage_figures(record))),
        FigureSection("starts", "Jobs start", list(job_start_figures(record))),
        FigureSection("over-time", "The networks over time", list(network_figures(record))),
        FigureSection("virtual", "Beside them, in virtual time", list(virtual_run_figures(record))),
    ]
    figures = [figure for section in sections for figure in section.figures]
    page = output or folder / PAGE
    beside = page.with_name(FIGURES if output is None else f"{page.stem}-figures")
    files = {page: cluster_html(record, sections)}
    for figure in figures:
        files[beside / f"{figure.name}.json"] = figure.as_json()
        files[beside / f"{figure.name}.csv"] = figure.as_csv()
    write_files(files)
    return page


def cluster_html(record: ClusterRecord, sections: Sequence[FigureSection]) -> str:
    """Return the page with all ``sections`` that have figures.

    It needs no other file and no network.
    """
    figures = [figure for section in sections for figure in section.figures]
    specs = {
        figure.name: {
            **figure.spec,
            "data": {"values": list(figure.records)},
            "config": vega_lite.CONFIG,
        }
        for figure in figures
        if figure.spec is not None
    }
    result = record.result
    failed = [str(row.get("what")) for row in result.get("rows", ()) if not row.get("ok", True)]
    return rendered(
        "cluster.html.j2",
        bool(specs),
        result=result,
        sections=[section for section in sections if section.figures],
        tables=list(cluster_tables(record)),
        specs=specs,
        failed=failed,
        errors=list(result.get("errors", ())),
        command=_command(record),
    )


def _command(record: ClusterRecord) -> str:
    """Return the command that runs the same scenario again."""
    result = record.result
    words = [f"uetemu cluster {result.get('scenario')} --topology {result.get('topology')}"]
    for name, value in result.get("parameters", {}).items():
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        words.append(f"--param {name}={text}")
    words.append(f"--seed {result.get('seed')}")
    return " ".join(words)


def _listed(name: str, title: str, rows: Sequence[dict[str, object]]) -> ReportTable:
    if not rows:
        return ReportTable(name, title, (), (), (), reason="the run had none")
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    return _table(name, title, columns, cells)


def _table(
    name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> ReportTable:
    return ReportTable(name, title, [("", len(columns))], columns, rows)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
