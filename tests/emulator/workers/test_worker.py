"""Test what a worker keeps of the endpoints that an iteration leaves behind."""

import subprocess
import sys
from pathlib import Path

import pytest

#: Runs three iterations, and prints the most endpoints that were there as one began.
COUNTED = """
import gc, sys
from emulator.cli.main import main
from emulator.workers import worker
from uet.fep import FabricEndpoint

gc.disable()  # no collection but that of the worker
most = 0
start = worker.WorkerPart.start

def counted(part, *execution):
    global most
    most = max(most, sum(isinstance(one, FabricEndpoint) for one in gc.get_objects()))
    start(part, *execution)

worker.MANY_CONNECTIONS = int(sys.argv.pop(1))
worker.WorkerPart.start = counted
try:
    main()
finally:
    print(most, file=sys.stderr)
"""
GPUS = 8


def most_endpoints(folder: Path, many: int) -> int:
    """Return how many endpoints there were, if ``many`` connections are worth a collection."""
    command = ["run", "alltoall", "--fabric", "model", "--sizes", "4KiB", "--iterations", "2"]
    command += ["--param", "warmups=1", "--capture", "none", "--output", str(folder / str(many))]
    command += ["--topology", f"rail_clos:hosts=2,gpus_per_host={GPUS // 2},spines=1"]
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, str(many), *command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(("many", "kept"), [(0, False), (1_000, True)])
def test_many_connections_of_an_iteration_are_gone_as_the_next_begins(
    many: int, kept: bool, tmp_path: Path
) -> None:
    assert (most_endpoints(tmp_path, many) > GPUS) is kept
