"""Messages between rank 0, which hands out trials, and the other ranks, which run them.

::

    rank 0                                      another rank
      <------------------------- Greeting --------   once
      -- Welcome, or Dismissal (the end) --------->
      -- FarmTask -------------------------------->   runs the trial
      <------------------------- Alive -----------   every few seconds, whatever it does
      <------------------------- FilePiece -------   of each file of the folder, one at a time
      <------------------------- Done ------------
      -- Dismissal ------------------------------->   interrupts what it runs, and ends
      <------------------------- Farewell --------   the last one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from emulator.suite.trials import TrialEnd

#: Octets of a file in one message, at most.  A rank sends the next one when the last was taken, so
#: that rank 0 holds one of each rank.
PIECE_OCTETS = 2**20


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """A rank as it begins: its machine, the digest of its program, and of the files it was named.

    ``trouble`` states why it cannot run trials.
    """

    machine: str
    program: str
    files: Mapping[str, str] = field(default_factory=dict)
    processors: int = 0
    kernel: str = ""
    trouble: str | None = None


@dataclass(frozen=True)
class Welcome:
    """Rank 0 will send tasks."""


@dataclass(frozen=True, kw_only=True)
class FarmTask:
    """A trial to run: the words of its command, and a ``name`` for its folder."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Alive:
    """The rank is there."""


@dataclass(frozen=True, kw_only=True)
class FilePiece:
    """Octets of a file of the trial; ``first``: those that it begins with.

    ``path`` begins with the trial's name: its folder, or the file beside it with its last words.
    """

    path: str
    octets: bytes
    first: bool


@dataclass(frozen=True)
class Done:
    """The trial has ended, and all of its files are sent."""

    end: TrialEnd


@dataclass(frozen=True)
class Dismissal:
    """Nothing more is to be run, and what runs is to be interrupted."""


@dataclass(frozen=True)
class Farewell:
    """The rank ends; ``signalled``: because the launcher told it to."""

    signalled: bool = False
