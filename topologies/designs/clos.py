"""Clos fabrics of every shape: segments of rail switches, pods of spines, pods under super-spines.

::

    super-spines          S0 ... Sn            super_spines, each joined to every spine
                         /  |  \\
    spines         spine0 ... spine3  ...      spines of each pod (and plane)
                     |  \\  /  |
    rail switches  rail0 ... rail3  ...        rails_per_switch rails each, one bridge per rail
                    | | |    | | |
    servers        h0g0 h1g0 ...               nic_ports ports per GPU, to as many rail switches

:mod:`topologies.clos` explains segments, pods and planes, and
:mod:`topologies.clos` the ports of a NIC. :mod:`topologies.clos` explains
addresses, and :mod:`topologies.clos` the panel of a rail switch.

Two to sixteen ports per GPU (``nic_ports=2``) go to as many sets of rail switches, the planes; with
``planes=own`` each plane has spines of its own, as the fabric planes of UES have.
Without spines, rails that stand on different switches do not reach each other.
VLAN ids are those of the usual drawings: 101 for rail 0, 102 for rail 1, and so on.  A rail switch
has a bridge for each unless ``vlans=on`` makes them VLANs of one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from topologies import clos
from topologies.model import VLAN_USES, Topology
from topologies.parts.design import CabledDesign, parameter, register
from topologies.parts.design_parameters import COUNT, NUMBER, PREFIX, RATE, WordKind


@register
@dataclass(frozen=True, kw_only=True)
class Clos(CabledDesign):
    """Servers, rail switches, spines and super-spines in any numbers."""

    NAME = "clos"

    pods: int = parameter(1, COUNT, "pods")
    segments: int = parameter(1, COUNT, "segments of each pod")
    hosts: int = parameter(6, COUNT, "servers of each segment")
    gpus_per_host: int = parameter(4, COUNT, "GPUs of each server")
    gpus_per_nic: int = parameter(1, COUNT, "GPUs that share a NIC behind a PCIe switch")
    pcie_rate: int = parameter("256Gbps", RATE, "rate of a GPU's way to a shared NIC, each way")
    nic_ports: int = parameter(1, COUNT, "1, 2, 4, 8, 16 ports of a NIC, each to another switch")
    homing: str = parameter(
        clos.PATHS,
        WordKind(clos.HOMINGS),
        "NIC ports: paths to one address, a FEP each, a bond to a switch pair, or one as "
        "EVPN multihoming; auto: bond, or paths where the kernel has no bonds",
    )
    rails_per_switch: int = parameter(1, COUNT, "rails on one rail switch")
    switch_ports: int | None = parameter(
        None, COUNT, "front-panel ports of a rail switch; auto: as many as it takes"
    )
    port_order: str = parameter(
        clos.BY_RAIL, WordKind(clos.PORT_ORDERS), "how the ports of a rail switch are grouped"
    )
    spines: int = parameter(2, NUMBER, "spines of each pod")
    planes: str = parameter(
        clos.SHARED, WordKind(clos.PLANE_USES), "whether each plane of NIC ports has its own spines"
    )
    uplink_rate: int | None = parameter(None, RATE, "rate of one uplink; auto: nic_rate")
    uplinks_per_spine: int | None = parameter(
        None, COUNT, "parallel links from each rail switch to each spine; auto: non-blocking"
    )
    super_spines: int = parameter(0, NUMBER, "super-spines, which join the pods")
    super_rate: int | None = parameter(None, RATE, "rate of a link above spines; auto: uplink_rate")
    uplinks_per_super: int | None = parameter(
        None, COUNT, "parallel links from each spine to each super-spine; auto: non-blocking"
    )
    subnet_prefix: int = parameter(24, PREFIX, "prefix length of a rail's subnet")
    subnets: str = parameter(
        clos.APART,
        WordKind(clos.SUBNETS),
        "a third octet per rail, one divided per switch, or one of a rail over all pods (VXLAN)",
    )
    vlans: str = parameter(
        "off", WordKind(VLAN_USES), "rails of a switch as VLANs of one bridge; auto: if it can be"
    )

    def topology(self) -> Topology:
        self.check()
        return clos.ClosBuilder(self.plan).topology(self.NAME, self.parameters())

    @property
    def rail_count(self) -> int:
        """Return the number of rails of one plane: one per NIC of a server."""
        return self.plan.tiers.rail_count

    @cached_property
    def plan(self) -> clos.ClosPlan:
        """Return the plan of the fabric, whose parts share out the parameters."""
        tiers = clos.ClosTiers(
            pods=self.pods,
            segments=self.segments,
            hosts=self.hosts,
            gpus_per_host=self.gpus_per_host,
            gpus_per_nic=self.gpus_per_nic,
            nic_ports=self.nic_ports,
            rails_per_switch=self.rails_per_switch,
            spines=self.spines,
            own_spines=self.planes == clos.OWN,
            super_spines=self.super_spines,
        )
        homing = clos.NicHoming(self.homing, self.nic_ports)
        return clos.ClosPlan(
            cabling=self,
            tiers=tiers,
            trunks=clos.ClosTrunks(
                tiers=tiers,
                nic_rate=self.nic_rate,
                uplink_rate=self.uplink_rate,
                uplinks_per_spine=self.uplinks_per_spine,
                super_rate=self.super_rate,
                uplinks_per_super=self.uplinks_per_super,
            ),
            homing=homing,
            panel=clos.SwitchPanel(
                order=self.port_order, ports=self.switch_ports, hosts=self.hosts
            ),
            subnets=clos.RailSubnets(
                word=self.subnets, prefix=self.subnet_prefix, tiers=tiers, homing=homing
            ),
            pcie_rate=self.pcie_rate,
            # FRR has Ethernet segments on VLANs only.
            vlans="on" if homing.ethernet_segment else self.vlans,
        )

    def parameters(self) -> dict[str, object]:
        """Return every parameter with the value it has, computed ones included."""
        plan = self.plan
        values: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        values["uplink_rate"] = plan.trunks.uplink_bps
        values["super_rate"] = plan.trunks.super_bps
        values["vlans"] = plan.vlans
        if self.spines:
            values["uplinks_per_spine"] = plan.trunks.parallel
        if self.super_spines:
            values["uplinks_per_super"] = plan.trunks.parallel_super
        return values

    def check(self) -> None:
        """Raise TopologyError unless the parameters agree with each other."""
        self.plan.check()
        self.refuse_idle(self.idle())

    def idle(self) -> dict[str, str]:
        """Return what each parameter needs that would change nothing in this fabric."""
        tiers, trunks = self.plan.tiers, self.plan.trunks
        needs = {}
        if self.gpus_per_nic == 1:
            needs["pcie_rate"] = "gpus_per_nic=2 or more"
        if self.nic_ports == 1 or not (self.spines or self.plan.homing.fep_per_port):
            needs["planes"] = "spines, and nic_ports=2 or more"
        if tiers.rails_of_switch == 1 and self.subnets == clos.DIVIDED:
            needs["subnets"] = "several rails on a switch (rails_per_switch)"
        if min(tiers.rails_of_switch, self.hosts) == 1 and self.port_order != clos.INTERLEAVED:
            needs["port_order"] = "several rails on a switch (rails_per_switch), and several hosts"
        if not self.spines:
            needs |= dict.fromkeys(("uplink_delay", "uplinks_per_spine"), "spines")
            if trunks.uplink_bps != self.nic_rate:  # the default is computed
                needs["uplink_rate"] = "spines"
        if not self.super_spines:
            needs["uplinks_per_super"] = "super_spines"
            if trunks.super_bps != trunks.uplink_bps:
                needs["super_rate"] = "super_spines"
        return needs
