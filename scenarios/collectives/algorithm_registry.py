"""Algorithms of collectives, found by their modules in :mod:`scenarios.collectives.algorithms`.

A module registers each of its algorithms with :func:`algorithm`.  Adding one touches its file and
its test.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from scenarios.collectives.collective_call import Algorithm


@dataclass(frozen=True)
class RegisteredAlgorithm:
    """``run`` writes a call's operations; ``in_place``: its source and result may be one buffer.

    ``idle`` names parameters that change nothing of it.
    """

    run: Algorithm
    in_place: bool
    idle: Sequence[str]


#: The ``idle`` of algorithms whose data go neither round rings nor along trees of channels.
WITHOUT_RINGS = ("channels", "order")
_REGISTERED: dict[str, dict[str, RegisteredAlgorithm]] = {}


def algorithm(
    collective: str, name: str, *, in_place: bool = False, idle: Sequence[str] = ()
) -> Callable[[Algorithm], Algorithm]:
    """Register a function as the algorithm ``name`` of ``collective``, by the scenario's name.

    ``in_place``: it needs no other buffer for the result than that of the source.  ``idle``:
    parameters that change nothing of it.
    """

    def register(function: Algorithm) -> Algorithm:
        known = _REGISTERED.setdefault(collective, {})
        if name in known:
            raise ValueError(f"{collective} has two algorithms {name!r}; rename one of them")
        known[name] = RegisteredAlgorithm(function, in_place, idle)
        return function

    return register


@cache
def _load() -> None:
    room = importlib.import_module("scenarios.collectives.algorithms")
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"{room.__name__}.{module.name}")


def algorithms(collective: str, *, first: str) -> tuple[str, ...]:
    """Return the names of all algorithms of ``collective``; ``first`` is that of the default."""
    _load()
    return (first, *sorted(set(_REGISTERED[collective]) - {first}))


def algorithm_of(collective: str, name: str) -> RegisteredAlgorithm:
    """Return the algorithm ``name`` of ``collective``."""
    _load()
    return _REGISTERED[collective][name]
