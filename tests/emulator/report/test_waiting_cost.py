"""What waiting GPUs cost: in rows, in sentences, by the verbs, and where nothing waits."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.reports import compare_verb, report_verb, traffic_verb
from emulator.errors import UserError
from emulator.report.run_folder import RunRecord
from emulator.report.waiting_cost import WaitingPrices, sentences, with_cost
from tests.harness.runs.written_folder import result, row, write_folder

ALL = WaitingPrices(gpu_watts=700, nic_watts=100, gpu_hour=2)


def record(*rows: dict[str, Any]) -> RunRecord:
    whole = [{"collective": "llm", "size_bytes": 8, "transport": "uet", **row} for row in rows]
    return RunRecord(path=Path("run"), result={"ranks": 16, "rows": whole})


def test_prices_make_power_energy_and_money() -> None:
    made = with_cost(record({"exposed": 0.25, "gpus": 8, "time_us": 500.0}), ALL)
    (only,) = made.rows
    assert only["waiting_gpus"] == 2
    assert only["waiting_watts"] == 1600
    assert only["waiting_joules"] == pytest.approx(0.8)
    assert only["waiting_cost_hour"] == 4
    (line,) = sentences(made)
    assert line.endswith(
        "2.00 GPUs wait for the network; 1600.0 W, 0.8 J an iteration; 4.00 an hour"
    )


def test_what_has_no_price_has_no_value() -> None:
    made = with_cost(record({"exposed": 0.5, "time_us": 1.0}), WaitingPrices(gpu_hour=3))
    (only,) = made.rows
    assert only["waiting_gpus"] == 8
    assert "waiting_watts" not in only
    assert only["waiting_cost_hour"] == 24


def test_without_prices_nothing_changes() -> None:
    before = record({"exposed": 0.5, "time_us": 1.0})
    assert with_cost(before, WaitingPrices()) is before


def test_where_nothing_waits_prices_are_refused() -> None:
    with pytest.raises(UserError, match="nothing in run waits for the network beside computing"):
        with_cost(record({"exposed": None, "time_us": 1.0}), ALL)


def test_verbs_show_what_waiting_costs(tmp_path: Path) -> None:
    before, after = (
        str(write_folder(tmp_path / name, result(row(exposed=share, digest=name), digest=name)))
        for name, share in (("before", 0.5), ("after", 0.75))
    )
    prices = ["--gpu-watts", "300", "--gpu-hour", "2"]
    report = CliRunner().invoke(report_verb.command, [before, *prices])
    assert "on average 1.00 GPUs wait for the network; 300.0 W" in report.output
    assert "waiting (an hour)" in (Path(before) / "report.html").read_text()
    more = ["--fail-if", "waiting_cost_hour>10%"]
    compared = CliRunner().invoke(compare_verb.command, [before, after, *prices, *more])
    assert compared.exit_code == compare_verb.CONDITION_HOLDS
    assert "waiting (an hour)" in compared.output
    unpriced = CliRunner().invoke(compare_verb.command, [before, after, *more])
    assert "name another value, or give its price" in str(unpriced.exception)

    counted = CliRunner().invoke(traffic_verb.command, [before, *prices, "--format", "json"])
    (waiting,) = (
        one["data"] for one in json.loads(counted.stdout)[0]["tables"] if one["figure"] == "waiting"
    )
    assert waiting == [{"waiting_gpus": 1, "waiting_watts": 300, "waiting_joules": 0.003,
                        "waiting_cost_hour": 2}]  # fmt: skip
    refused = CliRunner().invoke(traffic_verb.command, ["allreduce", *prices])
    assert "prices are for run folders" in str(refused.exception)

    log = tmp_path / "cluster.log"
    log.write_text("")
    refused = CliRunner().invoke(compare_verb.command, [before, str(log), *prices])
    assert "prices are for run folders" in str(refused.exception)


@pytest.mark.parametrize("verb", [report_verb.command, compare_verb.command, traffic_verb.command])
@pytest.mark.parametrize("price", ["0", "nan", "inf"])
def test_a_price_is_a_number_above_zero(verb: Any, price: str) -> None:
    found = CliRunner().invoke(verb, ["run", "run", "--gpu-hour", price])
    assert found.exit_code == 2
    assert "gpu-hour" in found.output
