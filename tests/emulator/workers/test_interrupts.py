"""A run that is told to end does end, whatever code the signal happened to hit."""

import signal
import time
from collections.abc import Callable

import pytest

from emulator.dataplane.cleanup import uninterrupted
from emulator.workers import interrupts
from emulator.workers.interrupts import Interrupted, held, interruptible

BUDGET_S = 60.0


def idle() -> None:
    """Something to interrupt; fails when nothing does."""
    give_up = time.monotonic() + BUDGET_S
    while time.monotonic() < give_up:
        time.sleep(0.01)
    pytest.fail("never interrupted")


def swallow(number: signal.Signals) -> None:
    """Be hit by ``number`` and drop the exception, as some extension modules do."""
    try:
        signal.raise_signal(number)
    except Interrupted:
        return
    pytest.fail("not interrupted")


def interrupted(work: Callable[[], object]) -> Interrupted:
    """Return what ends ``work`` under :func:`interruptible`."""
    with pytest.raises(Interrupted) as stop, interruptible():
        work()
    return stop.value


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_is_an_exception(number: signal.Signals, status: int) -> None:
    stop = interrupted(lambda: signal.raise_signal(number))
    assert str(stop) == f"interrupted by {number.name}"
    assert stop.exit_status == status


def test_an_exception_that_was_swallowed_comes_again() -> None:
    def work() -> None:
        swallow(signal.SIGTERM)
        with pytest.raises(Interrupted):  # as often as it takes
            idle()
        idle()

    assert interrupted(work).number == signal.SIGTERM


def test_after_one_that_was_swallowed_a_second_signal_counts() -> None:
    def work() -> None:
        swallow(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("deaf")

    assert interrupted(work).number == signal.SIGTERM  # the first is what is reported


def test_nothing_disturbs_the_unwinding() -> None:
    steps = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            steps.append("begun")
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGALRM)
            try:
                raise OSError("cleaning up has its own troubles")
            except OSError:
                signal.raise_signal(signal.SIGHUP)
            steps.append("ended")

    assert interrupted(work).number == signal.SIGTERM
    assert steps == ["begun", "ended"]


def test_it_waits_for_what_must_not_be_interrupted() -> None:
    steps = []

    def work() -> None:
        swallow(signal.SIGTERM)
        with uninterrupted():
            signal.raise_signal(signal.SIGALRM)
            steps.append("whole")
        pytest.fail("forgotten")

    assert interrupted(work).number == signal.SIGTERM
    assert steps == ["whole"]


def test_afterwards_all_is_as_before() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    interrupted(lambda: signal.raise_signal(signal.SIGHUP))
    assert [signal.getsignal(number) for number in numbers] == before


def test_an_alarm_of_somebody_else_goes_on() -> None:
    alarms = []
    handler = signal.signal(signal.SIGALRM, lambda *_: alarms.append("theirs"))
    timer = signal.setitimer(signal.ITIMER_REAL, BUDGET_S)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGALRM)
        interrupted(lambda: signal.raise_signal(signal.SIGHUP))
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
    assert alarms == ["theirs", "theirs"]
    assert BUDGET_S / 2 < left <= BUDGET_S


def test_a_block_that_holds_signals_is_asked_to_stop_and_interrupted_at_its_end() -> None:
    steps = []

    def work() -> None:
        with held(lambda: steps.append("asked")):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            steps.append("went on")
        pytest.fail("never interrupted")

    assert interrupted(work).number == signal.SIGTERM
    assert steps == ["asked", "went on"]


def test_a_block_that_fails_after_a_signal_was_interrupted() -> None:
    def work() -> None:
        with held(lambda: None):
            signal.raise_signal(signal.SIGTERM)
            raise OSError("what a stopped block comes to")

    assert interrupted(work).number == signal.SIGTERM


def test_a_block_that_does_not_stop_is_interrupted_in_its_midst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interrupts, "STOP_S", 0.01)

    def work() -> None:
        with held(lambda: None):
            signal.raise_signal(signal.SIGTERM)
            idle()

    assert interrupted(work).number == signal.SIGTERM


def test_signals_are_exceptions_again_after_a_block_that_held_them() -> None:
    def work() -> None:
        with held(lambda: pytest.fail("it is over")):
            pass
        signal.raise_signal(signal.SIGHUP)

    assert interrupted(work).number == signal.SIGHUP
