"""Packet memory that ports share, as a user chooses it and a fabric leaves it."""

import pytest

from emulator.dataplane.switch.bpf.layout import ALPHA_SHIFT
from emulator.dataplane.switch.cable_fitting import kind_of
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_fitting import FittedSwitch, fit
from emulator.dataplane.switch.switch_profile import POOLS
from emulator.errors import UserError
from emulator.transports.rocev2_switch import marks
from topologies import catalogue

SMALL = "rail_clos:hosts=2,gpus_per_host=2,spines=2"
TOPOLOGY = catalogue.load(SMALL)
CABLE = TOPOLOGY.links[0]
PORTS = 4  # of each rail switch


def fitted(switch: str) -> FittedSwitch:
    return fit(parse(switch), TOPOLOGY, 1, clock="virtual")


@pytest.mark.parametrize(
    "text",
    [
        *POOLS,
        "th5:pool=none",
        "th5:pfc=off",
        "th5:cbfc=on",
        "th5:xoff=1MB",
        "th5:reserved=0,headroom_pool=1MB",
        "spectrum:pfc=off,data.alpha=0.5,control.alpha=8",
        "lossless:pool=8MB,pfc_alpha=0.125,xon_offset=10KB",
        "shallow:pool=4MB,trimmed.alpha=2",
    ],
)
def test_a_choice_is_read_as_it_is_written(text: str) -> None:
    choice = parse(text)
    again = parse(choice.spec)
    assert (again.pool, again.pausing, again.changes) == (
        choice.pool,
        choice.pausing,
        choice.changes,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lossless:pfc_alpha=1", "pfc_alpha says nothing without a pool"),
        ("shallow:data.alpha=1", "data.alpha says nothing without a pool"),
        ("shallow:reserved=2KB", "reserved says nothing without a pool"),
        ("th5:pool=none,headroom_pool=1MB", "headroom_pool says nothing without a pool"),
        ("th5:pfc=off,headroom_pool=1MB", "headroom_pool says nothing where no port"),
        ("th5:data.alpha=1", "data.alpha says nothing of packets that are never dropped"),
        ("th5:xoff=1MB,pfc_alpha=1", "xoff and pfc_alpha both say where a port pauses"),
        ("th5:xon=1MB", "xon is a depth"),
        ("lossless:xon=1MB,xon_offset=1KB", "xon is a depth"),
        ("th5:pfc_alpha=0", "is above 0, at most 128"),
        ("th5:pool=0", "a pool has more than 0"),
        ("jericho:pfc=on", "the switch jericho has none"),
    ],
)
def test_what_says_nothing_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        parse(text)


def test_what_ports_keep_comes_off_the_pool() -> None:
    plain = fitted("jericho:pool=8MB").pools["rail0"]
    assert (plain.size_bytes, plain.headroom_bytes) == (8_000_000, 0)
    reserved = fitted("jericho:pool=8MB,reserved=1KB").pools["rail0"]
    assert reserved.size_bytes == 8_000_000 - 2 * PORTS * 1000  # two queues each
    paused = fitted("spectrum:pool=8MB")
    headroom = sum(paused.pauses[kind_of(CABLE)].headroom_bytes for _ in range(PORTS))
    assert paused.pools["rail0"].headroom_bytes == headroom
    assert paused.pools["rail0"].size_bytes == 8_000_000 - headroom
    few = fitted("spectrum:pool=8MB,headroom_pool=200KB").pools["rail0"]
    assert (few.size_bytes, few.headroom_bytes) == (7_800_000, 200_000)
    fixed = fitted("spectrum:pool=8MB,xoff=300KB")
    ceiling = fixed.pauses[kind_of(CABLE)].ceiling_bytes
    assert fixed.pools["rail0"].size_bytes == 8_000_000 - PORTS * ceiling
    credit = fitted("spectrum:pool=8MB,cbfc=on")
    kept = credit.lossless_bytes(CABLE)
    assert kept is not None
    assert credit.pools["rail0"].size_bytes == 8_000_000 - PORTS * kept


def test_a_pool_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="leaves 0 B to share at rail0"):
        fitted("th5:pool=100KB")


def test_a_headroom_pool_too_small_for_all_ports_is_warned_of() -> None:
    each = fitted("spectrum:pool=8MB").pauses[kind_of(CABLE)].headroom_bytes
    (warning,) = fitted(f"spectrum:pool=8MB,headroom_pool={PORTS * each - 1}").warnings
    assert f"that the {PORTS} ports of rail0 need if all of them pause at once" in warning
    assert fitted(f"spectrum:pool=8MB,headroom_pool={PORTS * each}").warnings == ()
    assert fitted("th5").warnings == ()


def test_a_lab_has_no_pool() -> None:
    with pytest.raises(UserError, match="takes the virtual clock of a run"):
        fit(parse("th5"), TOPOLOGY, 1000)


@pytest.mark.parametrize("switch", ["th5", "spectrum"])
def test_marks_come_before_pauses_on_switches_of_today(switch: str) -> None:
    """DCQCN wants ECN before PFC (Zhu and others, SIGCOMM 2015, section 4)."""
    made = fitted(switch)
    rules, pool = made.pauses[kind_of(CABLE)], made.pools["rail0"]
    _, kmax = marks(TOPOLOGY)
    xoff = rules.xoff_bytes + (pool.size_bytes * rules.alpha >> ALPHA_SHIFT)
    assert xoff > 10 * kmax
