"""Markers behind frames: which are waited for, and what the calling thread is afterwards."""

import os
import select
from collections import deque

import pytest

from emulator.dataplane.kernel.frames import softirq_barrier
from emulator.dataplane.kernel.frames.softirq_barrier import SoftirqBarrier


class Loopback:
    """A socket, and the poll on it, that bring back what is sent but for the first ``lost``."""

    def __init__(self, lost: int = 0, before: bytes = b"") -> None:
        self.sent: list[bytes] = []
        self.processors: list[int] = []
        self._lost = lost
        self._back = deque([before] if before else [])

    def send(self, frame: bytes) -> int:
        self.sent.append(frame)
        self.processors += os.sched_getaffinity(0)
        if self._lost:
            self._lost -= 1
        else:
            self._back.append(frame)
        return len(frame)

    def register(self, socket: object, events: int) -> None:
        """Do nothing: it is the socket itself."""

    def poll(self, timeout: int) -> list[object]:
        return [self] if self._back else []

    def recv(self, octets: int) -> bytes:
        return self._back.popleft()

    def close(self) -> None:
        """Do nothing."""


def never() -> bool:
    return False


def barrier_on(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> SoftirqBarrier:
    monkeypatch.setattr(softirq_barrier, "_loopback", lambda: loopback)
    monkeypatch.setattr(select, "poll", lambda: loopback)
    return SoftirqBarrier()


def test_two_markers_go_through_each_processor_for_each_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    loopback = Loopback()
    barrier_on(loopback, monkeypatch).wait(never)
    there = [one for one in allowed for _ in range(2)]
    assert loopback.processors == allowed * 3 + there + there[::-1] + there
    assert len(set(loopback.sent)) == len(loopback.sent)
    assert sorted(os.sched_getaffinity(0)) == allowed


@pytest.mark.parametrize(("after", "markers"), [(1, 1), (3, 3), (4, 5)])
def test_nobody_waits_any_longer_than_for_the_frame(
    monkeypatch: pytest.MonkeyPatch, after: int, markers: int
) -> None:
    loopback, asked = Loopback(), []

    def arrived() -> bool:
        asked.append(len(loopback.sent))
        return len(asked) == after

    barrier_on(loopback, monkeypatch).wait(arrived)
    assert len(loopback.sent) == asked[-1] == markers


def test_a_lost_marker_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, lossy = Loopback(), Loopback(lost=2)
    barrier_on(usual, monkeypatch).wait(never)
    barrier_on(lossy, monkeypatch).wait(never)
    assert lossy.sent == [lossy.sent[0]] * 2 + usual.sent


def test_an_old_marker_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Loopback()
    barrier_on(first, monkeypatch).wait(never)
    loopback = Loopback(lost=1, before=first.sent[-1])
    barrier_on(loopback, monkeypatch).wait(never)
    assert len(loopback.sent) == len(first.sent) + 1


@pytest.mark.parametrize("allowed", [True, False], ids=["root", "without the right"])
def test_an_interrupt_leaves_the_thread_as_it_was(
    monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    policies: list[int] = []

    def set_policy(thread: int, policy: int, priority: os.sched_param) -> None:
        if not allowed:
            raise PermissionError
        policies.append(policy)

    class Interrupted(Loopback):
        def send(self, frame: bytes) -> int:
            if len(self.sent) == 4:  # on a processor that it has moved to
                raise KeyboardInterrupt
            return super().send(frame)

    before = os.sched_getscheduler(0), os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_setscheduler", set_policy)
    with pytest.raises(KeyboardInterrupt):
        barrier_on(Interrupted(), monkeypatch).wait(never)
    assert policies == ([os.SCHED_FIFO, before[0]] if allowed else [])
    assert os.sched_getaffinity(0) == before[1]
