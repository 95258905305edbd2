"""The bus bandwidth of collectives."""

from __future__ import annotations

from scenarios.traces.trace_model import Collective


def bus_factor(kind: Collective, members: int) -> float:
    """Return what the NCCL tests multiply algbw by to get busbw."""
    if kind is Collective.ALL_REDUCE:
        return 2 * (members - 1) / members
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        return (members - 1) / members
    return 1.0
