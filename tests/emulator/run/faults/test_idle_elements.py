"""A fault of what carries nothing in a run is told in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.runs.processes import uetemu

UPLINK = "t=5us link rail0:up0 down"


def struck(folder: Path, scenario: str, fault: str, *given: str) -> tuple[list[Any], str]:
    """Return the faults of the only row, and the table."""
    process = uetemu(
        *("run", scenario, "--fabric", "model", "--capture", "none", "--fault", fault, *given),
        *("--output", str(folder / "run")),
    )
    table, errors = process.communicate()
    assert process.returncode == 0, errors
    (row,) = json.loads((folder / "run" / "result.json").read_text())["rows"]
    return row["faults"], table


@pytest.mark.parametrize(
    "fault", [UPLINK, "t=5us link rail0:up0 loss=1%; t=8us heal", "t=5us switch spine0 down"]
)
def test_a_link_that_the_ring_never_takes_is_named(fault: str, tmp_path: Path) -> None:
    faults, table = struck(tmp_path, "allreduce", fault, "--sizes", "64KiB")
    assert all(one["idle"] for one in faults)
    assert table.count("what it strikes carries nothing in this run") == len(faults)


def test_a_port_over_which_a_nic_may_send_is_not(tmp_path: Path) -> None:
    spec = ("--topology", "clos:nic_ports=4,hosts=2,gpus_per_host=2,spines=1,homing=paths")
    given = (*spec, "--transport", "rocev2", "--param", "sizes=16KiB")
    faults, _ = struck(tmp_path, "permutation", "t=0us nic h0g0:eth2 down", *given)
    assert [one["idle"] for one in faults] == [False]


def test_a_scale_up_network_that_nobody_copies_over_is_named(tmp_path: Path) -> None:
    fault = "t=1us scale-up h0g0 rate=1GB/s"
    faults, table = struck(tmp_path, "permutation", fault, "--param", "sizes=16KiB")
    assert [one["idle"] for one in faults] == [True]
    assert "carries nothing in this run; take a job that copies inside servers" in " ".join(
        table.replace("#", "").split()
    )


@pytest.mark.parametrize("beside", ["", "; t=5us scale-up h0g0 rate=1GB/s"])
def test_an_uplink_that_flows_take_is_not(beside: str, tmp_path: Path) -> None:
    faults, table = struck(tmp_path, "permutation", UPLINK + beside, "--sizes", "256KiB")
    assert [one["idle"] for one in faults] == [False]
    assert "carries nothing" not in table
    assert "inside the server" not in table


def test_a_time_that_an_idle_link_changes_by_leaving_its_group_is_explained(tmp_path: Path) -> None:
    given = ("--topology", "mrc:scale=4096,homing=paths", "--transport", "rocev2")
    fault = "t=1us link rail0:up0 down"
    faults, table = struck(tmp_path, "permutation", fault, *given, "--param", "sizes=64KiB")
    assert [one["idle"] for one in faults] == [True]
    assert "hash anew where it leaves an ECMP group" in " ".join(table.replace("#", "").split())
