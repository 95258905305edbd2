"""Rank 0 names the rank that died, also while MPI keeps a message to that one for ever."""

from __future__ import annotations

import atexit
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from emulator.dataplane.kernel.launcher import RankPlace
from emulator.errors import UserError
from emulator.run.interrupts import Interrupted
from emulator.suite.farm.farm_messages import Alive, Farewell, FarmTask
from emulator.suite.farm.mpi_world import MpiWorld
from emulator.suite.farm.rank_facts import facts_of
from emulator.suite.farm.trial_farm import TrialFarm
from tests.harness.lab.traffic import within

STOP = Interrupted(signal.SIGTERM)


class World:
    """Ranks that have sent ``messages``, and never take a task where there is ``no_end``."""

    def __init__(self, messages: list[tuple[int, object]]) -> None:
        self.place = RankPlace(0, 3)
        self.messages = messages
        self.no_end = threading.Event()
        self.sending = threading.Event()

    def send(self, rank: int, message: object) -> None:
        """Send ``message``, as MPI does."""
        if isinstance(message, FarmTask):
            self.sending.set()
            self.no_end.wait()

    def receive(self) -> tuple[int, object] | None:
        """Return the next message."""
        return self.messages.pop(0) if self.messages else None

    def abort(self, status: int) -> None:
        """End all ranks."""
        raise AssertionError(status)


def farm_of(world: World) -> TrialFarm:
    """Return the farm of rank 0 in ``world``, which stands for MPI's."""
    return TrialFarm(cast(MpiWorld, world))


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what would be called at the end of the process."""
    calls: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    return calls


@pytest.fixture
def world() -> Iterator[World]:
    own = facts_of(sys.argv[1:])
    made = World([(1, own), (2, own)])
    yield made
    made.no_end.set()


def test_a_rank_that_takes_no_message_is_the_one_that_died(
    world: World, at_exit: list[Any], tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as pool, farm_of(world) as farm:
        running = pool.submit(farm.run, ["run"], tmp_path / "1")
        within(60, world.sending.is_set, "the task is on its way")
        farm.stop()
        with pytest.raises(RuntimeError, match="has been stopped"):
            running.result()
        machine = facts_of([]).machine
        assert farm.cause(STOP) == f"rank 1 on {machine} died, so the launcher ended all ranks"
    assert [call[1:] for call in at_exit] == [(1,)]  # at once, with status 1


def test_a_rank_that_takes_no_leave_is_the_one_that_died(world: World, at_exit: list[Any]) -> None:
    world.messages.append((1, Farewell(signalled=True)))
    with farm_of(world) as farm:
        machine = facts_of([]).machine
        assert farm.cause(STOP) == f"rank 2 on {machine} died, so the launcher ended all ranks"
    assert at_exit


def test_a_rank_that_goes_on_with_its_files_has_not_died(
    world: World, at_exit: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    received, interrupted = world.receive, threading.Event()

    def receive() -> tuple[int, object] | None:
        return received() or ((1, Alive()) if interrupted.is_set() else None)

    monkeypatch.setattr(world, "receive", receive)
    with farm_of(world) as farm:
        interrupted.set()
        machine = facts_of([]).machine
        assert farm.cause(STOP) == f"rank 2 on {machine} died, so the launcher ended all ranks"
    assert at_exit


def test_ranks_that_have_not_begun_when_the_launcher_ends_all_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    del world.messages[0]
    received = world.receive

    def receive() -> tuple[int, object] | None:
        if not world.messages:
            raise STOP
        return received()

    monkeypatch.setattr(world, "receive", receive)
    with pytest.raises(UserError) as refusal, farm_of(world):
        pass
    assert str(refusal.value) == (
        "interrupted by SIGTERM, which the launcher sent to all ranks, before rank 1 had begun"
    )
