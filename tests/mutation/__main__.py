"""How many mutants of ``uet/`` the conformance tests notice: ``python -m tests.mutation``.

A seeded sample of all mutants is tried, ``--jobs`` at a time, until the sample or the time is over.
A mutant is *killed* when a test fails, does not end, or the program does not load any more; one
that *survives* is a rule that no test holds, or a change that makes no difference.  The score goes
beside the conformance report; ``uetemu conformance`` shows it.
"""

import argparse
import ast
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import click

from emulator.cli.conformance_verb import MUTATION, MUTATION_SCHEMA, PLACE
from tests import CHECKOUT
from tests.mutation.operators import Mutant, mutants
from tests.mutation.trial import TIMED_OUT, Trial

REPORT = CHECKOUT / PLACE.with_name(MUTATION)
TESTS = "tests/uet"
#: The wire format and replayed captures have tests that hold no state; fabrics take too long.
NO_TRIAL = ("wire/", "replay/", "fabric")
#: Files of tests in the first round of a trial.
FIRST_ROUND = 5
#: The dissector and the event log have tests of their own, which name no statement.
NO_PROTOCOL = ("wireshark", "eventlog", "api")
#: A trial that takes so many times as long as the tests of the program as it is does not end.
SLOWER = 4


def sources(places: Sequence[str]) -> list[Path]:
    """Return the files below ``places``, which are given from the checkout."""
    found = [path for place in places for path in _files(Path(place))]
    return [path for path in found if not any(word in str(path) for word in NO_PROTOCOL)]


def _files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def rounds(path: Path | None, tests: Sequence[str] = ()) -> list[list[str]]:
    """Return what pytest is called with for a mutant of ``path``; ``tests`` in place of all.

    A first round has tests of the file's package that name most of what the file defines, since
    the first failure ends a trial and collecting all of them takes long.
    """
    settings = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "conformance"]
    settings.append("--hypothesis-seed=0")
    files = [str(file) for file in sorted(Path(TESTS).rglob("test_*.py"))]
    files = [file for file in files if not any(word in file for word in NO_TRIAL)]
    if tests or path is None:
        return [[*settings, *(tests or files)]]
    package = path.parts[1] if len(path.parts) > 2 else ""
    own = f"{TESTS}/{package}"
    words = _words(path)
    files.sort(key=lambda file: (not file.startswith(own), -_mentions(file, words)))
    return [[*settings, *files[:FIRST_ROUND]], [*settings, *files[FIRST_ROUND:]]]


@cache
def _text(path: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", Path(path).read_text()))


def _mentions(path: str, words: set[str]) -> int:
    text = _text(path)
    return sum(text[word] for word in words)


@cache
def _words(path: Path) -> set[str]:
    """Return the names of the file, and of the functions and classes that it defines."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    defined = {
        node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)
    }
    return {path.stem, *(name for name in defined if not name.startswith("__"))}


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("places", nargs="*", default=["uet"], help="files or folders [uet]")
    parser.add_argument("--report", type=Path, default=REPORT, help="the score, as JSON")
    parser.add_argument("--seed", type=int, default=1, help="of the sample [1]")
    parser.add_argument("--sample", type=int, default=100, help="mutants to try at most [100]")
    parser.add_argument("--seconds", type=float, default=3600, help="begin none after that [3600]")
    parser.add_argument(
        "--limit",
        type=float,
        help="for a trial (s), past which it decides nothing; the tests are taken to pass on the "
        f"program as it is [{SLOWER} times what they take there, past which a mutant hangs]",
    )
    parser.add_argument("--tests", nargs="*", default=[], help="[all that prove a statement]")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time [2]")
    options = parser.parse_args(given)
    began = time.monotonic()
    every = [one for path in sources(options.places) for one in mutants(path)]
    if not every:
        parser.error(
            f"nothing below {' '.join(options.places)} can be mutated; call it in {CHECKOUT}"
        )
    sample = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    if options.limit is None:
        unchanged = Trial(None, rounds(None, options.tests))
        if status := unchanged.wait(options.seconds):
            click.echo(
                f"the tests fail on the program as it is (pytest: {status}); mend that first"
            )
            return 1
    limit = options.limit or SLOWER * unchanged.seconds
    click.echo(f"{len(every)} mutants, {len(sample)} in the sample; a trial may take {limit:.0f} s")
    survivors, killed = _tried(sample, options, limit, began + options.seconds)
    tried = killed + len(survivors)
    _write(options, len(every), killed, survivors)
    share = f" ({100 * killed / tried:.0f} %)" if tried else ""
    click.echo(f"{killed} of {tried} mutants killed{share}; seed {options.seed}")
    return 0


def _tried(
    sample: Sequence[Mutant], options: argparse.Namespace, limit_s: float, until: float
) -> tuple[list[Mutant], int]:
    """Return the survivors, and the number of those that were killed."""
    left, running = list(sample), list[Trial]()
    survivors, killed = list[Mutant](), 0
    while running or (left and time.monotonic() < until):
        while left and len(running) < options.jobs and time.monotonic() < until:
            mutant = left.pop(0)
            running.append(Trial(mutant, rounds(mutant.path, options.tests)))
        for trial in tuple(running):
            status = trial.result(limit_s)
            if status is None:
                continue
            running.remove(trial)
            assert trial.mutant is not None
            undecided = status == TIMED_OUT and options.limit is not None
            killed += status != 0 and not undecided
            if status == 0:
                survivors.append(trial.mutant)
            result = "too long" if undecided else "killed  " if status else "SURVIVED"
            click.echo(f"{result} {trial.mutant}")
        time.sleep(0.05)
    return survivors, killed


def _write(
    options: argparse.Namespace, total: int, killed: int, survivors: Sequence[Mutant]
) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=CHECKOUT
    )
    options.report.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "schema": MUTATION_SCHEMA,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() or None,
        "places": options.places,
        "seed": options.seed,
        "mutants": total,
        "tried": killed + len(survivors),
        "killed": killed,
        "survivors": [str(one) for one in sorted(survivors)],
    }
    options.report.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
