"""Fabric interfaces: NICs that have a fabric endpoint (FEP) in each plane of the fabric.

::

    h0g0 --eth0-- rail0     FEP 111, 10.1.1.2: plane 1
         --eth1-- rail1     FEP 211, 10.2.1.2: plane 2

A FEP has a number as in the drawings of the field: its plane, its server, its GPU, each from 1.
"""

from __future__ import annotations

from ipaddress import IPv4Network

from topologies.addressing import gpu_address
from topologies.model import CableEnd, Node, Topology


def fep_number(topology: Topology, gpu: Node, port: str) -> str:
    """The number of the FEP on ``port`` of ``gpu``: ``122``, or ``1-12-2`` beyond one digit."""
    place = next(n for n, server in enumerate(topology.servers, 1) if gpu.name in server.gpus)
    plane = 1 + [fep.name for fep in gpu.feps].index(port)
    parts = (plane, place, (gpu.local_rank or 0) + 1)
    return ("" if max(parts) < 10 else "-").join(map(str, parts))


def fep_addresses(gpu: Node) -> tuple[str, ...]:
    """The fabric addresses of ``gpu``, one a plane; one where its NIC is one endpoint."""
    if not gpu.feps:
        return (str(gpu_address(gpu).ip),)
    return tuple(str(gpu_address(gpu, fep.name).ip) for fep in gpu.feps)


def plane_networks(topology: Topology, gpu: Node, port: str) -> tuple[IPv4Network, ...]:
    """Return what the FEP on ``port`` of ``gpu`` reaches: a /16 for each pod of its plane."""
    plane = topology.node(topology.far_end(CableEnd(gpu.name, port)).node).plane
    found = {
        bridge.gateway.network.supernet(new_prefix=16)
        for switch in topology.switches
        if switch.plane == plane
        for bridge in switch.bridges
        if bridge.gateway is not None
    }
    return tuple(sorted(found))
