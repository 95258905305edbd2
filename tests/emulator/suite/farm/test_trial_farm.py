"""Rank 0 names the rank that died, also while MPI keeps a message to that one for ever.

Trials go to idle ranks; one that failed is tried once more, elsewhere if it can be.
"""

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
from emulator.suite.farm.messages import Alive, Farewell, FarmTask
from emulator.suite.farm.mpi_world import MpiWorld
from emulator.suite.farm.rank_facts import facts_of
from emulator.suite.farm.trial_farm import STRIKES, TrialDesk, TrialFarm, TrialOrder
from emulator.suite.trials import TrialEnd
from emulator.workers.interrupts import Interrupted
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


WELL = TrialEnd(status=0, seconds=1.0)
BROKEN = TrialEnd(status=1, seconds=1.0, error="uetemu: no room")


def orders(desk: TrialDesk, number: int) -> list[TrialOrder]:
    made = [TrialOrder(FarmTask(name=str(place), words=())) for place in range(number)]
    for order in made:
        desk.submit(order)
    return made


def given(desk: TrialDesk) -> dict[int, str]:
    return {rank: order.task.name for rank, order in desk.assignments()}


def test_idle_ranks_get_the_oldest_orders() -> None:
    desk = TrialDesk({1: "a", 2: "b"})
    orders(desk, 3)
    assert given(desk) == {1: "0", 2: "1"}
    assert given(desk) == {}
    assert desk.ended(2, WELL) == TrialEnd(status=0, seconds=1.0, place="rank 2 on b")
    assert given(desk) == {2: "2"}


def test_a_failure_waits_for_another_machine_although_its_own_is_idle() -> None:
    desk = TrialDesk({1: "a", 2: "a", 3: "b"})
    orders(desk, 3)
    assert given(desk) == {1: "0", 2: "1", 3: "2"}
    assert desk.ended(1, BROKEN) is None
    assert desk.ended(2, WELL) is not None
    assert given(desk) == {}
    assert desk.ended(3, WELL) is not None
    assert given(desk) == {3: "0"}
    end = desk.ended(3, WELL)
    assert end is not None
    assert end.status == 0
    assert end.again == "failed at rank 1 on a (no room), and ran at rank 3 on b"


def test_on_one_machine_another_rank_tries_again_and_a_second_failure_counts() -> None:
    desk = TrialDesk({1: "a", 2: "a"})
    orders(desk, 1)
    assert given(desk) == {1: "0"}
    assert desk.ended(1, BROKEN) is None
    assert given(desk) == {2: "0"}
    end = desk.ended(2, TrialEnd(status=-9, seconds=1.0))
    assert end is not None
    assert (end.status, end.place) == (-9, "rank 2 on a")
    assert end.again == "failed at rank 1 on a (no room), and at rank 2 on a (killed by SIGKILL)"


def test_a_single_rank_tries_once() -> None:
    desk = TrialDesk({1: "a"})
    orders(desk, 1)
    assert given(desk) == {1: "0"}
    end = desk.ended(1, BROKEN)
    assert end is not None
    assert (end.status, end.again) == (1, None)


def test_a_rank_where_trials_fail_that_run_elsewhere_gets_no_more() -> None:
    desk = TrialDesk({1: "a", 2: "b"})
    for _ in range(STRIKES):
        orders(desk, 1)
        assert given(desk) == {1: "0"}
        assert desk.ended(1, BROKEN) is None
        assert given(desk) == {2: "0"}
        assert desk.ended(2, WELL) is not None
    orders(desk, 2)
    assert given(desk) == {2: "0"}


def test_a_trial_that_fails_everywhere_is_no_strike() -> None:
    desk = TrialDesk({1: "a", 2: "b"})
    for _ in range(STRIKES):
        orders(desk, 1)
        assert given(desk) == {1: "0"}
        assert desk.ended(1, BROKEN) is None
        assert given(desk) == {2: "0"}
        assert desk.ended(2, BROKEN) is not None
    orders(desk, 1)
    assert given(desk) == {1: "0"}


def test_the_order_of_a_rank_that_is_lost_goes_to_another_one() -> None:
    desk = TrialDesk({1: "a", 2: "b"})
    orders(desk, 1)
    assert given(desk) == {1: "0"}
    assert desk.lost(1, "no answer") is None
    assert desk.ranks == [2]
    assert given(desk) == {2: "0"}
    end = desk.lost(2, "no answer")
    assert end is not None
    assert end.status != 0
    assert end.again == "failed at rank 1 on a (no answer), and at rank 2 on b (no answer)"


def test_the_last_rank_ends_its_order_when_it_is_lost() -> None:
    desk = TrialDesk({1: "a"})
    orders(desk, 1)
    assert given(desk) == {1: "0"}
    end = desk.lost(1, "no answer")
    assert end is not None
    assert (end.status, end.error) == (-1, "no answer")
    assert TrialDesk({1: "a"}).lost(1, "no answer") is None
