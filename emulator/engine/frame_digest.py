"""The digest of a run: every frame at every port, with its time.

Each line keeps a CRC32C of what it has begun to send (:class:`emulator.engine.frames.line.Line`).
When a frame arrives, and whether, follows from that and from what the line counts, so one number
stands for both ends of a cable.  Ports are taken in the order of their names: the digest does not
depend on who worked for which port.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from emulator.engine.frames.line_state import LineStates
from topologies.model import CableEnd

#: Hexadecimal digits of a digest (SHA-256, FIPS 180-4).
DIGITS = 64


def digest(states: LineStates) -> str:
    """The digest of all that the lines with ``states`` have carried and lost."""
    return _digest(
        {end: (*line.past, line.crc, *line.counts.tally()) for end, line in states.items()}
    )


def digest_of_row(states: LineStates) -> str:
    """The digest of all that the lines with ``states`` have carried and lost since the row began.

    A row that is run alone has the same one as among others.
    """
    return _digest(
        {
            end: (
                line.crc,
                *(now - then for now, then in zip(line.counts.tally(), line.before, strict=True)),
            )
            for end, line in states.items()
        }
    )


def _digest(numbers: Mapping[CableEnd, Sequence[int]]) -> str:
    total = hashlib.sha256()
    for end in sorted(numbers, key=str):
        total.update(f"{end} {' '.join(map(str, numbers[end]))}\n".encode())
    return total.hexdigest()
