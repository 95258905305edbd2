"""What ``uetemu run`` makes of its words: the scenario that is meant, and values of options.

Each function raises UserError for what does not fit.

Servers use storage over TCP by the host's clock (``uetemu cluster dataset``), and by RDMA in
virtual time.  ``uetemu run dataset`` means the latter, which is the scenario ``storage_rdma`` with
its ``work`` set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from string import hexdigits

from emulator import scenario as scenarios
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


_OF_CLUSTERS = "scenarios.cluster_tests"
#: Names by which users mean TCP, which is no transport of runs.
TCP_NAMES = ("tcp", "nvme", "nvme-tcp", "nvme_tcp")


def chosen(
    name: str, given: Mapping[str, str], transport: str | None
) -> tuple[scenarios.Scenario, dict[str, str]]:
    """Return the scenario that ``name`` means with the parameters ``given``, and those to set.

    Raises UserError for a name that is none, for a parameter that contradicts the name, and for
    storage over TCP; where another command is right, the sentence has it.
    """
    plain = name.replace("-", "_")
    if plain.isidentifier() and find_spec(f"{_OF_CLUSTERS}.{plain}"):
        loaded, parameters = _by_rdma(plain, given)
    else:
        loaded, parameters = _as_given(name, given)
    over_tcp = getattr(loaded.module, "OVER_TCP", None)
    if over_tcp and transport is not None and transport.partition(":")[0] in TCP_NAMES:
        raise UserError(f"storage over TCP runs by the host's clock, on a cluster: {over_tcp}")
    return loaded, parameters


def _by_rdma(name: str, given: Mapping[str, str]) -> tuple[scenarios.Scenario, dict[str, str]]:
    """Return the run that does by RDMA what the scenario ``name`` of a cluster does."""
    from emulator.cluster.run import cluster_scenario

    by_rdma = cluster_scenario.load(name).by_rdma
    if by_rdma is None:
        raise UserError(f"{name} is a scenario of a whole cluster; run uetemu cluster {name}")
    return _varied(name, by_rdma, given)


def _as_given(name: str, given: Mapping[str, str]) -> tuple[scenarios.Scenario, dict[str, str]]:
    """Return the scenario ``name``, or the one that it has for a value of a parameter."""
    loaded = scenarios.load(name, _with_rdma())
    for parameter, instead in getattr(loaded.module, "INSTEAD", {}).items():
        chosen_value = given.get(parameter, "")
        if variant := instead.get(chosen_value):
            rest = {key: text for key, text in given.items() if key != parameter}
            return _varied(f"{name} with {parameter}={chosen_value}", variant, rest)
        for value, variant in instead.items():
            other = scenarios.load(variant[0])
            for key in (key for key in given if other.takes(key) and not loaded.takes(key)):
                raise UserError(f"{key} is for {name} with {parameter}={value}; add that --param")
    return loaded, dict(given)


def _with_rdma() -> Iterator[str]:
    """Yield the scenarios of clusters that a run can do by RDMA, for a hint to a wrong name."""
    from emulator.cluster.run import cluster_scenario

    yield from (one for one in cluster_scenario.names() if cluster_scenario.load(one).by_rdma)


def _varied(
    called: str, variant: tuple[str, Mapping[str, str]], given: Mapping[str, str]
) -> tuple[scenarios.Scenario, dict[str, str]]:
    scenario, fixed = variant
    for key, text in fixed.items():
        if given.get(key, text) != text:
            raise UserError(
                f"{called} is {scenario} with {key}={text}; leave {key} out, or run {scenario}"
            )
    return scenarios.load(scenario), {**given, **fixed}
