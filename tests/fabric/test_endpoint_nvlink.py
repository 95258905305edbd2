"""Scale-up network: modelled time of the egress, and notices between GPUs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.endpoint.nvlink import CopyNotice, NvLink, ScaleUpLink

RATE = 8_000_000_000  # an octet a nanosecond
LINK = ScaleUpLink(rate_bps=RATE, latency_ns=700)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[NvLink, NvLink]]:
    here, there = tmp_path / "a", tmp_path / f"b{secrets.token_hex(2)}"
    a, b = NvLink(0, here, {1: there}, LINK), NvLink(1, there, {0: here}, LINK)
    yield a, b
    a.close()
    b.close()


def notice(tag: int) -> CopyNotice:
    return CopyNotice(
        sender=0, execution=3, tag=tag, crc=0xDEADBEEF, offset=1 << 33, length=5, deliver_at=99
    )


def test_copies_of_one_gpu_take_turns(pair: tuple[NvLink, NvLink]) -> None:
    a, _ = pair
    assert a.occupy(1000, 500) == (1500, 2200)
    assert a.occupy(1100, 500) == (2000, 2700)
    assert a.occupy(5000, 100) == (5100, 5800)


def test_notice_arrives_as_it_was_sent(pair: tuple[NvLink, NvLink]) -> None:
    a, b = pair
    a.notify(1, notice(7))
    assert b.notices() == [notice(7)]
    assert b.notices() == []
    assert b.counters()["copies_in"] == 1


def test_full_mailbox_delays_notices_but_loses_none(pair: tuple[NvLink, NvLink]) -> None:
    a, b = pair
    sent = 5000
    for tag in range(sent):
        a.notify(1, notice(tag))
    assert a.backlog > 0
    tags: list[int] = []
    while len(tags) < sent:
        got = b.notices()
        assert got or a.backlog
        tags += [one.tag for one in got]
        a.flush()
    assert tags == list(range(sent))


def test_peer_that_left_is_an_error(pair: tuple[NvLink, NvLink]) -> None:
    a, b = pair
    b.close()
    with pytest.raises(ConnectionError, match="rank 1"):
        a.notify(1, notice(1))


def test_mailbox_is_removed(pair: tuple[NvLink, NvLink], tmp_path: Path) -> None:
    for one in pair:
        one.close()
    assert list(tmp_path.iterdir()) == []
