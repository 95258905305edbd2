"""The registry of exports: formats that are alike on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topologies.model import Topology


@dataclass(frozen=True)
class Export:
    """A format by ``name``: ``write`` makes its text, ``suffixes`` of files choose it."""

    name: str
    suffixes: tuple[str, ...]
    write: Callable[[Topology], str]


#: The exports by name, in the order of their modules; each registers itself.
EXPORTS: dict[str, Export] = {}


def register(export: Export) -> Export:
    """Enter ``export`` into the registry; ValueError if its name or a suffix is taken."""
    taken = {suffix for other in EXPORTS.values() for suffix in other.suffixes}
    if export.name in EXPORTS or taken & set(export.suffixes):
        raise ValueError(f"there are two exports with the name or a suffix of {export.name!r}")
    EXPORTS[export.name] = export
    return export
