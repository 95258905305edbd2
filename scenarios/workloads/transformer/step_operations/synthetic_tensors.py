"""Tensors with contents that every GPU can compute, and the function that checks and makes them.

Element i of the part of member p in exchange ``number`` is

    pattern[i + shift(number)] + p

with whole numbers below 4093 in the pattern, which are the same for all.  Sums over all members are
whole numbers that float32 holds exactly in every order.  A part in a wrong place, of a wrong member
or of another exchange has other elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function
from emulator.sim.endpoint.operations.schedule import Region

ELEMENT_OCTETS = 4
#: How the elements of a result follow from those of the members.
GATHERED, SUMMED, EXCHANGED, SENT = range(4)
#: Beyond this, sums need more than the 24 bits of a float32.
MOST_MEMBERS = 3000
_PERIOD = 4093
_pattern = np.random.default_rng(_PERIOD).permutation(_PERIOD).astype(np.float32)


@dataclass(frozen=True)
class FilledTensor:
    """A region that member ``position`` fills for exchange ``number``, once ``after`` is over."""

    region: Region
    number: int
    position: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckedTensor:
    """A result of exchange ``number``, complete when ``ready`` is over.

    ``mode`` is the way in which it follows from the ``members``.  ``place`` is the position of the
    member that has it, or of the one that sent it.  Of a sum it is the first element.
    """

    region: Region
    number: int
    mode: int
    members: int
    place: int
    ready: tuple[int, ...]


#: Stand for tensors of GPUs whose operations nobody wants.
NEVER_FILLED = FilledTensor(Region("", 0, 0), number=0, position=0)
NEVER_CHECKED = CheckedTensor(
    region=Region("", 0, 0), number=0, mode=SENT, members=0, place=0, ready=()
)


def values(number: int, position: int, first: int, count: int) -> npt.NDArray[np.float32]:
    """Return ``count`` elements from ``first`` on of a member's part."""
    begin = (first + number * 1009) % _PERIOD
    whole = _repeated(begin + count)
    return whole[begin : begin + count] + np.float32(position)


def _repeated(count: int) -> npt.NDArray[np.float32]:
    global _pattern
    if len(_pattern) < count:
        _pattern = np.resize(_pattern[:_PERIOD], 2 * count)
    return _pattern


def expected(
    number: int, mode: int, members: int, place: int, count: int
) -> npt.NDArray[np.float32]:
    """Return the ``count`` elements of a result (:class:`CheckedTensor`)."""
    if mode == SENT:
        return values(number, place, 0, count)
    if mode == SUMMED:
        ranks = np.float32(members * (members - 1) // 2)
        return values(number, 0, place, count) * np.float32(members) + ranks
    part = count // members
    first = place * part if mode == EXCHANGED else 0
    parts = [values(number, position, first, part) for position in range(members)]
    return np.concatenate(parts)


@gpu_function
def step_tensors(inputs: Sequence[Octets], outputs: Sequence[Octets], *numbers: int) -> None:
    """Compare each input with what it must be, and fill the outputs.

    The first outputs are counts of wrong elements, one for each input; the rest are tensors.
    ``numbers`` are four of each input, then two of each tensor.
    """
    for one, arrived in enumerate(inputs):
        number, mode, members, place = numbers[4 * one : 4 * one + 4]
        found = arrived.view(np.float32)
        wrong = found != expected(number, mode, members, place, len(found))
        outputs[one].view(np.uint32)[:] = np.count_nonzero(wrong)
    behind = numbers[4 * len(inputs) :]
    for one, tensor in enumerate(outputs[len(inputs) :]):
        number, position = behind[2 * one : 2 * one + 2]
        made = tensor.view(np.float32)
        made[:] = values(number, position, 0, len(made))
