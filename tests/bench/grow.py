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
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from emulator.errors import UserError
from tests.bench import machine
from tests.bench.watched_run import CODE, GIB, Limits, end, launcher, times, watch

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
            command = launcher(ranks) + command
        elif fabric == "kernel":
            command += ["--workers", "1"]
        what = f"{gpus} GPUs on --fabric {fabric}, {ranks} ranks"
        errors = Path(folder) / "errors"
        began = time.time()
        with errors.open("w") as told:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told)
        try:
            watched = watch(process, output / "events.jsonl", limits, what)
        finally:
            end(process)
        if process.returncode:
            lines = errors.read_text().strip().splitlines()
            raise UserError(f"{what}: {lines[-1] if lines else process.returncode}")
        at = times(output / "events.jsonl")
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


def measure(
    sizes: Mapping[str, Sequence[int]] = SIZES,
    ranks: Sequence[int] = RANKS,
    limits: Limits | None = None,
    beyond: Sequence[int] = (),
) -> dict[str, float]:
    """Run all ``sizes`` with each number of ``ranks``, and extrapolate what was not measured.

    Sizes ``beyond`` are not tried.
    """
    limits = limits or Limits()
    found: dict[str, float] = {}
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
