"""Test what two readings say, with numbers computed by hand."""

from dataclasses import replace
from typing import Any

import pytest

from emulator.lab.live.rates import (
    Activity,
    Group,
    LinkDirection,
    Reading,
    Sort,
    activities,
    busiest,
    by_rail,
    by_tier,
    directions,
    tiers,
)
from topologies import catalogue

G = 10**9
DOWN = LinkDirection(
    port="rail0:down0", to="h0g0:eth0", tier="rail to gpu", rails=(0,), rate_bps=400 * G
)
UP = LinkDirection(
    port="rail0:up0", to="spine0:down0", tier="rail to spine", rails=(0,), rate_bps=G
)
NIC = LinkDirection(port="h0g0:eth0", to="rail0:down0", tier="gpu to rail", rails=(0,), rate_bps=G)

SWITCH = Reading(
    at_ns=1_000,
    sent_bytes=0,
    queue_bytes=0,
    overflowed=0,
    peak_bytes=0,
    marked=0,
    trimmed=0,
    dropped=0,
)
PLAIN = Reading(at_ns=1_000, sent_bytes=0, queue_bytes=0, overflowed=0)


def between(
    direction: LinkDirection, before: Reading, after: Reading, dilation: float = 1000
) -> Activity:
    (found,) = activities([direction], {direction.port: before}, {direction.port: after}, dilation)
    return found


def active(direction: LinkDirection, share: float, **others: Any) -> Activity:
    values = {
        "queue_bytes": 0,
        "peak_bytes": 0,
        "control_queue_bytes": 0,
        "marked": 0,
        "trimmed": 0,
        "dropped": 0,
        "total_marked": 0,
        "total_trimmed": 0,
        "total_dropped": 0,
    }
    return Activity(
        direction=direction,
        rate_bps=share * direction.rate_bps,
        utilisation=share,
        **values | others,
    )


# --- one direction -----------------------------------------------------------------------------


def test_a_rate_is_host_octets_per_second_times_the_dilation() -> None:
    # 0.5 s of the host are 500 us of fabric time; 10 MB in 500 us are 160 Gb/s, 40 % of 400
    after = replace(SWITCH, at_ns=500_001_000, sent_bytes=10_000_000)
    found = between(DOWN, SWITCH, after)
    assert found.rate_bps == pytest.approx(160 * G)
    assert found.utilisation == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("sent", "utilisation"), [(1000, 1.0), (1099, 1.0), (1100, 1.0), (1101, 1.101)]
)
def test_a_full_link_carries_no_more_for_a_frame_that_has_only_begun(
    sent: int, utilisation: float
) -> None:
    """An interval of 1 us of fabric time at 8 Gb/s: 1000 octets, and frames are counted whole."""
    link = replace(DOWN, rate_bps=8 * 10**9, frame_bytes=100)
    after = replace(SWITCH, at_ns=2_000, sent_bytes=sent)
    assert between(link, SWITCH, after, 1).utilisation == pytest.approx(utilisation)


def test_counts_are_those_of_the_interval_and_in_total() -> None:
    before = replace(SWITCH, marked=5, trimmed=7, dropped=1, overflowed=2)
    after = replace(SWITCH, at_ns=2_000, marked=8, trimmed=7, dropped=4, overflowed=6)
    found = between(DOWN, before, after)
    assert (found.marked, found.trimmed, found.dropped) == (3, 0, 3 + 4)
    assert (found.total_marked, found.total_trimmed, found.total_dropped) == (8, 7, 4 + 6)


def test_a_port_without_asic_tells_neither_marks_nor_peaks() -> None:
    after = replace(PLAIN, at_ns=2_000, queue_bytes=300, overflowed=2)
    found = between(NIC, PLAIN, after)
    assert found.marked is found.trimmed is found.total_marked is found.peak_bytes is None
    assert (found.dropped, found.total_dropped) == (2, 2)
    assert found.deepest_bytes == found.queue_bytes == 300


def test_what_the_switches_count_anew_is_all_of_this_interval() -> None:
    before = {
        DOWN.port: replace(SWITCH, sent_bytes=900, marked=9, trimmed=9, dropped=9, overflowed=1),
        UP.port: replace(SWITCH, sent_bytes=100, marked=1),
        NIC.port: replace(PLAIN, sent_bytes=100),
    }
    # at rail0:up0 nothing has gone back, but the other one tells that all have been reset
    later = {"at_ns": 1_000 + G}
    after = {
        DOWN.port: replace(SWITCH, sent_bytes=500, marked=2, overflowed=1, **later),
        UP.port: replace(SWITCH, sent_bytes=125, marked=1, **later),
        NIC.port: replace(PLAIN, sent_bytes=600, **later),
    }
    down, up, nic = activities([DOWN, UP, NIC], before, after, dilation=1)
    assert [each.rate_bps for each in (down, up, nic)] == [4000, 1000, 4000]
    assert (down.marked, down.trimmed, down.dropped) == (2, 0, 0)
    assert up.marked == 1


def test_less_sent_with_more_waiting_is_no_reset() -> None:
    # what waits is read a moment after what was admitted: sent may seem to go back by a frame
    before = replace(SWITCH, sent_bytes=5_000, queue_bytes=0, marked=3)
    after = replace(SWITCH, at_ns=2_000, sent_bytes=4_000, queue_bytes=1_000, marked=3)
    found = between(DOWN, before, after)
    assert found.rate_bps == 0
    assert found.marked == 0


def test_no_time_has_no_rate() -> None:
    assert between(DOWN, SWITCH, replace(SWITCH, sent_bytes=100)).rate_bps == 0


def test_a_port_that_is_not_in_both_readings_is_left_out() -> None:
    assert activities([DOWN, UP], {DOWN.port: SWITCH}, {UP.port: SWITCH}, 1) == []


def test_the_queue_is_as_deep_as_its_peak_or_as_it_is() -> None:
    assert active(DOWN, 0, queue_bytes=10, peak_bytes=90).deepest_bytes == 90
    assert active(DOWN, 0, queue_bytes=10, peak_bytes=None).deepest_bytes == 10


# --- groups ------------------------------------------------------------------------------------


def test_a_group_is_its_mean_its_largest_and_their_ratio() -> None:
    shares = (0.2, 0.2, 0.8)
    found = Group.of([active(DOWN, share, marked=1, dropped=2) for share in shares])
    assert found.links == 3
    assert found.mean == pytest.approx(0.4)
    assert found.max == 0.8
    assert found.max_mean == pytest.approx(2.0)
    assert (found.marked, found.trimmed, found.dropped) == (3, 0, 6)


def test_an_idle_group_has_no_ratio_and_a_plain_one_no_marks() -> None:
    idle = Group.of([active(NIC, 0.0, marked=None, trimmed=None)])
    assert idle.max_mean is None
    assert idle.marked is idle.trimmed is None
    mixed = [active(NIC, 0.0, marked=None, peak_bytes=None, queue_bytes=7), active(DOWN, 0.0)]
    assert Group.of(mixed).marked == 0
    assert Group.of(mixed).deepest_bytes == 7


def test_tiers_and_rails_have_their_links() -> None:
    shared = replace(UP, port="rail0:up1", rails=(0, 1))
    other = replace(DOWN, port="rail1:down0", rails=(1,))
    top = LinkDirection(
        port="spine0:up0", to="x:y", tier="spine to super-spine", rails=(), rate_bps=400 * G
    )
    shares = {DOWN: 0.5, other: 0.1, UP: 0.2, shared: 0.4, top: 0.9}
    found = [active(direction, share) for direction, share in shares.items()]
    tier = by_tier(found)
    assert tier["rail to gpu"].mean == pytest.approx(0.3)
    assert tier["rail to gpu"].max_mean == pytest.approx(0.5 / 0.3)
    assert tier["spine to super-spine"].links == 1
    rail = by_rail(found)
    assert list(rail) == [0, 1]
    assert rail[0]["rail to gpu"].max == 0.5
    assert rail[0]["rail to spine"].mean == pytest.approx(0.3)
    assert rail[1]["rail to spine"].mean == pytest.approx(0.4)  # only the shared one
    assert "spine to super-spine" not in rail[0]


# --- order -------------------------------------------------------------------------------------


def named(port: str, share: float, **others: Any) -> Activity:
    return active(replace(DOWN, port=port), share, **others)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (Sort.UTILISATION, "cabd"),
        (Sort.QUEUE, "dbca"),
        (Sort.MARKS, "bcad"),
        (Sort.TRIMS, "acbd"),
        (Sort.DROPS, "dcab"),
    ],
)
def test_the_busiest_come_first(sort: Sort, order: str) -> None:
    found = [
        named("a", 0.5, queue_bytes=1, trimmed=3),
        named("b", 0.2, queue_bytes=2, peak_bytes=50, marked=9),
        named("c", 0.9, queue_bytes=20),
        named("d", 0.1, queue_bytes=99, peak_bytes=None, dropped=1),
    ]
    assert "".join(each.direction.port for each in busiest(found, sort)) == order


def test_full_links_keep_their_places_except_for_the_congested() -> None:
    found = [named("a", 0.996), named("b", 1.001), named("c", 1.0, marked=4), named("d", 0.98)]
    order = [each.direction.port for each in busiest(found, Sort.UTILISATION)]
    assert order == ["c", "a", "b", "d"]


# --- the fabric --------------------------------------------------------------------------------


def test_directions_of_the_reference_fabric() -> None:
    topology = catalogue.load("rail_clos")
    found = {direction.port: direction for direction in directions(topology)}
    assert len(found) == 2 * len(topology.links)
    assert tiers(topology) == ("gpu to rail", "rail to spine", "spine to rail", "rail to gpu")
    assert {each.tier for each in found.values()} == set(tiers(topology))
    assert found["h2g1:eth0"].rails == found["rail1:down2"].rails == (1,)
    assert found["h2g1:eth0"].to == "rail1:down2"
    up = found["rail3:up0"]
    assert (up.rails, up.rate_bps) == ((3,), 400 * G)
    assert found[up.to].to == "rail3:up0"
    assert found[up.to].rails == (3,)
