"""What a rank and the driver of its run say to each other: calls, waits, and their answers.

A rank sends its :class:`Call` without waiting for an answer, so that the order in which the host
runs the ranks decides nothing.  It stops at a :class:`Wait`, with its clock; the answer is a
:class:`Woken`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Kinds of calls.
ALLREDUCE, BROADCAST, REDUCE, ALLGATHER = "allreduce", "broadcast", "reduce", "allgather"
REDUCESCATTER, ALLTOALL, GATHER, SCATTER = "reducescatter", "alltoall", "gather", "scatter"
BARRIER, SEND, RECEIVE = "barrier", "send", "recv"
REDUCING = (ALLREDUCE, REDUCE, REDUCESCATTER)
POINT_TO_POINT = (SEND, RECEIVE)
#: The root of a receive from any rank.
ANY = -1


@dataclass(frozen=True, slots=True)
class Begin:
    """The driver's first word: the GPU's memory, of which the rank has the first half."""

    memory: str
    capacity: int
    clock_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective, or one side of a message, as rank ``rank`` calls it at ``clock_ns``.

    ``number`` counts the rank's calls.  ``members`` are the ranks of ``group`` by position;
    ``root`` is a position, of a message the other side.  ``octets`` is the size that all members
    share: the whole of what is reduced, moved or exchanged, where each has a part of it.
    ``source`` is where the rank has put its ``source_octets``.  ``splits`` are what an exchange
    sends to each position, if it says so.
    ``site`` is the line of the script.
    """

    rank: int
    number: int
    clock_ns: int
    kind: str
    group: str
    members: tuple[int, ...]
    octets: int
    source: int
    source_octets: int
    result_octets: int
    dtype: str = "uint8"
    reduction: str = "sum"
    root: int = 0
    splits: tuple[int, ...] | None = None
    tag: int = 0
    site: str = ""

    @property
    def shared(self) -> tuple[object, ...]:
        """Return what must be the same at all members."""
        splits = self.splits is not None
        return self.kind, self.members, self.octets, self.dtype, self.reduction, self.root, splits

    def words(self) -> str:
        """Return the call as a sentence names it."""
        what = f"{self.kind} of {self.octets} B" if self.octets else self.kind
        more = f" ({self.dtype}, {self.reduction})" if self.kind in REDUCING else ""
        return f"rank {self.rank}'s {what}{more} at {self.site}"


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank at ``clock_ns`` waits for its calls ``numbers``, until ``until_ns`` at most.

    ``consumed`` are calls whose results it has taken.  ``why`` names the line of the script.
    """

    clock_ns: int
    numbers: tuple[int, ...]
    consumed: tuple[int, ...]
    until_ns: int | None = None
    site: str = ""


@dataclass(frozen=True, slots=True)
class Woken:
    """The rank goes on at ``clock_ns``; ``results`` are those of its ended calls.

    Each is where it begins, its octets, and the rank that has sent it, of a message.  ``errors``
    has sentences of those that failed.
    """

    clock_ns: int
    results: Mapping[int, tuple[int, int, int]]
    errors: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreCall:
    """An operation on the store that all ranks share: ``get``, ``set``, ``add``, ``check``, ...

    ``get`` and ``wait`` stop the rank until the ``keys`` are there.
    """

    clock_ns: int
    operation: str
    keys: tuple[str, ...]
    value: bytes = b""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The answer to a :class:`StoreCall`, at ``clock_ns``."""

    clock_ns: int
    value: object


@dataclass(frozen=True, slots=True)
class Exited:
    """The rank's script is over at ``clock_ns``; ``failure`` is the sentence on why it failed."""

    clock_ns: int
    failure: str = ""
    consumed: tuple[int, ...] = ()
