"""The digest of a run: every frame at every port, with its time.

Each line keeps a CRC32C of what it has begun to send
(:class:`emulator.sim.line.Line`). When a frame arrives, and whether, follows
from that and from what the line counts, so one number stands for both ends of a cable.  Ports are
taken in the order of their names: the digest does not depend on who worked for which port.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from emulator.sim.line_state import LineStates

#: Hexadecimal digits of a digest (SHA-256, FIPS 180-4).
DIGITS = 64
#: The file of a run folder with the parts of a digest, where they were requested.
PARTS_FILE = "digest-parts.json"
#: What a digest is made of: for each port, by name, the CRC32C of each row, then its tally.
DigestParts = Mapping[str, tuple[Sequence[int], Sequence[int]]]


def digest(states: LineStates) -> str:
    """The digest of all that the lines with ``states`` have carried and lost."""
    return _digest(
        {str(end): (*line.past, line.crc, *line.counts.tally()) for end, line in states.items()}
    )


def parts(states: LineStates) -> DigestParts:
    """Return what the digest of ``states`` is made of, for :func:`digest_of_parts`."""
    return {
        str(end): ((*line.past, line.crc), tuple(line.counts.tally()))
        for end, line in states.items()
    }


def digest_of_parts(runs: Mapping[int, DigestParts], rows: Sequence[int]) -> str:
    """Return the digest of the run that has the rows of ``runs``, each on an empty fabric.

    ``rows`` names for each row, in its order, the run that has it.
    """
    first = next(iter(runs.values()))
    numbers: dict[str, Sequence[int]] = {}
    for end in first:
        crcs = {run: iter(found[end][0]) for run, found in runs.items()}
        tallies = zip(*(found[end][1] for found in runs.values()), strict=True)
        numbers[end] = (*(next(crcs[run]) for run in rows), *map(sum, tallies))
    return _digest(numbers)


def digest_of_row(states: LineStates) -> str:
    """The digest of all that the lines with ``states`` have carried and lost since the row began.

    A row that is run alone has the same one as among others.
    """
    return _digest(
        {
            str(end): (
                line.crc,
                *(now - then for now, then in zip(line.counts.tally(), line.before, strict=True)),
            )
            for end, line in states.items()
        }
    )


def _digest(numbers: Mapping[str, Sequence[int]]) -> str:
    total = hashlib.sha256()
    for end in sorted(numbers):
        total.update(f"{end} {' '.join(map(str, numbers[end]))}\n".encode())
    return total.hexdigest()
