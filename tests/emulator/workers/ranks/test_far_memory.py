"""Copies over the scale-up network to a GPU on another machine."""

from __future__ import annotations

import pickle
from pathlib import Path

from emulator.sim.endpoint.operations.nvlink import CopyNotice
from emulator.workers.ranks.far_memory import FarCopy, far_memory


def test_the_octets_of_a_copy_go_with_its_notice() -> None:
    here, there = (far_memory(Path("h0g1"), 8192) for _ in range(2))
    here.octets[4096:4100] = [1, 2, 3, 4]
    notice = CopyNotice(0, 1, 7, 0, 4096, 4, 1000)
    pickle.loads(pickle.dumps(FarCopy.of(notice, here))).put_into(there)
    assert there.octets[4095:4101].tolist() == [0, 1, 2, 3, 4, 0]
