"""AllReduce over every named design, made small."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import RunProcess

pytestmark = pytest.mark.root

#: A design of four to eight GPUs, and the switches that a ring in shuffled order has to cross.
SMALL_DESIGNS = {
    "nic_per_gpu:gpus_per_host=2": ("rail0",),
    "shared_nic:gpus_per_host=4,gpus_per_nic=2": ("h0n0", "rail0"),
    "single_rail_switch:gpus_per_host=2": ("rail0",),
    "dual_rail_switch:hosts=2,gpus_per_host=2": ("rail0", "rail1"),
    "rail_only:hosts=2,gpus_per_host=2": ("rail0", "rail1"),
    "host_segment:hosts=2,gpus_per_host=2": ("rail0", "rail1"),
    "fabric_planes": ("rail0", "rail1"),
    "pod:hosts=1,gpus_per_host=2,spines=2": ("rail0", "rail1", "rail2", "rail3", "spine"),
    "clos:nic_ports=4,nic_rate=100G,hosts=2,gpus_per_host=2,rails_per_switch=2,spines=1": (
        *("rail0", "rail1", "rail2", "rail3"),
    ),
    "multi_pod:segments=1,hosts=1,gpus_per_host=2,spines=1,super_spines=2": (
        "rail",
        "spine",
        "super",
    ),
    "multi_rail_per_switch:hosts=1,gpus_per_host=4,spines=2": ("rail", "spine"),
    "dual_rail_per_switch:hosts=2,gpus_per_host=4,spines=2": ("rail", "spine"),
    "single_rail_per_switch:hosts=2,gpus_per_host=2,spines=2": ("rail", "spine"),
}


@pytest.mark.parametrize("spec", SMALL_DESIGNS)
def test_allreduce_sums_right_and_crosses_every_tier(
    start: Callable[..., RunProcess],
    spec: str,
) -> None:
    run = start(
        *("--topology", spec, "--param", "order=shuffled", "--sizes", "16KiB"),
        *("--iterations", "1", "--capture", "none"),
    )
    status, out, err = run.communicate()
    assert status == 0, (out, err)
    (row,) = run.result["rows"]
    assert row["wrong"] == 0
    assert row["data_packets"] > 0
    for tier in SMALL_DESIGNS[spec]:
        sent = [
            counters["data"]["packets"]
            for port, counters in run.result["ports"].items()
            if port.startswith(tier)
        ]
        assert sum(sent) > 0, tier


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
    status, out, err = run.communicate()
    assert status == 0, (out, err)
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
    status, out, err = run.communicate()
    assert status == 0, (out, err)
    assert run.result["transport"] == interconnect
    switch = {"uet": "shallow", "rocev2": "lossless"}[interconnect]
    assert f"{switch}:dscp.46=low" in run.result["switch"]
    for port, counters in run.result["ports"].items():
        if port.startswith("rail0:"):
            assert counters["data"]["packets"] > 0
            assert counters["control"]["packets"] == 0
