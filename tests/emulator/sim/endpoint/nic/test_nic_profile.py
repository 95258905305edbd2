"""Profiles of NICs: their numbers, and what is said of how they are known."""

import pytest

from emulator.sim.endpoint.nic import nic_profile
from emulator.sim.endpoint.nic.nic_profile import NONE, PROFILES, NicTimes


def test_a_connectx_7_takes_what_perftest_measured() -> None:
    times = nic_profile.times_of("cx7")
    assert times is not None
    assert times.one_way_ns(2) == 1_460
    assert times.one_way_ns(4096) == 2_360


def test_no_profile_is_no_time() -> None:
    assert nic_profile.times_of(NONE) is None
    assert NONE not in PROFILES


@pytest.mark.parametrize(("octets", "gap"), [(1, 3_000), (1_000_000, 8_000_000)])
def test_messages_are_apart_by_their_rate_or_by_that_of_pcie(octets: int, gap: int) -> None:
    assert NicTimes(0, 0, 0, 0, 3_000, 10**12, 1, 0).occupied_ps(octets) == gap


def test_the_help_tells_guesses_from_measurements() -> None:
    cx7, thor2 = (
        next(line for line in nic_profile.describe().splitlines() if f" {name}:" in line)
        for name in ("cx7", "thor2")
    )
    assert cx7.partition(", queue pair")[0].count("*") == 0
    assert "doorbell to wire 1500*" in thor2


def test_every_constant_has_a_source() -> None:
    for profile in PROFILES.values():
        for name in profile.__slots__:
            assert getattr(profile, name).source
