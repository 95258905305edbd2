"""Ethernet segments (RFC 7432): GPUs with a bond to two switches that advertise it to each other.

::

    rail0 -- es0 -- down0 ---------- eth0 +
      (tunnel, and BGP EVPN)              +-- bond0 of h0g0: segment 1 of the pair's system MAC
    rail1 -- es0 -- down0 ---------- eth1 +

At each switch the port is the only one of an access bond, which is the bridge's port: what a bond
is at one end it must be at the other, and FRR takes nothing else for a segment.  The identifier is
of type 3 (RFC 7432, 5): the MAC of the system that both switches pose as, and a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies import addressing as plan
from topologies.elements import CableEnd, Port, TopologyError
from topologies.wiring import Wiring, once_per_topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The bond ``gpu`` and the two switches at its ports.

    ``ports`` are the switches' ends of its cables, ``number`` counts from 1 in rank order; switches
    of one ``system_mac`` look like one system to it.
    """

    gpu: CableEnd
    number: int
    system_mac: str
    ports: tuple[CableEnd, ...]


@once_per_topology
def segments_of(topology: Wiring) -> tuple[Segment, ...]:
    """The bonds of GPUs that are plugged into access bonds of switches, in rank order."""
    places = {switch.name: place for place, switch in enumerate(topology.switches)}
    found = []
    for number, gpu in enumerate(topology.gpus, start=1):
        for bond, members in gpu.bonds.items():
            ends = [topology.far_end(CableEnd(gpu.name, port.name)) for port in members]
            if any(_port(topology, end).bond for end in ends):
                first = min(places.get(end.node, 0) for end in ends)
                found.append(
                    Segment(
                        gpu=CableEnd(gpu.name, bond),
                        number=number,
                        system_mac=plan.segment_mac(switch=first),
                        ports=tuple(ends),
                    )
                )
    return tuple(found)


def validate_segments(topology: Wiring) -> None:
    """Raise TopologyError unless the switches of each segment can advertise it to each other."""
    for segment in segments_of(topology):
        vnis = set()
        for end in segment.ports:
            bridge = topology.bridge_of(end)
            if bridge is None or _port(topology, end).bond is None:
                raise TopologyError(
                    f"{end} is no access bond, and {segment.gpu} an Ethernet segment: all of its "
                    "cables lead to access bonds, or none"
                )
            vnis.add(bridge.vni)
        if len(vnis) > 1 or None in vnis:
            raise TopologyError(
                f"{segment.gpu} is an Ethernet segment, and its switches have no network in "
                "common: join their bridges by a VNI (subnets=stretched)"
            )


def _port(topology: Wiring, end: CableEnd) -> Port:
    return topology.node(end.node).port(end.port)
