"""Test what a run is expected to take of the machine's memory, held against what one takes."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.plan import preflight
from emulator.run.plan.preflight import Need
from emulator.run.plan.trial_load import TrialLoad
from emulator.transports import fit
from tests.harness.nightly import nightly
from tests.harness.runs.processes import spawned
from topologies import catalogue

GIB = 2**30


def _load(spec: str, **given: str) -> TrialLoad:
    topology, allreduce = catalogue.load(spec), scenario.load("allreduce")
    (trial,) = allreduce.schedules(allreduce.parameters(given), topology, 1)
    return TrialLoad.of(trial, topology, fit("uet", topology, seed=1, switch=None).wire)


def _own_memory(process: psutil.Process) -> int:
    """Return the private memory of ``process`` and those below it, none twice (octets)."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for line in Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss_Anon:"):
                    total += int(line.split()[1]) * 1024
    return total


def _shared_memory(lab: str) -> int:
    total = 0
    for path in Path("/dev/shm").glob(f"uetemu.{lab}.*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="building namespaces needs root")
@pytest.mark.parametrize("workers", ["1", nightly("2")])
@pytest.mark.parametrize(
    ("spec", "given"),
    [
        nightly(("dragonfly:gpus_per_host=1", {"sizes": "64MiB"})),
        ("rail_clos:hosts=2,gpus_per_host=2,spines=1", {"sizes": "4MiB", "slice_bytes": "1KiB"}),
    ],
    ids=["large", "many operations"],
)
def test_the_need_is_what_a_run_takes(
    tmp_path: Path, spec: str, given: dict[str, str], workers: str
) -> None:
    load = _load(spec, **given)
    need = Need.of(load.memory_octets, load.operations)
    once = {**given, "warmups": "0", "iterations": "1"}
    pairs = [part for name, value in once.items() for part in ("--param", f"{name}={value}")]
    running = spawned(tmp_path, "--topology", spec, "--workers", workers, *pairs)
    process, peak, shared = psutil.Process(running.process.pid), 0, 0
    while running.process.poll() is None:
        with suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
            buffers = _shared_memory(running.lab)
            peak = max(peak, _own_memory(process) + buffers)
            shared = max(shared, buffers)
            running.process.wait(timeout=0.1)  # until the next look
    status, _, err = running.communicate()
    assert status == 0, err
    assert shared == pytest.approx(need.gpus if workers == "2" else 0, rel=0.05)
    assert 1.0 <= need.total / peak <= 1.5, (need, peak)


def test_the_runner_makes_contents_for_one_gpu_at_a_time() -> None:
    one, more = (Need.of([GIB] * ranks) for ranks in (1, 5))
    assert more.gpus - one.gpus == 4 * GIB
    assert more.runner == one.runner > GIB
    assert Need.of([GIB], 1000).runner > one.runner


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    """By a number of operations for which the runner needs more than there is."""
    preflight.check_memory(2**20, [2**20] * 2)
    operations = psutil.virtual_memory().total // preflight.RUNNER_OPERATION_BYTES
    with pytest.raises(UserError) as refused:
        preflight.check_memory(2**20, [2**20] * 2, operations)
    need = Need.of([2**20] * 2, operations)
    stated = str(refused.value)
    assert stated.startswith(f"a size of 1 MiB needs {need} and the machine has ")
    assert f"{need.runner / GIB:.2f} GiB for the runner" in stated
    assert "smaller sizes or fewer GPUs, or larger messages" in stated


def test_contents_are_asked_for_again_and_not_kept() -> None:
    allreduce = scenario.load("allreduce")
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=1")
    small, large = allreduce.schedules(allreduce.parameters({"sizes": "64KiB,8MiB"}), topology, 1)
    for trial in (large, small):
        total = trial.expected(0)["output"]
        assert np.array_equal(total, sum(trial.inputs(rank)["input"] for rank in range(2)))
        assert trial.expected(1)["output"] is total
        assert len(np.unique(trial.inputs(0)["input"])) > len(total) / 2
