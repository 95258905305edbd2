"""Collectives over real fabrics, over either transport: right, exact, and never below the ideal."""

from __future__ import annotations

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
