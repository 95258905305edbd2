"""Each thing that spoils an emulation is done to a real run, whose verdict then names it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from emulator import lab_record
from emulator.asic.port_faults import NONE
from emulator.endpoint.operations.schedule import Copy, Operation, Receive, Region, Schedule, Write
from emulator.lab import Lab
from emulator.measures.message_graph import MessageGraph, longest_chain
from emulator.pytest_plugin.run_process import RunProcess
from emulator.run.measurement import own_time, processor_seconds
from tests.harness.lab.traffic import stopped
from tests.harness.runs.processes import SMALL, until

root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="building namespaces needs root"),
]
#: By the host's clock, which others would disturb.
alone = [*root, pytest.mark.alone]
PIECE = Region("x", 0, 4)


def at(dilation: int) -> tuple[str, ...]:
    """The arguments of a run on the host's clock."""
    return ("--clock", "host", "--dilation", str(dilation))


def test_the_longest_chain_of_messages() -> None:
    """Rank 0 writes to 1, which writes to 2 and copies to 3; a message of 3 to 2 waits for none."""
    message = {"local": PIECE, "remote": PIECE}

    def rank(number: int, *operations: Operation) -> Schedule:
        return Schedule(rank=number, buffers={"x": 4}, operations=operations)

    schedules = [
        rank(0, Write(peer=1, tag=0, **message)),
        rank(
            1,
            Receive(peer=0, tag=0, into=PIECE),
            Write(peer=2, tag=0, after=(0,), **message),
            Copy(peer=3, tag=0, after=(0,), **message),
        ),
        rank(2, Receive(peer=1, tag=0, into=PIECE), Receive(peer=3, tag=1, into=PIECE)),
        rank(3, Receive(peer=1, tag=0, into=PIECE), Write(peer=2, tag=1, **message)),
    ]
    assert longest_chain(MessageGraph(schedules)) == 2
    assert longest_chain(MessageGraph(schedules[:1])) == 0


def test_own_time_is_two_turns_a_message() -> None:
    loops = {
        0: {"loop": {"turn_count": 10, "turn_mean_ns": 5}},
        1: {"loop": {"turn_count": 30, "turn_mean_ns": 9}},
    }
    assert own_time(loops, 6, 4800) == 2 * 6 * 8 / 4800
    assert own_time({}, 6, 4800) == 0


def test_what_runs_at_a_lower_priority_is_not_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor second of nice work between two readings; the second one idle."""
    before = psutil.cpu_times()
    after = before._replace(nice=before.nice + 1, idle=before.idle + 1)
    monkeypatch.setattr(psutil, "cpu_times", lambda: after)
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    assert processor_seconds(before) == (0, pytest.approx(2))
    monkeypatch.setattr(os, "getpriority", lambda *_: 5)  # then it may be our own
    assert processor_seconds(before) == (pytest.approx(1), pytest.approx(2))


def tripped(verdict: dict[str, Any]) -> set[str]:
    return {one["name"] for one in verdict["inputs"] if one["tripped"]}


def value_of(result: dict[str, Any], name: str) -> float:
    return next(one["value"] for one in result["fidelity"]["inputs"] if one["name"] == name)


def in_second_row(run: RunProcess, disturb: Callable[[], None]) -> tuple[dict[str, Any], str, str]:
    """``disturb`` between the first row and the end; the result and the reasons of both rows."""
    run.event("row")
    disturb()
    status, out, err = run.communicate()
    assert status == 0, (out, err)
    first, second = run.result["rows"]
    return run.result, *(str(row["fidelity"]["reasons"]) for row in (first, second))  # type: ignore[return-value]


class TestRuns:
    pytestmark = alone

    #: The second row takes seconds, so that there is time to disturb it.
    ROWS: Sequence[str] = (*SMALL, *at(50_000), "--sizes", "4KiB,256KiB")

    def test_an_agent_that_stands_still(self, start: Callable[..., RunProcess]) -> None:
        run = start(*self.ROWS, "--iterations", "10", "--capture", "none")
        agents = run.event("started")["agents"]
        pid = agents["0"]

        def hold() -> None:
            for _ in range(12):  # some of it in every second of the row
                with stopped(pid):
                    time.sleep(0.2)  # 4 us of the fabric
                time.sleep(0.1)

        result, _, second = in_second_row(run, hold)
        assert {"stalled", "timer_slip_max"} & tripped(result["fidelity"])
        assert "late wake-ups cost an agent" in second or "one wake-up was" in second
        assert 2 in result["fidelity"]["limited_rows"]

    def test_a_dilation_that_is_too_small(self, start: Callable[..., RunProcess]) -> None:
        run = start(*SMALL, *at(300), "--sizes", "64KiB", "--capture", "none")
        status, _, err = run.communicate()
        assert status == 0, err
        assert {"own_time", "processors_busy"} & tripped(run.result["fidelity"])
        assert run.result["fidelity"]["verdict"] == "host-limited"
        assert value_of(run.result, "own_time") > 0.03

    def test_interfaces_that_lose_frames(self, start: Callable[..., RunProcess]) -> None:
        run = start(*self.ROWS, "--iterations", "4", "--capture", "none")
        run.undisturbed = False
        path = f"uetemu.{run.lab}.rail0"

        def lose() -> None:
            """For a moment the switch takes no frame of full size from the GPU."""
            for mtu in ("1400", "9000"):
                words = ["ip", "-n", path, "link", "set", "down0", "mtu", mtu]
                subprocess.run(words, check=True, capture_output=True)
                time.sleep(0.3)

        result, first, _ = in_second_row(run, lose)
        assert "drops_outside_queues" in tripped(result["fidelity"])
        assert "rail0:down0 rx_dropped" in str(result["fidelity"]["reasons"])
        assert "lost outside the modelled queues" not in first

    def test_frames_of_a_path_that_overtake_each_other(
        self, start: Callable[..., RunProcess]
    ) -> None:
        run = start_incast(start, iterations=2)

        def reorder() -> None:
            lab = Lab.attach(run.lab)
            assert lab.asic is not None
            lab.asic.inject("rail0:down0", replace(NONE, reordering=0.2))

        result, first, second = in_second_row(run, reorder)
        assert "overtaken" in tripped(result["fidelity"])
        assert "overtook" not in first
        assert "packets of one path overtook each other" in second

    def test_pauses_that_come_late(self, start: Callable[..., RunProcess]) -> None:
        run = start_incast(start, iterations=4)

        def hold() -> None:
            (agent,) = [
                one.pid
                for one in lab_record.processes(run.lab)
                if b"pfc_agent" in Path(f"/proc/{one.pid}/cmdline").read_bytes()
            ]
            for _ in range(100):
                with stopped(agent):
                    time.sleep(0.3)  # 6 us of the fabric
                time.sleep(0.05)
                if sum(event["event"] == "row" for event in run.events()) == 2:
                    break

        result, first, second = in_second_row(run, hold)
        assert "pause_lateness" in tripped(result["fidelity"])
        assert "a pause was asked for or took effect" in second
        assert "headroom" not in first

    def test_a_fault_that_comes_late(self, start: Callable[..., RunProcess]) -> None:
        run = start(
            *(*SMALL, *at(100_000), "--sizes", "256KiB", "--capture", "none"),
            *("--iterations", "1", "--fault", "t=3us link rail0:up0 loss=0.1%"),
        )
        run.event("started")
        runner = run.process.pid
        ended = threading.Event()

        def hold() -> None:
            """The runner is stopped four fifths of the time; its agents go on."""
            while not ended.wait(0.1):
                with stopped(runner):
                    time.sleep(0.4)  # 4 us of the fabric

        holding = threading.Thread(target=hold)
        holding.start()
        try:
            until(lambda: next((e for e in run.events() if e["event"] == "fault"), None))
        finally:
            ended.set()
            holding.join()
        status, _, err = run.communicate()
        assert status == 0, err
        late = [event["late_us"] for event in run.events() if event["event"] == "fault"]
        assert value_of(run.result, "fault_lateness") == max(1000 * each for each in late)
        assert ("fault_lateness" in tripped(run.result["fidelity"])) == (
            max(late) * 1000 > run.result["fidelity"]["base_rtt_ns"]
        )


def start_incast(start: Callable[..., RunProcess], iterations: int) -> RunProcess:
    """Two rows of RoCEv2 into one port, where a queue stands and pauses are asked for."""
    return start(
        *("--topology", "rail_clos:hosts=4,gpus_per_host=1,spines=1", *at(50_000)),
        *("--transport", "rocev2:qps=1", "--switch", "lossless", "--capture", "none"),
        *("--param", "senders=2,3", "--param", "size=256KiB"),
        *("--iterations", str(iterations)),
        scenario="incast",
    )
