"""A modelled fabric does to each frame what the kernel does, and counts it alike."""

import json
from pathlib import Path

import pytest

from tests.harness.runs.processes import SMALL, begun, ended
from tests.harness.runs.whole_run import assert_same_files

pytestmark = pytest.mark.root
#: Files of a run folder that tell of nothing but the fabric.
ALIKE = ("telemetry.csv", "line_telemetry.csv", "timeline.json", "fabric.json", "capture.pcapng")

EBGP = ("--control-plane", "ebgp:bfd=off", "--convergence", "20us")


@pytest.mark.parametrize(
    ("scenario", "arguments"),
    [
        ("alltoall", (*SMALL, "--fault", "t=1us link rail0:up0 loss=5% corrupt=2%; t=40us heal")),
        ("alltoall", (*SMALL, "--transport", "rocev2", "--fault", "t=1us link rail0:up0 down")),
        ("alltoall", (*SMALL, *EBGP, "--fault", "t=1us link rail0:up0 down")),
        ("incast", ("--param", "senders=8", "--param", "size=64KiB")),
        ("incast", ("--param", "senders=8", "--param", "size=64KiB", "--transport", "rocev2")),
    ],
    ids=["faults, uet", "pulled cable, rocev2", "ebgp, uet", "trimming, uet", "pfc, rocev2"],
)
def test_a_model_leaves_the_kernels_files(
    scenario: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    if scenario == "alltoall":
        arguments = (*arguments, "--sizes", "16KiB")
    more = ("--capture", "all", "--snaplen", "full", "--iterations", "1", "--workers", "1")
    folders = []
    for fabric in ("kernel", "model"):
        run = begun(tmp_path, *arguments, *more, "--fabric", fabric, scenario=scenario)
        ended(run)
        folders.append(run.folder)
    kernel, model = folders
    assert_same_files(kernel, model, ALIKE)
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    assert [result.pop("fabric") for result in results] == ["kernel", "model"]
    assert results[0] == results[1]
