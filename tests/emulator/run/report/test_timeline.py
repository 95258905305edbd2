"""The timeline of one execution: what is in it, and what is left out of a large one."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.run.measures.queue_depths import QueueSeries
from emulator.run.report import switch_tracks, timeline
from emulator.run.report.trace_events import Tracks
from emulator.run.results import RunFolder
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Compute,
    Copy,
    Receive,
    Reduce,
    Region,
    Schedule,
    ScheduleSpan,
    Write,
)
from scenarios.collectives.program import Program
from tests.harness.runs.perfetto_rules import Imported, imported

RANKS, OPERATIONS = 4, 3


def written(folder: Path) -> dict[str, Any]:
    """The timeline of ranks that compute, as it stands in a run folder."""
    schedules = [
        Schedule(rank=rank, buffers={}, operations=(Compute(duration_ns=5),) * OPERATIONS)
        for rank in range(RANKS)
    ]
    begins = np.arange(OPERATIONS) * 5
    results = [
        RankResult(
            rank=rank,
            node=f"g{rank}",
            execution=1,
            start_ns=0,
            end_ns=15,
            operation_start=begins,
            operation_end=begins + 5,
        )
        for rank in range(RANKS)
    ]
    names = [result.node for result in results]
    run = RunFolder.create("timeline", folder / "run")
    path = run.write("timeline.json", timeline.timeline(names, schedules, results))
    run.close()
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def gpus(content: dict[str, Any]) -> set[object]:
    events = content["traceEvents"]
    assert isinstance(events, list)
    return {event["pid"] for event in events}


def test_all_operations_are_in_it(tmp_path: Path) -> None:
    content = written(tmp_path)
    assert gpus(content) == {rank + 1 for rank in range(RANKS)}
    assert sum(event["ph"] == "X" for event in content["traceEvents"]) == RANKS * OPERATIONS
    assert "gpus" not in content["otherData"]


@pytest.mark.parametrize(("most", "shown"), [(2 * OPERATIONS, 2), (1, 1), (4 * OPERATIONS, 4)])
def test_of_too_many_those_of_the_first_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, shown: int
) -> None:
    monkeypatch.setattr(timeline, "SHOWN", most)
    content = written(tmp_path)
    assert gpus(content) == {rank + 1 for rank in range(shown)}
    stated = content["otherData"].get("gpus")
    left_out = f"the first {shown} of {RANKS}: all have {RANKS * OPERATIONS} operations"
    assert stated == (left_out if shown < RANKS else None)


A, B = Region("a", 0, 64), Region("b", 0, 64)


def result(rank: int, times: list[tuple[int, int]], start: int = 1000) -> RankResult:
    """The result of a rank whose operations took ``times``."""
    begins, ends = np.array(times).T
    return RankResult(
        rank=rank,
        node=f"g{rank}",
        execution=1,
        start_ns=start,
        end_ns=int(ends.max()),
        operation_start=begins,
        operation_end=ends,
    )


def drawn(folder: Path, around: timeline.Surroundings | None = None) -> Imported:
    """Two writes at once, a copy, a sum, and an Apply of three ranks, as Perfetto imports them."""
    schedules = [
        Schedule(
            rank=0,
            buffers={},
            operations=(
                Write(peer=1, tag=0, local=A, remote=B),
                Write(peer=1, tag=1, local=A, remote=B),
                Copy(peer=2, tag=0, local=A, remote=B),
            ),
            spans=(ScheduleSpan("layer 1 all_gather", 1, 2), ScheduleSpan("micro-batch 0", 0, 3)),
        ),
        Schedule(
            rank=1,
            buffers={},
            operations=(
                Receive(peer=0, tag=0, into=A),
                Receive(peer=0, tag=1, into=B),
                Reduce(source=A, into=B),
            ),
            spans=(ScheduleSpan("gradients", 1, 3), ScheduleSpan("around them", 1, 3)),
        ),
        Schedule(
            rank=2,
            buffers={},
            operations=(
                Receive(peer=0, tag=0, into=A),
                Apply(function="forward", inputs=(A,), outputs=(B,)),
            ),
        ),
    ]
    results = [
        result(0, [(1000, 1500), (1200, 1800), (1100, 1300)]),
        result(1, [(1000, 1450), (1000, 1700), (1700, 1700)]),
        result(2, [(1000, 1290), (1290, 1400)]),
    ]
    names = ["h0g0", "h1g0", "h0g1"]
    run = RunFolder.create("timeline", folder / "run")
    path = run.write("timeline.json", timeline.timeline(names, schedules, results, around))
    run.close()
    return imported(json.loads(path.read_text()))


def test_gpus_have_tracks_for_computing_nvlink_and_nic(tmp_path: Path) -> None:
    found = drawn(tmp_path)
    assert found.troubles == []
    assert sorted(found.track(one) for one in found.slices) == [
        "h0g0 NIC out", "h0g0 NIC out 2", "h0g0 NVLink out", "h0g0 steps", "h0g0 steps",
        "h0g1 NVLink in", "h0g1 compute", "h1g0 NIC in", "h1g0 NIC in", "h1g0 compute",
        "h1g0 steps", "h1g0 steps",
    ]  # fmt: skip


def test_an_event_is_a_line_as_json_makes_it(tmp_path: Path) -> None:
    drawn(tmp_path, timeline.Surroundings(collective='a "ring" é'))
    lines = (tmp_path / "run" / "timeline.json").read_text().splitlines()
    events = [line.strip().removesuffix(",") for line in lines if line.startswith("  {")]
    assert [json.dumps(json.loads(event)) for event in events] == events
    assert sum('"ph": "X"' in event for event in events) == 12


def test_flows_join_what_is_sent_to_what_is_received(tmp_path: Path) -> None:
    flows = [
        (found.track(out), out.begin, found.track(there), there.begin)
        for found in [drawn(tmp_path)]
        for out, there in found.flows
    ]
    assert sorted(flows) == [
        ("h0g0 NIC out", 0, "h1g0 NIC in", 450),
        ("h0g0 NIC out 2", 200, "h1g0 NIC in", 700),
        ("h0g0 NVLink out", 100, "h0g1 NVLink in", 290),
    ]


def test_slices_have_the_names_of_the_scenario_or_of_the_collective(tmp_path: Path) -> None:
    found = drawn(tmp_path, timeline.Surroundings(collective="all_reduce"))
    titles = {one.name for one in found.slices}
    assert titles == {
        "micro-batch 0", "micro-batch 0 to h1g0", "micro-batch 0 to h0g1",
        "layer 1 all_gather", "layer 1 all_gather to h1g0",
        "all_reduce from h0g0", "all_reduce forward",
        "around them", "gradients", "gradients from h0g0", "gradients sum",
    }  # fmt: skip
    steps = {one.name: (one.begin, one.end) for one in found.slices if one.category == "step"}
    assert steps == {"micro-batch 0": (0, 800), "layer 1 all_gather": (200, 800),
                     "gradients": (700, 700), "around them": (700, 700)}  # fmt: skip


def test_a_program_names_what_a_block_appends() -> None:
    program = Program(["h0", "h1"])
    program.append(0, Compute(duration_ns=1))
    with program.named("micro-batch 0"):
        program.append(0, Compute(duration_ns=1))
        with program.named("layer 1"):
            program.transfer(0, 1, A, B)
    first, second = program.schedules()
    inner = "micro-batch 0, layer 1"
    assert first.spans == (ScheduleSpan(inner, 2, 3), ScheduleSpan("micro-batch 0", 1, 3))
    assert second.spans == (ScheduleSpan(inner, 0, 1), ScheduleSpan("micro-batch 0", 0, 1))


def test_steps_that_overlap_have_tracks_beside_each_other() -> None:
    tracks = Tracks(1, count(7), ("steps",))
    spans = [(0, 10), (0, 4), (4, 10), (4, 6), (5, 12), (6, 10), (10, 11)]
    assert [tracks.nest("steps", span)[1] for span in spans] == [7, 7, 7, 7, 8, 7, 7]


def queue(**changes: list[float]) -> QueueSeries:
    """A port whose queue fills and drains, with a packet marked."""
    values = {
        "t_ns": [0.0, 1000, 1400, 1800], "octets": [0.0, 0, 300, 0],
        "admitted": [0.0, 0, 500, 1000], "lost": [0.0, 0, 0, 0],
        "marked": [0.0, 0, 1, 1], "trimmed": [0.0, 0, 0, 0], "dropped": [0.0, 0, 0, 2],
    }  # fmt: skip
    return QueueSeries(**{name: np.array(one) for name, one in {**values, **changes}.items()})


def test_counters_and_marks_of_switch_ports(tmp_path: Path) -> None:
    idle = queue(admitted=[0.0] * 4)
    found = drawn(tmp_path, timeline.Surroundings(queues={"rail0:up0": queue(), "rail0:up1": idle}))
    assert found.troubles == []
    ((pid, switch),) = [one for one in found.processes.items() if one[1] == "rail0"]
    assert switch == "rail0"
    assert set(found.counters) == {(pid, "up0 queue octets"), (pid, "up0 data rate Gbit/s")}
    assert found.counters[pid, "up0 queue octets"] == [(0, 0), (400, 300), (800, 0)]
    # 200 octets in 400 ns, then 800 octets in 400 ns; what comes then is not known
    assert found.counters[pid, "up0 data rate Gbit/s"] == [(0, 4), (400, 16)]
    marks = [(one.begin, one.name, found.track(one)) for one in found.slices if one.pid == pid]
    assert marks == [(400, "1 marked", "rail0 up0 marks"), (800, "2 dropped", "rail0 up0 marks")]


def test_a_port_without_a_sample_had_not_changed() -> None:
    ticks = np.array([0.0, 100, 200, 300])
    late = QueueSeries(np.array([0.0, 300]), np.zeros(2), np.array([0.0, 50]))
    assert list(switch_tracks.rates(late, ticks)) == [(200, 4)]
    burst = QueueSeries(np.array([0.0, 100, 300]), np.zeros(3), np.array([0.0, 50, 100]))
    assert list(switch_tracks.rates(burst, ticks)) == [(0, 4), (100, 0), (200, 4)]
    early = QueueSeries(np.array([0.0, 100]), np.zeros(2), np.array([0.0, 50]))
    assert list(switch_tracks.rates(early, ticks)) == [(0, 4), (100, 0)]


def test_data_that_a_pulled_cable_lost_never_left() -> None:
    ticks = np.array([0.0, 100, 200])
    # 50 octets arrive; 500 wait when the cable is pulled, which is told 100 ns later
    octets, lost = np.array([0.0, 0, 0]), np.array([0.0, 0, 500])
    pulled = QueueSeries(ticks, octets, np.array([0.0, 550, 550]), lost)
    assert list(switch_tracks.rates(pulled, ticks)) == [(0, 4), (100, 0)]


def test_of_too_many_samples_those_of_the_deepest_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {"a:0": queue(), "a:1": queue(octets=[0.0, 0, 400, 0]), "a:2": queue()}
    assert list(switch_tracks.shown_ports(ports, 1000, 1800)) == ["a:1", "a:0", "a:2"]
    monkeypatch.setattr(switch_tracks, "SAMPLES_SHOWN", 7)
    assert list(switch_tracks.shown_ports(ports, 1000, 1800)) == ["a:1", "a:0"]


def test_faults_stand_at_their_times(tmp_path: Path) -> None:
    found = drawn(
        tmp_path, timeline.Surroundings(faults=[(300, "link rail0:up0 down"), (100, "nic h0g0")])
    )
    assert found.troubles == []
    faults = [(one.begin, one.name) for one in found.slices if found.track(one) == "faults faults"]
    assert faults == [(100, "nic h0g0"), (300, "link rail0:up0 down")]


def test_the_rules_of_perfetto_find_what_it_would_drop() -> None:
    slices = [
        {"ph": "X", "name": "one", "cat": "", "pid": 1, "tid": 2, "ts": 0.0, "dur": 2.0},
        {"ph": "X", "name": "two", "cat": "", "pid": 1, "tid": 2, "ts": 1.0, "dur": 2.0},
        {"ph": "X", "name": "no process", "cat": "", "pid": 0, "tid": 3, "ts": 1.0, "dur": 2.0},
        {"ph": "X", "name": "in", "cat": "", "pid": 1, "tid": 4, "ts": 1.0, "dur": 2.0,
         "bind_id": "0x1", "flow_in": True},
        {"ph": "X", "name": "out", "cat": "", "pid": 1, "tid": 5, "ts": 2.0, "dur": 2.0,
         "bind_id": "0x1", "flow_out": True},
        {"ph": "X", "name": "before", "cat": "", "pid": 1, "tid": 6, "ts": -1.0, "dur": 2.0},
    ]  # fmt: skip
    troubles = imported({"traceEvents": slices}).troubles
    assert [one.split(":")[0] for one in troubles] == [
        "a negative time",
        "it overlaps another slice of its thread",
        "it is in the idle process or thread",
        "flow 1 ends before it begins",
    ]
