"""Collectives over real fabrics, over either transport: right, exact, and never below the ideal."""

import json
from collections.abc import Callable

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.collective_benchmarks import ALL, FIRST
from tests.harness.runs.processes import SMALL, ended

#: Each collective over both transports; its other algorithms, whose schedules are executed in
#: memory by other tests, are nightly.
RUNS = [
    (name, one, "uet,rocev2")
    if FIRST[name] == one
    else pytest.param(name, one, "uet", marks=pytest.mark.nightly)
    for name, one in ALL
]


@pytest.mark.parametrize(("scenario", "algorithm", "transports"), RUNS)
def test_every_element_arrives(
    start: Callable[..., RunProcess], scenario: str, algorithm: str, transports: str
) -> None:
    run = start(
        *SMALL, "--sizes", "4KiB,64KiB", "--transport", transports, "--seeds", "1",
        "--capture", "none",
        "--param", f"algorithm={algorithm}", scenario=scenario,
    )  # fmt: skip
    ended(run)
    assert run.result["fidelity"]["verdict"] == "exact"
    rows = run.result["rows"]
    sizes = [4096, 65536]
    asked = [(name, size) for name in transports.split(",") for size in sizes]
    assert [row["transport"] for row in rows] == [name for name, _ in asked]
    if scenario != "alltoallv":
        assert [row["size_bytes"] for row in rows] == [size for _, size in asked]
    for row in rows:
        assert row["wrong"] == 0
        assert row["algorithm"] == algorithm
        assert row["time_us"] >= row["ideal_us"] > 0
        assert row["fabric_bytes"] == row["fabric_bytes_derived"] > 0


MORE = (
    ("allreduce", "datatype=bfloat16", "data=random", "op=avg"),
    ("allreduce", "ranks=rail", "in_place=1", "channels=3"),
    ("reducescatter", "datatype=half", "op=prod", "in_place=1"),
    ("broadcast", "ranks=3,0,2", "root=1", "datatype=uint8"),
)


@pytest.mark.parametrize("given", MORE, ids=lambda given: " ".join(given))
def test_types_operations_and_communicators(
    start: Callable[..., RunProcess], given: tuple[str, ...]
) -> None:
    scenario, *pairs = given
    options = [word for pair in pairs for word in ("--param", pair)]
    run = start(*SMALL, "--sizes", "12KiB", "--capture", "none", *options, scenario=scenario)
    ended(run)
    (row,) = run.result["rows"]
    assert row["wrong"] == 0
    assert row["fabric_bytes"] == row["fabric_bytes_derived"] > 0


def test_without_a_check_no_row_claims_to_be_right(start: Callable[..., RunProcess]) -> None:
    run = start(*SMALL, "--sizes", "4KiB", "--capture", "none", "--param", "check=0")
    output = ended(run)
    assert run.result["rows"][0]["wrong"] is None
    (line,) = [line for line in output.splitlines() if line and not line.startswith("#")]
    assert line.split()[8] == "N/A"
    assert "# Out of bounds values : N/A" in output


def test_a_parser_of_nccl_tests_finds_the_rows(start: Callable[..., RunProcess]) -> None:
    run = start(
        *SMALL, "--sizes", "4KiB,64KiB", "--capture", "none", "--transport", "uet,rocev2",
        "--seeds", "1",
        "--param", "in_place=both", scenario="allgather",
    )  # fmt: skip
    ended(run)
    report = json.loads((run.folder / "nccl-tests.json").read_text())
    rows = run.result["rows"]
    assert [row["place"] for row in rows] == ["out", "in"] * 4
    for place, own in (("out_of_place", rows[::2]), ("in_place", rows[1::2])):
        assert [(one["size"], one[place]["time"]) for one in report["results"]] == [
            (row["size_bytes"], row["time_us"]) for row in own
        ]
    assert [one["count"] for one in report["results"]] == [256, 4096, 256, 4096]
    names = [one["experiment_name"] for one in report["results"]]
    assert names == [f"{row['transport']}, seed 1" for row in rows[::2]]
