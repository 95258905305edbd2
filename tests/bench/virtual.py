"""How fast runs of the virtual clock go, as a user starts them: ``uetemu run`` in a process.

Packets are data packets of all iterations, warm-ups too.  The rate leaves out what a run of one
small message takes, which is building, starting and ending; processor time is of all threads.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests import CHECKOUT

#: Octets of a run of which hardly anything is packets.
SMALL = "4KiB"
CODE = "from emulator.cli.main import main; main()"
RING = ("allreduce", "--param", "warmups=0", "--iterations", "1")
#: Three switches, 16 GPUs.
CROSSED = ("--topology", "rail_clos:hosts=4,gpus_per_host=4,spines=4,uplinks_per_spine=1")
SPREAD = ("permutation", *CROSSED, "--param", "warmups=0")
LARGE = "clos:hosts=64,gpus_per_host=8"
#: By number of GPUs: a fabric of rails and spines, and what each of them sends to another server,
#: so that there are as many packets in all.  (A ring's steps are all one packet among many GPUs.)
SIZES = {
    8: ("clos:hosts=2,gpus_per_host=4", "16MiB"),
    64: ("clos:hosts=8,gpus_per_host=8", "2MiB"),
    512: (LARGE, "256KiB"),
}
FEW = "16KiB"
REPEATS = 3
ALONE, SHARED = ("--workers", "1"), ("--workers", "2")
QUIET = ("--capture", "none", *ALONE)


@dataclass(frozen=True)
class Cost:
    """One run: data packets, seconds of wall and processor time, and megabytes at most."""

    packets: int
    wall_s: float
    processor_s: float
    megabytes: float


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which Python finds the project in ``tree``."""
    return {**os.environ, "PYTHONPATH": str(tree)}


def cost_of(*arguments: str, tree: Path = CHECKOUT) -> Cost:
    """Run ``uetemu run`` with ``arguments``, as the checkout ``tree`` has it."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CODE, "run", *arguments, "--output", str(output)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=environment(tree),
            check=False,
        )
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        result: dict[str, Any] = json.loads((output / "result.json").read_text())
    sent = ("transport.tx_data_packets", "transport.tx_retransmitted_packets")
    packets = sum(
        counters.get(name, 0) for counters in result["endpoints"].values() for name in sent
    )
    spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return Cost(packets, wall, spent, after.ru_maxrss / 1000)


def rate(large: Cost, small: Cost) -> float:
    """Data packets a second of wall time, without what both runs have in common."""
    return (large.packets - small.packets) / (large.wall_s - small.wall_s)


def packet_us(large: Cost, small: Cost) -> float:
    """Processor time of a data packet with all that belongs to it (us)."""
    return 1e6 * (large.processor_s - small.processor_s) / (large.packets - small.packets)


def measure() -> dict[str, float]:
    """The figures of the page on virtual time."""
    small = cost_of(*RING, "--sizes", SMALL, *QUIET)
    ring = median([*RING, "--sizes", "8MiB", *QUIET])
    shared = median([*RING, "--sizes", "8MiB", "--capture", "none", *SHARED])
    shared_small = cost_of(*RING, "--sizes", SMALL, "--capture", "none", *SHARED)
    captured = median([*RING, "--sizes", "8MiB", "--capture", "all", *ALONE])
    spread_small = cost_of(*SPREAD, "--sizes", SMALL, *QUIET)
    spread = median([*SPREAD, "--sizes", "2MiB", *QUIET])
    usual = cost_of("allreduce")
    return {
        "virtual_ring_packets_s": rate(ring, small),
        "virtual_workers_ratio": rate(shared, shared_small) / rate(ring, small),
        "virtual_ring_packet_us": packet_us(ring, small),
        "virtual_permutation_packets_s": rate(spread, spread_small),
        "virtual_allreduce_s": usual.wall_s,
        "virtual_capture_ratio": (captured.wall_s - small.wall_s) / (ring.wall_s - small.wall_s),
    }


def measure_sizes() -> dict[str, float]:
    """Return what a packet costs where there are many GPUs, and the largest fabric."""
    costs = costs_by_size()
    large = cost_of(*RING, "--topology", LARGE, "--sizes", "1MiB", "--capture", "none")
    return {
        "virtual_512_gpus_s": large.wall_s,
        "virtual_512_gpus_mb": large.megabytes,
        "virtual_packet_64_ratio": costs[64] / costs[8],
        "virtual_packet_512_ratio": costs[512] / costs[8],
    }


def costs_by_size() -> dict[int, float]:
    """Processor time of a data packet of a permutation (us), by the number of GPUs."""
    costs = {}
    for gpus, (spec, size) in SIZES.items():
        arguments = ["permutation", "--param", "warmups=0", "--iterations", "1"]
        arguments += ["--topology", spec, "--capture", "none", *ALONE]
        few = cost_of(*arguments, "--sizes", FEW)
        costs[gpus] = packet_us(cost_of(*arguments, "--sizes", size), few)
    return costs


def median(arguments: Sequence[str]) -> Cost:
    """The run in the middle of several, by processor time."""
    runs = sorted((cost_of(*arguments) for _ in range(REPEATS)), key=lambda cost: cost.processor_s)
    return runs[REPEATS // 2]
