"""The subnets of rails in a Clos fabric.

Rail r is 10.<pod>.<r+1>.0 with ``subnet_prefix``; the rails of a second plane, then those of the
next segment, follow.  With ``subnets=divided`` the rails of one switch s share 10.<pod>.<s+1>.0
instead, cut in equal parts.  Prefixes longer than /24 are advertised to spines as a summary, their
/24, where a switch has several rails.  With ``homing=planes`` the second octet is ten times the pod
plus the plane (1, 2, ...), and the third is the rail's in all planes.

With ``subnets=stretched`` rail r is one subnet, 10.0.<r+1>.0, over all pods and segments: every
rail switch that serves the rail has the same gateway address and MAC. Tunnels (VXLAN, VNI 10000
plus the VLAN id) between rail switches join the parts, and BGP EVPN advertises who is behind which.
Links between switches then carry 50 octets more than ``mtu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from topologies import addressing as plan
from topologies.clos.clos_tiers import ClosTiers, RailSwitchPlace
from topologies.clos.nic_homing import SEGMENT, NicHoming
from topologies.elements import TopologyError

SUBNETS = (APART, DIVIDED, STRETCHED) = ("apart", "divided", "stretched")


@dataclass(frozen=True, kw_only=True)
class RailSubnets:
    """The subnets, of prefix length ``prefix``, by the word of the parameter ``subnets``."""

    word: str
    prefix: int
    tiers: ClosTiers
    homing: NicHoming

    @property
    def stretched(self) -> bool:
        """Return whether a rail is one subnet over all segments and pods."""
        return self.word == STRETCHED

    def _second_octet(self, pod: int, plane: int) -> int:
        """Return the second octet of the subnets in ``plane`` of ``pod``, counted from 0."""
        return plan.plane_octet(pod, plane) if self.homing.fep_per_port else pod

    def subnet(self, place: RailSwitchPlace, rail: int) -> IPv4Network:
        """Return the subnet of ``rail`` at the rail switch of ``place``."""
        if self.stretched:
            return plan.rail_subnet(rail, subnet_prefix=self.prefix)
        tiers, planes = self.tiers, self.homing.subnet_planes
        plane = place.plane if planes > 1 else 0
        pod = self._second_octet(place.pod, place.plane)
        block = place.segment * planes + plane
        if self.word == APART:
            number = block * tiers.rail_count + rail
            return plan.rail_subnet(number, subnet_prefix=self.prefix, pod=pod)
        whole = plan.rail_subnet(block * tiers.switches + place.index, subnet_prefix=24, pod=pod)
        part = rail - tiers.rails_of(place)[0]
        return list(whole.subnets(new_prefix=self.prefix))[part]

    def summary(self, subnet: IPv4Network) -> IPv4Network | None:
        """Return the /24 that a rail switch advertises for ``subnet``, None if ``subnet`` itself.

        Only a switch with spines and several rails summarises.
        """
        several = self.tiers.rails_per_switch > 1 and self.tiers.spines and not self.stretched
        return subnet.supernet(new_prefix=24) if several and self.prefix > 24 else None

    def check(self, *, vlans: str) -> None:
        """Raise TopologyError unless there is room for all subnets, with this use of ``vlans``."""
        tiers = self.tiers
        if self.stretched:
            self._check_stretched(vlans)
            return
        plan.check_room(tiers.hosts, self.prefix, gpus_per_nic=tiers.gpus_per_nic)
        blocks = tiers.segments * self.homing.subnet_planes
        each = tiers.rail_count if self.word == APART else tiers.switches
        plan.rail_subnet(
            blocks * each - 1,
            subnet_prefix=self.prefix if self.word == APART else 24,
            pod=self._second_octet(tiers.pods - 1, tiers.nic_ports - 1),
        )
        rails = tiers.rails_of_switch
        parts = 2 ** (self.prefix - 24)  # of a /24; a fraction if it is none
        if self.word == DIVIDED and rails > parts:
            whose = f"the {rails} rails" if rails > 1 else "the rail"
            raise TopologyError(
                f"subnets is divided and subnet_prefix /{self.prefix}; {whose} of a switch "
                f"do{'' if rails > 1 else 'es'} not fit in one /24: take a longer subnet_prefix or "
                "subnets=apart"
            )

    def _check_stretched(self, vlans: str) -> None:
        tiers, homing = self.tiers, self.homing
        parts = tiers.pods * tiers.segments
        if parts == 1 and not homing.ethernet_segment:
            raise TopologyError(
                f"subnets is {STRETCHED} and there is one segment, over which a subnet lies "
                "anyway: take more pods or segments, or subnets=apart"
            )
        missing = "spines" if not tiers.spines else "super_spines"
        if not tiers.spines or (tiers.pods > 1 and not tiers.super_spines):
            raise TopologyError(
                f"subnets is {STRETCHED} and {missing} 0: tunnels need a way between all rail "
                f"switches; take {missing} too, or subnets=apart"
            )
        if tiers.nic_ports > 1 and not homing.ethernet_segment:
            raise TopologyError(
                f"subnets is {STRETCHED}, nic_ports {tiers.nic_ports} and homing {homing.word}; "
                f"of several ports EVPN tells as an Ethernet segment only: take homing={SEGMENT}, "
                "nic_ports=1 or subnets=apart"
            )
        if vlans != "off" and not homing.ethernet_segment:
            raise TopologyError(
                f"subnets is {STRETCHED} and vlans {vlans}; tunnels are ports of a bridge "
                "for each rail: take vlans=off or subnets=apart"
            )
        try:
            plan.check_room(parts * tiers.hosts, self.prefix, gpus_per_nic=tiers.gpus_per_nic)
        except TopologyError as error:
            raise TopologyError(f"of all {parts} segments together, {error}") from None
        plan.rail_subnet(tiers.rail_count - 1, subnet_prefix=self.prefix)
