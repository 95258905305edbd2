"""The collectives that are scenarios, and their algorithms, as the scenarios have them."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules

from scenarios import collective_benchmarks
from scenarios.collectives.algorithm_registry import algorithms

#: The default algorithm of each collective, by its scenario.
FIRST: dict[str, str] = {}
#: Collectives that can work in place.
IN_PLACE: list[str] = []

for _module in iter_modules(collective_benchmarks.__path__):
    _parameters = import_module(f"{collective_benchmarks.__name__}.{_module.name}").Parameters
    _defaults = {field.name: field.default for field in fields(_parameters)}
    FIRST[_module.name] = _defaults["algorithm"]
    if "in_place" in _defaults:
        IN_PLACE.append(_module.name)

#: Each collective with each of its algorithms.
ALL = [(name, one) for name, first in FIRST.items() for one in algorithms(name, first=first)]
