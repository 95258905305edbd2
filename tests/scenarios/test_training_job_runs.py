"""Jobs over real fabrics that start, lose GPUs, and go on: right to the bit."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.perfetto_rules import imported
from tests.harness.runs.processes import without_progress

#: What a transport reports of a peer that does not answer.
GIVEN_UP = {"uet": "RTO_RETRIES_EXHAUSTED", "rocev2": "RETRY_EXC_ERR"}
SMALL = ("hidden=16", "epochs=4", "gradient_time=5us", "fail_at=36us")

Start = Callable[..., RunProcess]


def ran(start: Start, scenario: str, *arguments: str) -> dict[str, Any]:
    """The result of a run that succeeds, all of whose rows are right to the bit."""
    run = start(*arguments, "--capture", "none", scenario=scenario)
    status, output, errors = run.communicate()
    assert status == 0, errors
    assert "# Out of bounds values : 0 OK" in output
    result = run.result
    assert result["fidelity"]["verdict"] == "exact"
    assert [row["wrong"] for row in result["rows"]] == [0] * len(result["rows"])
    assert imported(json.loads((run.folder / "timeline.json").read_text())).troubles == []
    return result


def checkpoint(start: Start, *arguments: str, **given: str) -> dict[str, Any]:
    parameters = [*SMALL, *(f"{name}={value}" for name, value in given.items())]
    return ran(start, "checkpoint", *arguments, *(w for p in parameters for w in ("--param", p)))


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_a_job_goes_on_without_what_it_lost(start: Start, transport: str) -> None:
    result = checkpoint(start, "--transport", transport)
    rows = {row["fail"]: row for row in result["rows"]}
    assert list(rows) == ["gpu", "nic", "server"]
    for row in rows.values():
        reported = {one["gpu"]: one["error"] for one in row["reported_by"]}
        assert reported["h0g1"].endswith(f"ended with {GIVEN_UP[transport]}")
        assert row["from_epoch"] == 3  # the step after the first checkpoint was lost
        parts = row["detected_us"] + row["read_us"] + row["lost_us"]
        assert row["time_us"] > row["undisturbed_us"] + parts
        assert row["slowdown"] > 1
    assert rows["gpu"]["lost_packets"].keys() == {"gpu_dead"}
    assert rows["gpu"]["cut_off_gpus"] == ["h1g0"]
    assert rows["server"]["cut_off_gpus"] == ["h1g0", "h1g1"]
    assert "gpu_dead" not in rows["nic"]["lost_packets"]


def test_two_losses_take_two_spares(start: Start) -> None:
    fault = "t=1100us gpu h0g0 dead"
    transport = "rocev2:timeout=5"  # the first loss is told before the second
    result = checkpoint(start, "--transport", transport, "--fault", fault, fail="gpu")
    (row,) = result["rows"]
    assert len(row["reported_by"]) == 2
    assert row["cut_off_gpus"] == ["h1g0", "h0g0"]


def test_a_loss_that_no_transport_reports_ends_the_run(start: Start) -> None:
    """Rank 0 copies to rank 1 over NVLink, and has nothing left to send when that dies."""
    given = (*SMALL[:-1], "fail_at=60us", "fail=gpu", "victim=1")
    parameters = [word for one in given for word in ("--param", one)]
    run = start(*parameters, "--capture", "none", scenario="checkpoint")
    status, _, errors = run.communicate()
    assert status == 1
    assert "rank 1 (h0g1) is cut off for good by" in errors
    assert "nobody writes to what is lost any more, so that no transport reports it" in errors


def test_a_mate_in_the_server_learns_at_once_and_each_iteration_begins_whole(
    start: Start,
) -> None:
    result = checkpoint(start, "--endpoints", "kept", fail="gpu", victim="3", iterations="2")
    (row,) = result["rows"]
    (reported,) = row["reported_by"]
    assert reported["gpu"] == "h1g0"
    assert reported["error"] == "rank 3 has no scale-up port any more"
    assert row["detected_us"] < 10
    assert row["time_min_us"] > row["undisturbed_us"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fault", "t=2us server h2 dead"), "it has lost rank 2 and no spare is left"),
        (("--fault", "t=2us gpu h3g1 dead"), "rank 7, which stores states, is lost with them"),
    ],
)
def test_a_job_that_cannot_go_on_ends_with_one_sentence(
    start: Start, arguments: tuple[str, ...], words: str
) -> None:
    parameters = [word for one in (*SMALL, "fail=gpu") for word in ("--param", one)]
    run = start(*parameters, *arguments, "--capture", "none", scenario="checkpoint")
    status, _, errors = run.communicate()
    assert status == 1
    assert words in errors
    assert without_progress(errors).count("\n") == 1
    assert run.leftovers() == []


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_a_job_starts(start: Start, transport: str) -> None:
    result = ran(start, "jobstart", "--transport", transport, "--param", "hidden=32")
    for row in result["rows"]:
        phases = [row[f"{name}_us"] for name in ("id", "check_in", "weights", "stepped")]
        assert min(phases) > 0
        assert sum(phases) <= row["time_us"]
        assert row["rendezvous"] == "in kernel"


def test_new_weights_come_to_rollout_servers(start: Start) -> None:
    small = ("weights=512KiB", "messages=4", "serve=after", "swap=2us")
    result = ran(start, "weight_sync", *(word for one in small for word in ("--param", one)))
    rows = {row["mode"]: row for row in result["rows"]}
    assert list(rows) == ["none", "broadcast", "p2p", "relay", "delta"]
    for row in list(rows.values())[1:]:
        assert 2 < row["first_us"] <= row["pause_us"] <= row["sync_us"] < row["time_us"]
    assert rows["delta"]["sync_us"] < rows["p2p"]["sync_us"] < rows["broadcast"]["sync_us"]
    assert rows["none"]["victim_p50_us"] > 0


@pytest.mark.parametrize(
    ("transport", "fault", "gone"),
    [("uet", "gpu h1g0", "h1g0"), ("rocev2", "server h1", "h1g0, h1g1")],
)
def test_a_job_that_does_not_expect_it_fails_by_a_transport_error(
    start: Start, transport: str, fault: str, gone: str
) -> None:
    run = start(
        *("--transport", transport, "--sizes", "64KiB", "--fault", f"t=2us {fault} dead"),
        *("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=1", "--capture", "none"),
    )
    status, output, errors = run.communicate()
    assert status == 1
    assert f"({gone})" in errors
    assert f"cut off for good by 't=2us {fault} dead', and the job cannot end without" in errors
    assert "# Unfinished" in output
    assert run.leftovers() == []
