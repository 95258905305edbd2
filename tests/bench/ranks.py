"""Measure what ranks cost beside one process: ``python -m tests.bench ranks``.

``uetemu run allreduce`` on rails, ``--fabric model``, is run by one process and by 2 and 4 ranks on
this machine.  Figures: processor seconds of all processes together, from the endpoints' start to
the last row, and those over one process's; windows of virtual time; messages in windows, for each,
and octets in all, of rank 0; octets that cross the cut as the division of the fabric expects them.
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator import scenario
from emulator.cli.graph.partition_table import AskedParts
from emulator.errors import UserError
from emulator.workers.partition import Partition
from tests.bench.watched_run import CODE, Limits, end, launcher, watch
from topologies import catalogue

FABRIC = "rail_clos:hosts=8,gpus_per_host=4,spines=2"
SIZE = "1MiB"
RANKS = (1, 2, 4)
#: What rank 0 logs at its end (:mod:`emulator.workers.ranks.exchange`).
_EXCHANGED = re.compile(r"exchanged (\d+) windows, .* messages to rank (.*?); .* (\d+) octets$")


def run(ranks: int, size: str = SIZE, limits: Limits | None = None) -> dict[str, float]:
    """Return the figures of a run by so many ``ranks``; UserError, one sentence, if it fails."""
    what = f"{ranks} ranks"
    with TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        command = [sys.executable, "-c", CODE, "-v", "run", "allreduce", "--topology", FABRIC]
        command += ["--fabric", "model", "--sizes", size, "--iterations", "1", "--capture", "none"]
        command += ["--output", str(output)]
        if ranks > 1:
            command = launcher(ranks) + command
        errors = Path(folder) / "errors"
        with errors.open("w") as told:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told)
        try:
            watched = watch(process, output / "events.jsonl", limits or Limits(), what)
        finally:
            end(process)
        lines = errors.read_text().strip().splitlines()
        if process.returncode:
            raise UserError(f"{what}: {lines[-1] if lines else process.returncode}")
    assert watched.started_s is not None
    figures = {"processor_s": watched.processor_s - watched.started_s}
    if ranks > 1:
        (found,) = filter(None, map(_EXCHANGED.search, lines))
        windows, octets = int(found[1]), int(found[3])
        messages = sum(int(one.partition(":")[2]) for one in found[2].split(","))
        figures |= {
            "windows": windows,
            "messages_per_window": messages / windows,
            "octets_per_window": octets / windows,
            "cut_octets": _cut_octets(ranks, size),
        }
    return figures


def _cut_octets(ranks: int, size: str) -> int:
    loaded = scenario.load("allreduce")
    parameters = loaded.parameters({"sizes": size, "iterations": "1"})
    topology = catalogue.load(FABRIC)
    traffic = AskedParts(workers=ranks, scenario=loaded, parameters=parameters).traffic(topology)
    assert traffic is not None
    return Partition.of(topology, ranks, traffic).shares(topology, traffic).cut


def measure() -> dict[str, float]:
    """Run with each number of ranks, and compare their processor time with one process's."""
    found: dict[str, float] = {}
    alone = 0.0
    for ranks in RANKS:
        figures = run(ranks)
        alone = alone or figures["processor_s"]
        found |= {f"ranks_{ranks}_{name}": value for name, value in figures.items()}
        if ranks > 1:
            found[f"ranks_{ranks}_processor_ratio"] = figures["processor_s"] / alone
    return found
