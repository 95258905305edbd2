"""Interfaces that ranks need: a channel from each to all others, and a watch on their deaths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Channel(Protocol):
    """Brings messages from rank to rank, those of one pair in order."""

    @property
    def number(self) -> int: ...

    @property
    def count(self) -> int: ...

    def send(self, peer: int, octets: bytes) -> None:
        """Send ``octets`` to ``peer``, and return at once."""

    def poll(self, peer: int) -> bytes | None:
        """Return the next message of ``peer`` if it is there."""

    def gather(self, block: bytes) -> None:
        """Begin to bring ``block`` to all ranks, and theirs to this one; return at once.

        All have blocks of one length.
        """

    def gathered(self) -> bytes | bytearray | None:
        """Return the blocks of all ranks, one behind the other, once they are there."""

    def abort(self, status: int) -> None:
        """Have the launcher end all ranks."""


@dataclass(frozen=True)
class Death:
    """The end of rank ``number`` that ends all others, in a sentence that names its machine."""

    number: int
    sentence: str


class Watch(Protocol):
    """Whoever knows of ranks that have died, and sees to what they leave."""

    @property
    def contact(self) -> object:
        """Return how those of the other ranks find that of rank 0; None elsewhere."""

    def introduce(self, machines: list[str], contact: object) -> None:
        """Report the machines of all ranks, and the ``contact`` of rank 0."""

    def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
        """Report the ``lab`` that is to be removed, or the run's ``folder``, of rank 0."""

    def death(self) -> Death | None:
        """Return which rank has died first."""
