"""Algorithms of collectives: those of :mod:`scenarios.collectives.algorithms`, and users' own.

:func:`algorithm` registers one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from scenarios.collectives.collective_call import Algorithm
from topologies.registry import Registry


@dataclass(frozen=True)
class RegisteredAlgorithm:
    """``run`` writes a call's operations; ``in_place``: its source and result may be one buffer.

    ``idle`` names parameters that change nothing of it.  ``meaning`` is what its docstring begins
    with.
    """

    name: str
    meaning: str
    run: Algorithm
    in_place: bool
    idle: Sequence[str]


#: The ``idle`` of algorithms whose data go neither round rings nor along trees of channels.
WITHOUT_RINGS = ("channels", "order")


def algorithm(
    collective: str, name: str, *, in_place: bool = False, idle: Sequence[str] = ()
) -> Callable[[Algorithm], Algorithm]:
    """Register a function as the algorithm ``name`` of ``collective``, by the scenario's name.

    ``in_place``: it needs no other buffer for the result than that of the source.  ``idle``:
    parameters that change nothing of it.
    """

    def register(function: Algorithm) -> Algorithm:
        meaning = (function.__doc__ or "").strip().partition("\n")[0]
        entry = RegisteredAlgorithm(name, meaning, function, in_place, idle)
        algorithms_of(collective).register(entry, 2)
        return function

    return register


@cache
def algorithms_of(collective: str) -> Registry[RegisteredAlgorithm]:
    """Return the algorithms of ``collective``."""
    return Registry(f"algorithm of {collective}", "scenarios.collectives.algorithms")


def algorithms(collective: str, *, first: str) -> tuple[str, ...]:
    """Return the names of all algorithms of ``collective``; ``first`` is that of the default."""
    return (first, *sorted(set(algorithms_of(collective)) - {first}))


def algorithm_of(collective: str, name: str) -> RegisteredAlgorithm:
    """Return the algorithm ``name`` of ``collective``."""
    return algorithms_of(collective)[name]
