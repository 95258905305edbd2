"""Ranks gather times after a window, and send messages to those alone that they have some for."""

import pickle
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from emulator.sim.event_queue import EventQueue
from emulator.workers.ranks import exchange
from emulator.workers.ranks.exchange import Death, RankGone, Ranks
from emulator.workers.ranks.worker import OtherRank, OwnRank
from emulator.workers.windows import News, WindowReport, WindowTimes
from emulator.workers.worker import Call, WorkerPart
from tests.harness.engine.memory_channel import MemoryChannel, ranks_of
from tests.harness.engine.rank_threads import outcomes

TIMES = WindowTimes(1, 2)
WINDOWS = 4


def channel(ranks: Ranks) -> MemoryChannel:
    assert isinstance(ranks.channel, MemoryChannel)
    return ranks.channel


def neighbours(number: int) -> set[int]:
    """Return the neighbours of a rank where eight are two rings of four, joined one to one."""
    ring, place = divmod(number, 4)
    return {4 * ring + (place + 1) % 4, 4 * ring + (place - 1) % 4, 4 * (1 - ring) + place}


class _Part:
    """A part with frames for all neighbours in each window, and what a test adds to reports."""

    def __init__(self, number: int, add: Callable[[WindowReport, int], None]) -> None:
        self.number, self._add, self._windows = number, add, 0
        self.events = EventQueue()

    def advance(self) -> WindowReport:
        self._windows += 1
        when = 10 * self._windows + self.number
        report = WindowReport(when, when + 5)
        for peer in neighbours(self.number):
            report.crossings[peer] = [(when + 3, self.number, peer, b"frame")]
        self._add(report, self._windows)
        return report


def windows(ranks: Ranks, add: Callable[[int, WindowReport, int], None]) -> list[Any]:
    """Exchange windows, and return what was heard of each other rank in the last one."""

    def add_here(report: WindowReport, window: int) -> None:
        add(ranks.number, report, window)

    own = OwnRank(cast(WorkerPart, _Part(ranks.number, add_here)), ranks)
    others = [OtherRank(number, ranks) for number in ranks.others]
    heard: list[Any] = []
    for _ in range(WINDOWS):
        window: Call[Any] = Call(_Part.advance, window=True)
        own.give(window)()
        heard = [one.give(window)() for one in others]
    return heard


def test_ranks_that_are_no_neighbours_exchange_no_message_in_windows() -> None:
    ranks = ranks_of(8, patience_s=20)
    found = outcomes(ranks, lambda one: windows(one, lambda *_: None))
    for one in ranks:
        expected = dict.fromkeys(neighbours(one.number), WINDOWS)
        assert dict(channel(one).sent) == expected
        for peer, report in zip(one.others, found[one.number], strict=True):
            now = 10 * WINDOWS + peer
            assert report.now == now
            mine = [(now + 3, peer, one.number, b"frame")]
            near = one.number in neighbours(peer)
            assert report.crossings == ({one.number: mine} if near else {})


def test_news_of_one_window_go_to_all_in_a_message_each() -> None:
    news = News(21, 3)

    def add(number: int, report: WindowReport, window: int) -> None:
        if (number, window) == (3, WINDOWS):
            report.news.append(news)

    ranks = ranks_of(8, patience_s=20)
    found = outcomes(ranks, lambda one: windows(one, add))
    sent = channel(ranks[3]).sent
    assert {peer: sent[peer] for peer in ranks[3].others} == {
        peer: WINDOWS if peer in neighbours(3) else 1 for peer in ranks[3].others
    }
    for one in ranks:
        heard = dict(zip(one.others, found[one.number], strict=True))
        assert [peer for peer, report in heard.items() if report.news] == [3] * (one.number != 3)
        assert all(report.news in ([], [news]) for report in heard.values())


def test_a_failure_in_mid_window_is_raised_by_all() -> None:
    def add(number: int, _: WindowReport, window: int) -> None:
        if (number, window) == (5, 2):
            raise ValueError("astray")

    found = outcomes(ranks_of(8, patience_s=20), lambda one: windows(one, add))
    assert [(type(one), str(one)) for one in found] == [(ValueError, "astray")] * 8
    notes = [getattr(one, "__notes__", None) for one in found]
    assert notes == [["in MPI rank 5 on f"] if number != 5 else None for number in range(8)]


def test_nobody_waits_for_a_message_of_a_rank_that_has_none() -> None:
    first, second, third = ranks_of(3, patience_s=3600)
    second.share_window("advance", TIMES, {0: "frames"})
    third.share_window("advance", TIMES, {1: "others"})
    first.share_window("advance", TIMES, {})
    assert [first.hear_window(peer) for peer in (1, 2)] == [(TIMES, "frames"), (TIMES, None)]


def test_a_message_of_which_the_mask_speaks_is_awaited() -> None:
    first, second = ranks_of(2, patience_s=20)
    second.share_window("advance", TIMES, {0: "frames"})
    line = channel(first).queues[1, 0]
    message = line.pop()
    first.share_window("advance", TIMES, {})
    late = threading.Timer(0.05, line.append, [message])
    late.start()
    assert first.hear_window(1) == (TIMES, "frames")
    late.join()


def test_a_rank_that_leaves_in_mid_window_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_CAUSE_S", 0.01)
    first, second, third = ranks_of(3, patience_s=3600)
    third.share_window("advance", TIMES, {})
    second.leave("no room")
    first.share_window("advance", TIMES, {})
    for one in (first, third):
        with pytest.raises(RankGone, match=r"^MPI rank 1 on b: no room$"):
            one.hear_window(1)


def test_a_failure_counts_more_than_the_ends_that_it_has_caused() -> None:
    first, second, third = ranks_of(3, patience_s=3600)
    second.leave("astray")
    third.fail("advance", ValueError("astray"), window=True)
    first.share_window("advance", TIMES, {})
    with pytest.raises(ValueError, match="astray") as raised:
        first.hear_window(1)
    assert raised.value.__notes__ == ["in MPI rank 2 on c"]


def test_a_silent_rank_is_told_from_those_that_wait_for_it() -> None:
    ranks = ranks_of(3, patience_s=0.5)

    def wait(one: Ranks) -> None:
        if one.number != 1:
            one.share_window("advance", TIMES, {})
            one.hear_window(1)

    first, nothing, third = outcomes(ranks, wait)
    assert nothing is None
    for gone in (first, third):
        assert str(gone).startswith("MPI rank 1 on b has sent nothing for 0.5 s")
    assert [one.silent for one in ranks] == [{1}, set(), {1}]


def test_a_death_in_mid_window_is_named() -> None:
    class Told:
        contact = None

        def introduce(self, machines: list[str], contact: object) -> None:
            """Keep nothing."""

        def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
            """Keep nothing."""

        def death(self) -> Death | None:
            return Death(1, "MPI rank 1 on b was killed")

    patient, _ = ranks_of(2)
    first = Ranks(channel(patient), machine="a", patience_s=3600, watch=Told())
    first.share_window("advance", TIMES, {})
    with pytest.raises(RankGone, match=r"^MPI rank 1 on b was killed$"):
        first.hear_window(1)


def test_a_rank_that_has_no_window_is_found_out() -> None:
    first, second = ranks_of(2, patience_s=3600)
    second.share("load", lambda _: None)
    first.share_window("advance", TIMES, {})
    with pytest.raises(RuntimeError, match=r"step 1 \(load\)"):
        first.hear_window(1)


def test_a_failure_in_the_step_behind_a_window_waits_until_that_is_heard() -> None:
    first, second = ranks_of(2, patience_s=20)
    second.share_window("advance", TIMES, {})
    second.fail("load", ValueError("later"))
    blocks = channel(first).gathers[0]
    block = blocks.pop(1)
    first.share_window("advance", TIMES, {})
    late = threading.Timer(0.1, blocks.update, [{1: block}])
    late.start()
    assert first.hear_window(1) == (TIMES, None)
    late.join()
    first.share("load", lambda _: None)
    with pytest.raises(ValueError, match="later"):
        first.hear(1)


def test_a_question_of_a_rank_that_waits_is_answered_by_one_that_waits_for_another() -> None:
    first, second, third = ranks_of(3, patience_s=0.5)
    channel(third).queues[2, 0].append(pickle.dumps(("ask",)))
    first.share("load", lambda _: None)
    second.share("load", lambda _: None)
    with pytest.raises(RankGone, match="MPI rank 2 on c has sent nothing"):
        [first.hear(peer) for peer in (1, 2)]
    words = [pickle.loads(one)[0] for one in channel(third).queues[0, 2]]
    assert words == ["step", "here"]
