"""``uetemu conformance``: which numbered statements the tests have proven."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emulator.cli.options import TABLE_OR_JSON
from emulator.errors import UserError

#: Where pytest leaves the report, from the checkout.
PLACE = Path(".pytest_cache", "d", "conformance", "report.json")
#: The report of this version's tests; ``python -m tests.conformance.release`` makes it.
SHIPPED = Path(__file__).with_name("conformance.json")
SCHEMA = "uetemu.conformance/1"

#: Where a mutation run leaves its score, beside the report.
MUTATION = "mutation.json"
MUTATION_SCHEMA = "uetemu.mutation/1"

_HOW = "vagrant/provision.sh pytest"
_MUTATE = "vagrant/provision.sh python -m tests.mutation"

#: What a statement can come to -> how the table states it.
RESULTS = {
    "passed": "passed",
    "failed": "FAILED",
    "xfailed": "fails, as expected",
    "xpassed": "passes, unexpectedly",
    "skipped": "skipped",
    "not-run": "not run",
    "untested": "untested",
    "missing": "no test known",
}

#: What is in order: proven, or stated not to be.
IN_ORDER = ("passed", "untested")


@click.command("conformance")
@click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The report of a test run.  [default: the checkout's]",
)
@TABLE_OR_JSON
@click.option("--family", metavar="NAME", help="Only the statements of this family, such as uet.")
@click.option(
    "--only",
    type=click.Choice(["failing", *RESULTS]),
    multiple=True,
    help="Show only these; `failing` are all that keep the exit status from being 0.",
)
@click.option("--verbose", "-v", is_flag=True, help="Name the tests of each statement.")
def command(
    file: Path | None, form: str, family: str | None, only: Sequence[str], verbose: bool
) -> None:
    """Show every conformance statement, its source, and what its tests came to.

    A statement is passed if all tests that name it are. Exit status 0 if every statement is passed
    or listed as untested with a reason. The results are those of the last run of each test here, or
    where none has run, those of this version's tests, which are shipped with it.
    """
    path = find(file)
    report = chosen(load(path), family)
    requested = {
        result
        for name in only
        for result in ((set(RESULTS) - set(IN_ORDER)) if name == "failing" else {name})
    } or set(RESULTS)
    shown = [row for row in report["statements"] if row["result"] in requested]
    if form == "json":
        score = load_mutation(path)
        beside = {} if score is None else {"mutation": score}
        click.echo(json.dumps(report | {"statements": shown} | beside, indent=2))
    else:
        if shown:
            click.echo(drawn(shown, report["tests"], verbose))
        mutants = [] if path == SHIPPED else mutation(path)
        click.echo("\n".join([*totals(report, path), *mutants]))
    if open_rows := [row for row in report["statements"] if row["result"] not in IN_ORDER]:
        raise UserError(_verdict(open_rows, report))


def find(given: Path | None, start: Path | None = None) -> Path:
    """The report to show: the given file, else that of the checkout one is in, else of this one.

    Where none of them has one it is :data:`SHIPPED`.

    Raises:
        UserError: the given file is not there; says how to make it.
    """
    if given is not None:
        if given.is_file():
            return given
        raise UserError(f"there is no report {given}; make one: {_HOW} --conformance-file {given}")
    here = (start or Path.cwd()).resolve()
    # Only a checkout's root, so that a stray cache of another project above it is not taken.
    roots = [folder for folder in (here, *here.parents) if (folder / "tests/conformance").is_dir()]
    roots.append(Path(__file__).resolve().parents[2])
    places = (root / PLACE for root in roots)
    return next((place for place in places if place.is_file()), SHIPPED)


def load(path: Path) -> dict[str, Any]:
    """Read a report.

    Raises:
        UserError: it cannot be read, or is none.
    """
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); run the tests again: {_HOW}") from None
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA:
        raise UserError(f"{path} is no conformance report ({SCHEMA}); run the tests again: {_HOW}")
    return dict(report)


def chosen(report: dict[str, Any], family: str | None) -> dict[str, Any]:
    """The report, of one family if one is named.

    Raises:
        UserError: the report has no such family.
    """
    if family is None:
        return report
    known = [each["name"] for each in report["families"]]
    if family not in known:
        raise UserError(f"there is no family {family}; there is {', '.join(known)}")
    rows = [row for row in report["statements"] if row["family"] == family]
    named = {name for row in rows for name in row["tests"]}
    return report | {
        "families": [each for each in report["families"] if each["name"] == family],
        "statements": rows,
        "tests": {name: record for name, record in report["tests"].items() if name in named},
    }


def drawn(
    rows: Iterable[Mapping[str, Any]], tests: Mapping[str, Mapping[str, Any]], verbose: bool
) -> str:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("number", no_wrap=True)
    table.add_column("statement", max_width=70)
    table.add_column("source", max_width=32)
    table.add_column("conf.")
    table.add_column("tests", justify="left" if verbose else "right", overflow="fold")
    table.add_column("result", max_width=24)
    for row in rows:
        text, stated = row["text"], RESULTS[row["result"]]
        if row["note"]:
            text += f" ({row['note']})"
        if row["result"] == "untested":
            stated += f": {row['untested']}"
        elif row["left_out"]:
            stated += f"; left out: {row['left_out']}"
        cells = (row["number"], text, row["source"], row["confidence"], _tests(row, tests, verbose))
        # As Text: brackets in a test's name are no markup.
        table.add_row(*(Text(cell) for cell in (*cells, stated)))
    text_of = io.StringIO()
    Console(file=text_of, width=260 if verbose else 200).print(table)
    return "\n".join(line.rstrip() for line in text_of.getvalue().strip("\n").splitlines())


def _tests(row: Mapping[str, Any], tests: Mapping[str, Mapping[str, Any]], verbose: bool) -> str:
    """Return the number or the names of the statement's tests, with results other than passed."""
    if not verbose:
        return str(len(row["tests"]))
    lines = []
    for name in row["tests"]:
        outcome = tests[name]["outcome"]
        lines.append(name if outcome == "passed" else f"{name} ({RESULTS[outcome]})")
    return "\n".join(lines)


def totals(report: Mapping[str, Any], path: Path) -> list[str]:
    """The lines below the table."""
    lines = []
    for family in report["families"]:
        of = [row for row in report["statements"] if row["family"] == family["name"]]
        count = Counter(row["result"] for row in of)
        results = ", ".join(
            f"{count[name]} {stated}" for name, stated in RESULTS.items() if count[name]
        )
        lines.append(f"{family['title']}: {len(of)} statements: {results}")
    tests = report["tests"]
    commit = report["commit"] or "unknown"
    if path == SHIPPED:
        lines.append(
            f"the report shipped with uetemu {report['versions']['uetemu']}: {len(tests)} tests, "
            f"run {report['written']}; run them here: {_HOW}"
        )
        return lines
    lines.append(f"{len(tests)} tests; last run {report['written']}, commit {commit}: {path}")
    older = sum(
        record["ran"] is not None and record["commit"] != report["commit"]
        for record in tests.values()
    )
    if older:
        lines.append(f"{older} of the tests ran last at another commit; run all: {_HOW}")
    if in_part := [r["number"] for r in report["statements"] if r["tests"] and r["left_out"]]:
        lines.append(f"tested in part only: {', '.join(in_part)}")
    if stale := [r["number"] for r in report["statements"] if r["tests"] and r["untested"]]:
        lines.append(f"tested, but called untested in statements.toml: {', '.join(stale)}")
    return lines


def load_mutation(path: Path) -> dict[str, Any] | None:
    """Return the score of the last mutation run, which lies beside the report at ``path``.

    Raises:
        UserError: it cannot be read, or is none.
    """
    beside = path.with_name(MUTATION)
    if not beside.is_file():
        return None
    try:
        score = json.loads(beside.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{beside} cannot be read ({error}); run {_MUTATE} again") from None
    if not isinstance(score, dict) or score.get("schema") != MUTATION_SCHEMA:
        raise UserError(f"{beside} is no mutation score ({MUTATION_SCHEMA}); run {_MUTATE} again")
    return dict(score)


def mutation(path: Path) -> list[str]:
    """Return the lines on how many mutants of the program the tests have noticed."""
    score = load_mutation(path)
    if score is None:
        return [f"mutants: none tried; try some: {_MUTATE}"]
    tried, killed = score["tried"], score["killed"]
    share = f" ({100 * killed / tried:.0f} %)" if tried else ""
    return [
        f"mutants of {' '.join(score['places'])}: {killed} of {tried} killed{share}, a sample of "
        f"{score['mutants']} with seed {score['seed']}; commit {score['commit'] or 'unknown'}, "
        f"{score['written']}",
        *(f"  survived: {one}" for one in score["survivors"]),
    ]


def _verdict(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> str:
    ran = sum(record["ran"] is not None for record in report["tests"].values())
    some = ", ".join(f"{row['number']} ({RESULTS[row['result']]})" for row in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return (
        f"neither passed nor listed as untested: {len(rows)} of {len(report['statements'])} "
        f"statements, {some}{more}; {ran} tests of the report have run; "
        "see them: uetemu conformance --only failing -v"
    )
