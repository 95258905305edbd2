"""Test what several seeds have in common, and how far they lie apart."""

from typing import Any

from emulator.result_rows import Range, TableColumn
from emulator.run.report import spread


def row(seed: int, time: float, **more: Any) -> dict[str, object]:
    return {
        "transport": "uet",
        "seed": seed,
        "time_us": time,
        "time_min_us": time,
        "wrong": 0,
    } | more


def test_a_row_for_all_seeds() -> None:
    rows = [
        row(1, 30.0, drops={"loss": 1}, cnps=None, wrong=1, efficiency=0.5),
        row(2, 10.0, drops={"loss": 2}, cnps=None, wrong=0, efficiency=0.9),
        row(3, 11.0, drops={"loss": 1}, cnps=None, wrong=2, efficiency=0.8),
    ]
    assert spread.summary(rows) == {
        "transport": "uet",
        "seeds": [1, 2, 3],
        "time_us": 11.0,
        "time_min_us": 10.0,
        "time_max_us": 30.0,
        "drops": None,
        "cnps": None,
        "wrong": 3,
        "efficiency": 0.8,
    }


def test_what_is_the_same_for_all_seeds_stays_whole() -> None:
    assert repr(spread.summary([row(1, 1.0, size=8), row(2, 2.0, size=8)])["size"]) == "8"


def test_the_machine_limits_all_if_it_limits_one() -> None:
    good, bad = {"verdict": "ok", "reasons": []}, {"verdict": "host-limited", "reasons": ["late"]}
    assert (
        spread.summary([row(1, 1.0, fidelity=good), row(2, 2.0, fidelity=bad)])["fidelity"] == bad
    )
    assert spread.summary([row(1, 1.0, fidelity=good)] * 2)["fidelity"] == good


def test_rows_are_shown_when_all_seeds_are_there() -> None:
    rows = spread.SeedRows(2)
    assert rows.add("a", row(1, 1.0)) is None
    assert rows.add("b", row(1, 5.0)) is None
    shown = rows.add("a", row(2, 3.0))
    assert shown is not None
    assert (shown["time_us"], shown["seeds"]) == (2.0, [1, 2])
    alone = row(1, 1.0)
    assert spread.SeedRows(1).add("a", alone) is alone


def test_what_one_seed_lacks_has_no_median() -> None:
    assert spread.summary([row(1, 1.0, jain=0.5), row(2, 2.0, jain=None)])["jain"] is None


def test_beside_the_median_stand_the_least_and_the_most() -> None:
    own = (
        TableColumn("size_bytes", "size"),
        TableColumn("time_us", "time", "(us)"),
        TableColumn("wrong", "#wrong"),
    )
    found = spread.columns(own)
    assert [column.key for column in found] == [
        *("size_bytes", "time_us", "time_min_us", "time_max_us", "wrong"),
    ]
    assert [column.heading for column in found] == ["size", "median", "least", "most", "#wrong"]


def test_ranges() -> None:
    one, other = Range.of([10, 11, 12]), Range.of([12, 14, 13])
    assert one.overlaps(other)
    assert other.overlaps(one)
    apart = Range.of([20, 22, 30])
    assert not one.overlaps(apart)
    assert apart.over(one) == "2.00 times as long (1.67 to 3.00)"
