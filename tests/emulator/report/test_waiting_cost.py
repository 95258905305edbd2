"""What waiting GPUs cost: in rows, in sentences, by the verbs, and where nothing waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.reports import compare_verb, report_verb
from emulator.errors import UserError
from emulator.report.run_folder import RunRecord
from emulator.report.waiting_cost import WaitingPrices, sentences, with_cost

ALL = WaitingPrices(gpu_watts=700, nic_watts=100, gpu_hour=2)


def record(*rows: dict[str, Any]) -> RunRecord:
    whole = [{"collective": "llm", "size_bytes": 8, "transport": "uet", **row} for row in rows]
    return RunRecord(path=Path("run"), result={"ranks": 16, "rows": whole})


def test_prices_make_power_energy_and_money() -> None:
    made = with_cost(record({"exposed": 0.25, "gpus": 8, "time_us": 500.0}), ALL)
    (row,) = made.rows
    assert row["waiting_gpus"] == 2
    assert row["waiting_watts"] == 1600
    assert row["waiting_joules"] == pytest.approx(0.8)
    assert row["waiting_cost_hour"] == 4
    (line,) = sentences(made)
    assert line.endswith(
        "2.00 GPUs wait for the network; 1600.0 W, 0.8 J an iteration; 4.00 an hour"
    )


def test_what_has_no_price_has_no_value() -> None:
    made = with_cost(record({"exposed": 0.5, "time_us": 1.0}), WaitingPrices(gpu_hour=3))
    (row,) = made.rows
    assert row["waiting_gpus"] == 8
    assert "waiting_watts" not in row
    assert row["waiting_cost_hour"] == 24


def test_without_prices_nothing_changes() -> None:
    before = record({"exposed": 0.5, "time_us": 1.0})
    assert with_cost(before, WaitingPrices()) is before


def test_where_nothing_waits_prices_are_refused() -> None:
    with pytest.raises(UserError, match="nothing in run waits for the network beside computing"):
        with_cost(record({"exposed": None, "time_us": 1.0}), ALL)


@pytest.mark.parametrize("verb", [report_verb.command, compare_verb.command])
def test_a_price_is_above_zero(verb: Any) -> None:
    found = CliRunner().invoke(verb, ["run", "run", "--gpu-hour", "0"])
    assert found.exit_code == 2
    assert "gpu-hour" in found.output
