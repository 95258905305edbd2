"""Bounds of rows: what they mean, and which texts are none."""

from __future__ import annotations

import pytest

from emulator.errors import UserError
from emulator.pytest_plugin.result_bounds import parse_bound

ROW = {"efficiency": 0.9, "dropped_packets": 0, "time_us": 12.5, "jain": None, "wrong": 0}


@pytest.mark.parametrize(
    "text",
    ["efficiency>=90%", "efficiency>=0.9", "drops==0", "time<12.6", "time_us > 12", "wrong!=1"],
)
def test_a_bound_that_is_kept(text: str) -> None:
    assert parse_bound(text).trouble(ROW) is None


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("efficiency>90%", "efficiency is 0.9"),
        ("drops>=1", "dropped_packets is 0"),
        ("time<=12.4", "time_us is 12.5"),
        ("jain>0", "jain was not measured"),
        ("busbw>0", "busbw_gbps was not measured"),
    ],
)
def test_a_bound_that_is_broken(text: str, trouble: str) -> None:
    assert parse_bound(text).trouble(ROW) == trouble


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("efficiency", "is no condition; write for example drops==0"),
        ("efficiency=>1", "is no condition"),
        ("speed>1", "speed is no value of a row; known are time, ideal, busbw"),
        ("time<5%", "time_us is no share; leave % out"),
    ],
)
def test_what_is_no_bound(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_bound(text)
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"bound {text!r}")
