"""Training steps over real fabrics, one job and several, over either transport."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.perfetto_rules import imported
from tests.harness.runs.processes import ended

PLAIN = ("--capture", "none")
SHARES = ("compute", "tp", "cp", "ep", "dp", "pp", "bubble")


def parameters(**given: Any) -> tuple[str, ...]:
    return tuple(word for name, value in given.items() for word in ("--param", f"{name}={value}"))


def checked(run: RunProcess) -> list[dict[str, Any]]:
    return printed(run)[0]


def printed(run: RunProcess) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a run that is right, and what it printed."""
    output = ended(run)
    assert "# Out of bounds values : 0 OK" in output
    assert run.result["fidelity"]["verdict"] == "exact"
    rows = run.result["rows"]
    for row in rows:
        assert row["wrong"] == 0
        assert row["time_us"] >= row["ideal_us"] > 0
        assert row["fabric_bytes"] == row["fabric_bytes_derived"]
    return rows, output


def test_a_step_of_24_gpus_in_three_dimensions_over_both_transports(
    start: Callable[..., RunProcess],
) -> None:
    small = parameters(layers=3, batch=4, scale=8192)
    run = start(*small, *PLAIN, "--transport", "uet,rocev2", "--seeds", "1", scenario="llm")
    rows = checked(run)
    assert {row["transport"] for row in rows} == {"uet", "rocev2"}
    for row in rows:
        assert (row["gpus"], row["parallel"], row["scale"]) == (24, "4x1x2x3", 8192)
        assert sum(row[f"{name}_share"] for name in SHARES) == pytest.approx(1)
        assert row["exposed"] == pytest.approx(1 - row["compute_share"] - row["bubble_share"])
        assert row["bubble_share"] > 0
        assert row["results"] > 500
    assert len({row["fabric_bytes"] for row in rows}) == 1


@pytest.mark.parametrize(
    ("given", "transport"),
    [
        ({"zero": 3, "tp": 1, "pp": 1, "dp": 4}, "uet"),
        ({"model": "8x7b", "ep": 2, "tp": 2, "pp": 2, "dp": 2, "zero": 1}, "rocev2"),
        ({"cp": 2, "tp": 2, "pp": 1, "dp": 2, "sp": "off"}, "uet"),
    ],
    ids=["FSDP", "experts", "context"],
)
def test_other_kinds_of_parallelism(
    start: Callable[..., RunProcess], given: dict[str, object], transport: str
) -> None:
    small = parameters(**given, layers=2, batch=4, scale=16384)
    fabric = ("--topology", "rail_clos:hosts=4,gpus_per_host=2,spines=1")
    (row,) = checked(start(*small, *PLAIN, *fabric, "--transport", transport, scenario="llm"))
    assert row["fabric_bytes"] > 0
    kind = {"zero": "dp_share", "model": "ep_share", "cp": "cp_share"}[next(iter(given))]
    assert row[kind] > 0


def test_replicas_come_and_go_and_the_speed_up_is_drawn(start: Callable[..., RunProcess]) -> None:
    small = parameters(layers=2, tp=2, pp=1, dp="1,2,1", batch=2, scale=16384, zero=1)
    run = start(*small, *parameters(elastic="on", show="scaling"), *PLAIN, scenario="llm")
    rows, output = printed(run)
    assert [row["gpus"] for row in rows] == [2, 4, 2]
    assert "165.0 years on 1" in output
    assert "4" in [line.split()[1] for line in output.splitlines() if "####" in line]


def test_the_timeline_names_layers_micro_batches_and_collectives(
    start: Callable[..., RunProcess],
) -> None:
    small = parameters(layers=2, tp=2, pp=1, dp=2, batch=2, scale=65536)
    fabric = ("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=1")
    run = start(*small, *fabric, scenario="llm")
    checked(run)
    found = imported(json.loads((run.folder / "timeline.json").read_text()))
    assert not found.troubles
    names = {one.name for one in found.slices}
    assert "micro-batch 1, layer 2 forward, TP AllGather" in names
    assert any("layer 1 gradients DP AllReduce to h" in name for name in names)


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_jobs_beside_each_other_and_alone(start: Callable[..., RunProcess], transport: str) -> None:
    small = parameters(dp=4, batch=4, scale=65536, placement="packed,random")
    rows = checked(start(*small, *PLAIN, "--transport", transport, scenario="jobs"))
    assert [row["running"] for row in rows] == ["1", "2", "1+2"] * 2
    packed, mixed = rows[2], rows[5]
    assert packed["slowdown_by_job"] == pytest.approx([1, 1], abs=0.02)
    assert all(ratio >= 0.98 for ratio in mixed["slowdown_by_job"])
    assert max(packed["jct_us"]) <= packed["time_us"]
