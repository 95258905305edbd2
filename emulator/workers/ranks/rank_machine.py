"""Properties of a rank's machine in which all ranks have to agree, or their parts do not fit."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from emulator.errors import UserError
from emulator.workers.ranks.rank_exchange import Ranks

_ROOT = Path(__file__).parents[3]
_PACKAGES = ("emulator", "scenarios", "topologies", "uet")
_DIGITS = 12


@dataclass(frozen=True)
class RankMachine:
    """The ``name`` of a machine, its kernel's release, and the digest of uetemu's sources there."""

    name: str
    kernel: str
    sources: str

    @classmethod
    def here(cls) -> Self:
        """The machine of this process."""
        return cls(platform.node(), platform.release(), _digest())


def check_alike(machines: Sequence[RankMachine], ranks: Ranks) -> None:
    """Raise UserError, which names a rank, unless ``machines`` have the same kernel and uetemu."""
    first = machines[0]
    for number, machine in enumerate(machines):
        if machine.sources != first.sources:
            raise UserError(
                f"{ranks.name(number)} has another uetemu ({machine.sources}) than {ranks.name(0)} "
                f"({first.sources}): install the same version on both"
            )
        if machine.kernel != first.kernel:
            raise UserError(
                f"{ranks.name(number)} has kernel {machine.kernel}, and {ranks.name(0)} has "
                f"{first.kernel}: boot the same on both, as their switches may differ"
            )


def _digest() -> str:
    """The first digits of the SHA-256 of all sources, by their names."""
    total = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.[pch]*")):
            if path.suffix in (".py", ".c", ".h"):
                total.update(f"{path.relative_to(_ROOT)}\n".encode())
                total.update(path.read_bytes())
    return total.hexdigest()[:_DIGITS]
