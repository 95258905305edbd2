"""Write the table of this folder's manual: ``python -m scenarios.hardware.manual_table FOLDER``.

FOLDER is that of ``uetemu bench hardware``, of all sources or of some (``--tests 8``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.report.suite.folder import ReportedTest, SuiteFolder
from emulator.suite.suite_model import shown_value
from scenarios.hardware.hardware_suite import COUNTS, SOURCES, SUITE, counted, notes
from scenarios.hardware.points import COUNTED, NO_RUN

MANUAL = Path(__file__).with_name("README.md")
_BLOCK = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
#: The part of a source begins with its number and title.
_PART = re.compile(r"^\*\*(\d+) .*?(?=^\*\*\d+ |^<!-- end -->)", re.DOTALL | re.MULTILINE)
_TITLES = {source.number: source.title for source in SOURCES}
_HEADINGS = ("point", "measurement", "published", "uetemu", "ratio", "verdict")


def with_table(text: str, suite: SuiteFolder) -> str:
    """Return the manual ``text`` with the results of ``suite``.

    Sources that it has not measured keep the tables that they have.  UserError unless it is of
    hardware, and if such a source has none.
    """
    block = _BLOCK.search(text)
    parts = {} if block is None else _parts(block[0])
    for test in suite.tests:
        if suite.data.get("suite") == SUITE.name and test.measured and test.number in _TITLES:
            parts[test.number] = "\n".join(_section(test))
    missing = [number for number in _TITLES if number not in parts]
    if block is None or missing:
        raise UserError(
            f"{suite.path} is no suite of hardware with source {', '.join(missing) or 'at all'}, "
            f"of which there is no table yet: run `uetemu bench hardware --output {suite.path}`"
        )
    lines = "\n".join([*_summary(parts), *(f"\n{parts[number]}" for number in _TITLES)])
    return _BLOCK.sub(lambda found: f"{found[1]}{lines}\n{found[2]}", text)


def _parts(block: str) -> dict[str, str]:
    """Return the part of each source, by its number."""
    return {found[1]: found[0].rstrip() for found in _PART.finditer(block)}


def measured(text: str) -> dict[str, float]:
    """Return what uetemu gives in the tables of the manual ``text``, by the number of the point."""
    width = len(_HEADINGS)
    rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| "))
    found = {row[0]: row[3].partition(" [")[0] for row in rows if len(row) == width}
    return {number: float(value) for number, value in found.items() if value[:1].isdigit()}


def _summary(parts: Mapping[str, str]) -> Iterator[str]:
    """Yield the counts of verdicts, and how many agree."""
    rows = {number: list(_rows(part)) for number, part in parts.items()}
    counts = [counted(_TITLES[number], rows[number]) for number in _TITLES]
    every = [row for number in _TITLES for row in rows[number]]
    counts.append(total := counted("all", every))
    yield from _table(
        [column.heading for column in COUNTS],
        ([shown_value(row.get(column.key)) for column in COUNTS] for row in counts),
    )
    yield ""
    yield from (f"- {note}" for note in notes(total, every))


def _rows(part: str) -> Iterator[dict[str, Any]]:
    """Yield number, verdict, reason, and whether it counts, of each point in a part."""
    for line in part.splitlines():
        cells = line.strip("| ").split(" | ")
        if len(cells) == len(_HEADINGS) and cells != list(_HEADINGS):
            verdict, _, why_not = cells[-1].removesuffix(")").partition(" (")
            yield {
                "number": cells[0],
                "verdict": verdict,
                "counts": f"no: {why_not}" if why_not else COUNTED,
                "why": f"\n- {cells[0]}: " in part,
            }


def _section(test: ReportedTest) -> Iterator[str]:
    rows = test.tables[0].rows
    yield from (f"**{test.number} {test.title}** ({test.objective})", "")
    yield from _table(_HEADINGS, map(_cells, rows))
    reasons = [row for row in rows if row.get("why")]
    if reasons:
        yield ""
        yield from (f"- {row['number']}: {row['why']}" for row in reasons)


def _cells(row: Mapping[str, Any]) -> list[str]:
    why_not = row["counts"].partition(": ")[2] if row["counts"] != NO_RUN else ""
    least, most = shown_value(row.get("least")), shown_value(row.get("most"))
    spread = "" if least == most else f" [{least} .. {most}]"
    return [
        row["number"],
        row["title"],
        f"{row['published']} {row['unit']}",
        f"{shown_value(row.get('value'))}{spread}",
        shown_value(row.get("ratio")),
        f"{row['verdict']} ({why_not})" if why_not else row["verdict"],
    ]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def main(folder: str) -> None:
    """Write the results in ``folder`` into the manual."""
    suite = SuiteFolder.read(Path(folder))
    MANUAL.write_text(with_table(MANUAL.read_text(), suite))


if __name__ == "__main__":
    main(*sys.argv[1:])
