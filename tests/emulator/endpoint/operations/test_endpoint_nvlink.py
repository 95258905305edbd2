"""Scale-up network: modelled time of egress and ingress, and notices between GPUs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.endpoint.operations.nvlink import CopyNotice, Ingress, NvLink, ScaleUpLink

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
    assert a.occupy(1000, 500, 1) == (1500, 2200)
    assert a.occupy(1100, 500, 2) == (2000, 2700)
    assert a.occupy(5000, 100, 1) == (5100, 5800)


def test_links_without_a_switch_do_not_wait_for_each_other(tmp_path: Path) -> None:
    direct = NvLink(0, tmp_path / "a", {}, ScaleUpLink(RATE, 700, shared=False))
    try:
        assert direct.occupy(1000, 500, 1) == (1500, 2200)
        assert direct.occupy(1000, 500, 2) == (1500, 2200)
        assert direct.occupy(1000, 500, 1) == (2000, 2700)
    finally:
        direct.close()


def test_many_short_copies_take_as_long_as_a_long_one(tmp_path: Path) -> None:
    fast = NvLink(0, tmp_path / "a", {}, ScaleUpLink(3_600_000_000_000, 700))
    try:
        for _ in range(1000):
            free, _ = fast.occupy(0, 9, 1)
        assert free == 20  # 9000 octets at 450 an ns
    finally:
        fast.close()


def copied(sender: int, length: int, deliver_at: int) -> CopyNotice:
    return CopyNotice(
        sender=sender, execution=1, tag=0, crc=0, offset=0, length=length, deliver_at=deliver_at
    )


def test_copies_of_several_gpus_share_the_ingress(pair: tuple[NvLink, NvLink]) -> None:
    """Three send 500 octets at the same moment: the port takes 500 ns for each."""
    a, b = pair
    for sender in range(3):
        a.notify(1, copied(sender, 500, 2200))
    assert [one.deliver_at for one in b.notices()] == [2200, 2700, 3200]
    a.notify(1, copied(0, 500, 9000))
    assert [one.deliver_at for one in b.notices()] == [9000]


def test_links_of_several_gpus_do_not_share_an_ingress(tmp_path: Path) -> None:
    link = ScaleUpLink(RATE, 700, shared=False)
    here, there = tmp_path / "a", tmp_path / "b"
    a, b = NvLink(0, here, {1: there}, link), NvLink(1, there, {0: here}, link)
    try:
        for sender in range(3):
            a.notify(1, copied(sender, 500, 2200))
        assert [one.deliver_at for one in b.notices()] == [2200] * 3
    finally:
        a.close()
        b.close()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30))
def test_an_ingress_carries_one_octet_at_a_time_and_is_never_idle(
    copies: list[tuple[int, int]],
) -> None:
    """Against one that goes step by step: each copy takes the first free steps from its start."""
    ingress = Ingress()
    taken: set[int] = set()
    for start, duration in copies:
        steps = [step for step in range(start, 1000) if step not in taken][:duration]
        taken.update(steps)
        end = steps[-1] + 1 if steps else start
        assert ingress.admit(start, duration) == end
        assert end >= start + duration


def test_an_ingress_forgets_old_gaps_as_if_they_were_busy() -> None:
    ingress = Ingress()
    for number in range(1000):
        assert ingress.admit(10 * number, 5) == 10 * number + 5
    late = ingress.admit(0, 5)
    assert late > 5000
    assert ingress.admit(20_000, 5) == 20_005


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
