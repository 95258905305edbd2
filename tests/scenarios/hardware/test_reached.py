"""The share of the emulated bandwidth that clusters reach comes from the published points."""

from dataclasses import replace

import pytest

from scenarios.hardware import manual_table, reached
from scenarios.hardware.points import points


def test_every_band_of_sizes_has_points_of_collectives_alone() -> None:
    bands = reached.by_size()
    assert tuple(bands) == reached.BANDS
    assert all(bands.values())
    numbers = {number for shares in bands.values() for number in shares}
    chosen = [one for one in points() if one.number in numbers]
    assert {one.run["scenario"] for one in chosen} == {"allreduce"}
    assert {one.unit for one in chosen} == {"us", "GB/s"}


def test_a_share_is_of_times_as_of_bandwidths() -> None:
    emulated = manual_table.measured(manual_table.MANUAL.read_text())
    found = reached.shares()
    assert found["3.3"] == (2**20, emulated["3.3"] / 81.37)
    assert found["3.7"] == (reached.BANDS[-1], 364.39 / emulated["3.7"])
    assert found["6.8"][0] == 133_169_160


def test_a_fitted_point_is_in_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = [replace(one, fitted=one.number == "3.3") for one in points()]
    monkeypatch.setattr(reached, "points", lambda: fitted)
    assert "3.3" not in reached.shares()


def test_points_whose_nics_and_libraries_take_time_have_shares_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = {"options": ["--nic", "pollara"], "params": {"library": "rccl"}}
    timeless = [one for one in points() if "options" not in one.run]
    changed = [
        replace(one, run={**one.run, **run}) if one.number == "3.3" else one for one in timeless
    ]
    monkeypatch.setattr(reached, "points", lambda: changed)
    assert "3.3" in reached.shares(timed=True)
    assert "3.3" not in reached.shares()
    assert reached.by_size(timed=True)[2**26] == reached.by_size()[2**26]
