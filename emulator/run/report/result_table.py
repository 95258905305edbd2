"""The table that a run prints, laid out like that of the NCCL tests, with fabric columns beside it.

Lines that start with ``#`` are comments; every other line has one field for each column of the
heading before it.  The columns of nccl-tests come first and are always there, so the output can be
read by whatever reads that of nccl-tests.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from emulator.metrics import table
from emulator.result_rows import TableColumn
from emulator.run.faults import disturbance, unfinished
from emulator.run.report.footers import flow_lines, held_line, last_lines, link_lines, resent_lines

_NO_BLANK = "\0"  # before a blank that is only there for a line to end
#: Characters that lines of a comparison have at most.
WIDTH = 120


#: What collectives print behind the columns of nccl-tests.
FABRIC_COLUMNS = table("nccl")
#: What traffic scenarios print behind the columns of their own.
TRAFFIC_COLUMNS = table("traffic")
#: Completion times of flows, and how many times as long they took as alone; ``--wide`` shows them.
FLOW_COLUMNS = (
    *(
        TableColumn(f"fct_{name}_us", "FCT", f"{name} us", 8, rank=30)
        for name in ("p50", "p95", "p99", "max")
    ),
    *(
        TableColumn(f"slowdown_{name}", "slowdown", name, 8, rank=30)
        for name in ("p50", "p95", "p99", "max")
    ),
)


def heading(columns: Sequence[TableColumn]) -> Iterator[str]:
    """The comment lines above the rows."""
    for part in ("heading", "unit"):
        cells = "".join(f" {getattr(column, part):>{column.width}}" for column in columns)
        yield f"#{cells[1:]}".rstrip()


def title(command: str, text: str) -> list[str]:
    """Return the first comment, on what ``command`` runs."""
    return textwrap.wrap(
        f"# uetemu {command}: {text}", WIDTH, subsequent_indent="#   ", break_on_hyphens=False
    )


def wrapped(what: str, text: str) -> list[str]:
    """A comment as lines of at most :data:`WIDTH` characters, parted at blanks and commas."""
    first = f"# {what:<21}: "
    lines = textwrap.wrap(
        re.sub(r",(?=\S)", f",{_NO_BLANK} ", text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=f"#{'':<{len(first) - 1}}",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(f"{_NO_BLANK} ", "").removesuffix(_NO_BLANK) for line in lines]


def line(columns: Sequence[TableColumn], row: Mapping[str, object]) -> str:
    return "".join(column.cell(row) for column in columns)


class ResultTable:
    """Lays out a table while its rows come: at most :data:`WIDTH` characters in a line.

    It has the columns that have had a value in any row so far; those that find no room leave by
    their rank.  Where a later row changes that, the heading comes again.  ``wide`` shows all.
    ``known`` are values of rows to come, from which columns of facts have their widths.
    """

    def __init__(
        self,
        columns: Sequence[TableColumn],
        known: Sequence[Mapping[str, object]] = (),
        *,
        wide: bool = False,
    ) -> None:
        stated = {key for row in known for key in row}
        self.columns = [
            _as_wide_as(column, known, first=not place) if column.key in stated else column
            for place, column in enumerate(columns)
        ]
        #: the columns of what is known beforehand, which part the rows
        self.labels = [column for column in self.columns if column.key in stated]
        self._wide = wide
        self._valued: set[str] = set()
        self._shown: list[TableColumn] = []

    def lines(self, row: Mapping[str, object]) -> Iterator[str]:
        """Yield the lines of ``row``, below a heading where it needs one."""
        self.columns = [
            replace(column, width=max(column.width, len(column.cell(row)) - 1))
            for column in self.columns
        ]
        self._valued |= {column.key for column in self.columns if row.get(column.key) is not None}
        shown = self._fitting()
        if shown != self._shown:
            self._shown = shown
            yield from heading(shown)
        yield line(shown, row)

    def explained(self) -> str:
        """Return what else there is to see, and where columns are explained."""
        hidden = dict.fromkeys(
            column.heading
            for column in self.columns
            if column.key in self._valued and column not in self._shown
        )
        more = f"--wide shows {', '.join(hidden)} as well; " if hidden else ""
        return f"{more}uetemu explain NAME says what a column means"

    def _fitting(self) -> list[TableColumn]:
        if self._wide:
            return self.columns
        wanted = [one for one in self.columns if one.fixed or one.key in self._valued]
        shown: list[TableColumn] = []
        for column in sorted(wanted, key=lambda one: one.rank):
            if not column.rank or sum(1 + one.width for one in (*shown, column)) <= WIDTH:
                shown.append(column)
        return [column for column in wanted if column in shown]


def _as_wide_as(
    column: TableColumn, rows: Sequence[Mapping[str, object]], *, first: bool
) -> TableColumn:
    """Return ``column`` just wide enough for ``rows``; a ``first`` one is behind a ``#``."""
    texts = [column.heading, column.unit, *(column.cell(row).strip() for row in rows)]
    return replace(column, width=max(map(len, texts)) + first)


def trailer(result: Mapping[str, object], folder: object) -> Iterator[str]:  # noqa: C901  a line after the other
    """Return the comment lines below the rows, which state what disqualifies the numbers."""
    rows = result["rows"]
    assert isinstance(rows, Sequence)
    compared = [row["wrong"] for row in rows if isinstance(row.get("wrong"), int)]
    wrong = sum(compared)
    verdict = "OK" if not wrong else "FAILED"
    unchecked = rows and not compared
    yield f"# Out of bounds values : {'N/A' if unchecked else f'{wrong} {verdict}'}"
    rates = [row["busbw_gbps"] for row in rows if row.get("busbw_gbps") is not None]
    if rates:
        yield f"# Avg bus bandwidth    : {sum(rates) / len(rates):.4f}"
    for row in rows:
        for line in row.get("steps") or ():
            yield f"# {line}".rstrip()
    for row in rows:
        for line in disturbance.footer(row, _transport(result, row)):
            yield from wrapped("Faults", line)
        for line in link_lines(row, _transport(result, row)):
            yield from wrapped("Link layer", line)
    for line in last_lines(rows, lambda row: _transport(result, row)):
        yield from wrapped("Last flow", line)
    for line in flow_lines(rows, lambda row: _transport({**result, "seeds": 1}, row)):
        yield f"# {line}"
    for line in resent_lines(rows, lambda row: _transport(result, row)):
        yield from wrapped("Sent again", line)
    parameters = result.get("parameters")
    if isinstance(parameters, Mapping) and (held := held_line(rows, parameters)):
        yield from wrapped("Window", held)
    if isinstance(left := result.get("unfinished"), Mapping):
        yield from wrapped("Unfinished", unfinished.footer(left, _transport(result, left)))
    fidelity = result["fidelity"]
    assert isinstance(fidelity, Mapping)
    verdict, reasons = fidelity["verdict"], fidelity["reasons"]
    account = fidelity.get("account")
    if verdict == "exact" and isinstance(account, Mapping):
        modelled = result.get("fabric") == "model"
        exact, nodes = ("exact for a model", "nodes") if modelled else ("exact", "namespaces")
        yield f"# Fidelity             : {exact}; {_accounted(account, nodes)}"
    elif verdict == "ok":
        yield "# Fidelity             : ok"
    else:
        yield f"# Fidelity             : {str(verdict).upper()}"
        for reason in reasons:
            yield f"#   {reason}"
        limited = fidelity.get("limited_rows")
        if isinstance(limited, Sequence) and 0 < len(limited) < len(rows):
            yield f"#   rows it limited: {', '.join(map(str, limited))} of {len(rows)}"
    if fidelity.get("repeatable") is False:
        yield "#   not repeatable: the host's clock decided when routes had settled"
    if fidelity.get("kernel_hash"):
        yield "#   the kernel's own hash chose paths: another kernel may choose others"
    warnings = result.get("warnings") or ()
    assert isinstance(warnings, Sequence)
    for warning in warnings:
        yield from wrapped("Warning", str(warning))
    if result.get("digest") is not None:
        yield f"# Digest               : {result['digest']}"
    errors = result["errors"]
    assert isinstance(errors, Sequence)
    for error in errors:
        yield from wrapped("Error", str(error))
    if folder is not None:
        yield f"# Run folder           : {folder}"


def _accounted(account: Mapping[str, object], nodes: str) -> str:
    """Return what became of all frames that went into ``nodes``."""
    dropped = account["dropped"]
    assert isinstance(dropped, Mapping)
    lost = sum(dropped.values())
    frames = f"{account['injected']} frames went into {nodes}, {account['delivered']} came out"
    return f"{frames}, {lost} were dropped"


def _transport(result: Mapping[str, object], row: Mapping[str, object]) -> str | None:
    """The transport and seed of ``row``, where not all rows have those that the heading names."""
    used, seed = row.get("transport"), row.get("seed")
    named = [str(used)] if used is not None and used != result.get("transport") else []
    seeded = [f"seed {seed}"] if seed is not None and result.get("seeds", 1) != 1 else []
    return ", ".join((*named, *seeded)) or None
