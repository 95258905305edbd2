"""Runs whose fabric is a model have the digests of the kernel's, without root and Mininet."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import DATA
from tests.harness.nightly import nightly_beyond
from tests.harness.runs.cluster_logs import log_2_17
from tests.harness.runs.processes import SMALL, completed, refused

RUNS = {run["name"]: run for run in tomllib.loads((DATA / "run_digests.toml").read_text())["run"]}
#: Listed runs that the model has, each with something that another lacks: octets of headers, marks,
#: trims, PFC, faults, every balancing, several ports, bonds, VLANs, tunnels, Ethernet segments,
#: rules of routing, several seeds.
MODELLED = (
    *("ordered, rccc", "rocev2 adaptive", "rocev2 lossless", "faults", "trimming", "loss"),
    *("balance flow", "balance flowlet", "balance packet", "balance round-robin"),
    *(
        "tss direct, native",
        "balance least-loaded",
        "two ports",
        "planes",
        "torus",
        "two seeds",
        "a GPU dies",
        "black hole, one way",
        "black hole, one way, from a NIC",
        "rate with scaled thresholds",
        "bonds",
        "bonds, a cable pulled",
        "bonds, native UET",
        "VLANs, a rail without carrier",
        "stretched rails",
        "Ethernet segments, a cable pulled",
        "pool, pauses",
        "pool, headroom of all ports",
        "pool, trims",
        "pool, drops and faults",
        "pool, credits and retry",
        "NICs take time",
        "NICs take time, RoCEv2",
        "NICs and a library take time",
    ),
)
#: Those that need the most different parts of the emulator.
DIVERSE = ("bonds, a cable pulled", "planes", "stretched rails", "trimming")
NOBODY = 65534
#: Fails where anything imports Mininet, as where it is not installed.
PROGRAM = "import sys; sys.modules['mininet'] = None; from emulator.cli.main import main; main()"


def uetemu(sources: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run uetemu in ``folder`` as a user without any rights; as this user, if that is not root."""
    folder.chmod(0o777)
    changed: dict[str, Any] = {}
    if os.geteuid() == 0:
        changed = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    return subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM, *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin", "HOME": str(folder), "PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
        timeout=300,
        **changed,
    )


@pytest.fixture(name="folder")
def folder_of_anybody(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modelled")
    for parent in (folder.parent, folder.parent.parent):
        if parent.owner() == folder.owner() and parent.name.startswith("pytest"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return folder


def listed(name: str) -> tuple[str, ...]:
    """Return the words of a run on a model that checks its digest."""
    run = ("--fabric", "model", "--capture", "none", "--output", "run")
    words = shlex.split(RUNS[name]["command"])
    return ("run", *words, *run, "--check-digest", RUNS[name]["digest"])


def assert_modelled(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert "# Fabric               : model" in done.stdout
    assert json.loads((folder / "run" / "result.json").read_text())["fabric"] == "model"


@pytest.mark.parametrize("name", MODELLED)
def test_a_listed_run_has_the_kernels_digest(name: str, tmp_path: Path) -> None:
    assert_modelled(completed(*listed(name), cwd=tmp_path), tmp_path)


@pytest.mark.parametrize(
    "name", nightly_beyond(4, sorted(MODELLED, key=lambda name: name not in DIVERSE))
)
def test_anybody_runs_it_without_mininet(name: str, readable_sources: Path, folder: Path) -> None:
    assert_modelled(uetemu(readable_sources, folder, *listed(name)), folder)


@pytest.mark.parametrize("name", ["faults", "Ethernet segments, a cable pulled"])
def test_two_workers_have_the_results_of_one(name: str, tmp_path: Path) -> None:
    """What the run changes at the nodes (rates, carrier, routes) reaches both."""
    words = [*shlex.split(RUNS[name]["command"]), "--fabric", "model", "--capture", "all"]
    for count in (1, 2):
        run = ("--workers", str(count), "--output", f"run{count}")
        done = completed("run", *words, *run, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        environment = json.loads((tmp_path / f"run{count}" / "environment.json").read_text())
        assert environment["workers"] == count
    shapes = {name: np.shape(value) for name, value in environment["windows"].items()}
    assert shapes == {"number": (), "processor_s": (2,), "waited_s": (2,), "imbalance": ()}
    for file in ("result.json", "capture.pcapng", "telemetry.csv", "line_telemetry.csv"):
        assert (tmp_path / "run1" / file).read_bytes() == (tmp_path / "run2" / file).read_bytes()


def test_parts_by_hand_have_the_results_of_one_worker(tmp_path: Path) -> None:
    (tmp_path / "parts").write_text("# by rails\nrail1\nrail0 spine0\n")
    fabric = ("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=1", "--fabric", "model")
    words = ("allreduce", *fabric, "--sizes", "16KiB", "--iterations", "1", "--capture", "all")
    for folder, given in (("one", ("--workers", "1")), ("parts2", ("--parts", "parts"))):
        done = completed("run", *words, *given, "--output", folder, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    environment = json.loads((tmp_path / "parts2" / "environment.json").read_text())
    assert environment["workers"] == 2
    for file in ("result.json", "capture.pcapng"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "parts2" / file).read_bytes()


def test_doctor_names_what_runs_without_root(readable_sources: Path, folder: Path) -> None:
    done = uetemu(readable_sources, folder, "doctor")
    assert done.stdout.startswith("uetemu run allreduce --fabric model can run here")


def test_predictions_and_suites_name_what_takes_no_root(
    readable_sources: Path, folder: Path
) -> None:
    (folder / "log").write_text(log_2_17())
    predict = ("predict", "--nccl-tests", "log", *SMALL, "--largest", "64KiB")
    bench = ("bench", "training", "--tests", "8.2", "--output", "suite")
    for words, option in ((predict, "--fabric model"), (bench, "--nodes model")):
        done = uetemu(readable_sources, folder, *words)
        assert done.returncode == 1
        assert re.fullmatch(
            f"uetemu: .*: run as root, or take {option}, which any user can\n", done.stderr
        )
    assert not (folder / "suite").exists()
    done = uetemu(readable_sources, folder, *predict, "--fabric", "model", "--output", "run")
    assert_modelled(done, folder)
    assert json.loads((folder / "run" / "prediction.json").read_text())["fabric"] == "model"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--clock", "host"), "runs have the virtual clock alone"),
        (("--switch", "shallow:balance=kernel"), "does not hash as the kernel does"),
        (("--switch", "none"), "does not hash as the kernel does"),
        (("--control-plane", "ebgp", "--convergence", "measured"), "runs no routing daemons"),
        (
            ("--topology", "clos:segments=2,subnets=stretched", "--switch", "none"),
            "does not hash as the kernel does",
        ),
    ],
)
def test_what_is_not_modelled_is_refused(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    errors = refused(tmp_path, "--fabric", "model", *arguments)
    assert errors.count("\n") == 1
    assert complaint in errors
