"""Test when a PROBE asks for what is in flight, and when it asks for a window to be opened."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.uet.open_requests import SIZE, opened, sent
from uet.config import FepConfig
from uet.congestion.spraying.paths import TIMEOUT
from uet.pds.open_requests import OpenRequests
from uet.pds.repair import TailLoss

TIME, MOST = 100, 3
ASKED_ON = 77
NAMES: dict[str, Any] = {"address": "10.0.0.1", "mac": "02:00:00:00:00:01"}


def tail_of(requests: OpenRequests) -> tuple[TailLoss, Counter[str]]:
    """Return the tail loss of ``requests``, and what it counts."""
    config = FepConfig(**NAMES, tail_loss_time=TIME, max_tail_loss_retx=MOST)
    counts: Counter[str] = Counter()
    writer: Any = SimpleNamespace(asked_on=ASKED_ON)
    return TailLoss(requests, config, writer=writer, counters=counts), counts


def test_an_ordered_pdc_has_no_tail_loss_probes() -> None:
    for ordered, deadline in ((False, TIME), (True, None)):
        requests = opened(1, ordered=ordered)
        tail, _ = tail_of(requests)
        sent(requests, 1)
        assert tail.deadline() == deadline


@pytest.mark.conformance("C-181")
def test_the_deadline_runs_from_what_was_heard_last() -> None:
    requests = opened(1)
    tail, _ = tail_of(requests)
    assert tail.deadline() is None  # nothing is open
    sent(requests, 2)
    tail.heard_at = 50
    assert tail.deadline() == 50 + TIME
    tail.heard(70)
    assert tail.deadline() == 70 + TIME


def test_what_waits_to_leave_again_has_nothing_to_hear() -> None:
    requests = opened(1)
    tail, _ = tail_of(requests)
    first, second = sent(requests, 2)
    requests.retransmit.add(first, 0, 0)
    requests.discard(first)
    assert tail.deadline() == TIME  # the second is still in flight
    requests.discard(second)
    assert tail.deadline() is None


@pytest.mark.conformance("C-181")
def test_so_many_probes_and_no_more_until_something_is_heard() -> None:
    requests = opened(1)
    tail, counts = tail_of(requests)
    sent(requests, 1)
    heard: list[tuple[int, int, int]] = []
    paths: Any = SimpleNamespace(on_feedback=lambda *what: heard.append(what))
    requests.flow.paths = paths
    for n in range(MOST):
        deadline = tail.deadline()
        assert deadline == (n + 1) * TIME
        tail.probed(deadline)
    assert tail.deadline() is None
    assert counts["tx_tail_loss_probes"] == MOST
    # each but the first shows that the path of the one before has lost it
    assert heard == [(ASKED_ON, TIMEOUT, 2 * TIME), (ASKED_ON, TIMEOUT, 3 * TIME)]
    tail.heard(500)
    assert tail.deadline() == 500 + TIME


@pytest.mark.parametrize("settled", [False, True])
def test_a_window_is_stuck_once_nobody_is_to_open_it(settled: bool) -> None:
    requests = opened(1, window=2 * SIZE)
    tail, _ = tail_of(requests)
    assert not tail.window_is_stuck()  # nothing is in flight
    first, _ = sent(requests, 2)
    assert tail.window_is_stuck()
    requests.asked = first
    assert not tail.window_is_stuck()  # its ACK will come
    if settled:
        requests.window.finish(first)
    else:
        requests.size[first & requests.slot_mask] = 0  # refused, or lost
    assert tail.window_is_stuck()
    tail.asked()
    assert not tail.window_is_stuck()
    tail.heard(10)
    assert tail.window_is_stuck()
