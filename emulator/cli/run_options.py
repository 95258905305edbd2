"""Options of ``uetemu run`` that are more than a word: their values, and refusals of wrong ones.

Each function raises UserError for a value, or a clock, that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import hexdigits

from emulator.engine.frame_digest import DIGITS
from emulator.engine.workers.partition import MOST_WORKERS
from emulator.errors import UserError
from emulator.lab import LARGEST_DILATION
from emulator.lab_record import Clock as ClockKind
from emulator.scenario import Scenario
from topologies.units import UnitError, parse_time_ns


def host_dilation(clock: ClockKind, text: str | None) -> float | None:
    """``--dilation`` of a run by ``clock``, None if that is left to the run."""
    if text is None:
        return None
    dilation = parse_dilation(text)
    if clock != "host":
        raise UserError(
            "--dilation is the host clock's, and the virtual one needs none: leave it out, or take "
            "--clock host"
        )
    return dilation


def parse_dilation(text: str) -> float | None:
    """``auto`` is None, anything else a number."""
    if text == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= LARGEST_DILATION:  # also refuses nan
        raise UserError(
            f"dilation {text!r} is none: write auto, or a number up to {LARGEST_DILATION:,} "
            "(seconds of this machine for one second of the fabric)"
        )
    return value


def parse_workers(text: str | None, clock: ClockKind) -> int | None:
    """``--workers``, None if that is left to the run."""
    if text is None:
        return None
    if clock != "virtual":
        raise UserError(
            "--workers is the virtual clock's: with --clock host each GPU has a process of its own"
        )
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_WORKERS:
        raise UserError(f"--workers {text!r} is neither auto nor a number from 1 to {MOST_WORKERS}")
    return int(text)


def parse_parts(path: Path | None, clock: ClockKind, workers: str | None) -> list[list[str]] | None:
    """The names in each line of ``--parts``; None without it."""
    if path is None:
        return None
    if clock != "virtual":
        raise UserError("--parts is the virtual clock's: leave it out with --clock host")
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


def parse_digest(text: str | None, clock: ClockKind) -> str | None:
    """``--check-digest`` in lower case."""
    if text is None:
        return None
    if clock != "virtual":
        raise UserError("--check-digest is for --clock virtual: no other run can be repeated")
    if len(text) != DIGITS or not set(text.lower()) <= set(hexdigits):
        raise UserError(
            f"digest {text!r} is none: give the {DIGITS} hexadecimal digits of result.json"
        )
    return text.lower()


def timed_frames(every: int | None, clock: ClockKind) -> int:
    """Return ``--frame-latency``; 0 if no frame is timed."""
    if every is not None and clock != "virtual":
        raise UserError(
            "--frame-latency is for the virtual clock, whose times are exact to the picosecond; "
            "leave --clock host out"
        )
    return every or 0


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
