"""Orders of micro-batches in a pipeline."""

from __future__ import annotations

import pytest

from emulator.errors import UserError
from scenarios.workloads.transformer.pipeline_order import (
    Task,
    bubble,
    pipeline_order,
    stage_layers,
)


@pytest.mark.parametrize(("order", "chunks"), [("gpipe", 1), ("1f1b", 1), ("1f1b", 2), ("1f1b", 3)])
@pytest.mark.parametrize("stages", [2, 4])
def test_all_tasks_once_and_forward_before_backward(order: str, chunks: int, stages: int) -> None:
    for stage in range(stages):
        tasks = pipeline_order(order, stage, stages, 8, chunks)
        assert len(tasks) == len(set(tasks)) == 2 * 8 * chunks
        for task in tasks:
            if not task.forward:
                assert tasks.index(task._replace(forward=True)) < tasks.index(task)


def _slots(stages: int, micro_batches: int, chunks: int) -> int:
    """Return the time of a step in which a chunk takes 1 forward and 2 backward."""
    orders = [
        pipeline_order("1f1b", stage, stages, micro_batches, chunks) for stage in range(stages)
    ]
    done: dict[tuple[bool, int, int], int] = {}
    free = [0] * stages
    while any(orders):
        before = len(done)
        for stage, tasks in enumerate(orders):
            while tasks:
                task = tasks[0]
                number = task.chunk * stages + stage
                last = stages * chunks - 1
                needs: list[tuple[bool, int, int]] = []
                if task.forward and number:
                    needs.append((True, number - 1, task.micro))
                elif not task.forward:
                    needs.append((True, number, task.micro))
                    if number < last:
                        needs.append((False, number + 1, task.micro))
                if not all(need in done for need in needs):
                    break
                start = max([free[stage], *(done[need] for need in needs)])
                free[stage] = start + (1 if task.forward else 2)
                done[task.forward, number, task.micro] = free[stage]
                tasks.pop(0)
        assert len(done) > before, "the order deadlocks"
    return max(free)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (3, 6)])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_bubble_of_an_order_is_its_formula(
    stages: int, micro_batches: int, chunks: int
) -> None:
    busy = 3 * micro_batches * chunks
    share = 1 - busy / _slots(stages, micro_batches, chunks)
    assert share == pytest.approx(bubble(stages, micro_batches, chunks))


def test_interleaved_micro_batches_go_in_groups_of_the_stages() -> None:
    first = pipeline_order("1f1b", 0, 2, 4, 2)[:4]
    assert first == [Task(True, 0, 0), Task(True, 0, 1), Task(True, 1, 0), Task(True, 1, 1)]
    with pytest.raises(UserError, match="interleave=1"):
        pipeline_order("gpipe", 0, 2, 4, 2)


def test_chunks_at_the_ends_have_fewer_layers() -> None:
    counts = [len(chunk) for chunk in stage_layers(126, 16)]
    assert counts == [7, *[8] * 14, 7]  # as Llama 3 405B
    assert [len(chunk) for chunk in stage_layers(6, 3)] == [2, 2, 2]
    assert [len(chunk) for chunk in stage_layers(32, 3)] == [11, 11, 10]
    layers = [layer for chunk in stage_layers(11, 4) for layer in chunk]
    assert layers == list(range(11))
