"""``uetemu run`` as a user runs it, on fabrics of its own that must be gone afterwards."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import BUDGET_S, RunProcess
from tests.harness.runs.processes import ENDLESS, SMALL, forked, without_progress

pytestmark = pytest.mark.root

Command = tuple[str, ...]


def test_a_small_run_leaves_a_complete_folder_and_nothing_else(
    start: Callable[..., RunProcess],
) -> None:
    run = start(*SMALL, "--sizes", "40,64KiB,1MB", "--format", "json")
    status, out, err = run.communicate()
    assert (status, err) == (0, "")
    content = json.loads(out)
    assert content == run.result
    assert content["schema"] == "uetemu.result/1"
    assert content["ranks"] == 4
    assert [row["size_bytes"] for row in content["rows"]] == [40, 65536, 1_000_000]
    for row in content["rows"]:
        assert row["wrong"] == 0
        assert row["transport"] == "uet"
        assert row["time_us"] >= row["time_min_us"] > 0
        assert row["data_packets"] > 0
        assert row["cross_rail_hops"] == 0
        assert row["busbw_gbps"] == pytest.approx(1.5 * row["algbw_gbps"])
    assert content["errors"] == []
    assert content["fidelity"]["verdict"] == "exact"
    account = content["fidelity"]["account"]
    assert account["injected"] == account["delivered"] > 0
    assert account["dropped"] == {}
    assert set(content["endpoints"]) == {"h0g0", "h0g1", "h1g0", "h1g1"}
    assert content["ports"]["rail0:down0"]["data"]["packets"] > 0
    assert content["ports"]["rail0:up0"]["data"]["packets"] == 0  # rings stay on their rails
    files = {path.name for path in run.folder.iterdir()}
    assert files == {
        "result.json",
        "events.jsonl",
        "fabric.json",
        "environment.json",
        "timeline.json",
        "nccl-tests.json",
        "capture.pcapng",
        "telemetry.csv",
        "line_telemetry.csv",
    }
    trace = json.loads((run.folder / "timeline.json").read_text())
    events = trace["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"compute", "NVLink out", "NVLink in", "NIC out", "NIC in"} <= tracks
    assert {"compute", "NVLink", "NIC"} <= {event.get("cat") for event in events}
    captured = next(event for event in run.events() if event["event"] == "captured")
    frames = {port["port"]: port["received"] for port in captured["ports"]}
    assert frames["rail0:down0"] > 0
    assert (run.folder / "capture.pcapng").stat().st_size > 0
    assert run.leftovers() == []


def test_the_table_of_a_run(start: Callable[..., RunProcess]) -> None:
    run = start(
        *(*SMALL, "--sizes", "64KiB", "--iterations", "1"),
        *("--capture", "none"),
    )
    status, out, err = run.communicate()
    assert (status, err) == (0, "")
    (line,) = [line for line in out.splitlines() if not line.startswith("#")]
    fields = line.split()
    assert fields[:5] == ["65536", "16384", "float", "sum", "-1"]
    assert fields[8] == "0"
    assert "# Out of bounds values : 0 OK" in out
    assert "# Avg bus bandwidth" in out
    assert "# Fidelity" in out
    assert not (run.folder / "capture.pcapng").exists()
    assert run.leftovers() == []


def test_shuffled_ranks_reach_the_spines(start: Callable[..., RunProcess]) -> None:
    run = start(
        *("--topology", "rail_clos:hosts=3,gpus_per_host=2", "--sizes", "64KiB"),
        *("--param", "order=shuffled", "--seed", "4", "--format", "json"),
    )
    status, out, _ = run.communicate()
    assert status == 0
    content = json.loads(out)
    assert content["rows"][0]["wrong"] == 0
    assert content["rows"][0]["cross_rail_hops"] > 0
    uplinks = [port for name, port in content["ports"].items() if name.startswith("rail0:up")]
    assert sum(port["data"]["packets"] for port in uplinks) > 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupt_leaves_a_partial_result_and_no_fabric(
    spawn: Callable[..., RunProcess], number: signal.Signals, status: int
) -> None:
    run = spawn(*ENDLESS)
    run.event("started")
    run.process.send_signal(number)
    found, _, err = run.communicate()
    assert found == status
    assert err == f"uetemu: interrupted by {number.name}; the fabric has been removed\n"
    assert run.result["errors"] == [f"interrupted by {number.name}"]
    assert run.leftovers() == []


@pytest.mark.parametrize("after", ["begin", "built"])
def test_an_interrupt_at_any_stage_leaves_no_fabric(
    spawn: Callable[..., RunProcess], after: str
) -> None:
    run = spawn(*ENDLESS)
    run.event(after)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal's Ctrl-C: to all processes
    run.process.send_signal(signal.SIGINT)  # and an impatient second one
    status, _, err = run.communicate()
    assert status == 130
    assert err.count("\n") == 1
    assert run.leftovers() == []


def test_rows_survive_an_interrupt(spawn: Callable[..., RunProcess]) -> None:
    run = spawn(
        *(*SMALL, "--sizes", "4KiB,64MiB", "--param", "warmups=0"),
        *("--iterations", "1", "--format", "json"),
    )
    run.event("row")
    run.process.send_signal(signal.SIGTERM)
    status, out, _ = run.communicate()
    assert status == 143
    assert [row["size_bytes"] for row in json.loads(out)["rows"]] == [4096]
    assert run.leftovers() == []


def test_a_killed_runner_leaves_what_clean_removes(spawn: Callable[..., RunProcess]) -> None:
    run = spawn(*ENDLESS)
    agents = run.event("started")["agents"]
    run.process.kill()
    run.communicate()
    assert run.leftovers()
    clean = forked("clean", run.lab)
    clean.communicate(timeout=BUDGET_S)
    assert clean.returncode == 0
    assert [path for path in run.leftovers() if "capture.parts" not in path] == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in agents.values())
    assert [event["event"] for event in run.events()][:3] == ["begin", "built", "started"]


def test_two_runs_at_once_do_not_meet(start: Callable[..., RunProcess]) -> None:
    small = (*SMALL, "--sizes", "64KiB", "--iterations", "1")
    first, second = start(*small, "--seed", "1"), start(*small, "--seed", "2")
    for run in (first, second):
        status, _, err = run.communicate()
        assert (status, err) == (0, "")
        assert run.leftovers() == []


def test_a_name_in_use_is_refused_before_anything_is_made(
    spawn: Callable[..., RunProcess], tmp_path: Path
) -> None:
    run = spawn(*ENDLESS)
    run.event("built")
    folder = tmp_path / "second"
    second = forked("run", "allreduce", "--name", run.lab, "--output", str(folder))
    _, err = second.communicate(timeout=BUDGET_S)
    assert second.returncode == 1
    assert run.lab in err
    assert err.count("\n") == 1
    assert not folder.exists()
    assert run.process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("alreduce",), "did you mean allreduce"),
        (("allreduce", "--transport", "ute"), "did you mean uet"),
        (("allreduce", "--topology", "rail_close"), "did you mean rail_clos"),
        (("allreduce", "--topology", "rail_clos:hosts=0"), "hosts"),
        (("allreduce", "--topology", "rail_clos:mtu=600"), "raise mtu to 1108"),
        (("allreduce", "--sizes", "10"), "take 12 B"),
        (("allreduce", "--sizes", "1TiB"), "use smaller sizes"),
        (("allreduce", "--topology", "rail_clos:hosts=253,gpus_per_host=32"), "fewer GPUs"),
        (("allreduce", "--param", "iteration=2"), "did you mean iterations"),
        (("allreduce", "--param", "iterations"), "NAME=VALUE"),
        (("allreduce", "--sizes", "4", "--param", "sizes=8"), "keep one of them"),
        (("allreduce", "--param", "order=rail", "--param", "order=rail"), "given twice"),
        (("allreduce", "--clock", "host"), "uetemu fep --gpu"),
        (("allreduce", "--dilation", "5000"), "uetemu up --dilation"),
        (("allreduce", "--capture", "rail9"), "no node 'rail9'"),
        (("allreduce", "--snaplen", "3"), "snap length"),
        (("allreduce", "--name", "Bad_Name"), "cannot be the name"),
        (("./nowhere.py",), "no scenario file"),
    ],
)
def test_bad_input_is_one_sentence_and_makes_nothing(
    tmp_path: Path, arguments: Command, words: str
) -> None:
    folder = tmp_path / "run"
    process = forked("run", *arguments, "--output", str(folder))
    out, err = process.communicate(timeout=BUDGET_S)
    err = without_progress(err)
    assert process.returncode == 1
    assert out == ""
    assert err.startswith("uetemu: ")
    assert words in err
    assert err.count("\n") == 1
    assert not folder.exists()
