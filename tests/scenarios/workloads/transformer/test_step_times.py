"""Where the time of a step went, from times of messages that are given."""

from __future__ import annotations

import pytest

from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Receive,
    Reduce,
    Region,
    Schedule,
    Write,
)
from scenarios.workloads.transformer.step_times import GpuOperations, StepTimes, gpu_times
from tests.harness.runs.observed_messages import gpu_in, iteration_of

HERE = Region("a", 0, 4)


def compute(duration: int, *after: int) -> Apply:
    return Apply(function="f", inputs=(), outputs=(), duration_ns=duration, after=after)


def times(messages: dict[tuple[int, int], tuple[int, int]], label: str = "TP") -> StepTimes:
    """Rank 0 computes 100 ns and sends; rank 1 computes 30, gets that, adds it, computes 50."""
    schedules = [
        Schedule(
            rank=0,
            buffers={"a": 4},
            operations=(
                compute(100),
                Write(peer=1, tag=0, local=HERE, remote=HERE, after=(0,)),
            ),
        ),
        Schedule(
            rank=1,
            buffers={"a": 4},
            operations=(
                compute(30),
                Receive(peer=0, tag=0, into=HERE),
                Reduce(source=HERE, into=HERE, after=(1, 0)),
                compute(50, 2),
            ),
        ),
    ]
    iteration = iteration_of(schedules, *messages[0, 1])
    operations = [
        GpuOperations({}, frozenset({0})),
        GpuOperations({1: label}, frozenset({0, 3})),
    ]
    found = [
        gpu_times(gpu_in(one, iteration), what, ["PP"])
        for one, what in zip(schedules, operations, strict=True)
    ]
    return StepTimes(
        {gpu: shares for gpu, (shares, _) in enumerate(found)},
        {gpu: end for gpu, (_, end) in enumerate(found)},
    )


def test_a_wait_counts_as_what_was_waited_for() -> None:
    found = times({(0, 1): (100, 140)})
    assert found.shares[1] == {"compute": 80, "bubble": 0, "TP": 110}
    assert found.ends_ns == {0: 100, 1: 190}
    shares = found.mean_shares([0, 1])
    assert shares["compute"] == pytest.approx(180 / 380)
    assert shares["TP"] == pytest.approx(110 / 380)
    assert shares["bubble"] == pytest.approx(90 / 380)  # rank 0 is idle at the end
    assert sum(shares.values()) == pytest.approx(1)


def test_time_before_another_stage_sends_is_bubble() -> None:
    found = times({(0, 1): (100, 140)}, "PP")
    assert found.shares[1] == {"compute": 80, "bubble": 70, "PP": 40}


def test_what_came_early_costs_nothing() -> None:
    found = times({(0, 1): (10, 20)}, "PP")
    assert found.shares[1] == {"compute": 80}
    assert found.end_ns([0, 1]) == 100
