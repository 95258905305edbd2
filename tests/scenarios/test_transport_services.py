"""One job over RUD, ROD, RUDI and UUD: what each costs, and what losses do to it."""

from pathlib import Path
from typing import Any

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.plan.run_plan import RunRequest
from emulator.run.results import Result
from emulator.run.runner import prepare
from emulator.transports import fit
from tests.harness.runs.unseen_run import result_of
from topologies.catalogue import load


def run(folder: Path, workers: int = 1, **given: str) -> Result:
    form = scenario.load("transport_services")
    request = RunRequest(
        scenario=form, parameters=form.parameters({"size": "512KiB", **given}), fabric="model",
        capture="none", output=folder, workers=workers,
    )  # fmt: skip
    result = result_of(prepare(request))
    assert result.errors == []
    return result


def test_another_transport_has_no_such_services(tmp_path: Path) -> None:
    form = scenario.load("transport_services")
    request = RunRequest(
        scenario=form, parameters=form.parameters({}), transport="rocev2", fabric="model",
        output=tmp_path / "run",
    )  # fmt: skip
    with pytest.raises(UserError, match=r"says rocev2 and a row of this scenario .* with uet;"):
        prepare(request)


def by_service(rows: list[dict[str, Any]], loss: int) -> list[dict[str, Any]]:
    found = {row["service"]: row for row in rows if row["loss_ppm"] == loss}
    return [found[service] for service in ("RUD", "ROD", "RUDI", "UUD")]


def test_services_cost_what_they_keep_and_answer(tmp_path: Path) -> None:
    results = [run(tmp_path / str(workers), workers) for workers in (1, 2)]
    one, other = results
    assert one.digest == other.digest
    rud, rod, rudi, uud = by_service(one.rows, 0)
    notices = 4 * 512 // 64
    assert (rud["data_packets"], uud["data_packets"]) == (512, 512 + notices)
    assert rud["header_bytes"] > rudi["header_bytes"] > uud["header_bytes"]
    assert rudi["answers"] == 512 + notices > rud["answers"] > uud["answers"] == notices
    assert [row["lost_share"] for row in (rud, rod, rudi, uud)] == [0, 0, 0, 0]
    assert [row["wrong"] for row in (rud, rod, rudi, uud)] == [0, 0, 0, None]

    rud, rod, rudi, uud = by_service(one.rows, 10_000)
    assert rod["retransmitted_packets"] > 5 * rud["retransmitted_packets"] > 0
    # What is sent again because its answer was lost arrives twice, and is right nevertheless.
    assert rudi["retransmitted_packets"] > rudi["repeated_packets"] > 0
    assert [row["wrong"] for row in (rud, rod, rudi)] == [0, 0, 0]
    assert [row["lost_share"] for row in (rud, rod, rudi)] == [0, 0, 0]
    assert 0 < uud["lost_share"] < 0.03
    assert uud["data_packets"] == 512 + notices


def test_what_datagrams_lose_is_wrong_in_other_scenarios(tmp_path: Path) -> None:
    form = scenario.load("losssweep")
    request = RunRequest(
        scenario=form, parameters=form.parameters({"size": "256KiB", "losses": "0,16000"}),
        transport="uet:delivery=uud", fabric="model", capture="none", output=tmp_path / "run",
    )  # fmt: skip
    whole, lossy = result_of(prepare(request)).rows
    assert whole["wrong"] == 0
    assert isinstance(lossy["wrong"], int)
    assert lossy["wrong"] > 0


@pytest.mark.parametrize("delivery", ["rudi", "uud"])
def test_what_a_service_without_a_pdc_has_not_is_refused(delivery: str) -> None:
    with pytest.raises(UserError, match="no congestion control"):
        fit(f"uet:delivery={delivery},cc=rccc", load("rail_clos:hosts=2,gpus_per_host=1"))
    with pytest.raises(UserError, match="has one endpoint for a NIC"):
        fit(f"uet:delivery={delivery}", load("fabric_planes"))
