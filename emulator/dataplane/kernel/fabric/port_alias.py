"""The alias of a fabric's interface."""

from __future__ import annotations

from emulator.dataplane.kernel.namespaces import PREFIX
from topologies.model import CableEnd


def alias_of(lab: str, end: CableEnd) -> str:
    """Return what ``ip link`` shows as the alias of an interface of a fabric."""
    return f"{PREFIX}:{lab}:{end.node}:{end.port}"
