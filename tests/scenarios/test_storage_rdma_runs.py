"""Servers read and write storage nodes by RDMA, in virtual time: every octet is right."""

from collections.abc import Callable

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.processes import ended

SMALL = ("cluster_storage:hosts=2", "shards=4", "shard=64KiB", "state=128KiB", "cache=64KiB")


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_datasets_and_checkpoints_are_right_to_the_octet(
    start: Callable[..., RunProcess], transport: str
) -> None:
    topology, *parameters = SMALL
    given = [word for pair in parameters for word in ("--param", pair)]
    run = start(
        *("--topology", topology, "--transport", transport, "--capture", "none", *given),
        scenario="storage_rdma",
    )
    ended(run)
    result = run.result
    assert result["fidelity"]["verdict"] == "exact"
    rows = result["rows"]
    assert [row["work"] for row in rows] == ["dataset", "dataset", "checkpoint", "restore"]
    assert [row["wrong"] for row in rows] == [0] * 4
    first, second, checkpoint, _ = rows
    assert (first["hits"], first["total_bytes"]) == (0, 4 * 2**16)
    assert second["total_bytes"] == (4 - second["hits"]) * 2**16
    assert checkpoint["total_bytes"] == 2 * 2**17
    assert all(0 < row["port_share"] <= 1 for row in rows)


@pytest.mark.parametrize(
    ("name", "over", "works"),
    [
        ("dataset", (), ["dataset", "dataset"]),
        ("checkpoint", ("--param", "over=storage"), ["checkpoint", "restore"]),
    ],
)
def test_a_part_of_it_is_known_by_the_name_that_it_has_over_tcp(
    start: Callable[..., RunProcess], name: str, over: tuple[str, ...], works: list[str]
) -> None:
    topology, *_ = SMALL
    run = start("--topology", topology, "--capture", "none", *over, scenario=name)
    ended(run)
    assert run.result["scenario"] == "storage_rdma"
    assert [row["work"] for row in run.result["rows"]] == works


def test_a_fabric_without_storage_nodes_is_refused(start: Callable[..., RunProcess]) -> None:
    status, _, errors = start("--topology", "pod", scenario="storage_rdma").communicate()
    assert status == 1
    assert "take --topology cluster_storage" in errors
