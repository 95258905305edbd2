"""Data that go through host memory: whose, at what rate, and what is refused."""

import pytest

from emulator.errors import UserError
from emulator.sim.endpoint.nic import nic_profile
from emulator.sim.endpoint.nic.host_staging import parse, stated


def test_gpu_direct_changes_nothing() -> None:
    assert parse("on") is None
    assert stated("on") == ""


def test_each_server_stages_at_the_rate_of_pcie() -> None:
    staging = parse("off")
    assert staging is not None
    times = staging.times(None, "h3")
    assert times is not None
    assert times.staged_ps(461_000) == 8_000_000  # 461 Gb/s
    assert (times.one_way_ns(1 << 20), times.occupied_ps(1 << 20)) == (0, 9)  # of the NIC itself


def test_some_servers_stage_and_their_nics_take_their_time_too() -> None:
    staging, cx7 = parse("off:hosts=h0+h3,rate=8Gbps"), nic_profile.times_of("cx7")
    assert staging is not None
    assert cx7 is not None
    staging.check(["h0", "h1", "h2", "h3"])
    assert staging.times(cx7, "h1") == cx7
    times = staging.times(cx7, "h3")
    assert times is not None
    assert (times.staged_ps(1), times.one_way_ns(2)) == (1_000, cx7.one_way_ns(2))
    assert "data of h0, h3 go through host memory at 8 Gb/s" in stated("off:hosts=h0+h3,rate=8Gbps")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no", "--gpu-direct is 'no'; write on, off, or"),
        ("on:hosts=h0", "--gpu-direct is 'on:hosts=h0'"),
        ("off:host=h0", "has no parameter 'host'"),
        ("off:rate=fast", "rate: 'fast' is not a rate"),
        ("off:rate=0Gbps", "rate is 0"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text)


def test_unknown_servers_are_named() -> None:
    staging = parse("off:hosts=h7")
    assert staging is not None
    with pytest.raises(UserError, match="names h7, no server of this topology; it has h0, h1"):
        staging.check(["h0", "h1"])
