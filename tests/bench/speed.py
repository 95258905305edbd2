"""Compare what runs cost with another version of the project: ``python -m tests.bench.speed TREE``.

``TREE`` is a checkout of that version, such as one that ``git worktree add`` makes.  Both run from
their checkouts, on one processor and in turns, so that what else the machine does strikes both.

A figure is the ratio of this tree's processor time to the other's: the median of the rounds, and
the lowest and highest.  Times of a packet leave out what a run of one small message takes.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from emulator.errors import UserError
from tests import CHECKOUT
from tests.bench import machine, virtual

MODEL = ("--fabric", "model")
#: Runs whose packets are compared: arguments, and the size that is measured.
PACKETS: Mapping[str, tuple[Sequence[str], str]] = {
    "ring, kernel": (virtual.RING, "8MiB"),
    "ring, model": ((*virtual.RING, *MODEL), "8MiB"),
    "permutation over three switches, kernel": (virtual.SPREAD, "2MiB"),
    "permutation over three switches, model": ((*virtual.SPREAD, *MODEL), "2MiB"),
}
#: Runs that are compared as a whole, from command to prompt.
COMMANDS: Mapping[str, Sequence[str]] = {
    "24 GPUs, one small message, kernel": (*virtual.RING, "--sizes", virtual.SMALL),
    "24 GPUs, one small message, model": (*virtual.RING, *MODEL, "--sizes", virtual.SMALL),
    "uetemu run allreduce": ("allreduce",),
}
#: Figures of ``python -m tests.bench.turns``.
TURNS = ("uet_turn_us", "uet_small_write_us", "rocev2_turn_us", "rocev2_small_write_us")


def packet_us(tree: Path, arguments: Sequence[str], size: str) -> float:
    """Processor time of a data packet of ``arguments``, in us."""
    small, large = (
        virtual.cost_of(*arguments, "--sizes", octets, *virtual.QUIET, tree=tree)
        for octets in (virtual.SMALL, size)
    )
    return virtual.packet_us(large, small)


def turns(tree: Path) -> dict[str, float]:
    """Return the figures of ``tests.bench.turns`` as ``tree`` has it; none if it has no such."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.turns"],
        cwd=tree,
        env=virtual.environment(tree),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"tests.bench.turns of {tree}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def in_turns(
    measure: Callable[[Path], Mapping[str, float]], other: Path, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return, by figure, its value here and in ``other`` for each round."""
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        trees = (CHECKOUT, other) if number % 2 == 0 else (other, CHECKOUT)
        values = {tree: measure(tree) for tree in trees}
        for name, here in values[CHECKOUT].items():
            if name in values[other]:
                found.setdefault(name, []).append((here, values[other][name]))
    return found


def row(name: str, unit: str, pairs: Sequence[tuple[float, float]]) -> str:
    """Return a row of the table: medians of both trees, and the ratio with its spread."""
    ratios = sorted(here / there for here, there in pairs)
    here, there = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return f"| {name} | {here:.3g} {unit} | {there:.3g} {unit} | {ratio} |"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
def main(tree: Path, rounds: int) -> None:
    """Print what runs of this checkout cost beside those of TREE.  Needs root."""
    other = tree.resolve()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def packet(name: str) -> Callable[[Path], Mapping[str, float]]:
        return lambda where: {name: packet_us(where, *PACKETS[name])}

    def command(name: str) -> Callable[[Path], Mapping[str, float]]:
        return lambda where: {name: virtual.cost_of(*COMMANDS[name], tree=where).processor_s}

    try:
        click.echo(
            "| processor time | here | there | ratio (lowest to highest) |\n|---|---|---|---|"
        )
        for unit, measured in (
            *(("us", packet(name)) for name in PACKETS),
            *(("s", command(name)) for name in COMMANDS),
            ("us", lambda where: {key: turns(where)[key] for key in TURNS}),
        ):
            for name, pairs in in_turns(measured, other, rounds).items():
                click.echo(row(name, unit, pairs))
    except (RuntimeError, UserError) as error:
        click.echo(f"tests.bench.speed: {error}", err=True)
        sys.exit(1)
    for key, fact in machine.describe().items():
        click.echo(f"  {key:<18} {fact}")


if __name__ == "__main__":
    main()
