"""Runs on fabric profiles: their switches, interconnect and classes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.processes import ended

pytestmark = pytest.mark.root


def test_a_run_on_a_profile_has_the_switches_of_the_profile(
    start: Callable[..., RunProcess],
    tmp_path: Path,
) -> None:
    profile = tmp_path / "two.yaml"
    profile.write_text(
        "segment: {hosts: 2, gpus_per_host: 1}\npod:\n  spine: {spines: 0}\n"
        "global: {switch: deep, load_balancing: packet}\n"
    )
    run = start(
        *("--topology", str(profile), "--sizes", "16KiB", "--iterations", "1"),
        *("--capture", "none"),
    )
    ended(run)
    assert run.result["switch"] == "deep:balance=packet"
    assert [row["wrong"] for row in run.result["rows"]] == [0]


@pytest.mark.parametrize("interconnect", ["uet", "rocev2"])
def test_a_profile_has_its_interconnect_and_its_classes(
    start: Callable[..., RunProcess], tmp_path: Path, interconnect: str
) -> None:
    profile = tmp_path / "two.yaml"
    profile.write_text(
        f"segment:\n  hosts: 2\n  gpus_per_host: 1\n  gpu_io: {{interconnect: {interconnect}}}\n"
        "  rail_switch:\n    classes: {EF: low}\n"  # where acknowledgements of UET are
        "pod:\n  spine: {spines: 0}\n"
    )
    run = start(
        *("--topology", str(profile), "--sizes", "16KiB", "--iterations", "1"),
        *("--capture", "none"),
    )
    ended(run)
    assert run.result["transport"] == interconnect
    switch = {"uet": "shallow", "rocev2": "lossless"}[interconnect]
    assert f"{switch}:dscp.46=low" in run.result["switch"]
    for port, counters in run.result["ports"].items():
        if port.startswith("rail0:"):
            assert counters["data"]["packets"] > 0
            assert counters["control"]["packets"] == 0
