"""Write the table of this folder's manual: ``python -m scenarios.hardware.manual_table FOLDER``.

FOLDER is that of ``uetemu bench hardware``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.report.suite.folder import SuiteFolder
from emulator.suite.suite_model import shown_value
from scenarios.hardware.hardware_suite import FITTED, SUITE

MANUAL = Path(__file__).with_name("README.md")
_BLOCK = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
_HEADINGS = ("point", "measurement", "published", "uetemu", "ratio", "verdict")


def with_table(text: str, suite: SuiteFolder) -> str:
    """Return the manual ``text`` with the results of ``suite``.

    UserError unless the suite is that of hardware, and has ended.
    """
    missing = {test.number for test in SUITE.tests} - {
        test.number for test in suite.tests if test.measured
    }
    if suite.data.get("suite") != SUITE.name or missing:
        raise UserError(
            f"{suite.path} is no complete suite of hardware: run `uetemu bench hardware --output "
            f"{suite.path}`"
        )
    block = "\n".join(_lines(suite))
    return _BLOCK.sub(lambda found: f"{found[1]}{block}\n{found[2]}", text)


def measured(text: str) -> dict[str, float]:
    """Return what uetemu gives in the tables of the manual ``text``, by the number of the point."""
    width = len(_HEADINGS)
    rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| "))
    found = {row[0]: row[3].partition(" [")[0] for row in rows if len(row) == width}
    return {number: float(value) for number, value in found.items() if value[:1].isdigit()}


def _lines(suite: SuiteFolder) -> Iterator[str]:
    *sources, summary = suite.tests
    counts = summary.tables[0]
    yield from _table(
        [column.heading for column in counts.columns],
        ([shown_value(row.get(column.key)) for column in counts.columns] for row in counts.rows),
    )
    yield ""
    yield from (f"- {note}" for note in summary.notes)
    for test in sources:
        rows = test.tables[0].rows
        yield from ("", f"**{test.number} {test.title}** ({test.objective})", "")
        yield from _table(_HEADINGS, map(_cells, rows))
        reasons = [row for row in rows if row.get("why")]
        if reasons:
            yield ""
            yield from (f"- {row['number']}: {row['why']}" for row in reasons)


def _cells(row: Mapping[str, Any]) -> list[str]:
    fitted = " (fitted)" if row["counts"] == FITTED else ""
    least, most = shown_value(row.get("least")), shown_value(row.get("most"))
    spread = "" if least == most else f" [{least} .. {most}]"
    return [
        row["number"],
        row["title"],
        f"{row['published']} {row['unit']}",
        f"{shown_value(row.get('value'))}{spread}",
        shown_value(row.get("ratio")),
        f"{row['verdict']}{fitted}",
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
