"""Copies over NVLink: ports take turns, and what a dead GPU had not sent whole does not arrive."""

import pytest

from emulator.sim.endpoint.operations.nvlink import CopyNotice, ScaleUpLink
from emulator.sim.event_queue import EventQueue, Source
from emulator.sim.scale_up_copies import ScaleUpCopies

LINK = ScaleUpLink(rate_bps=8_000_000_000, latency_ns=100)  # an octet in a nanosecond


def copies(heard: list[CopyNotice], link: ScaleUpLink = LINK) -> ScaleUpCopies:
    return ScaleUpCopies(
        0,
        link,
        EventQueue(),
        Source(1),
        send=lambda *_: None,
        hear=heard.append,
    )


def notice(sender: int, deliver_at: int, carried: int = 10) -> CopyNotice:
    return CopyNotice(sender, 1, deliver_at, 0, 0, 10, deliver_at, carried)


def test_copies_of_one_gpu_take_turns() -> None:
    mine = copies([])
    assert mine.occupy(1000, 500, 1) == (1500, 1600)
    assert mine.occupy(1100, 500, 2) == (2000, 2100)
    assert mine.occupy(5000, 100, 1) == (5100, 5200)


def test_links_without_a_switch_do_not_wait_for_each_other() -> None:
    heard: list[CopyNotice] = []
    direct = copies(heard, ScaleUpLink(8_000_000_000, 100, shared=False))
    assert direct.occupy(1000, 500, 1) == (1500, 1600)
    assert direct.occupy(1000, 500, 2) == (1500, 1600)
    assert direct.occupy(1000, 500, 1) == (2000, 2100)
    for sender in (1, 2, 3):
        direct.arrive(notice(sender, 2200))
    assert [one.deliver_at for one in heard] == [2200] * 3


def test_many_short_copies_take_as_long_as_a_long_one() -> None:
    fast = copies([], ScaleUpLink(3_600_000_000_000, 100))
    for _ in range(1000):
        free, _ = fast.occupy(0, 9, 1)
    assert free == 20  # 9000 octets at 450 an ns


def test_copies_of_several_gpus_share_the_ingress() -> None:
    """Three send 10 octets at the same moment: the port takes 10 ns for each."""
    heard: list[CopyNotice] = []
    mine = copies(heard)
    for sender in (1, 2, 3):
        mine.arrive(notice(sender, 2200))
    mine.arrive(notice(1, 9000))
    assert [one.deliver_at for one in heard] == [2200, 2210, 2220, 9000]


def test_a_gpu_with_fewer_links_is_slower_until_it_has_all() -> None:
    mine = copies([])
    mine.pace([(1000, {(0,): 0.5, (2,): 0.1}), (5000, {(2,): 0.1})])
    assert mine.occupy(1000, 500, 2) == (2000, 2100)  # its port takes all copies alike
    assert mine.occupy(5000, 500, 2) == (5500, 5600)
    mine.pace([])
    assert mine.occupy(6000, 500, 2) == (6500, 6600)


def test_a_copy_goes_on_with_what_is_left_and_waits_where_nothing_is() -> None:
    mine = copies([])
    mine.pace([(1250, {(0,): 0.5}), (1450, {(0,): 0.0}), (2450, {})])
    assert mine.occupy(1000, 500, 1) == (2600, 2700)  # 250 + 100 + 0 + 150
    assert mine.occupy(1000, 100, 1) == (2700, 2800)


def test_a_copy_comes_in_with_what_its_receiver_has_left() -> None:
    heard: list[CopyNotice] = []
    mine = copies(heard)
    mine.pace([(0, {(0,): 0.5}), (50, {(0,): 0.0}), (80, {})])
    mine.arrive(notice(1, 60, carried=60))  # 25 octets by 50, and all others from 80 on
    assert [one.deliver_at for one in heard] == [115]


def test_a_link_of_a_mesh_is_as_fast_as_the_slower_end() -> None:
    mine = copies([], ScaleUpLink(8_000_000_000, 100, shared=False))
    mine.pace([(0, {(2,): 0.5}), (5000, {(0,): 0.25, (2,): 0.5}), (20000, {(0, 2): 0.1})])
    assert mine.occupy(1000, 500, 1) == (1500, 1600)
    assert mine.occupy(1000, 500, 2) == (2000, 2100)
    assert mine.occupy(9000, 500, 1) == mine.occupy(9000, 500, 2) == (11000, 11100)
    assert mine.occupy(20000, 500, 1) == (20500, 20600)  # its link is whole
    assert mine.occupy(20000, 500, 2) == (25000, 25100)


def test_only_what_left_a_dead_gpu_whole_arrives() -> None:
    heard: list[CopyNotice] = []
    mine = copies(heard)
    assert mine.lose([2], now=1000) == 1100
    for one in (notice(2, 1050), notice(2, 1101), notice(3, 2000)):
        mine.arrive(one)
    assert [(one.sender, one.tag) for one in heard] == [(2, 1050), (3, 2000)]
    assert mine.counters()["copies_lost"] == 1
    assert mine.counters()["copies_in"] == 2
    mine.hear_again([2])
    mine.arrive(notice(2, 5000))
    assert heard[-1].sender == 2


def test_a_copy_to_a_dead_gpu_fails_at_once() -> None:
    mine = copies([])
    mine.lose([2], now=0)
    with pytest.raises(ConnectionError, match="rank 2 has no scale-up port any more"):
        mine.notify(2, notice(0, 500))
    mine.notify(3, notice(0, 500))


def test_what_the_switch_copies_leaves_the_port_once() -> None:
    mine = copies([])
    assert [mine.occupy(1000, 500, peer, fan_out=5)[0] for peer in range(1, 6)] == [
        1100, 1200, 1300, 1400, 1500,
    ]  # fmt: skip
    assert mine.occupy(1500, 500, 1, fan_out=5) == (1600, 2100)  # none is there before all of it


def test_what_the_switch_sums_comes_in_once() -> None:
    heard: list[CopyNotice] = []
    mine = copies(heard)
    for sender in range(1, 6):
        mine.arrive(notice(sender, 1000, carried=2))
    assert [one.deliver_at for one in heard] == [1000, 1002, 1004, 1006, 1008]
