"""Measure what a GPU costs as fabrics grow: ``python -m tests.bench grow`` or ``tests.bench.grow``.

Every run is ``uetemu run pairs`` in processes of its own: each GPU of one half of the servers of a
fat tree writes to one of the other half and is written to, so that every packet crosses a spine.

The figures of a run: seconds until its endpoints stand, of wall and of processor time (which other
work on the machine does not change as much); the proportional memory (PSS) of all its
processes together at its highest, per GPU; data packets a second of processor time, and of wall
time, from then until the last octet has arrived.  A run is ended when it exceeds its limits.

A size that was not measured is extrapolated by a power law through the measured ones (least
squares of logarithms).  Its keys have ``extrapolated`` in their names.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from emulator.errors import UserError
from tests.bench import machine

CODE = "from emulator.cli.main import main; main()"
GIB = 2**30
#: Fabrics by number of GPUs: two tiers of one radix, and so many of its leaves.
FABRICS: Mapping[int, str] = {
    64: "fat_tree:radix=16,leaves=8,gpus_per_host=8",
    128: "fat_tree:radix=16,gpus_per_host=8",
    256: "fat_tree:radix=32,leaves=16,gpus_per_host=8",
    512: "fat_tree:radix=32,gpus_per_host=8",
    1024: "fat_tree:radix=64,leaves=32,gpus_per_host=8",
    2048: "fat_tree:radix=64,gpus_per_host=8",
    4096: "fat_tree:radix=128,leaves=64,gpus_per_host=8",
    8192: "fat_tree:radix=128,gpus_per_host=8",
}
SIZES: Mapping[str, tuple[int, ...]] = {
    "kernel": (64, 128, 256, 512),
    "model": (512, 2048, 8192),
}
RANKS = (1, 2, 4)
#: Octets that each GPU writes: 16 packets, so that a run's fabric time is some microseconds.
WRITTEN = "64KiB"
#: Figures of a run, each with whether it grows with the number of GPUs by a law of its own.
FITTED = (
    "build_s",
    "build_processor_s",
    "megabytes_per_gpu",
    "packets_per_processor_s",
    "packets_per_s",
)
#: Wall time (s) between two looks at processor time, and how many of them there are between two
#: at memory.
_LOOK_S, _LOOKS = 0.05, 10
_TICKS = os.sysconf("SC_CLK_TCK")
_FAREWELL_S = 20.0


@dataclass(frozen=True)
class Limits:
    """The memory (octets, PSS of all processes) and the wall time (s) that a run may take."""

    octets: int = 16 * GIB
    seconds: float = 600.0


@dataclass(frozen=True)
class Growth:
    """``value = factor * gpus ** exponent``; ``residual``: the largest misfit, as a share.

    A line through two points has no residual.
    """

    factor: float
    exponent: float
    residual: float | None

    @classmethod
    def of(cls, measured: Mapping[int, float]) -> Growth:
        """Fit ``measured`` values (above 0) by their number of GPUs; there are two at least."""
        places = [math.log(gpus) for gpus in measured]
        values = [math.log(value) for value in measured.values()]
        slope, intercept = statistics.linear_regression(places, values)
        misfits = [
            abs(math.expm1(intercept + slope * place - value))
            for place, value in zip(places, values, strict=True)
        ]
        return cls(math.exp(intercept), slope, max(misfits) if len(misfits) > 2 else None)

    def at(self, gpus: int) -> float:
        """Return the value for ``gpus``."""
        return float(self.factor * gpus**self.exponent)


@dataclass
class _Watched:
    """The processes of a run, as far as they were seen: memory in octets, processor time in s."""

    highest: int = 0
    processor_s: float = 0.0
    started_s: float | None = None
    _by_process: dict[int, float] = field(default_factory=dict)

    _looks: int = 0

    def look(self, first: int) -> None:
        """Read the processor time of process ``first`` and all below it, and now and then memory.

        Ended ones keep what they had taken.
        """
        family = list(_family(first))
        for process in family:
            self._by_process[process] = max(
                self._by_process.get(process, 0.0), _processor_s(process)
            )
        if self._looks % _LOOKS == 0:
            self.highest = max(self.highest, sum(map(_proportional, family)))
        self._looks += 1
        self.processor_s = sum(self._by_process.values())


def run(fabric: str, gpus: int, ranks: int, limits: Limits) -> dict[str, float]:
    """Return the figures of one run of ``gpus`` on ``fabric`` (``kernel`` or ``model``).

    Raises :class:`UserError`, one sentence, if it exceeds ``limits`` or fails.
    """
    with TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        command = [sys.executable, "-c", CODE, "run", "pairs", "--topology", FABRICS[gpus]]
        command += ["--param", "direction=both", "--param", f"size={WRITTEN}"]
        command += ["--param", "warmups=0", "--iterations", "1", "--capture", "none"]
        command += ["--output", str(output), "--fabric", fabric]
        if ranks > 1:
            command = _launcher(ranks) + command
        elif fabric == "kernel":
            command += ["--workers", "1"]
        what = f"{gpus} GPUs on --fabric {fabric}, {ranks} ranks"
        errors = Path(folder) / "errors"
        began = time.time()
        with errors.open("w") as told:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told)
        try:
            watched = _watch(process, output / "events.jsonl", limits, what)
        finally:
            _end(process)
        if process.returncode:
            lines = errors.read_text().strip().splitlines()
            raise UserError(f"{what}: {lines[-1] if lines else process.returncode}")
        at = _times(output / "events.jsonl")
        result: dict[str, Any] = json.loads((output / "result.json").read_text())
    names = ("transport.tx_data_packets", "transport.tx_retransmitted_packets")
    packets = sum(one.get(name, 0) for one in result["endpoints"].values() for name in names)
    assert watched.started_s is not None
    return {
        "build_s": at["started"] - began,
        "build_processor_s": watched.started_s,
        "megabytes_per_gpu": watched.highest / gpus / 1e6,
        "packets_per_processor_s": packets / max(watched.processor_s - watched.started_s, 1e-3),
        "packets_per_s": packets / (at["row"] - at["started"]),
    }


def _launcher(ranks: int) -> list[str]:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise UserError("mpirun is missing: vagrant/provision.sh --with mpi installs it")
    return [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]


def _watch(process: subprocess.Popen[bytes], events: Path, limits: Limits, what: str) -> _Watched:
    """Watch ``process`` until it ends; :class:`UserError` if it exceeds ``limits``.

    Processor time is counted until the row is there: what follows is the writing of files.
    """
    watched, counted = _Watched(), 0.0
    give_up = time.monotonic() + limits.seconds
    while process.poll() is None:
        watched.look(process.pid)
        seen = _times(events)
        if watched.started_s is None and "started" in seen:
            watched.started_s = watched.processor_s
        if "row" not in seen or not counted:
            counted = watched.processor_s
        if watched.highest > limits.octets:
            raise UserError(f"{what}: more than {limits.octets / GIB:g} GiB of memory")
        if time.monotonic() > give_up:
            raise UserError(f"{what}: longer than {limits.seconds:g} s")
        try:
            process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            continue
    if watched.started_s is None:
        watched.started_s = 0.0
    watched.processor_s = counted
    return watched


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have ``process`` clean up and end, if it has not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            for one in [*_family(process.pid)]:
                os.kill(one, signal.SIGKILL)
            process.wait()


def _times(events: Path) -> dict[str, float]:
    """Return when each kind of event was first written (s since the epoch)."""
    found: dict[str, float] = {}
    if not events.exists():
        return found
    with events.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                event = json.loads(line)
                when = datetime.fromisoformat(event["time"]).timestamp()
                found.setdefault(event["event"], when)
    return found


def _family(first: int) -> Iterator[int]:
    """Yield ``first`` and all processes below it that are there."""
    waiting = [first]
    while waiting:
        process = waiting.pop()
        yield process
        try:
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended


def _proportional(process: int) -> int:
    """Return the proportional set size of ``process`` in octets, 0 if it has ended."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0


def _processor_s(process: int) -> float:
    """Return user and system time of ``process`` and those it has waited for, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measure(
    sizes: Mapping[str, Sequence[int]] = SIZES,
    ranks: Sequence[int] = RANKS,
    limits: Limits | None = None,
    beyond: Sequence[int] = (),
) -> dict[str, float]:
    """Run all ``sizes`` with each number of ``ranks``, and extrapolate what was not measured.

    Sizes ``beyond`` are not tried.
    """
    limits, found = limits or Limits(), {}
    for fabric, of_fabric in sizes.items():
        for count in ranks:
            found |= _grown(fabric, sorted(of_fabric), count, limits, beyond)
    return found


def _grown(
    fabric: str, sizes: Sequence[int], ranks: int, limits: Limits, beyond: Sequence[int]
) -> dict[str, float]:
    measured: dict[int, dict[str, float]] = {}
    found: dict[str, float] = {}
    for gpus in sizes:
        click.echo(f"measuring {gpus} GPUs, --fabric {fabric}, {ranks} ranks", err=True)
        try:
            measured[gpus] = run(fabric, gpus, ranks, limits)
        except UserError as error:
            click.echo(f"not measured: {error}", err=True)
            break  # a larger one takes more
        found |= {_key(fabric, gpus, ranks, name): value for name, value in measured[gpus].items()}
    if len(measured) < 2:
        return found
    for name in FITTED:
        growth = Growth.of({gpus: one[name] for gpus, one in measured.items()})
        found[f"{fabric}_r{ranks}_{name}_exponent"] = growth.exponent
        if growth.residual is not None:
            found[f"{fabric}_r{ranks}_{name}_residual"] = growth.residual
        for gpus in (*sizes, *beyond):
            if gpus not in measured:
                key = _key(fabric, gpus, ranks, name)
                found[f"{key}_extrapolated"] = growth.at(gpus)
    return found


def _key(fabric: str, gpus: int, ranks: int, name: str) -> str:
    return f"{fabric}_{gpus:04}_r{ranks}_{name}"


def _numbers(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(","))) if text else ()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers, such as 1,2") from None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--fabric", type=click.Choice(list(SIZES)), default="model")
@click.option("--gpus", callback=_numbers, default="", help="such as 512,2048; default: all")
@click.option("--beyond", callback=_numbers, default="", help="extrapolated, and not tried")
@click.option("--ranks", callback=_numbers, default=",".join(map(str, RANKS)), show_default=True)
@click.option("--gib", type=click.FloatRange(0.1), default=16.0, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=600.0, show_default=True)
def main(
    fabric: str,
    gpus: tuple[int, ...],
    beyond: tuple[int, ...],
    ranks: tuple[int, ...],
    gib: float,
    seconds: float,
) -> None:
    """Measure fabrics of so many GPUs with so many MPI ranks; figures as JSON.

    A run ends when it takes more memory (GiB) or time (s).
    """
    unknown = [str(one) for one in gpus if one not in FABRICS]
    if unknown:
        known = ", ".join(map(str, FABRICS))
        raise click.UsageError(f"no fabric of {', '.join(unknown)} GPUs; there are {known}")
    limits = Limits(round(gib * GIB), seconds)
    found = measure({fabric: gpus or SIZES[fabric]}, ranks, limits, beyond)
    click.echo(json.dumps({"benchmark": "grow", **found, "machine": machine.describe()}, indent=2))


if __name__ == "__main__":
    main()
