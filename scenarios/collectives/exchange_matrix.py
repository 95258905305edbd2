"""Matrices of exchanges with unequal parts: the octets from each member to each other one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from emulator.errors import UserError
from scenarios.collectives.size_sweep import PART_OCTETS
from topologies.units import UnitError, parse_size

#: Octets from member i, a row, to member j, a column.
Matrix = tuple[tuple[int, ...], ...]
#: A file beyond this is no matrix of a run.
MAX_FILE_OCTETS = 64 * 2**20


def zipf_matrix(members: int, octets: int, exponent: float, seed: int) -> Matrix:
    """Return a matrix in which each member sends ``octets``, and popularity follows Zipf's law.

    The r-th most popular member gets a share of 1 / r**exponent; ``seed`` draws who that is.  Parts
    are rounded down to 16 octets, as in the NCCL tests.
    """
    shares = 1 / np.arange(1, members + 1) ** exponent
    order = np.random.default_rng((seed, members)).permutation(members)
    popularity = np.empty(members)
    popularity[order] = shares / shares.sum()
    row = tuple(int(octets * share) // PART_OCTETS * PART_OCTETS for share in popularity)
    return (row,) * members


def distance_matrix(members: int, octets: int, spread: float) -> Matrix:
    """Return the generated pattern of the NCCL tests: more for members whose number is further.

    The share of the member d ahead is (1 - spread) / n + spread * d / (0 + 1 + ... + n-1). So each
    member sends and receives ``octets``, rounded down to 16.
    """
    total = members * (members - 1) / 2
    shares = [(1 - spread) / members + spread * d / total for d in range(members)]
    by_distance = [int(octets * share) // PART_OCTETS * PART_OCTETS for share in shares]
    return tuple(
        tuple(by_distance[(receiver - sender) % members] for receiver in range(members))
        for sender in range(members)
    )


def read_matrix(path: Path, members: int) -> Matrix:
    """Read a matrix as the NCCL tests take it: octets, parted by blanks, a sender in each line.

    Rows and columns beyond ``members`` are left out, and parts are rounded down to 16 octets.
    Raises UserError, with the line, for what is no such matrix.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_OCTETS + 1)
    except OSError as error:
        raise UserError(f"matrix {path}: {error.strerror}; give a file of octets") from None
    if len(content) > MAX_FILE_OCTETS:
        raise UserError(f"matrix {path} is longer than {MAX_FILE_OCTETS} B; give a smaller one")
    rows: list[tuple[int, ...]] = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        rows.append(tuple(_octets(f"{path}, line {number}", word) for word in words))
        if len(rows[-1]) != len(rows[0]):
            raise UserError(
                f"{path}, line {number}: it has {len(rows[-1])} numbers, and the first line "
                f"{len(rows[0])}; a matrix has equally many in each"
            )
    if not rows or len(rows) != len(rows[0]):
        raise UserError(
            f"matrix {path} has {len(rows)} lines of {len(rows[0]) if rows else 0} numbers; write "
            "as many lines as numbers in each"
        )
    if len(rows) < members:
        raise UserError(
            f"matrix {path} is for {len(rows)} GPUs, and {members} take part; name fewer by "
            f"ranks=0-{len(rows) - 1}, or add lines"
        )
    return tuple(
        tuple(octets // PART_OCTETS * PART_OCTETS for octets in row[:members])
        for row in rows[:members]
    )


def _octets(where: str, word: str) -> int:
    try:
        value = float(parse_size(word) if word[-1:].isalpha() else word)
    except (ValueError, UnitError):
        value = math.nan
    if not 0 <= value < 2**40:
        raise UserError(f"{where}: {word!r} is no number of octets; write such as 65536")
    return int(value)


def busiest(matrix: Sequence[Sequence[int]]) -> int:
    """Return the octets of the member that sends or receives most, its own part included."""
    columns = zip(*matrix, strict=True)
    return max(max(map(sum, matrix)), max(map(sum, columns)))


def imbalance(matrix: Sequence[Sequence[int]]) -> float:
    """Return what the most popular member receives, over the mean of all."""
    received = [sum(column) for column in zip(*matrix, strict=True)]
    return max(received) * len(received) / sum(received) if sum(received) else 1.0
