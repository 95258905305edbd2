"""Options of ``uetemu run`` that are more than a word: their values, and refusals of wrong ones.

Each function raises UserError for a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import hexdigits

from emulator.errors import UserError
from emulator.scenario import Scenario
from emulator.sim.frame_digest import DIGITS
from emulator.workers import MOST_WORKERS
from topologies.units import UnitError, parse_time_ns


def refuse_host_clock(clock: str, dilation: str | None) -> None:
    """Raise UserError for what ``uetemu run`` had before: the machine's own time."""
    if clock == "host" or dilation is not None:
        raise UserError(
            "runs have the virtual clock alone: leave --clock host and --dilation out; the "
            "machine's time, dilated, is that of labs (uetemu up --dilation N), with a process "
            "for each GPU (uetemu fep --gpu, uetemu hca --gpu)"
        )


def parse_workers(text: str | None) -> int | None:
    """``--workers``, None if that is left to the run."""
    if text in (None, "auto"):
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_WORKERS:
        raise UserError(f"--workers {text!r} is neither auto nor a number from 1 to {MOST_WORKERS}")
    return int(text)


def parse_parts(path: Path | None, workers: str | None) -> list[list[str]] | None:
    """The names in each line of ``--parts``; None without it."""
    if path is None:
        return None
    if workers is not None:
        raise UserError(f"--parts has a line for each worker: leave --workers {workers} out")
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--parts {path} cannot be read: {error}") from error
    parts = [names for line in lines if (names := line.partition("#")[0].split())]
    if not 1 <= len(parts) <= MOST_WORKERS:
        raise UserError(
            f"--parts {path} has {len(parts)} lines with names: write one for each worker, "
            f"{MOST_WORKERS} at most, such as rail0 rail1 spine0"
        )
    return parts


def parse_digest(text: str | None) -> str | None:
    """``--check-digest`` in lower case."""
    if text is None:
        return None
    if len(text) != DIGITS or not set(text.lower()) <= set(hexdigits):
        raise UserError(
            f"digest {text!r} is none: give the {DIGITS} hexadecimal digits of result.json"
        )
    return text.lower()


def parse_gap(text: str | None) -> int:
    """``--gap`` in ns of fabric time."""
    try:
        return 0 if text is None else parse_time_ns(text)
    except UnitError as error:
        raise UserError(f"--gap: {error}") from None


def parameter_texts(pairs: Sequence[str], options: Mapping[str, str | None]) -> dict[str, str]:
    """``NAME=VALUE`` pairs and options as one mapping; nothing may be given twice."""
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not name or not equals:
            raise UserError(f"--param {pair!r} is not NAME=VALUE, such as iterations=5")
        if name in given:
            raise UserError(f"--param {name} is given twice; keep one of them")
        given[name] = value
    for name, text in options.items():
        if text is None:
            continue
        if name in given:
            raise UserError(f"--{name} and --param {name} say the same thing; keep one of them")
        given[name] = text
    return given


def files_text(loaded: Scenario, files: Sequence[str], given: Mapping[str, str]) -> str:
    """Return ``files`` as the text of the parameter ``files``.

    UserError if the scenario has none, or if the user gave it as well.
    """
    if not loaded.takes("files"):
        raise UserError(
            f"scenario {loaded.name} reads no files, and {files[0]!r} is given; leave it out, or "
            "write parameters as --param NAME=VALUE"
        )
    if "files" in given:
        raise UserError("files are given, and --param files as well; keep one of them")
    for file in files:
        if "," in file:
            raise UserError(f"{file!r} has a comma in its name; rename the file")
    return ",".join(files)
