"""The neighbours of endpoints in a run, in tables that many of them share."""

from __future__ import annotations

from dataclasses import dataclass, field

from topologies.addressing import gpu_address, shared_next_hops
from topologies.model import Node, Topology
from topologies.wiring import once_per_topology
from uet.addresses import KnownAddresses, Neighbours, NeighbourTable


def shared_neighbours(topology: Topology, gpu: Node, port: str | None = None) -> Neighbours:
    """Return the neighbours of an endpoint of ``gpu``, behind ``port`` where each has its own."""
    macs, shared = shared_next_hops(topology, gpu.name, port), _tables(topology)
    if id(macs) not in shared.tables:
        known = shared.known.get(id(macs.addresses))
        if known is None:
            known = shared.known[id(macs.addresses)] = KnownAddresses(macs.addresses)
        hops = {*macs.near.values(), *([] if macs.gateway is None else [macs.gateway])}
        shared.tables[id(macs)] = NeighbourTable(macs, known, hops)
    return Neighbours(shared.tables[id(macs)], str(gpu_address(gpu, port).ip))


@dataclass
class _SharedTables:
    """The tables of endpoints by the identity of the topology's, which live as long.

    And the addresses of the whole fabric, likewise.
    """

    tables: dict[int, NeighbourTable] = field(default_factory=dict)
    known: dict[int, KnownAddresses] = field(default_factory=dict)


@once_per_topology
def _tables(topology: Topology) -> _SharedTables:
    """Hold the tables that :func:`shared_neighbours` has made for ``topology``."""
    return _SharedTables()
