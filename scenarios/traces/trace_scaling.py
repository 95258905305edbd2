"""Traces with smaller messages: a job's sizes are more than the memory of one machine holds."""

from __future__ import annotations

from dataclasses import replace

from emulator.errors import UserError
from scenarios.traces.trace_model import (
    Trace,
    TraceCollective,
    TraceOperation,
    TraceReceive,
    TraceSend,
)

#: Octets of an element of a collective.
ELEMENT = 4


def with_sizes(trace: Trace, factor: float) -> Trace:
    """Return ``trace`` with all sizes multiplied by ``factor``, in whole elements.

    No message becomes empty, and every rank of a collective keeps a part of it.
    """
    if factor == 1:
        return trace
    if not factor:
        raise UserError("size_scale is 0, which leaves nothing to send; give a factor such as 1/64")
    lists = [[_scaled(trace, one, factor) for one in each] for each in trace.operations]
    return replace(trace, operations=tuple(lists))


def without_idle_ranks(trace: Trace) -> Trace:
    """Return ``trace`` with the ranks that do anything alone, numbered anew in their order."""
    place = {rank: number for number, rank in enumerate(trace.busy_ranks)}
    if len(place) == trace.ranks:
        return trace

    def moved(one: TraceOperation) -> TraceOperation:
        match one:
            case TraceSend(peer=peer) | TraceReceive(peer=peer):
                return replace(one, peer=place.get(peer, peer))
            case TraceCollective(root=int() as root):
                return replace(one, root=place.get(root, root))
        return one

    return replace(
        trace,
        operations=tuple([moved(one) for one in trace.operations[rank]] for rank in place),
        groups={
            name: tuple(place[rank] for rank in ranks)
            for name, ranks in trace.groups.items()
            if all(rank in place for rank in ranks)
        },
    )


def _scaled(trace: Trace, one: TraceOperation, factor: float) -> TraceOperation:
    match one:
        case TraceSend(octets=octets) | TraceReceive(octets=octets) if octets:
            return replace(one, octets=max(1, int(octets * factor)))
        case TraceCollective(octets=octets, group=group) if octets:
            members = len(trace.groups.get(group, ())) or 1
            unit = members * ELEMENT if one.kind.divided else ELEMENT
            if octets % unit == 0:
                return replace(one, octets=max(unit, int(octets * factor) // unit * unit))
            return replace(one, octets=max(unit // ELEMENT, int(octets * factor) // unit * unit))
    return one
