"""The ports of a fabric's switches, as the switch program identifies them: by interface index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from topologies.model import CableEnd, Link, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPort:
    """One port of a switch.

    ``switch`` is the switch's number in the order of the topology; ``peer`` the interface index of
    the switch port at the other end of the cable, 0 if that is a NIC.
    """

    end: CableEnd
    index: int
    cable: Link
    switch: int
    faces_nic: bool
    peer: int


def switch_ports(topology: Topology, indices: Mapping[CableEnd, int]) -> Iterator[SwitchPort]:
    """Every port of every switch, in the order of the topology; ``indices`` are of interfaces."""
    for number, switch in enumerate(topology.switches):
        cables = {
            ours.port: (ours, link, far) for link, ours, far in topology.neighbours(switch.name)
        }
        for model in switch.ports:
            end, cable, far = cables[model.name]
            faces_nic = not topology.node(far.node).is_switch
            yield SwitchPort(
                end=end,
                index=indices[end],
                cable=cable,
                switch=number,
                faces_nic=faces_nic,
                peer=0 if faces_nic else indices[far],
            )
