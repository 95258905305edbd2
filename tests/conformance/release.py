"""``python -m tests.conformance.release``: make the report that is shipped, of the checkout's own.

To be called after tests of statements have changed and run; of files that did not run here, what
was shipped stays.  A test stands in it once, whatever its parameters.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from emulator.cli import conformance_verb as verb
from tests import CHECKOUT
from tests.conformance.report import OUTCOMES, facts
from tests.conformance.statements import load

#: What tells nothing where other parameters of the test have run.
_SILENT = ("not-run", "skipped")


def condensed(report: Mapping[str, Any], shipped: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``report`` without the parameters of its tests; each comes to the worst that ran.

    Files that it does not know have the tests of ``shipped``.
    """
    files = {node.split("::")[0] for node in report["tests"]}
    tests: dict[str, dict[str, Any]] = {
        node: dict(record)
        for node, record in shipped["tests"].items()
        if (file := node.split("::")[0]) not in files and (CHECKOUT / file).exists()
    }
    for node, record in report["tests"].items():
        known = tests.setdefault(
            node.split("[")[0], {"outcome": record["outcome"], "statements": []}
        )
        known["statements"] = sorted({*known["statements"], *record["statements"]})
        outcomes = {known["outcome"], record["outcome"]}
        telling = outcomes.difference(_SILENT) or outcomes
        known["outcome"] = min(telling, key=OUTCOMES.index)
    return facts(
        load(),
        dict(sorted(tests.items())),
        written=report["written"],
        commit=None,
        versions=report["versions"],
        ran=len(tests),
    )


def lines(report: Mapping[str, Any]) -> str:
    """The report as JSON with a line for each statement and test."""
    parts = []
    for key, value in report.items():
        text = json.dumps(value)
        if key == "tests":
            rows = (f"{json.dumps(name)}: {json.dumps(record)}" for name, record in value.items())
            text = "{\n" + ",\n".join(rows) + "\n}"
        elif isinstance(value, list):
            text = "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Write the report; ends with the statements that are not proven, if there are any."""
    report = condensed(verb.load(CHECKOUT / verb.PLACE), verb.load(verb.SHIPPED))
    open_rows = [row for row in report["statements"] if row["result"] not in verb.IN_ORDER]
    if open_rows:
        sys.exit("\n".join(f"{row['number']}: {row['result']}" for row in open_rows))
    verb.SHIPPED.write_text(lines(report))


if __name__ == "__main__":
    main()
