"""The neighbours of endpoints in a run, in tables that many of them share."""

from __future__ import annotations

from topologies.addressing import gpu_address, shared_next_hops
from topologies.model import Node, Topology
from topologies.wiring import once_per_topology
from uet.neighbours import Neighbours, NeighbourTable


def shared_neighbours(topology: Topology, gpu: Node, port: str | None = None) -> Neighbours:
    """Return the neighbours of an endpoint of ``gpu``, behind ``port`` where each has its own."""
    macs = shared_next_hops(topology, gpu.name, port)
    tables = _tables(topology)
    if id(macs) not in tables:
        tables[id(macs)] = NeighbourTable(macs)
    return Neighbours(tables[id(macs)], str(gpu_address(gpu, port).ip))


@once_per_topology
def _tables(topology: Topology) -> dict[int, NeighbourTable]:
    """Hold the tables of endpoints by the identity of the topology's, which live as long."""
    return {}
