"""The tiers of a Clos fabric: how many servers, switches and planes there are.

A **segment** is the servers that share a set of rail switches.  A **pod** is the segments that
share spines.  A **plane** is the rail switches that have one port of each NIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topologies.elements import TopologyError
from topologies.parts.assembly import MAX_GPUS

NIC_PORTS = (1, 2, 4)
#: Words for spines that all planes share, and for planes with spines of their own.
PLANE_USES = (SHARED, OWN) = ("shared", "own")


@dataclass(frozen=True)
class RailSwitchPlace:
    """The place of a rail switch, with its ``index`` within its plane of a segment."""

    name: str
    pod: int
    segment: int
    plane: int
    index: int


@dataclass(frozen=True, kw_only=True)
class ClosTiers:
    """The numbers of elements in each tier of a Clos fabric.

    ``own_spines``: whether each plane has as many ``spines`` of its own.
    """

    pods: int
    segments: int
    hosts: int
    gpus_per_host: int
    gpus_per_nic: int
    nic_ports: int
    rails_per_switch: int
    spines: int
    own_spines: bool
    super_spines: int

    @property
    def rail_count(self) -> int:
        """Return the number of rails of one plane: one per NIC of a server."""
        return self.gpus_per_host // self.gpus_per_nic

    @property
    def rails_of_switch(self) -> int:
        """Return the number of rails on a rail switch."""
        return min(self.rail_count, self.rails_per_switch)

    @property
    def switches(self) -> int:
        """Return the number of rail switches of one plane of one segment."""
        return -(-self.rail_count // self.rails_per_switch)

    @property
    def rail_switches(self) -> int:
        """Return the number of rail switches of the fabric."""
        return self.pods * self.segments * self.nic_ports * self.switches

    @property
    def spine_sets(self) -> int:
        """Return the number of sets of spines of one pod."""
        return self.nic_ports if self.own_spines else 1

    @property
    def planes_per_spine(self) -> int:
        """Return the number of planes that one spine joins."""
        return 1 if self.own_spines else self.nic_ports

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the fabric."""
        return self.pods * self.segments * self.hosts * self.gpus_per_host

    def rails_of(self, place: RailSwitchPlace) -> range:
        """Return the rails of the rail switch at ``place``."""
        each = self.rails_per_switch
        return range(place.index * each, min((place.index + 1) * each, self.rail_count))

    def places(self) -> Iterator[RailSwitchPlace]:
        """Yield the places of all rail switches, in the order of their numbers."""
        number = 0
        for pod in range(self.pods):
            for segment in range(self.segments):
                for plane in range(self.nic_ports):
                    for index in range(self.switches):
                        yield RailSwitchPlace(f"rail{number}", pod, segment, plane, index)
                        number += 1

    def check_nics(self) -> None:
        """Raise TopologyError unless every server can have such NICs."""
        if self.gpus_per_host % self.gpus_per_nic:
            raise TopologyError(
                f"gpus_per_host is {self.gpus_per_host} and gpus_per_nic {self.gpus_per_nic}; "
                "every NIC serves the same number of GPUs: take one that divides the other"
            )
        if self.nic_ports not in NIC_PORTS:
            raise TopologyError(f"nic_ports is {self.nic_ports}; a NIC has 1, 2 or 4 ports")
        if self.nic_ports > 1 and self.gpus_per_nic > 1:
            raise TopologyError(
                f"nic_ports is {self.nic_ports} and gpus_per_nic {self.gpus_per_nic}; a shared NIC "
                "has one port: make one of them 1"
            )

    def check_switches(self) -> None:
        """Raise TopologyError unless rails, spines and super-spines go together."""
        if self.rail_count % self.rails_per_switch and self.rail_count > self.rails_per_switch:
            raise TopologyError(
                f"rails_per_switch is {self.rails_per_switch} and a server has {self.rail_count} "
                "rails; take a number that divides them"
            )
        if self.super_spines and not self.spines:
            raise TopologyError(
                f"super_spines is {self.super_spines} and spines 0; super-spines join spines: "
                "take spines too"
            )
        if self.own_spines and self.super_spines:
            raise TopologyError(
                f"planes is own and super_spines {self.super_spines}; super-spines would join the "
                "planes: take planes=shared or super_spines=0"
            )
        if self.gpus > MAX_GPUS:
            raise TopologyError(
                f"there would be {self.gpus} GPUs, above {MAX_GPUS}; take fewer pods, segments, "
                "hosts or gpus_per_host"
            )
