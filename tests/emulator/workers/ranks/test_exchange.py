"""Ranks exchange the outcomes of a step, their failures, and their ends."""

import errno
import itertools
import threading
import time
from typing import Any

import pytest

from emulator.errors import UserError
from emulator.workers.ranks.exchange import Death, RankGone, Ranks
from tests.harness.engine.memory_channel import MemoryChannel, ranks_of


def together(ranks: list[Ranks], values: list[Any]) -> list[list[Any]]:
    """Return the outcome of ``gather`` at each of ``ranks``, all at the same time."""
    found: list[list[Any]] = [[] for _ in ranks]

    def gather(one: Ranks) -> None:
        found[one.number] = one.gather("values", values[one.number])

    threads = [threading.Thread(target=gather, args=(one,)) for one in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_gather_the_values_of_all_by_number() -> None:
    ranks = ranks_of(3, patience_s=20)
    assert together(ranks, ["x", "y", "z"]) == [["x", "y", "z"]] * 3


def test_a_rank_that_is_a_step_ahead_waits_in_line() -> None:
    first, second = ranks_of(2)
    for step in range(3):
        first.share(f"step {step}", {1: step}.get)
    for step in range(3):
        second.share(f"step {step}", lambda _: None)
        assert second.hear(0) == step


def test_each_rank_gets_its_own_portion() -> None:
    first, second, third = ranks_of(3)
    first.share("parts", lambda peer: f"for {peer}")
    for other in (second, third):
        other.share("parts", lambda _: None)
        assert other.hear(0) == f"for {other.number}"


def test_the_first_alone_gets_what_all_have() -> None:
    first, *others = ranks_of(3, patience_s=20)
    found: dict[int, list[str]] = {}

    def to_first(one: Ranks) -> None:
        found[one.number] = one.to_first("counters", f"of {one.number}")

    threads = [threading.Thread(target=to_first, args=(one,)) for one in (first, *others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: ["of 0", "of 1", "of 2"], 1: [], 2: []}


def test_a_failure_of_which_the_first_alone_hears_at_once_is_heard_at_the_next_step() -> None:
    first, second, third = ranks_of(3)
    third.fail("counters", ValueError("astray"))
    for one in (first, second):
        one.share_with_first("counters", {})
    assert first.hear(1) == {}
    with pytest.raises(ValueError, match="astray"):
        first.hear(2)
    second.share("advance", lambda _: None)
    with pytest.raises(ValueError, match="astray") as raised:
        second.hear(2)
    assert raised.value.__notes__ == ["in MPI rank 2 on c"]


def test_a_failure_is_raised_everywhere_and_names_its_rank() -> None:
    first, second = ranks_of(2)
    second.fail("advance", ValueError("astray"))
    first.share("advance", lambda _: 1)
    with pytest.raises(ValueError, match="astray") as raised:
        first.hear(1)
    assert raised.value.__notes__ == ["in MPI rank 1 on b"]
    assert first.heard is raised.value


def test_a_user_s_error_elsewhere_is_one_sentence_that_names_rank_and_machine() -> None:
    first, second = ranks_of(2)
    second.fail("load", UserError("/dev/shm has no room; use smaller messages"))
    first.share("load", lambda _: None)
    with pytest.raises(RankGone, match=r"^MPI rank 1 on b: /dev/shm has no room; use smaller"):
        first.hear(1)


def test_a_full_disk_elsewhere_is_one_sentence() -> None:
    first, second = ranks_of(2)
    second.fail("advance", OSError(errno.ENOSPC, "No space left on device"))
    first.share("advance", lambda _: None)
    with pytest.raises(RankGone, match=r"^MPI rank 1 on b: no room for what it writes \(No space"):
        first.hear(1)


def test_a_failure_that_cannot_be_pickled_goes_as_its_text() -> None:
    first, second = ranks_of(2)

    class Local(Exception):
        pass

    second.fail("load", Local("odd"))
    first.share("load", lambda _: None)
    with pytest.raises(RuntimeError, match="Local: odd"):
        first.hear(1)


def test_ranks_whose_runs_differ_are_found_out() -> None:
    first, second = ranks_of(2)
    first.share("advance", lambda _: None)
    second.share("report", lambda _: None)
    with pytest.raises(RuntimeError, match=r"MPI rank 1 on b is at step 1 \(report\), and this"):
        first.hear(1)


def test_nobody_waits_for_a_rank_that_has_left() -> None:
    first, second, third = ranks_of(3, patience_s=1000)
    second.leave("no room for runs/x")
    second.leave("again")
    for other in (first, third):
        other.share("advance", lambda _: None)
        with pytest.raises(RankGone, match=r"^MPI rank 1 on b: no room for runs/x$"):
            other.hear(1)


def test_a_reason_that_names_a_rank_is_passed_on_as_it_is() -> None:
    first, second, third = ranks_of(3)
    second.leave("no room")
    third.share("advance", lambda _: None)
    with pytest.raises(RankGone) as gone:
        third.hear(1)
    third.leave(str(gone.value))
    for step in range(2):  # the third was there for the first of them
        first.share("advance", lambda _: None)
        if not step:
            first.hear(2)
    with pytest.raises(RankGone, match=r"^MPI rank 1 on b: no room$"):
        first.hear(2)


def test_what_was_shared_before_an_end_is_still_heard() -> None:
    first, second = ranks_of(2)
    second.share("advance", lambda _: 7)
    second.leave("done for")
    first.share("advance", lambda _: None)
    assert first.hear(1) == 7
    first.share("advance", lambda _: None)
    with pytest.raises(RankGone):
        first.hear(1)


def test_a_rank_that_was_stopped_itself_does_not_give_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = ranks_of(2, patience_s=300)
    second.share("a step", lambda _: "here")
    (queue,) = [line for line in second.channel.queues.values() if line]  # type: ignore[attr-defined]
    message = queue.pop()
    times = itertools.chain([0.0], itertools.count(1000.0, 0.001))

    def monotonic() -> float:
        now = next(times)
        if now > 1000.0:  # the message comes after the first look at the clock
            queue.extend([message] if not queue else [])
        return now

    monkeypatch.setattr(time, "monotonic", monotonic)
    first.share("a step", lambda _: None)
    assert first.hear(1) == "here"
    assert not first.silent


def test_a_silent_rank_is_given_up_after_a_while() -> None:
    first, _ = ranks_of(2)
    first.share("advance", lambda _: None)
    with pytest.raises(RankGone, match=r"MPI rank 1 on b has sent nothing for 0\.05 s"):
        first.hear(1)
    assert first.silent == {1}


class Obituaries:
    """A watch that knows of a death from its third look on."""

    contact = None

    def __init__(self, death: Death) -> None:
        self._looks, self._death = itertools.count(), death

    def introduce(self, machines: list[str], contact: object) -> None:
        """Keep nothing."""

    def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
        """Keep nothing."""

    def death(self) -> Death | None:
        """Return the death, which is known late."""
        return self._death if next(self._looks) > 1 else None


def test_nobody_waits_for_a_rank_that_is_known_to_be_dead() -> None:
    patient, _ = ranks_of(2, patience_s=3600)
    watch = Obituaries(Death(1, "MPI rank 1 on b was killed"))
    first = Ranks(patient.channel, machine="a", patience_s=3600, watch=watch)
    first.share("advance", lambda _: None)
    with pytest.raises(RankGone, match=r"^MPI rank 1 on b was killed$"):
        first.hear(1)


def test_an_interrupted_rank_takes_no_slow_one_for_dead() -> None:
    first, second, third = ranks_of(3)
    first.leave("interrupted by SIGTERM")
    second.leave("interrupted by SIGTERM")
    assert first.interrupted_by() is None
    third.leave("interrupted by SIGTERM")
    assert first.part(0.01) is False
    assert first.silent == {1, 2}  # none of them before they had their time to part


def test_an_interrupted_rank_names_the_one_whose_death_is_known() -> None:
    patient, _ = ranks_of(2)
    sentence = "MPI rank 1 on b was killed"
    first = Ranks(patient.channel, machine="a", watch=Obituaries(Death(1, sentence)))
    first.leave("interrupted by SIGTERM")
    assert first.interrupted_by() == sentence == first.exit_reason
    assert first.silent == {1}


def test_an_interrupted_rank_repeats_why_another_ended_first() -> None:
    first, second = ranks_of(2)
    second.leave("no room")
    first.leave("interrupted by SIGTERM")
    assert first.interrupted_by() == "MPI rank 1 on b: no room" == first.exit_reason


def test_ranks_part_when_all_have_cleaned_up() -> None:
    first, second = ranks_of(2)
    assert not first.part(0.01)
    assert first.silent == {1}
    assert second.part(0.01)


def test_a_rank_that_cannot_be_reached_keeps_nobody() -> None:
    first, _ = ranks_of(2)
    channel = first.channel
    assert isinstance(channel, MemoryChannel)
    channel.deaf = {1}
    first.leave("no room")
    assert not first.part(10)


def test_the_first_makes_what_others_get_in_brief() -> None:
    first, second = ranks_of(2)
    assert first.from_first("sizes", lambda: [1, 2, 3], brief=lambda made: made[:1]) == [1, 2, 3]
    assert second.from_first("sizes", lambda: pytest.fail("rank 1 makes nothing")) == [1]


def test_a_refusal_of_the_first_is_everybodys() -> None:
    first, second = ranks_of(2)

    def refuse() -> int:
        raise UserError("no room; make some")

    for one in (first, second):
        with pytest.raises(UserError, match=r"^no room; make some$"):
            one.from_first("sizes", refuse)


def test_a_failure_of_the_first_is_raised_by_all() -> None:
    first, second = ranks_of(2)
    with pytest.raises(ZeroDivisionError):
        first.from_first("sizes", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        second.from_first("sizes", lambda: 1)
