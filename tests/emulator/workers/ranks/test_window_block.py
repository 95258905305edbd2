"""Blocks of windows have the times of a rank, and a bit for each receiver of a message."""

from __future__ import annotations

import pytest

from emulator.sim.event_queue import NEVER
from emulator.workers.ranks.window_block import NO_TIMES, BlockForm, WindowTimes


@pytest.mark.parametrize("count", [2, 64, 65, 256])
def test_blocks_come_back_as_they_were(count: int) -> None:
    form = BlockForm(count)
    times = WindowTimes(7, NEVER - 1, 5, count - 1, NEVER)
    receivers = {0, count // 2, count - 1}
    packed = [form.packed(3, 1, times, receivers), *[form.packed(3, 0, NO_TIMES, ())] * (count - 1)]
    assert {len(one) for one in packed} == {form.octets}
    first, *others = form.unpacked(b"".join(packed))
    assert (first.step, first.which, first.times) == (3, 1, times)
    assert {one for one in range(count) if first.has_message_for(one)} == receivers
    assert len(others) == count - 1
    assert not any(one.has_message_for(number) for one in others for number in range(count))


def test_a_rank_knows_itself_when_it_gets_something() -> None:
    times = WindowTimes(now=10, following=90, away=20, receiver=3, away_to_others=40)
    assert [times.following_for(number) for number in (2, 3)] == [20, 40]
    assert WindowTimes(10, 15, 20, 3, 40).following_for(2) == 15
