"""Trials go to idle ranks; one that failed is tried once more, elsewhere if it can be."""

from __future__ import annotations

from emulator.suite.farm.farm_messages import FarmTask
from emulator.suite.farm.trial_desk import STRIKES, TrialDesk, TrialOrder
from emulator.suite.trials import TrialEnd

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
