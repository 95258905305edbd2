"""Distributions of flow sizes: by name, from files, and files that are none."""

import random
from pathlib import Path
from statistics import fmean

import pytest

from emulator.errors import UserError
from scenarios.workloads.flow_sizes import NAMED, flow_sizes


@pytest.mark.parametrize("name", NAMED)
def test_drawn_sizes_follow_the_distribution(name: str) -> None:
    sizes, rng = flow_sizes(name), random.Random(1)
    drawn = [sizes.draw(rng) for _ in range(20_000)]
    for octets, percent in sizes.points:
        assert sum(one <= octets for one in drawn) / 200 == pytest.approx(percent, abs=1.5)
    assert fmean(drawn) == pytest.approx(sizes.mean, rel=0.05)


def test_a_file_has_octets_and_per_cent(tmp_path: Path) -> None:
    file = tmp_path / "sizes.txt"
    file.write_text("# of mine\n1000 0\n\n2000 50\n6000 100\n")
    assert flow_sizes(str(file)).mean == 0.5 * 1500 + 0.5 * 4000


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("0 0\n10 50", "does not end at 100"),
        ("0 0\n10 50\n5 100", "line 3: octets and per cent must grow"),
        ("10 100", "line 1: octets and per cent must grow"),
        ("-0.5 0\n10 100", "line 1: octets and per cent must grow"),
        ("0 0\nnan 100", "line 2: octets and per cent must grow"),
        ("0 0\n9e12 100", r"line 2: octets and per cent must grow .* to 1 TiB at most"),
        ("0 0\n10 inf", "line 2: octets and per cent must grow"),
        ("0 0\n10", "line 2: write octets"),
        ("", "does not end at 100"),
        ("0 0\n" + " " * 2**20, "more than"),
    ],
)
def test_a_file_that_is_no_distribution_is_refused(tmp_path: Path, text: str, stated: str) -> None:
    file = tmp_path / "sizes.txt"
    file.write_text(text)
    with pytest.raises(UserError, match=stated):
        flow_sizes(str(file))


def test_a_name_that_is_no_file_is_refused() -> None:
    with pytest.raises(UserError, match="websearch or hadoop"):
        flow_sizes("hadop")
