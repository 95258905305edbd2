"""The floor of a fabric: its rows, the band around it, and a log beside it."""

import json
from pathlib import Path

import click
import pytest

from emulator.cli.main import cli
from emulator.cli.predict import prediction
from emulator.cli.predict.floor import closing_lines, floor, row_of
from emulator.cli.predict.prediction import Limit, sizes_of
from emulator.errors import UserError
from emulator.nccl_tests import text_log
from tests.harness.runs.cluster_logs import ROWS, log_2_17

FABRIC = "rail_clos:hosts=2,gpus_per_host=2,spines=1"
REACHED = {0: {"1": 0.5, "2": 0.25}, 2**20: {"3": 0.8}}
FACTOR = 1.5


def measured(size: int, busbw: float) -> dict[str, object]:
    """A row of the run."""
    return {"size_bytes": size, "time_us": size * FACTOR / busbw / 1000, "busbw_gbps": busbw}


def test_the_floor_is_the_least_share_of_the_band_of_the_size() -> None:
    row = row_of(
        prediction.TestSize(size=65536, run=65536, rows=()), measured(65536, 40.0), FACTOR, REACHED
    )
    assert (row["floor_busbw_gbps"], row["best_busbw_gbps"]) == (10.0, 20.0)
    assert "against_floor" not in row
    cut = row_of(
        prediction.TestSize(size=2**24, run=65536, rows=()), measured(65536, 40.0), FACTOR, REACHED
    )
    assert (cut["size_bytes"], cut["run_bytes"]) == (2**24, 65536)
    assert cut["floor_busbw_gbps"] == 32.0


@pytest.mark.parametrize(("busbw", "verdict"), [(15.9, "reached"), (16.1, "below")])
def test_a_log_is_compared_with_the_floor(busbw: float, verdict: str) -> None:
    size, _ = sizes_of(text_log.read("a.log", log_2_17().splitlines()), Limit())
    row = row_of(size, measured(65536, busbw), FACTOR, REACHED)
    assert row["cluster_busbw_gbps"] == pytest.approx(4.01, abs=0.01)
    assert row["against_floor"] == verdict


def test_a_fabric_has_a_floor_and_a_slow_cluster_lies_below_it(tmp_path: Path) -> None:
    slow = ROWS[0].replace("24.51    2.67    4.01", "2451    0.03    0.04")
    log = tmp_path / "cluster.log"
    log.write_text(log_2_17([slow, ROWS[1]]))
    found = floor(
        FABRIC,
        log=log,
        limit=Limit(octets=2**18, cut=True),
        parameters={"iterations": "1", "warmups": "0"},
        fabric="model",
        output=tmp_path / "run",
    )
    assert found.collective == "all_reduce"
    assert (found.as_dict()["nic"], found.as_dict()["library"]) == ("none", "none")
    assert found.below == [65536]
    small, large = found.rows
    assert small["busbw_gbps"] > small["floor_busbw_gbps"] > 0
    assert large["run_bytes"] == 2**18
    assert json.loads((tmp_path / "run" / "floor.json").read_text()) == found.as_dict()
    said = " ".join(" ".join(closing_lines(found)).split())
    assert "Below the floor : 1 of 2 sizes: 65536 B" in said
    assert "(point 3.2)" in said


def test_without_a_log_the_sizes_are_those_of_the_scenario(tmp_path: Path) -> None:
    found = floor(
        FABRIC,
        "alltoall",
        limit=Limit(octets=2**15),
        parameters={"min_size": "4KiB", "max_size": "1MiB", "factor": "8", "iterations": "1"},
        fabric="model",
        output=tmp_path / "run",
    )
    assert [row["size_bytes"] for row in found.rows] == [4096, 32768]
    assert found.below == []
    assert "no published point is of alltoall" in " ".join(closing_lines(found))


def test_a_floor_without_a_collective_or_a_log_is_refused() -> None:
    with pytest.raises(UserError, match="no collective is given: name one with --collective, of"):
        floor(FABRIC)
    with pytest.raises(UserError, match="'barrier' is none: name one"):
        floor(FABRIC, "barrier")
    with pytest.raises(UserError, match="one placement: give --param in_place=0"):
        floor(FABRIC, "all_gather", parameters={"in_place": "both"})


def test_a_floor_is_that_of_a_healthy_cluster() -> None:
    given = ["--collective", "all_reduce", "--topology", FABRIC, "--gpu-direct", "off"]
    with pytest.raises(click.ClickException, match="healthy cluster reaches, and one with --gpu"):
        cli.main(["predict", "--floor", *given], standalone_mode=False)
