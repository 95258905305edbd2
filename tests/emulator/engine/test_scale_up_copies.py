"""Copies over NVLink in virtual time: what a dead GPU had not sent whole does not arrive."""

from __future__ import annotations

import pytest

from emulator.endpoint.operations.nvlink import CopyNotice, ScaleUpLink
from emulator.engine.event_queue import EventQueue, Source
from emulator.engine.scale_up_copies import ScaleUpCopies

LINK = ScaleUpLink(rate_bps=8_000_000_000, latency_ns=100)  # an octet in a nanosecond


def copies(heard: list[CopyNotice]) -> ScaleUpCopies:
    return ScaleUpCopies(
        0,
        LINK,
        EventQueue(),
        Source(1),
        send=lambda *_: None,
        hear=heard.append,
    )


def notice(sender: int, deliver_at: int) -> CopyNotice:
    return CopyNotice(sender, 1, deliver_at, 0, 0, 10, deliver_at)


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
