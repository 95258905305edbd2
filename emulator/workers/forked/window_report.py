"""Reports of workers after a window of virtual time, and the portions that ranks exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from emulator.sim.endpoint.operations.nvlink import CopyNotice
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.event_queue import NEVER
from emulator.sim.link_layer.link_unit import LinkUnit
from emulator.sim.port_capture import Block
from emulator.workers.ranks.far_memory import FarCopy
from emulator.workers.ranks.window_block import WindowTimes

#: A frame for the far end of a line, or a notice for a rank's scale-up ports: time (ps), order,
#: number of the line or rank, and itself.
Crossing = tuple[int, int, int, bytes | LinkUnit | CopyNotice | FarCopy]
#: Contents of a message to another rank: crossings, news, and blocks of the capture.
Parcel = tuple[list[Crossing], list["News"], list[Block]]


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

    def parcels(self, others: Sequence[int]) -> dict[int, Parcel]:
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
    def heard(cls, times: WindowTimes, parcel: Parcel | None, number: int) -> Self:
        """Return the report that rank ``number`` makes of another one's times and parcel."""
        crossings, news, blocks = parcel or ([], [], [])
        own = {number: crossings} if crossings else {}
        return cls(times.now, times.following_for(number), own, news, blocks)
