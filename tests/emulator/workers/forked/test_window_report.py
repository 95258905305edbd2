"""Reports of windows reach other ranks as far as those need them."""

from __future__ import annotations

from typing import cast

from emulator.sim.event_queue import NEVER
from emulator.sim.port_capture import Block
from emulator.workers.forked.window_report import Crossing, News, WindowReport
from emulator.workers.ranks.window_block import WindowTimes

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
    assert report.parcels([0, 1, 2]) == {2: (frames, [], [])}
    assert WindowReport(10, 50).parcels([0, 1, 2]) == {}


def test_news_go_to_all_and_the_capture_to_the_first() -> None:
    block = cast(Block, object())
    assert WindowReport(10, 50, {}, NEWS).parcels([0, 2]) == {0: ([], NEWS, []), 2: ([], NEWS, [])}
    assert WindowReport(10, 50, blocks=[block]).parcels([0, 2]) == {0: ([], [], [block])}
    told = WindowReport(10, 50, {}, NEWS, [block]).parcels([0, 2])
    assert told == {0: ([], NEWS, [block]), 2: ([], NEWS, [])}


def test_a_report_is_made_of_times_and_parcel() -> None:
    times, frames = WindowTimes(10, 50, 25, 1, 27), [crossing(25)]
    assert WindowReport.heard(times, None, 0) == WindowReport(10, 25)
    heard = WindowReport.heard(times, (frames, NEWS, []), 1)
    assert heard == WindowReport(10, 27, {1: frames}, NEWS)
