"""The plan of a Clos fabric: all its parts, and the rules that they keep together."""

from __future__ import annotations

from dataclasses import dataclass

from topologies import addressing as plan
from topologies.clos.clos_tiers import OWN, SHARED, ClosTiers
from topologies.clos.clos_trunks import ClosTrunks
from topologies.clos.nic_homing import PAIR, PATHS, PLANES, SEGMENT, NicHoming
from topologies.clos.rail_subnets import STRETCHED, RailSubnets
from topologies.clos.switch_panel import SwitchPanel
from topologies.elements import Role, TopologyError
from topologies.parts.design import CabledDesign


@dataclass(frozen=True, kw_only=True)
class ClosPlan:
    """The parts of one Clos fabric.

    ``cabling`` has the rates, delays and buffers of all designs, and ``pcie_rate`` that of a GPU's
    way to a shared NIC (bit/s). ``vlans``: whether rails of a switch are VLANs of one bridge.
    """

    cabling: CabledDesign
    tiers: ClosTiers
    trunks: ClosTrunks
    homing: NicHoming
    panel: SwitchPanel
    subnets: RailSubnets
    pcie_rate: int
    vlans: str

    def check(self) -> None:
        """Raise TopologyError unless the parts agree with each other."""
        tiers, homing = self.tiers, self.homing
        tiers.check_nics()
        homing.check()
        self._check_homing()
        tiers.check_switches()
        rails = tiers.rails_of_switch
        self.panel.check(
            rails=rails,
            below=tiers.hosts * rails + (rails if homing.paired else 0),
            above=self.trunks.up,
            spines=tiers.spines,
        )
        self._check_numbers()
        self.subnets.check(vlans=self.vlans)

    def _check_homing(self) -> None:
        """Check the homing of NICs against planes and subnets."""
        tiers, homing = self.tiers, self.homing
        planes = OWN if tiers.own_spines else SHARED
        if homing.fep_per_port and (homing.nic_ports == 1 or not tiers.own_spines):
            raise TopologyError(
                f"homing is {PLANES}, nic_ports {homing.nic_ports} and planes {planes}; an "
                f"endpoint in each plane takes several ports and planes that nothing joins: take "
                f"nic_ports=2 and planes={OWN}, or homing={PATHS}"
            )
        if homing.ethernet_segment and not self.subnets.stretched:
            raise TopologyError(
                f"homing is {SEGMENT} and subnets {self.subnets.word}; EVPN tells of GPUs in "
                f"subnets that lie on several switches: take subnets={STRETCHED}, or homing={PAIR}"
            )
        if homing.ethernet_segment and tiers.own_spines:
            raise TopologyError(
                f"homing is {SEGMENT} and planes own; the two switches of a GPU tell each other "
                f"of it over spines that both have: take planes=shared, or homing={PATHS}"
            )

    def _check_numbers(self) -> None:
        """Check the number of elements with addresses, before any of them is made."""
        tiers = self.tiers
        spines = tiers.pods * tiers.spines * tiers.spine_sets
        if self.homing.subnet_planes > 1:
            plan.check_switches(Role.GPU, tiers.gpus, "pods, segments, hosts or gpus_per_host")
        plan.check_switches(
            Role.RAIL, tiers.rail_switches, "pods or segments, or more rails_per_switch"
        )
        plan.check_switches(Role.SPINE, spines, "pods or spines")
        plan.check_switches(Role.SUPER_SPINE, tiers.super_spines, "super_spines")
        self.trunks.check()
