"""Mixtures of experts over real fabrics, over either transport, with and without a fault."""

from collections.abc import Callable

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.processes import ended

SMALL = (
    *("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=1", "--capture", "none"),
    *("--param", "tokens=8", "--param", "hidden=256", "--param", "experts=16"),
    *("--param", "node_limit=0", "--param", "skew=1"),
)


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_each_token_reaches_its_experts_and_comes_back(
    start: Callable[..., RunProcess], transport: str
) -> None:
    run = start(*SMALL, "--transport", transport, scenario="moe")
    output = ended(run)
    assert "# Out of bounds values : 0 OK" in output
    none, node = run.result["rows"]
    for row in (none, node):
        assert row["wrong"] == 0
        assert row["fabric_bytes"] == row["fabric_bytes_derived"]
        assert row["time_us"] >= row["ideal_us"] > row["dispatch_bound_us"]
        assert row["dispatch_us"] > row["dispatch_bound_us"] > 0
        assert [one["name"].split(", ")[1] for one in row["exchanges"]] == [
            *("layer 1 forward dispatch", "layer 1 forward combine"),
            *("layer 1 backward dispatch", "layer 1 backward combine"),
        ]
    assert node["fabric_bytes"] < none["fabric_bytes"]


def test_a_lossy_cable_costs_time_and_no_token(start: Callable[..., RunProcess]) -> None:
    fault = ("--fault", "t=1us link rail0:down0 loss=10%", "--param", "dedup=none")
    run = start(*SMALL, *fault, scenario="moe")
    output = ended(run)
    (row,) = run.result["rows"]
    assert row["wrong"] == 0
    assert sum(row["lost_packets"].values()) > 0
    assert "times the undisturbed" in output
