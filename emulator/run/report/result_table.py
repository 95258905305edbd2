"""The table that a run prints, laid out like that of the NCCL tests, with fabric columns beside it.

Lines that start with ``#`` are comments; every other line has one field for each column, so the
output can be read by whatever reads that of nccl-tests.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emulator.run.faults import disturbance, unfinished
from emulator.run.report.link_footer import link_lines

_ABSENT = "N/A"
_NO_BLANK = "\0"  # before a blank that is only there for a line to end
#: Characters that lines of a comparison have at most.
WIDTH = 120


@dataclass(frozen=True)
class TableColumn:
    """One column: the row's key, its heading, unit, width, and decimals for a fraction.

    ``percent`` shows a ratio as per cent, ``divisor`` a value in a larger unit.  With ``digits`` a
    fraction has so many significant digits instead of ``decimals``, however small it is.
    """

    key: str
    heading: str
    unit: str = ""
    width: int = 9
    decimals: int = 2
    percent: bool = False
    divisor: float = 1
    digits: int = 0

    def cell(self, row: Mapping[str, object]) -> str:
        value = row.get(self.key)
        if isinstance(value, int | float) and self.percent:
            text = f"{100 * value:.{self.decimals}f}"
        elif isinstance(value, int | float) and self.divisor != 1:
            text = f"{value / self.divisor:.{self.decimals}f}"
        elif isinstance(value, float) and self.digits:
            text = f"{value:.{self.digits}g}"
        elif isinstance(value, float):
            text = f"{value:.{self.decimals}f}"
        else:
            text = _ABSENT if value is None else str(value)
        return f" {text:>{self.width}}"


NCCL_COLUMNS = (
    TableColumn("size_bytes", "size", "(B)", 11),
    TableColumn("count", "count", "(elements)", 11),
    TableColumn("type", "type", "", 7),
    TableColumn("redop", "redop", "", 6),
    TableColumn("root", "root", "", 5),
    TableColumn("time_us", "time", "(us)"),
    TableColumn("algbw_gbps", "algbw", "(GB/s)", 8),
    TableColumn("busbw_gbps", "busbw", "(GB/s)", 8),
    TableColumn("wrong", "#wrong", "", 7),
)
FABRIC_COLUMNS = (
    TableColumn("ideal_us", "ideal", "(us)"),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn("data_packets", "packets", "(data)", 9),
    TableColumn("retransmitted_packets", "resent", "(data)", 7),
)
#: What traffic scenarios print behind the columns of their own
#: (:mod:`emulator.run.report.traffic`).
TRAFFIC_COLUMNS = (
    TableColumn("size_bytes", "size", "(B)", 9),
    TableColumn("time_us", "time", "(us)", 8),
    TableColumn("ideal_us", "ideal", "(us)", 8),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn("goodput_gbps", "goodput", "(GB/s)", 8),
    TableColumn("message_p50_us", "p50", "(us)", 8),
    TableColumn("message_p99_us", "p99", "(us)", 8),
    TableColumn("jain", "Jain", "", 6, 3),
    TableColumn("marked_packets", "marks", "", 7),
    TableColumn("trimmed_packets", "trims", "", 7),
    TableColumn("dropped_packets", "drops", "", 6),
    TableColumn("pauses", "pauses", "", 6),
    TableColumn("paused_us", "paused", "(us)", 8, 1),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("timeouts", "RTOs", "", 5),
    TableColumn("max_queue_bytes", "queue", "(KB)", 7, 1, divisor=1000),
    TableColumn("links_max_mean", "max/mean", "links", 8),
    TableColumn("reordered_packets", "reord", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)


def heading(columns: Sequence[TableColumn]) -> Iterator[str]:
    """The comment lines above the rows."""
    for part in ("heading", "unit"):
        cells = "".join(f" {getattr(column, part):>{column.width}}" for column in columns)
        yield "#" + cells[1:]


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


def trailer(result: Mapping[str, object], folder: object) -> Iterator[str]:
    """Return the comment lines below the rows, which state what disqualifies the numbers."""
    rows = result["rows"]
    assert isinstance(rows, Sequence)
    compared = [row["wrong"] for row in rows if isinstance(row.get("wrong"), int)]
    wrong = sum(compared)
    verdict = "OK" if not wrong else "FAILED"
    unchecked = rows and not compared
    yield f"# Out of bounds values : {_ABSENT if unchecked else f'{wrong} {verdict}'}"
    rates = [row["busbw_gbps"] for row in rows if row.get("busbw_gbps") is not None]
    if rates:
        yield f"# Avg bus bandwidth    : {sum(rates) / len(rates):.4f}"
    for row in rows:
        for line in row.get("steps") or ():
            yield f"# {line}".rstrip()
    for row in rows:
        for line in disturbance.footer(row, _transport(result, row)):
            yield f"# Faults               : {line}"
        for line in link_lines(row, _transport(result, row)):
            yield from wrapped("Link layer", line)
    if isinstance(left := result.get("unfinished"), Mapping):
        yield f"# Unfinished           : {unfinished.footer(left, _transport(result, left))}"
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
        yield f"# Error                : {error}"
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
