"""Memory of GPUs on other machines: what is copied there over the scale-up network waits here."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from emulator.sim.endpoint.operations.gpu_memory import GpuMemory
from emulator.sim.endpoint.operations.nvlink import CopyNotice


@dataclass(frozen=True, slots=True)
class FarCopy:
    """A copy for a GPU on another machine: its notice, and the ``octets`` themselves."""

    notice: CopyNotice
    octets: bytes

    @classmethod
    def of(cls, notice: CopyNotice, memory: GpuMemory) -> Self:
        """Take the octets that ``notice`` announces out of ``memory`` (:func:`far_memory`)."""
        at = notice.offset
        return cls(notice, memory.octets[at : at + notice.length].tobytes())

    def put_into(self, memory: GpuMemory) -> None:
        """Put the octets where the GPU has them, whose ``memory`` this is."""
        at = self.notice.offset
        memory.octets[at : at + len(self.octets)] = np.frombuffer(self.octets, np.uint8)


def far_memory(path: Path, capacity: int) -> GpuMemory:
    """Return memory (octets) for copies to a GPU on another machine, which has it at ``path``.

    Pages that nobody copies to take no room.
    """
    return GpuMemory(path, mmap.mmap(-1, capacity))
