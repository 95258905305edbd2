"""The building of a Clos fabric from its plan, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from topologies.clos.clos_plan import ClosPlan
from topologies.clos.clos_tiers import RailSwitchPlace
from topologies.model import Role, Topology
from topologies.parts.assembly import Assembly

FIRST_VLAN = 101
FIRST_VNI = 10_000  # of VLAN 0
BOND = "bond0"


class ClosBuilder:
    """The builder of the fabric of one ``plan``."""

    def __init__(self, plan: ClosPlan) -> None:
        self._plan = plan
        self._tiers = tiers = plan.tiers
        self._several_pods = tiers.pods > 1
        self._fabric = Assembly(
            mtu=plan.cabling.mtu,
            buffer_bytes=plan.cabling.buffer,
            tunnels=plan.subnets.stretched,
        )
        self._places = list(tiers.places())
        #: GPUs of each server by its pod, segment and number there; shared NICs likewise, by NIC
        self._gpus: dict[tuple[int, int, int], tuple[str, ...]] = {}
        self._nics: dict[tuple[int, int, int], list[str]] = {}

    def topology(self, name: str, parameters: Mapping[str, object]) -> Topology:
        """Build the fabric, which notes ``name`` and ``parameters`` of its design."""
        plan, tiers = self._plan, self._tiers
        self._servers()
        for place in self._places:
            self._rail_switch(place)
        spines = self._spines()
        for place in self._places:
            self._attach(place)
            self._pair(place)
            for spine in spines[place.pod, place.plane if tiers.own_spines else 0]:
                self._join(place.name, spine, plan.trunks.parallel, plan.trunks.uplink_bps)
        supers = [
            self._fabric.switch(Role.SUPER_SPINE, f"super{number}")
            for number in range(tiers.super_spines)
        ]
        for names in spines.values():
            for spine in names:
                for top in supers:
                    self._join(spine, top, plan.trunks.parallel_super, plan.trunks.super_bps)
        profile = replace(self._fabric.profile, vlans=plan.vlans)
        return self._fabric.topology(name, parameters, profile=profile)

    # ------------------------------------------------------------------ nodes

    def _servers(self) -> None:
        """Make all servers, then the NICs that their GPUs share."""
        plan, tiers = self._plan, self._tiers
        servers = [
            (pod, segment, host)
            for pod in range(tiers.pods)
            for segment in range(tiers.segments)
            for host in range(tiers.hosts)
        ]
        for number, where in enumerate(servers):
            self._gpus[where] = self._fabric.server(
                f"h{number}",
                tiers.gpus_per_host,
                scale_up=plan.cabling.scale_up_network,
                pod=where[0] if self._several_pods else None,
                homed=plan.homing.subnet_planes,
                fep_per_port=plan.homing.fep_per_port,
                gpus_per_rail=tiers.gpus_per_nic,
            )
        if tiers.gpus_per_nic > 1:
            for number, where in enumerate(servers):
                self._nics[where] = [
                    self._fabric.shared_nic(f"h{number}", f"h{number}n{nic}")
                    for nic in range(tiers.rail_count)
                ]

    def _rail_switch(self, place: RailSwitchPlace) -> None:
        """Make the rail switch of ``place``, with a bridge for each of its rails."""
        tiers, subnets = self._tiers, self._plan.subnets
        rails = tiers.rails_of(place)
        self._fabric.switch(
            Role.RAIL,
            place.name,
            rail=rails[0] if len(rails) == 1 else None,
            pod=place.pod if self._several_pods else None,
            plane=place.plane if tiers.nic_ports > 1 else None,
        )
        for rail in rails:
            subnet = subnets.subnet(place, rail)
            vlan = FIRST_VLAN + rail
            self._fabric.bridge(
                place.name,
                f"rail{rail}",
                rail=rail,
                subnet=subnet,
                vlan=vlan,
                vni=FIRST_VNI + vlan if subnets.stretched else None,
                like=self._whose_mac(place, rail),
                summary=subnets.summary(subnet),
            )

    def _whose_mac(self, place: RailSwitchPlace, rail: int) -> tuple[str, str] | None:
        """Return the bridge whose MAC that of ``rail`` shares, None if it has one of its own.

        It is that of the twin, or the switch's first.
        """
        if self._plan.homing.paired and place.plane:
            return self._twin(place), f"rail{rail}"
        first = self._tiers.rails_of(place)[0]
        one_bridge = self._plan.vlans != "off"
        return (place.name, f"rail{first}") if one_bridge and rail != first else None

    def _twin(self, place: RailSwitchPlace) -> str:
        """Return the switch of the first plane that a switch of the second looks like."""
        first = replace(place, name="", plane=0)
        return next(each.name for each in self._places if replace(each, name="") == first)

    def _spines(self) -> dict[tuple[int, int], list[str]]:
        """Make the spines; return their names by pod and plane."""
        tiers, number = self._tiers, 0
        found: dict[tuple[int, int], list[str]] = {}
        for pod in range(tiers.pods):
            for plane in range(tiers.spine_sets):
                names = found.setdefault((pod, plane), [])
                for _ in range(tiers.spines):
                    names.append(
                        self._fabric.switch(
                            Role.SPINE,
                            f"spine{number}",
                            pod=pod if self._several_pods else None,
                            plane=plane if tiers.spine_sets > 1 else None,
                        )
                    )
                    number += 1
        return found

    # ------------------------------------------------------------------ cables

    def _attach(self, place: RailSwitchPlace) -> None:
        """Attach the GPUs of the segment, or their shared NICs, to the rail switch of ``place``."""
        plan, cabling = self._plan, self._plan.cabling
        rails, each = self._tiers.rails_of(place), self._tiers.gpus_per_nic
        for host, rail in plan.panel.cables(rails):
            interface = plan.panel.interface(host, rail - rails[0])
            where = place.pod, place.segment, host
            gpus = self._gpus[where]
            bridge = f"rail{rail}"
            if each > 1:
                self._fabric.attach_shared(
                    gpus[rail * each : (rail + 1) * each],
                    self._nics[where][rail],
                    place.name,
                    bridge,
                    pcie_bps=plan.pcie_rate,
                    rate_bps=cabling.nic_rate,
                    delay_ns=cabling.nic_delay,
                    interface=interface,
                )
            else:
                self._fabric.attach(
                    gpus[rail],
                    place.name,
                    bridge,
                    rate_bps=cabling.nic_rate,
                    delay_ns=cabling.nic_delay,
                    bond=BOND if plan.homing.bonded else None,
                    segment=plan.homing.ethernet_segment,
                    interface=interface,
                )

    def _pair(self, place: RailSwitchPlace) -> None:
        """Join a switch of the second plane to the one that it looks like, for each rail."""
        if not self._plan.homing.paired or not place.plane:
            return
        for rail in self._tiers.rails_of(place):
            self._fabric.pair(
                self._twin(place),
                place.name,
                f"rail{rail}",
                rate_bps=self._plan.cabling.nic_rate,
                delay_ns=self._plan.cabling.nic_delay,
            )

    def _join(self, lower: str, upper: str, parallel: int, rate_bps: int) -> None:
        """Join two switches by so many ``parallel`` links."""
        for _ in range(parallel):
            self._fabric.join(
                lower, upper, rate_bps=rate_bps, delay_ns=self._plan.cabling.uplink_delay
            )
