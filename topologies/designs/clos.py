"""Clos fabrics of every shape: segments of rail switches, pods of spines, pods under super-spines.

::

    super-spines          S0 ... Sn            super_spines, each joined to every spine
                         /  |  \\
    spines         spine0 ... spine3  ...      spines of each pod (and plane)
                     |  \\  /  |
    rail switches  rail0 ... rail3  ...        rails_per_switch rails each, one bridge per rail
                    | | |    | | |
    servers        h0g0 h1g0 ...               nic_ports ports per GPU, to as many rail switches

A **segment** is the servers that share a set of rail switches.  A **pod** is the segments that
share spines.  Two or four ports per GPU (``nic_ports=2``) go to as many sets of rail switches, the
planes; with ``planes=own`` each plane has spines of its own, as the fabric planes of UES have.
With ``homing=bond`` the two ports are one interface with one address, and the two rail switches
look like one: one subnet, one gateway address and MAC, and for each rail a standby link between
them for frames to GPUs whose own port there is down.  With ``homing=esi`` they have no such link,
and tell each other of their GPUs by BGP EVPN (Ethernet segments, RFC 7432).  With ``homing=auto``
it is ``bond`` that is drawn, and ``paths`` where the kernel has no bonds (:mod:`emulator.homing`).
With ``homing=planes`` each port is a fabric endpoint (FEP) of its own, with its own address; all of
a NIC have its one MAC.  Nothing joins the planes then.
Without spines, rails that stand on different switches do not reach each other.

Subnets: rail r is 10.<pod>.<r+1>.0 with ``subnet_prefix``; the rails of a second plane, then those
of the next segment, follow.  With ``subnets=divided`` the rails of one switch s share
10.<pod>.<s+1>.0 instead, cut in equal parts.  Prefixes longer than /24 are told to spines as a
summary, their /24, where a switch has several rails.  With ``homing=planes`` the second octet is
ten times the pod plus the plane (1, 2, ...), and the third is the rail's in all planes.
With ``subnets=stretched`` rail r is one subnet, 10.0.<r+1>.0, over all pods and segments: every
rail switch that serves the rail has the same gateway address and MAC, tunnels (VXLAN, VNI 10000
plus the VLAN id) between rail switches join the parts, and BGP EVPN tells who is behind which.
Links between switches then carry 50 octets more than ``mtu``.
VLAN ids are those of the usual drawings: 101 for rail 0, 102 for rail 1, and so on.  A rail switch
has a bridge for each unless ``vlans=on`` makes them VLANs of one.

Port ``down<n>`` of a rail switch is interface n + 1 of its panel.  With ``port_order=rail`` or
``host`` interfaces follow each other.  With ``port_order=interleaved`` the panel (``switch_ports``,
by default 48) has three rows.  A rail takes every third interface of its row; the rails that follow
stand beside it, and then in the next row: of four servers rail 1 has interfaces 1, 4, 7, 10, rail 2
has 13, 16, 19, 22, and rail 5 has 2, 5, 8, 11 (figure 13-6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from ipaddress import IPv4Network

from topologies import addressing as plan
from topologies.designs.bottom import MAX_GPUS
from topologies.model import VLAN_USES, Role, Topology, TopologyError
from topologies.parts.assembly import MAX_PORTS, Assembly
from topologies.parts.design import CabledDesign, parameter
from topologies.parts.design_parameters import COUNT, NUMBER, PREFIX, RATE, WordKind

FIRST_VLAN = 101
FIRST_VNI = 10_000  # of VLAN 0
NIC_PORTS = (1, 2, 4)
PORT_ORDERS = (BY_RAIL, BY_HOST, INTERLEAVED) = ("rail", "host", "interleaved")
#: Rows of an interleaved panel, and its interfaces where ``switch_ports`` is not given.
ROWS, PANEL = 3, 48
STRETCHED = "stretched"
HOMINGS = ("paths", "planes", "bond", "esi", "auto")
PATHS, PLANES, PAIR, SEGMENT, AUTO_HOMING = HOMINGS
OWN = "own"
BOND = "bond0"


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
    nic_ports: int = parameter(1, COUNT, "ports of a NIC, each to another rail switch: 1, 2 or 4")
    homing: str = parameter(
        PATHS,
        WordKind(HOMINGS),
        "NIC ports: paths to one address, a FEP each, a bond to a switch pair, or one as "
        "EVPN multihoming; auto: bond, or paths where the kernel has no bonds",
    )
    rails_per_switch: int = parameter(1, COUNT, "rails on one rail switch")
    switch_ports: int | None = parameter(
        None, COUNT, "front-panel ports of a rail switch; auto: as many as it takes"
    )
    port_order: str = parameter(
        BY_RAIL, WordKind(PORT_ORDERS), "how the ports of a rail switch are grouped"
    )
    spines: int = parameter(2, NUMBER, "spines of each pod")
    planes: str = parameter(
        "shared", WordKind(("shared", "own")), "whether each plane of NIC ports has its own spines"
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
        "apart",
        WordKind(("apart", "divided", STRETCHED)),
        "a third octet per rail, one divided per switch, or one of a rail over all pods (VXLAN)",
    )
    vlans: str = parameter(
        "off", WordKind(VLAN_USES), "rails of a switch as VLANs of one bridge; auto: if it can be"
    )

    def topology(self) -> Topology:
        return _Builder(self).build()

    # ------------------------------------------------------------------ computed

    @property
    def rail_count(self) -> int:
        """Rails of one plane: one per NIC of a server."""
        return self.gpus_per_host // self.gpus_per_nic

    @property
    def switches(self) -> int:
        """Rail switches of one plane of one segment."""
        return -(-self.rail_count // self.rails_per_switch)

    @property
    def uplink_bps(self) -> int:
        return self.uplink_rate or self.nic_rate

    @property
    def super_bps(self) -> int:
        return self.super_rate or self.uplink_bps

    @property
    def parallel(self) -> int:
        """Links from a rail switch to each spine."""
        if self.uplinks_per_spine is not None or not self.spines:
            return self.uplinks_per_spine or 0
        down = self.hosts * min(self.rail_count, self.rails_per_switch) * self.nic_rate
        return -(-down // (self.spines * self.uplink_bps))

    @property
    def parallel_super(self) -> int:
        """Links from a spine to each super-spine."""
        if self.uplinks_per_super is not None or not self.super_spines:
            return self.uplinks_per_super or 0
        below = self.switches * self.segments * self._planes_per_spine * self.parallel
        return -(-below * self.uplink_bps // (self.super_spines * self.super_bps))

    @property
    def stretched(self) -> bool:
        """Return whether a rail is one subnet over all segments and pods."""
        return self.subnets == STRETCHED

    @property
    def drawn_homing(self) -> str:
        """``homing``, or what it is where that is left to the machine and the machine can."""
        if self.homing != AUTO_HOMING:
            return self.homing
        return PAIR if self.nic_ports == 2 else PATHS

    @property
    def bonded(self) -> bool:
        """Return whether the two ports of a GPU are one interface."""
        return self.drawn_homing in (PAIR, SEGMENT)

    @property
    def vlan_use(self) -> str:
        """``vlans``; FRR has Ethernet segments on VLANs only."""
        return "on" if self.homing == SEGMENT else self.vlans

    @property
    def subnet_planes(self) -> int:
        """Planes that have subnets of their own."""
        return 1 if self.bonded or self.homing == PLANES else self.nic_ports

    @property
    def _planes_per_spine(self) -> int:
        return 1 if self.planes == "own" else self.nic_ports

    def interface(self, host: int, rail: int) -> int | None:
        """Return the number of a host's port at the switch of its ``rail``, counted from 0.

        None where ports follow each other in the order of their cables.
        """
        if self.port_order != INTERLEAVED:
            return None
        row, block = divmod(rail, self._panel // self._block)
        return block * self._block + ROWS * host + row

    @property
    def _panel(self) -> int:
        return self.switch_ports or PANEL

    @property
    def _block(self) -> int:
        """The interfaces from the first of one rail to the first of the next, if interleaved."""
        return ROWS * self.hosts

    def second_octet(self, pod: int, plane: int) -> int:
        """Return the second octet of the rails' subnets in ``plane`` of ``pod``, counted from 0."""
        return plan.plane_octet(pod, plane) if self.homing == PLANES else pod

    def parameters(self) -> dict[str, object]:
        """Every parameter with the value it has, computed ones included."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["uplink_rate"], values["super_rate"] = self.uplink_bps, self.super_bps
        values["vlans"] = self.vlan_use
        if self.spines:
            values["uplinks_per_spine"] = self.parallel
        if self.super_spines:
            values["uplinks_per_super"] = self.parallel_super
        return values

    def check(self) -> None:
        """Raise TopologyError unless the parameters agree with each other."""
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
        if self.bonded and self.nic_ports != 2:
            raise TopologyError(
                f"homing is {self.homing} and nic_ports {self.nic_ports}; a bond has two ports: "
                "take nic_ports=2, or homing=paths"
            )
        if self.homing == PLANES and (self.nic_ports == 1 or self.planes != OWN):
            raise TopologyError(
                f"homing is {PLANES}, nic_ports {self.nic_ports} and planes {self.planes}; an "
                f"endpoint in each plane takes several ports and planes that nothing joins: take "
                f"nic_ports=2 and planes={OWN}, or homing={PATHS}"
            )
        if self.homing == SEGMENT and not self.stretched:
            raise TopologyError(
                f"homing is {SEGMENT} and subnets {self.subnets}; EVPN tells of GPUs in subnets "
                f"that lie on several switches: take subnets={STRETCHED}, or homing={PAIR}"
            )
        if self.homing == SEGMENT and self.planes == "own":
            raise TopologyError(
                f"homing is {SEGMENT} and planes own; the two switches of a GPU tell each other "
                f"of it over spines that both have: take planes=shared, or homing={PATHS}"
            )
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
        if self.planes == "own" and self.super_spines:
            raise TopologyError(
                f"planes is own and super_spines {self.super_spines}; super-spines would join the "
                "planes: take planes=shared or super_spines=0"
            )
        gpus = self.pods * self.segments * self.hosts * self.gpus_per_host
        if gpus > MAX_GPUS:
            raise TopologyError(
                f"there would be {gpus} GPUs, above {MAX_GPUS}; take fewer pods, segments, hosts "
                "or gpus_per_host"
            )
        rails = min(self.rail_count, self.rails_per_switch)
        below = self.hosts * rails + (rails if self.drawn_homing == PAIR else 0)
        panel = below + self.spines * self.parallel
        if panel > MAX_PORTS:
            raise TopologyError(
                f"hosts is {self.hosts} and spines {self.spines}: a rail switch would have {panel} "
                f"ports, above {MAX_PORTS}; take fewer hosts, spines or uplinks_per_spine, or a "
                "higher uplink_rate"
            )
        if self.switch_ports is not None and panel > self.switch_ports:
            raise TopologyError(
                f"switch_ports is {self.switch_ports} and a rail switch would need {panel} of "
                f"them ({below} down, {self.spines * self.parallel} "
                "up); take fewer hosts, rails_per_switch, spines or uplinks_per_spine"
            )
        if self.port_order == INTERLEAVED and self._block * -(-rails // ROWS) > self._panel:
            raise TopologyError(
                f"port_order is {INTERLEAVED}: a panel of {self._panel} ports has {ROWS} rows for "
                f"{self._panel // self._block} rails of {self.hosts} servers each, and a switch "
                f"has {rails} rails; take fewer hosts, or port_order={BY_RAIL}"
            )
        self._check_numbers(gpus)
        if self.stretched:
            self._check_stretched()
            return
        plan.check_room(self.hosts, self.subnet_prefix, gpus_per_nic=self.gpus_per_nic)
        blocks = self.segments * self.subnet_planes
        each = self.rail_count if self.subnets == "apart" else self.switches
        plan.rail_subnet(
            blocks * each - 1,
            subnet_prefix=self.subnet_prefix if self.subnets == "apart" else 24,
            pod=self.second_octet(self.pods - 1, self.nic_ports - 1),
        )
        parts = 2 ** (self.subnet_prefix - 24)  # of a /24; a fraction if it is none
        if self.subnets == "divided" and rails > parts:
            whose = f"the {rails} rails" if rails > 1 else "the rail"
            raise TopologyError(
                f"subnets is divided and subnet_prefix /{self.subnet_prefix}; {whose} of a switch "
                f"do{'' if rails > 1 else 'es'} not fit in one /24: take a longer subnet_prefix or "
                "subnets=apart"
            )

    def _check_numbers(self, gpus: int) -> None:
        """Check the number of elements with addresses, before any of them is made."""
        rails = self.pods * self.segments * self.nic_ports * self.switches
        spines = self.pods * self.spines * (self.nic_ports if self.planes == "own" else 1)
        if self.subnet_planes > 1:
            plan.check_switches(Role.GPU, gpus, "pods, segments, hosts or gpus_per_host")
        plan.check_switches(Role.RAIL, rails, "pods or segments, or more rails_per_switch")
        plan.check_switches(Role.SPINE, spines, "pods or spines")
        plan.check_switches(Role.SUPER_SPINE, self.super_spines, "super_spines")
        plan.check_links(
            Role.SPINE,
            rails * self.spines * self.parallel,
            "pods, segments or spines, or a higher uplink_rate",
        )
        plan.check_links(
            Role.SUPER_SPINE,
            spines * self.super_spines * self.parallel_super,
            "pods, spines or super_spines, or a higher super_rate",
        )

    def _check_stretched(self) -> None:
        parts = self.pods * self.segments
        if parts == 1 and self.homing != SEGMENT:
            raise TopologyError(
                f"subnets is {STRETCHED} and there is one segment, over which a subnet lies "
                "anyway: take more pods or segments, or subnets=apart"
            )
        missing = "spines" if not self.spines else "super_spines"
        if not self.spines or (self.pods > 1 and not self.super_spines):
            raise TopologyError(
                f"subnets is {STRETCHED} and {missing} 0: tunnels need a way between all rail "
                f"switches; take {missing} too, or subnets=apart"
            )
        if self.nic_ports > 1 and self.homing != SEGMENT:
            raise TopologyError(
                f"subnets is {STRETCHED}, nic_ports {self.nic_ports} and homing {self.homing}; "
                f"of several ports EVPN tells as an Ethernet segment only: take homing={SEGMENT}, "
                "nic_ports=1 or subnets=apart"
            )
        if self.vlans != "off" and self.homing != SEGMENT:
            raise TopologyError(
                f"subnets is {STRETCHED} and vlans {self.vlans}; tunnels are ports of a bridge "
                "for each rail: take vlans=off or subnets=apart"
            )
        try:
            plan.check_room(parts * self.hosts, self.subnet_prefix, gpus_per_nic=self.gpus_per_nic)
        except TopologyError as error:
            raise TopologyError(f"of all {parts} segments together, {error}") from None
        plan.rail_subnet(self.rail_count - 1, subnet_prefix=self.subnet_prefix)


@dataclass(frozen=True)
class _Place:
    """The place of a rail switch, with its number among all and within its plane's segment."""

    name: str
    pod: int
    segment: int
    plane: int
    index: int


class _Builder:
    """Builds the fabric of one :class:`Clos`."""

    def __init__(self, shape: Clos) -> None:
        shape.check()
        self.shape = shape
        self.several_pods = shape.pods > 1
        self.fabric = Assembly(mtu=shape.mtu, buffer_bytes=shape.buffer, tunnels=shape.stretched)
        self.places = list(self._places())

    def build(self) -> Topology:
        shape = self.shape
        servers = [
            (pod, segment, host)
            for pod in range(shape.pods)
            for segment in range(shape.segments)
            for host in range(shape.hosts)
        ]
        self.gpus = {
            where: self.fabric.server(
                f"h{number}",
                shape.gpus_per_host,
                scale_up=shape.scale_up_network,
                pod=where[0] if self.several_pods else None,
                homed=shape.subnet_planes,
                fep_per_port=shape.homing == PLANES,
                gpus_per_rail=shape.gpus_per_nic,
            )
            for number, where in enumerate(servers)
        }
        nics = {
            (where, nic): self.fabric.shared_nic(f"h{number}", f"h{number}n{nic}")
            for number, where in enumerate(servers)
            for nic in range(shape.rail_count)
            if shape.gpus_per_nic > 1
        }
        for place in self.places:
            self._rail_switch(place)
        spines = self._spines()
        for place in self.places:
            self._attach(place, nics)
            if shape.drawn_homing == PAIR and place.plane:
                for rail in self._rails_of(place):
                    self.fabric.pair(
                        self._twin(place),
                        place.name,
                        f"rail{rail}",
                        rate_bps=shape.nic_rate,
                        delay_ns=shape.nic_delay,
                    )
            for spine in spines[place.pod, place.plane if shape.planes == "own" else 0]:
                for _ in range(shape.parallel):
                    self.fabric.join(
                        place.name, spine, rate_bps=shape.uplink_bps, delay_ns=shape.uplink_delay
                    )
        supers = [
            self.fabric.switch(Role.SUPER_SPINE, f"super{number}")
            for number in range(shape.super_spines)
        ]
        for names in spines.values():
            for spine in names:
                for top in supers:
                    for _ in range(shape.parallel_super):
                        self.fabric.join(
                            spine, top, rate_bps=shape.super_bps, delay_ns=shape.uplink_delay
                        )
        profile = replace(self.fabric.profile, vlans=shape.vlan_use)
        return self.fabric.topology(shape.NAME, shape.parameters(), profile=profile)

    def _places(self) -> Iterator[_Place]:
        shape, number = self.shape, 0
        for pod in range(shape.pods):
            for segment in range(shape.segments):
                for plane in range(shape.nic_ports):
                    for index in range(shape.switches):
                        yield _Place(f"rail{number}", pod, segment, plane, index)
                        number += 1

    def _rails_of(self, place: _Place) -> range:
        each = self.shape.rails_per_switch
        return range(place.index * each, min((place.index + 1) * each, self.shape.rail_count))

    def _rail_switch(self, place: _Place) -> None:
        shape = self.shape
        rails = self._rails_of(place)
        self.fabric.switch(
            Role.RAIL,
            place.name,
            rail=rails[0] if len(rails) == 1 else None,
            pod=place.pod if self.several_pods else None,
            plane=place.plane if shape.nic_ports > 1 else None,
        )
        for rail in rails:
            subnet = self._subnet(place, rail)
            several = shape.rails_per_switch > 1 and shape.spines and not shape.stretched
            vlan = FIRST_VLAN + rail
            self.fabric.bridge(
                place.name,
                f"rail{rail}",
                rail=rail,
                subnet=subnet,
                vlan=vlan,
                vni=FIRST_VNI + vlan if shape.stretched else None,
                like=self._whose_mac(place, rail),
                summary=subnet.supernet(new_prefix=24)
                if several and shape.subnet_prefix > 24
                else None,
            )

    def _whose_mac(self, place: _Place, rail: int) -> tuple[str, str] | None:
        """The bridge whose MAC that of ``rail`` shares: that of the twin, or the switch's first."""
        if self.shape.drawn_homing == PAIR and place.plane:
            return self._twin(place), f"rail{rail}"
        first, vlans = self._rails_of(place)[0], self.shape.vlan_use
        return (place.name, f"rail{first}") if vlans != "off" and rail != first else None

    def _twin(self, place: _Place) -> str:
        """The switch of the first plane that a switch of the second looks like."""
        first = replace(place, name="", plane=0)
        return next(each.name for each in self.places if replace(each, name="") == first)

    def _subnet(self, place: _Place, rail: int) -> IPv4Network:
        shape = self.shape
        if shape.stretched:
            return plan.rail_subnet(rail, subnet_prefix=shape.subnet_prefix)
        plane = place.plane if shape.subnet_planes > 1 else 0
        pod = shape.second_octet(place.pod, place.plane)
        block = place.segment * shape.subnet_planes + plane
        if shape.subnets == "apart":
            number = block * shape.rail_count + rail
            return plan.rail_subnet(number, subnet_prefix=shape.subnet_prefix, pod=pod)
        whole = plan.rail_subnet(block * shape.switches + place.index, subnet_prefix=24, pod=pod)
        part = rail - self._rails_of(place)[0]
        return list(whole.subnets(new_prefix=shape.subnet_prefix))[part]

    def _attach(self, place: _Place, nics: dict[tuple[tuple[int, int, int], int], str]) -> None:
        shape, rails = self.shape, self._rails_of(place)
        hosts = range(shape.hosts)
        order = [(host, rail) for rail in rails for host in hosts]
        if shape.port_order == BY_HOST:
            order = [(host, rail) for host in hosts for rail in rails]
        for host, rail in order:
            interface = shape.interface(host, rail - rails[0])
            where = place.pod, place.segment, host
            gpus = self.gpus[where]
            bridge, each = f"rail{rail}", shape.gpus_per_nic
            if each > 1:
                self.fabric.attach_shared(
                    gpus[rail * each : (rail + 1) * each],
                    nics[where, rail],
                    place.name,
                    bridge,
                    pcie_bps=shape.pcie_rate,
                    rate_bps=shape.nic_rate,
                    delay_ns=shape.nic_delay,
                    interface=interface,
                )
            else:
                self.fabric.attach(
                    gpus[rail],
                    place.name,
                    bridge,
                    rate_bps=shape.nic_rate,
                    delay_ns=shape.nic_delay,
                    bond=BOND if shape.bonded else None,
                    segment=shape.homing == SEGMENT,
                    interface=interface,
                )

    def _spines(self) -> dict[tuple[int, int], list[str]]:
        """Names of the spines by pod and plane."""
        shape, number = self.shape, 0
        found: dict[tuple[int, int], list[str]] = {}
        own = shape.nic_ports if shape.planes == "own" else 1
        for pod in range(shape.pods):
            for plane in range(own):
                names = found.setdefault((pod, plane), [])
                for _ in range(shape.spines):
                    names.append(
                        self.fabric.switch(
                            Role.SPINE,
                            f"spine{number}",
                            pod=pod if self.several_pods else None,
                            plane=plane if own > 1 else None,
                        )
                    )
                    number += 1
        return found
