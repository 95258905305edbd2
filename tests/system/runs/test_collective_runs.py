"""Collectives over real fabrics, over either transport: right, exact, and never below the ideal."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.harness.runs.processes import SMALL, Run

pytestmark = pytest.mark.root


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
@pytest.mark.parametrize("scenario", ["allgather", "reducescatter", "alltoall"])
def test_every_element_arrives(start: Callable[..., Run], scenario: str, transport: str) -> None:
    run = start(
        *SMALL, "--sizes", "4KiB,64KiB", "--transport", transport, "--capture", "none",
        scenario=scenario,
    )  # fmt: skip
    status, _, errors = run.finish()
    assert status == 0, errors
    assert run.result["fidelity"]["verdict"] == "exact"
    rows = run.result["rows"]
    assert [row["size_bytes"] for row in rows] == [4096, 65536]
    for row in rows:
        assert row["wrong"] == 0
        assert row["time_us"] >= row["ideal_us"] > 0
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * 3 / 4)


def test_a_parser_of_nccl_tests_finds_the_rows(start: Callable[..., Run]) -> None:
    run = start(
        *SMALL, "--sizes", "4KiB,64KiB", "--capture", "none", "--transport", "uet,rocev2",
        scenario="allgather",
    )  # fmt: skip
    status, _, errors = run.finish()
    assert status == 0, errors
    report = json.loads((run.folder / "nccl-tests.json").read_text())
    rows = run.result["rows"]
    assert [(one["size"], one["in_place"]["time"]) for one in report["results"]] == [
        (row["size_bytes"], row["time_us"]) for row in rows
    ]
    assert [one["count"] for one in report["results"]] == [256, 4096, 256, 4096]
    names = [one["experiment_name"] for one in report["results"]]
    assert names == [f"{row['transport']}, seed 1" for row in rows]
