"""Clos fabrics: their tiers, trunks, subnets and panels as one plan, and the fabric built from it.

The tiers of a Clos fabric: how many servers, switches and planes there are.

A **segment** is the servers that share a set of rail switches.  A **pod** is the segments that
share spines.  A **plane** is the rail switches that have one port of each NIC.

The homing of NICs: what the ports of one NIC are to each other.

With ``paths`` all ports lead to one address of the GPU.  With ``bond`` the two ports are one
interface with one address, and the two rail switches look like one: one subnet, one gateway address
and MAC. Between them each rail has a standby link, for frames to GPUs whose own port there is down.
With ``esi`` they have no such link, and advertise their GPUs to each other by BGP EVPN (Ethernet
segments, RFC 7432).  With ``auto`` it is ``bond`` that is drawn, and ``paths`` where the kernel has
no bonds (:mod:`emulator.dataplane.homing`).  With ``planes`` each port is a fabric endpoint (FEP)
of its own, with its own address; all of a NIC have its one MAC.  Nothing joins the planes then.

The links above the rail switches of a Clos fabric: their rates, and how many are parallel.

What is not given is computed: as many parallel links as a non-blocking tier needs, rounded up.

The subnets of rails in a Clos fabric.

Rail r is 10.<pod>.<r+1>.0 with ``subnet_prefix``; the rails of a second plane, then those of the
next segment, follow. A pod with more than an octet has room for counts as several pods. With
``subnets=divided`` the rails of one switch s share 10.<pod>.<s+1>.0 instead, cut in equal parts.
Prefixes longer than /24 are advertised to spines as a summary, their /24, where a switch has
several rails. With ``homing=planes`` the second octet is ten times the pod (twenty times with more
than nine planes) plus the plane (1, 2, ...), and the third is the rail's in all planes.

With ``subnets=stretched`` rail r is one subnet, 10.0.<r+1>.0, over all pods and segments: every
rail switch that serves the rail has the same gateway address and MAC. Tunnels (VXLAN, VNI 10000
plus the VLAN id) between rail switches join the parts, and BGP EVPN advertises who is behind which.
Links between switches then carry 50 octets more than ``mtu``.

The front panel of a rail switch: the interface that each cable of a server has.

Port ``down<n>`` of a rail switch is interface n + 1 of its panel.  With the order ``rail`` or
``host`` interfaces follow each other.  With ``interleaved`` the panel (by default of 48 ports) has
three rows.  A rail takes every third interface of its row; the rails that follow stand beside it,
and then in the next row: with four servers rail 1 has interfaces 1, 4, 7, 10, and rail 2 has 13,
16, 19, 22. Rail 5 has 2, 5, 8, 11 (figure 13-6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

from topologies import addressing as plan
from topologies.elements import TopologyError
from topologies.model import Role, Topology
from topologies.parts.assembly import MAX_GPUS, MAX_PORTS, Assembly
from topologies.parts.design import CabledDesign

NIC_PORTS = (1, 2, 4, 8, 16)
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
        return min(self.rail_count, self.rails_per_switch)

    @property
    def switches(self) -> int:
        """Return the number of rail switches of one plane of one segment."""
        return -(-self.rail_count // self.rails_per_switch)

    @property
    def rail_switches(self) -> int:
        return self.pods * self.segments * self.nic_ports * self.switches

    @property
    def spine_sets(self) -> int:
        return self.nic_ports if self.own_spines else 1

    @property
    def planes_per_spine(self) -> int:
        return 1 if self.own_spines else self.nic_ports

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the fabric."""
        return self.pods * self.segments * self.hosts * self.gpus_per_host

    def rails_of(self, place: RailSwitchPlace) -> range:
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
            raise TopologyError(f"nic_ports is {self.nic_ports}; a NIC has 1, 2, 4, 8 or 16 ports")
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


HOMINGS = ("paths", "planes", "bond", "esi", "auto")
PATHS, PLANES, PAIR, SEGMENT, AUTO_HOMING = HOMINGS


@dataclass(frozen=True)
class NicHoming:
    """The homing ``word`` of NICs with ``nic_ports`` ports each."""

    word: str
    nic_ports: int

    @property
    def drawn(self) -> str:
        """Return the homing; of ``auto``, what it is on a machine whose kernel has bonds."""
        if self.word != AUTO_HOMING:
            return self.word
        return PAIR if self.nic_ports == 2 else PATHS

    @property
    def paired(self) -> bool:
        """Return whether two rail switches look like one, with standby links between them."""
        return self.drawn == PAIR

    @property
    def ethernet_segment(self) -> bool:
        """Return whether the ports of a GPU are an Ethernet segment of BGP EVPN."""
        return self.word == SEGMENT

    @property
    def bonded(self) -> bool:
        """Return whether the two ports of a GPU are one interface."""
        return self.paired or self.ethernet_segment

    @property
    def fep_per_port(self) -> bool:
        return self.word == PLANES

    @property
    def subnet_planes(self) -> int:
        return 1 if self.bonded or self.fep_per_port else self.nic_ports

    def check(self) -> None:
        """Raise TopologyError unless NICs have the ports that their homing takes."""
        if self.bonded and self.nic_ports != 2:
            raise TopologyError(
                f"homing is {self.word} and nic_ports {self.nic_ports}; a bond has two ports: "
                "take nic_ports=2, or homing=paths"
            )


@dataclass(frozen=True, kw_only=True)
class ClosTrunks:
    """The uplinks of rail switches and spines; None stands for what is computed."""

    tiers: ClosTiers
    nic_rate: int
    uplink_rate: int | None
    uplinks_per_spine: int | None
    super_rate: int | None
    uplinks_per_super: int | None

    @property
    def uplink_bps(self) -> int:
        """Return the rate of a link from a rail switch to a spine."""
        return self.uplink_rate or self.nic_rate

    @property
    def super_bps(self) -> int:
        """Return the rate of a link from a spine to a super-spine."""
        return self.super_rate or self.uplink_bps

    @property
    def parallel(self) -> int:
        """Return the number of links from a rail switch to each spine."""
        tiers = self.tiers
        if self.uplinks_per_spine is not None or not tiers.spines:
            return self.uplinks_per_spine or 0
        down = tiers.hosts * tiers.rails_of_switch * self.nic_rate
        return -(-down // (tiers.spines * self.uplink_bps))

    @property
    def parallel_super(self) -> int:
        """Return the number of links from a spine to each super-spine."""
        tiers = self.tiers
        if self.uplinks_per_super is not None or not tiers.super_spines:
            return self.uplinks_per_super or 0
        below = tiers.switches * tiers.segments * tiers.planes_per_spine * self.parallel
        return -(-below * self.uplink_bps // (tiers.super_spines * self.super_bps))

    @property
    def up(self) -> int:
        """Return the number of links from a rail switch to all its spines."""
        return self.tiers.spines * self.parallel

    def check(self) -> None:
        """Raise TopologyError unless the addressing plan has room for all links."""
        tiers = self.tiers
        plan.check_links(
            Role.SPINE,
            tiers.rail_switches * self.up,
            "pods, segments or spines, or a higher uplink_rate",
        )
        spines = tiers.pods * tiers.spines * tiers.spine_sets
        plan.check_links(
            Role.SUPER_SPINE,
            spines * tiers.super_spines * self.parallel_super,
            "pods, spines or super_spines, or a higher super_rate",
        )


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
        return self.word == STRETCHED

    def _second_octet(self, pod: int, plane: int) -> int:
        """Return the second octet of the subnets in ``plane`` of ``pod``, counted from 0.

        A pod of more segments than an octet has room for counts as several.
        """
        if not self.homing.fep_per_port:
            return pod
        return plan.plane_octet(pod, plane, self.homing.nic_ports)

    @property
    def _each(self) -> int:
        """Return how many numbers of third octets a segment takes."""
        tiers = self.tiers
        each = tiers.rail_count if self.word == APART else tiers.switches
        return each * self.homing.subnet_planes

    @property
    def _segments_of_octet(self) -> int:
        """Return how many segments the third octets below one second octet have room for."""
        octets = 1 << max(0, 24 - self.prefix) if self.word == APART else 1
        return max(1, (256 // octets - 1) // self._each)

    @property
    def _octets_of_pod(self) -> int:
        return -(-self.tiers.segments // self._segments_of_octet)

    def subnet(self, place: RailSwitchPlace, rail: int) -> IPv4Network:
        if self.stretched:
            return plan.rail_subnet(rail, subnet_prefix=self.prefix)
        tiers, planes = self.tiers, self.homing.subnet_planes
        plane = place.plane if planes > 1 else 0
        more, segment = divmod(place.segment, self._segments_of_octet)
        pod = self._second_octet(place.pod * self._octets_of_pod + more, place.plane)
        block = segment * planes + plane
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
        plan.rail_subnet(
            min(tiers.segments, self._segments_of_octet) * self._each - 1,
            subnet_prefix=self.prefix if self.word == APART else 24,
            pod=self._second_octet(tiers.pods * self._octets_of_pod - 1, tiers.nic_ports - 1),
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


PORT_ORDERS = (BY_RAIL, BY_HOST, INTERLEAVED) = ("rail", "host", "interleaved")
#: Rows of an interleaved panel, and its interfaces where ``switch_ports`` is not given.
ROWS, PANEL = 3, 48


@dataclass(frozen=True, kw_only=True)
class SwitchPanel:
    """The panel of a rail switch with a cable to each of ``hosts`` servers for every rail.

    ``ports`` is None where the panel has as many as it takes.
    """

    order: str
    ports: int | None
    hosts: int

    @property
    def _size(self) -> int:
        return self.ports or PANEL

    @property
    def _block(self) -> int:
        """The interfaces from the first of one rail to the first of the next, if interleaved."""
        return ROWS * self.hosts

    def interface(self, host: int, rail: int) -> int | None:
        """Return the number of a host's port at the switch of its ``rail``, counted from 0.

        None where ports follow each other in the order of their cables.
        """
        if self.order != INTERLEAVED:
            return None
        row, block = divmod(rail, self._size // self._block)
        return block * self._block + ROWS * host + row

    def cables(self, rails: range) -> list[tuple[int, int]]:
        """Return the hosts and rails that have a cable, in the order of the cables."""
        hosts = range(self.hosts)
        if self.order == BY_HOST:
            return [(host, rail) for host in hosts for rail in rails]
        return [(host, rail) for rail in rails for host in hosts]

    def check(self, *, rails: int, below: int, above: int, spines: int) -> None:
        """Raise TopologyError unless ``rails`` rails, ports ``below`` and ``above`` have room."""
        if below + above > MAX_PORTS:
            raise TopologyError(
                f"hosts is {self.hosts} and spines {spines}: a rail switch would have "
                f"{below + above} ports, above {MAX_PORTS}; take fewer hosts, spines or "
                "uplinks_per_spine, or a higher uplink_rate"
            )
        if self.ports is not None and below + above > self.ports:
            raise TopologyError(
                f"switch_ports is {self.ports} and a rail switch would need {below + above} of "
                f"them ({below} down, {above} up); take fewer hosts, rails_per_switch, spines or "
                "uplinks_per_spine"
            )
        if self.order == INTERLEAVED and self._block * -(-rails // ROWS) > self._size:
            raise TopologyError(
                f"port_order is {INTERLEAVED}: a panel of {self._size} ports has {ROWS} rows for "
                f"{self._size // self._block} rails of {self.hosts} servers each, and a switch "
                f"has {rails} rails; take fewer hosts, or port_order={BY_RAIL}"
            )


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


FIRST_VLAN = 101
FIRST_VNI = 10_000  # of VLAN 0
BOND = "bond0"


class ClosBuilder:
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
        spines, parallel, uplink_bps = self._spines(), plan.trunks.parallel, plan.trunks.uplink_bps
        for place in self._places:
            self._attach(place)
            self._pair(place)
            for spine in spines[place.pod, place.plane if tiers.own_spines else 0]:
                self._join(place.name, spine, parallel, uplink_bps)
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
        segment = plan.homing.ethernet_segment
        bond = BOND if plan.homing.bonded else None
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
                    bond=bond,
                    segment=segment,
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
