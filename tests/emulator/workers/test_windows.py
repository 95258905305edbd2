"""Reports of windows reach other ranks as far as those need them."""

import pickle
from pathlib import Path
from typing import cast

import pytest

from emulator.sim.endpoint.operations.nvlink import CopyNotice
from emulator.sim.event_queue import NEVER
from emulator.sim.port_capture import Block
from emulator.workers.windows import (
    NO_TIMES,
    BlockForm,
    Crossing,
    FarCopy,
    News,
    WindowReport,
    WindowTimes,
    far_memory,
)


def test_the_octets_of_a_copy_go_with_its_notice() -> None:
    here, there = (far_memory(Path("h0g1"), 8192) for _ in range(2))
    here.octets[4096:4100] = [1, 2, 3, 4]
    notice = CopyNotice(0, 1, 7, 0, 4096, 4, 1000, 4)
    pickle.loads(pickle.dumps(FarCopy.of(notice, here))).put_into(there)
    assert there.octets[4095:4101].tolist() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("count", [2, 64, 65, 256])
def test_blocks_come_back_as_they_were(count: int) -> None:
    form = BlockForm(count)
    times = WindowTimes(7, NEVER - 1, 5, count - 1, NEVER)
    receivers = {0, count // 2, count - 1}
    packed = [form.packed(3, times, receivers), *[form.packed(3, NO_TIMES, ())] * (count - 1)]
    assert {len(one) for one in packed} == {form.octets}
    first, *others = form.unpacked(b"".join(packed))
    assert (first.step, first.times) == (3, times)
    assert {one for one in range(count) if first.has_message_for(one)} == receivers
    assert len(others) == count - 1
    assert not any(one.has_message_for(number) for one in others for number in range(count))


def test_a_rank_knows_itself_when_it_gets_something() -> None:
    times = WindowTimes(now=10, following=90, away=20, receiver=3, away_to_others=40)
    assert [times.following_for(number) for number in (2, 3)] == [20, 40]
    assert WindowTimes(10, 15, 20, 3, 40).following_for(2) == 15


NEWS = [News(5, 1, barriers=("all",))]


def crossing(when: int) -> Crossing:
    """Return a frame that arrives at ``when``."""
    return (when, 0, 0, b"frame")


def test_the_earliest_frames_for_two_ranks_are_among_the_times() -> None:
    away = {2: [crossing(30), crossing(25)], 1: [crossing(28)], 0: [crossing(27)]}
    assert WindowReport(10, 50, away).times() == WindowTimes(10, 50, 25, 2, 27)
    assert WindowReport(10, 50, {1: [crossing(28)]}).times() == WindowTimes(10, 50, 28, 1, NEVER)
    assert WindowReport(10, 50).times() == WindowTimes(10, 50)


def test_frames_go_where_they_arrive_and_nothing_to_anybody_else() -> None:
    frames = [crossing(30)]
    report = WindowReport(10, 50, {2: frames})
    assert report.messages([0, 1, 2]) == {2: (frames, [], [])}
    assert WindowReport(10, 50).messages([0, 1, 2]) == {}


def test_news_go_to_all_and_the_capture_to_the_first() -> None:
    block = cast(Block, object())
    assert WindowReport(10, 50, {}, NEWS).messages([0, 2]) == {0: ([], NEWS, []), 2: ([], NEWS, [])}
    assert WindowReport(10, 50, blocks=[block]).messages([0, 2]) == {0: ([], [], [block])}
    told = WindowReport(10, 50, {}, NEWS, [block]).messages([0, 2])
    assert told == {0: ([], NEWS, [block]), 2: ([], NEWS, [])}


def test_a_report_is_made_of_times_and_message() -> None:
    times, frames = WindowTimes(10, 50, 25, 1, 27), [crossing(25)]
    assert WindowReport.heard(times, None, 0) == WindowReport(10, 25)
    heard = WindowReport.heard(times, (frames, NEWS, []), 1)
    assert heard == WindowReport(10, 27, {1: frames}, NEWS)
