"""The collectives that are scenarios, and their algorithms, as the scenarios have them."""

from dataclasses import fields

from scenarios import SEVERAL, collective_benchmarks
from scenarios.collectives.algorithm_registry import algorithms

_DEFAULTS = {
    name: {f.name: f.default for f in fields(getattr(collective_benchmarks, name).Parameters)}
    for name in SEVERAL["collective_benchmarks"]
}
#: The default algorithm of each collective, by its scenario.
FIRST = {name: str(defaults["algorithm"]) for name, defaults in _DEFAULTS.items()}
#: Collectives that can work in place.
IN_PLACE = [name for name, defaults in _DEFAULTS.items() if "in_place" in defaults]

#: Each collective with each of its algorithms.
ALL = [(name, one) for name, first in FIRST.items() for one in algorithms(name, first=first)]
