"""One small run of every traffic scenario over a real fabric, its counters held together."""

import json
from typing import Any

import pytest

from emulator.dataplane.kernel import namespaces
from emulator.pytest_plugin.runs import RunFactory
from emulator.run.results import ROW_KEYS
from tests.harness.runs.processes import completed, without_progress

BUDGET_S = 240.0
SMALL = "rail_clos:hosts=3,gpus_per_host=2,spines=3,uplinks_per_spine=1"
TINY = {"size": "128KiB", "message": "16KiB", "in_flight": "4", "warmups": "0"}


def run(runs: RunFactory, scenario: str, *options: str, **params: str) -> dict[str, Any]:
    done = runs(scenario, *options, "--format", "json", params=params, budget_s=BUDGET_S)
    content: dict[str, Any] = json.loads(done.output)
    assert content == done.result
    assert not namespaces.of_lab(done.folder.name)
    for row in content["rows"]:
        assert set(ROW_KEYS) <= set(row)
        assert row["time_us"] >= row["ideal_us"] > 0
        assert 0 < row["jain"] <= 1
        assert row["message_p99_us"] >= row["message_p50_us"] > 0
        assert len(row["began_us"]) == row["iterations"]
    content["folder"] = done.folder
    return content


def events(content: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    lines = (content["folder"] / "events.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["event"] == kind]


def packets_sent(content: dict[str, Any]) -> int:
    """By all endpoints in the whole run, first transmissions only."""
    endpoints = content["endpoints"].values()
    return sum(counts.get("transport.tx_data_packets", 0) for counts in endpoints)


def test_incast(uetemu_run: RunFactory) -> None:
    where = {"senders": "2,4", "placement": "any", "victim": "0"}
    content = run(uetemu_run, "incast", "--topology", SMALL, **where, **TINY)
    assert [row["senders"] for row in content["rows"]] == [2, 4]
    payload = sum(row["total_bytes"] for row in content["rows"])
    port = content["ports"]["rail0:down0"]
    # every octet came through the receiver's port, by the kernel's count and by the model's
    assert port["tx_bytes"] >= payload
    classes = port["asic"]["classes"]
    data = classes["data"]["bytes"] + classes["retransmission"]["bytes"]
    assert data >= payload
    trimmed = sum(
        row["trimmed"]
        for p in content["ports"].values()
        if "asic" in p
        for row in p["asic"]["classes"].values()
    )
    assert trimmed == sum(row["trimmed_packets"] for row in content["rows"])
    assert packets_sent(content) == sum(row["data_packets"] for row in content["rows"])
    last = content["rows"][-1]
    assert last["max_queue_port"] == "rail0:down0"
    assert 0 < last["max_queue_bytes"] <= port["asic"]["queues"]["low"]["max_bytes"]
    assert last["marked_packets"] > 0
    series = (content["folder"] / "telemetry.csv").read_text().splitlines()
    assert any(line.split(",")[1] == "rail0:down0" for line in series)
    captured = {port["port"] for port in events(content, "captured")[0]["ports"]}
    assert captured == {"rail0:down0"}
    assert [event["switch"] for event in events(content, "stage")] == ["shallow"] * 2


def test_permutation(uetemu_run: RunFactory) -> None:
    more = {name: value for name, value in TINY.items() if name != "size"}
    content = run(uetemu_run, "permutation", "--topology", SMALL, sizes="128KiB", **more)
    (row,) = content["rows"]
    assert row["flows"] == 6
    up = [
        port for name, port in content["ports"].items() if name.startswith(("rail0:up", "rail1:up"))
    ]
    assert sum(port["tx_bytes"] for port in up) >= row["total_bytes"]
    assert 1 <= row["links_max_mean"] <= 3
    assert 0 < row["links_jain"] <= 1


def test_victim(uetemu_run: RunFactory) -> None:
    content = run(uetemu_run, "victim", "--topology", SMALL, senders="2", **TINY)
    assert [row["senders"] for row in content["rows"]] == [0, 2]
    alone, shared = content["rows"]
    assert alone["flows"] == 1
    assert shared["flows"] == 3
    for row in content["rows"]:
        assert 0 < row["victim_share"] < 1.1


def test_outcast(uetemu_run: RunFactory) -> None:
    content = run(uetemu_run, "outcast", "--topology", SMALL, senders="1", receivers="2", **TINY)
    (row,) = content["rows"]
    assert row["flows"] == 3
    assert {"hot_share", "free_share", "incast_share"} <= set(row)


def test_linkfail(uetemu_run: RunFactory) -> None:
    content = run(
        uetemu_run,
        "linkfail",
        *("--topology", SMALL),
        **{**TINY, "size": "1MiB"},
        fail="none,black,slow",
        sprays="reps",
        black_at="5us",
        slow_at="5us",
    )
    whole, black, slow = content["rows"]
    assert whole["ideal_us"] < black["ideal_us"]
    assert whole["ideal_us"] < slow["ideal_us"]
    faulted = events(content, "fault")
    assert [event["ports"] for event in faulted] == [
        ["rail0:up0", "spine0:down0"],
        ["rail0:up1", "spine1:down0"],
    ]
    assert [event["late_us"] for event in faulted] == [0, 0]
    assert black["drops"].get("black_hole", 0) > 0
    assert black["retransmitted_packets"] > 0
    assert "black_hole" not in whole["drops"]
    assert "black_hole" not in slow["drops"]


def test_lbsweep_tells_switches_and_endpoints_anew(uetemu_run: RunFactory) -> None:
    content = run(
        uetemu_run,
        "lbsweep",
        *("--topology", SMALL),
        **TINY,
        sprays="oblivious,reps",
        balances="flow,round-robin",
    )
    assert [(row["transport"], row["switch"]) for row in content["rows"]] == [
        (f"uet:spray={spray}", f"shallow:balance={balance}")
        for spray in ("oblivious", "reps")
        for balance in ("flow", "round-robin")
    ]
    assert (content["transport"], content["switch"]) == ("uet", "shallow")
    assert len(events(content, "started")) == 4  # nobody has learned from the row before
    assert len(events(content, "stage")) == 4
    assert packets_sent(content) == sum(row["data_packets"] for row in content["rows"])


def test_ccsweep(uetemu_run: RunFactory) -> None:
    content = run(
        uetemu_run,
        "ccsweep",
        **TINY,
        senders="3",
        cc="none,nscc",
        profiles="shallow,deep",
        trims="on",
    )
    assert [(row["cc"], row["profile"]) for row in content["rows"]] == [
        *(("none", "shallow"), ("none", "deep"), ("nscc", "shallow"), ("nscc", "deep"))
    ]
    assert all(
        row["goodput_share"] is None or row["goodput_share"] < 1.1 for row in content["rows"]
    )


def test_without_an_asic_rows_say_so(uetemu_run: RunFactory) -> None:
    content = run(uetemu_run, "incast", "--switch", "none", senders="1", **TINY)
    (row,) = content["rows"]
    assert (row["switch"], row["trimmed_packets"], row["max_queue_bytes"]) == ("none", None, None)
    assert "asic" not in content["ports"]["rail0:down0"]
    assert not (content["folder"] / "telemetry.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("linkfail", "--transport", "uet:spray=bitmap"), "--transport says spray=bitmap"),
        (("ccsweep", "--switch", "deep"), "--switch says deep"),
        (("linkfail", "--switch", "none"), "faults are the switch's to inject"),
        (("incast", "--switch", "shalow"), "did you mean shallow"),
        (("incast", "--switch", "shallow:trim=maybe"), "trim=on or trim=off"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = completed("run", *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert without_progress(done.stderr).count("\n") == 1


@pytest.mark.parametrize("transport", ["uet", "rocev2:adaptive"])
def test_kvload(uetemu_run: RunFactory, transport: str) -> None:
    given = {"transfers": "2", "load": "0,75", "message": "64KiB", "background": "16KiB"}
    content = run(uetemu_run, "kvload", "--transport", transport, **given)
    idle, loaded = content["rows"]
    assert (idle["load"], loaded["load"]) == (0, 75)
    assert "victim_p99_us" not in idle
    assert loaded["victim_p99_us"] > 0
    assert loaded["message_p99_us"] >= idle["message_p99_us"]


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_kvmix(uetemu_run: RunFactory, transport: str) -> None:
    given = {"rounds": "2", "load": "75", "message": "32KiB"}
    content = run(uetemu_run, "kvmix", "--transport", transport, **given)
    (row,) = content["rows"]
    assert row["flows"] == 4  # dispatches are victims
    assert row["victim_p99_us"] >= row["victim_p50_us"] > 0
    assert row["total_bytes"] > 2 * 8 * 8192
