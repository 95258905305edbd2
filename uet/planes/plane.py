"""One plane of a fabric interface: its endpoint, and the frames that take its port of the NIC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from uet.fep import FabricEndpoint
from uet.planes.liveness import Hearing
from uet.transport import Frame


class PlaneInterface(Protocol):
    """The parts of the interface that a plane uses."""

    #: the latest time that it was given (ns)
    now: int

    @property
    def hearing(self) -> Hearing: ...

    @property
    def due(self) -> int | None:
        """Return when :meth:`run_timers` has something to do (ns), or ``None``."""
        ...

    def run_timers(self) -> None: ...


class Plane:
    """The frames of one FEP (:class:`uet.transport.Transport`), which take one port of the NIC."""

    __slots__ = ("_interface", "_is_first", "fep", "name")

    def __init__(
        self, name: str, fep: FabricEndpoint, interface: PlaneInterface, *, is_first: bool
    ) -> None:
        self.name, self.fep = name, fep
        self._interface, self._is_first = interface, is_first

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take frames that came in by the plane's port."""
        self._interface.now = now
        self._interface.hearing.listen(frames, now)
        self.fep.receive(frames, now)

    def transmit(self, now: int, limit: int) -> list[Frame]:
        """Return what may leave by the plane's port.  Planes are called in their order.

        The first one runs the timers of all.  Where it is not called, as its line is busy, another
        one does: its own deadline would else stay in the past.
        """
        interface = self._interface
        interface.now = now
        if self._is_first or ((due := interface.due) is not None and due <= now):
            interface.run_timers()
        return self.fep.transmit(now, limit)

    def next_deadline(self) -> int | None:
        """Return when planes must transmit again even if nothing arrives (ns), or ``None``."""
        return _earlier(self.fep.next_deadline(), self._interface.due)


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


@dataclass(frozen=True, kw_only=True)
class InterfaceConfig:
    """The rules by which a fabric interface divides work.

    ``peers`` has the fabric addresses of each peer, in the order of planes; the first is its name.
    ``quarantine`` (ns) is how long a packet may be on its way. ``silence`` (ns) is the time after
    which a plane is given up, and ``time_limit`` (ns) the pause before it is probed for the first
    time.
    """

    peers: Sequence[tuple[str, ...]]
    stripe_above: int = 16_384
    quarantine: int = 200_000
    silence: int = 600_000
    time_limit: int = 1_000_000


class Sharing:
    """The octets that each of ``count`` planes has unanswered, and who takes more."""

    __slots__ = ("_load", "_ordered_by", "_turn")

    def __init__(self, count: int) -> None:
        self._load = [0] * count
        self._turn = 0
        self._ordered_by: dict[str, int] = {}  # the plane of what is ordered, by peer

    def choose(self, peer: str, delivery: str, usable: Sequence[int]) -> int:
        """The plane, of those ``usable``, for what goes whole: the one with least to do."""
        if delivery == "rod":
            plane = self._ordered_by.get(peer, -1)
            if plane in usable:
                return plane
        self._turn += 1
        count = len(self._load)
        plane = min(usable, key=lambda each: (self._load[each], (each - self._turn) % count))
        if delivery == "rod":
            self._ordered_by[peer] = plane
        return plane

    def begin(self, plane: int, octets: int) -> None:
        """A part of so many octets has been given to ``plane``."""
        self._load[plane] += octets + 1

    def end(self, plane: int, octets: int) -> None:
        """Note that work of ``octets`` has ended in ``plane``."""
        self._load[plane] -= octets + 1
