"""Reports of workers after a window of virtual time, and the parts of them that ranks exchange.

All ranks gather blocks of one length (:class:`WindowBlock`): the times that decide how long the
next windows are, and a mask of the ranks that the sender has a message for.  Ranks without a bit in
the mask wait for no message.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from emulator.sim.endpoint.operations.gpu_memory import GpuMemory
from emulator.sim.endpoint.operations.nvlink import CopyNotice
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.event_queue import NEVER
from emulator.sim.link_layer.replay import LinkUnit
from emulator.sim.port_capture import Block


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
    return GpuMemory.private(path, capacity)


#: Ranks, each with a bit, for which a mask grows by so many octets.
_RANKS, _OCTETS = 64, 8


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """A rank's time after a window, and when something happens next (ps), here or by its messages.

    The first thing ``away`` from it is for rank ``receiver``, and the first that is for another
    one is there at ``away_to_others``.
    """

    now: int
    following: int
    away: int = NEVER
    receiver: int = -1
    away_to_others: int = NEVER

    def following_for(self, number: int) -> int:
        """Return when something happens next, as rank ``number`` has to know it.

        It gets what is for itself, with the time of that.
        """
        away = self.away_to_others if self.receiver == number else self.away
        return min(self.following, away)


#: Times of a rank whose part of a window has failed.
NO_TIMES = WindowTimes(0, NEVER)


@dataclass(frozen=True, slots=True)
class WindowBlock:
    """A rank's block in ``step``; ``mask`` has a bit for each rank that gets a message."""

    step: int
    times: WindowTimes
    mask: int

    def has_message_for(self, number: int) -> bool:
        """Return whether rank ``number`` gets a message."""
        return bool(self.mask >> number & 1)


class BlockForm:
    """The octets of blocks of ``count`` ranks, from left to right.

    ::

        step | now | following | away | first receiver | away to others | mask ...
    """

    def __init__(self, count: int) -> None:
        self._mask_octets = -(-count // _RANKS) * _OCTETS
        self._struct = struct.Struct(f"<6q{self._mask_octets}s")

    @property
    def octets(self) -> int:
        """The length of a block."""
        return self._struct.size

    def packed(self, step: int, times: WindowTimes, receivers: Collection[int]) -> bytes:
        """Return the octets of a block; ``receivers`` get a message."""
        mask = 0
        for receiver in receivers:
            mask |= 1 << receiver
        return self._struct.pack(
            step,
            times.now,
            times.following,
            times.away,
            times.receiver,
            times.away_to_others,
            mask.to_bytes(self._mask_octets, "little"),
        )

    def unpacked(self, octets: bytes | bytearray) -> list[WindowBlock]:
        """Return the blocks of all ranks, by number, which ``octets`` has one behind the other."""
        return [
            WindowBlock(step, WindowTimes(*times), int.from_bytes(mask, "little"))
            for step, *times, mask in self._struct.iter_unpack(octets)
        ]


#: A frame for the far end of a line, or a notice for a rank's scale-up ports: time (ps), order,
#: number of the line or rank, and itself.
Crossing = tuple[int, int, int, bytes | LinkUnit | CopyNotice | FarCopy]
#: Contents of a message to another rank: crossings, news, and blocks of the capture.
WindowMessage = tuple[list[Crossing], list["News"], list[Block]]


@dataclass(frozen=True, slots=True)
class News:
    """A rank has reached barriers at ``when_ps``, or has ended: then it has a brief ``result``.

    Without a rank: nothing has left the lossless buffer of a port for a whole pause.
    """

    when_ps: int
    rank: int | None = None
    barriers: Sequence[str] = ()
    result: RankResult | None = None


@dataclass(slots=True)
class WindowWork:
    """What a worker has spent in windows so far (s): processor time of each, wall time of all."""

    processor_s: array[float] = field(default_factory=lambda: array("d"))
    wall_s: float = 0.0


def shared_work(works: Sequence[WindowWork], wall_s: float) -> dict[str, object]:
    """Return how workers have shared the work of their windows, which took ``wall_s`` in all.

    A worker waits from its own part of a window until all have heard of the others'.
    """
    processor = np.array([one.processor_s for one in works])
    mean = float(processor.mean(axis=0).sum())
    return {
        "number": processor.shape[1],
        "processor_s": processor.sum(axis=1).round(3).tolist(),
        "waited_s": [round(wall_s - one.wall_s, 3) for one in works],
        "imbalance": round(float(processor.max(axis=0).sum()) / mean, 3) if mean else 1.0,
    }


@dataclass(slots=True)
class WindowReport:
    """A worker after a window: its time, and the time of its next event (ps).

    It also has what goes to others by their number, what ranks have come to, and what was captured.
    """

    now: int
    following: int
    crossings: dict[int, list[Crossing]] = field(default_factory=dict)
    news: list[News] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def times(self) -> WindowTimes:
        """Return the times that all ranks need: what others get is there by its time alone."""
        times = WindowTimes(self.now, self.following)
        if not self.crossings:
            return times
        first, *rest = sorted(
            (min(one[0] for one in crossings), owner) for owner, crossings in self.crossings.items()
        )
        return WindowTimes(self.now, self.following, *first, rest[0][0] if rest else NEVER)

    def messages(self, others: Sequence[int]) -> dict[int, WindowMessage]:
        """Return what goes to those of ``others`` that need more than the times.

        All need news, rank 0 writes the capture, and frames go where they arrive.
        """
        told = others if self.news else [*self.crossings, 0] if self.blocks else self.crossings
        return {
            number: (
                self.crossings.get(number, []),
                self.news,
                self.blocks if number == 0 else [],
            )
            for number in others
            if number in told
        }

    @classmethod
    def heard(cls, times: WindowTimes, message: WindowMessage | None, number: int) -> Self:
        """Return the report that rank ``number`` makes of another one's times and message."""
        crossings, news, blocks = message or ([], [], [])
        own = {number: crossings} if crossings else {}
        return cls(times.now, times.following_for(number), own, news, blocks)
