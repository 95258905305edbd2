"""Processes own GPUs, exchange what they have of them, and fail alike."""

from emulator.workers.division import ALONE, Division
from emulator.workers.ranks.exchange import Ranks
from tests.harness.engine.memory_channel import ranks_of
from tests.harness.engine.rank_threads import in_ranks


def test_a_process_alone_owns_all_and_gets_what_it_gives() -> None:
    division = Division.alone(3)
    assert division.own == {0, 1, 2}
    assert division.processes.all_to_all("parts", ["own"]) == ["own"]
    assert division.processes.gather("values", 7) == [7]


def test_blocks_are_equal_and_cover_all_gpus() -> None:
    ranks = ranks_of(3)
    parts = [Division.in_blocks(one, 8).own for one in ranks]
    assert sorted(rank for part in parts for rank in part) == list(range(8))
    assert {len(part) for part in parts} == {2, 3}


def test_each_process_gets_the_part_for_it() -> None:
    got = in_ranks(
        3, lambda one: one.all_to_all("parts", [f"{one.number} to {to}" for to in range(3)])
    )
    assert got == [[f"{sender} to {to}" for sender in range(3)] for to in range(3)]


def test_all_fail_with_the_failure_of_the_lowest_place() -> None:
    failures = [(5, "later"), None, (2, "first")]

    def checked(ranks: Ranks) -> str | None:
        return Division.in_blocks(ranks, 6).first_failure("checked", failures[ranks.number])

    stated = in_ranks(3, checked)
    assert stated == ["first"] * 3


def test_no_failure_is_none() -> None:
    assert Division(ALONE, (0,)).first_failure("checked", None) is None
