"""The exports by name: formats that are alike on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topologies.model import Topology
from topologies.registry import Registry


@dataclass(frozen=True)
class Export:
    """A format by ``name``: ``write`` makes its text, ``suffixes`` of files choose it."""

    name: str
    meaning: str
    suffixes: tuple[str, ...]
    write: Callable[[Topology], str]


EXPORTS: Registry[Export] = Registry("export", "topologies.exports", unique="suffixes")
