"""Runs whose switches learn their routes come again to the bit, with faults and without."""

from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane.doctor import capabilities
from emulator.pytest_plugin.runs import RunProcess
from tests.harness.nightly import nightly
from tests.harness.runs.processes import begun, ended

pytestmark = pytest.mark.root

RAILS = "rail_clos:hosts=2,gpus_per_host=2,spines=2,uplinks_per_spine=1"
STRETCHED = "clos:segments=2,hosts=1,gpus_per_host=2,spines=2,subnets=stretched"
SEGMENTS = (
    "clos:segments=2,hosts=1,gpus_per_host=1,nic_ports=2,spines=1,subnets=stretched,homing=esi"
)
PLANES = [
    ("ebgp:bfd=off", RAILS, "permutation"),
    ("ibgp:bfd=off", RAILS, "permutation"),
    ("evpn:bfd=off", STRETCHED, "permutation"),
    ("evpn:bfd=off", SEGMENTS, "allreduce"),
]
NAMES = ["ebgp", "ibgp", "evpn", "segments"]
#: New routes come 1 us after each change: without the cable, with it, and without the switch.
CABLE = "t=2us link {link} down; t=6us up"
SWITCH = "t=10us switch {switch} down"


def ran(tmp_path: Path, scenario: str, *arguments: str) -> RunProcess:
    common = ("--sizes", "256KiB", "--iterations", "1", "--capture", "none")
    run = begun(tmp_path, *common, *arguments, scenario=scenario)
    ended(run)
    return run


def silences(result: dict[str, Any]) -> list[str]:
    return [one for one in result["warnings"] if "nothing has changed" in one]


@pytest.mark.parametrize(
    ("plane", "topology", "scenario"),
    [nightly(each) if each[0] in ("ebgp:bfd=off", "ibgp:bfd=off") else each for each in PLANES],
    ids=NAMES,
)
def test_routes_change_at_the_same_frame_in_every_run(
    plane: str, topology: str, scenario: str, tmp_path: Path
) -> None:
    segments = "homing=esi" in topology
    if segments and not capabilities.has("bonding"):
        pytest.skip("this kernel has no bonding")
    fault = "; ".join((CABLE, SWITCH)).format(
        link="h0g0:eth0" if segments else "rail0:up0", switch="rail1" if segments else "spine1"
    )
    faulted = ("--control-plane", plane, "--convergence", "1us", "--fault", fault)
    runs = [ran(tmp_path, scenario, "--topology", topology, *faulted) for _ in range(2)]
    one, other = (run.result for run in runs)
    assert one["digest"] == other["digest"]
    for run, result in zip(runs, (one, other), strict=True):
        settled = [row["charged_us"] for row in run.events() if row["event"] == "converged"]
        assert settled == [1.0] * 3
        assert result["fidelity"]["repeatable"]
        assert silences(result) == []
    texts = [(run.folder / "result.json").read_text() for run in runs]
    assert texts[0] == texts[1]


def test_learned_routes_of_a_whole_fabric_are_worth_static_ones(tmp_path: Path) -> None:
    planes = ("static", *(plane for plane, topology, _ in PLANES if topology == RAILS))
    found = {
        plane: ran(tmp_path, "permutation", "--topology", RAILS, "--control-plane", plane).result[
            "digest"
        ]
        for plane in planes
    }
    assert len(set(found.values())) == 1, found
