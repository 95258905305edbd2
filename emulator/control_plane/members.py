"""Whether every switch knows who is behind which tunnel of its stretched rails.

BGP EVPN tells it (RFC 8365): type 3 routes who has a VNI at all, where frames for everybody go;
type 2 routes which MAC and IPv4 address is behind whom.  zebra writes that into the tables of the
kernel: of the bridge, of its tunnel port, and of neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from socket import AF_BRIDGE, AF_INET

from pyroute2.netlink.rtnl import RTM_GETNEIGH

from emulator.fabric.kernel_objects import NDA_DST, NDA_LLADDR, NDMSG, NTF_MASTER, NTF_SELF
from emulator.fabric.links import tunnel_port
from emulator.fabric.netlink import RouteSocket, attributes
from topologies.model import Bridge, End, Topology

EVERYBODY = "00:00:00:00:00:00"  # in the table of a tunnel port: where broadcast goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a table of the kernel: on ``interface``, ``mac`` is a member of the bridge; or
    it is at ``address``, of a neighbour or of the far end of a tunnel."""

    interface: int
    mac: str
    address: IPv4Address | None = None


class Members:
    """What every switch of ``topology`` is to know of the members of its stretched rails."""

    def __init__(self, topology: Topology, indices: Mapping[End, int]) -> None:
        self._topology = topology
        self._indices = indices
        self.wanted: dict[str, Mapping[Entry, str]] = {}
        if topology.stretch is None:
            return
        for switch in topology.switches:
            wanted: dict[Entry, str] = {}
            for bridge in switch.bridges:
                if bridge.vni is not None:
                    wanted.update(self._of(switch.name, bridge))
            if wanted:
                self.wanted[switch.name] = wanted

    def unknown(self, switch: str, kernel: RouteSocket) -> Iterator[str]:
        """A sentence for each thing that ``switch`` does not know; ``kernel`` is its own."""
        wanted = self.wanted.get(switch)
        if wanted:
            known = set(read_entries(kernel))
            yield from (said for entry, said in wanted.items() if entry not in known)

    def _of(self, switch: str, bridge: Bridge) -> Iterator[tuple[Entry, str]]:
        """What ``switch`` is to know, with the sentence for its absence."""
        assert bridge.vni is not None
        assert self._topology.stretch is not None
        inside = self._indices[End(switch, bridge.name)]
        tunnel = self._indices[End(switch, tunnel_port(bridge.vni))]
        for owner in self._topology.stretch.owners[bridge.vni]:
            if owner == switch:
                continue
            end = self._topology.node(owner).loopback
            lacks = f"{switch} does not know that VNI {bridge.vni} is at {owner}"
            yield Entry(interface=tunnel, mac=EVERYBODY, address=end), lacks
        for gpu, (owner, vni) in self._topology.stretch.homes.items():
            if owner == switch or vni != bridge.vni:
                continue
            end = self._topology.node(owner).loopback
            lacks = f"{switch} does not know that {gpu} is behind {owner} (VNI {vni})"
            for port in self._topology.node(gpu).ports:
                assert port.address is not None
                yield Entry(interface=tunnel, mac=port.mac), lacks
                yield Entry(interface=tunnel, mac=port.mac, address=end), lacks
                yield Entry(interface=inside, mac=port.mac, address=port.address.ip), lacks


def read_entries(kernel: RouteSocket) -> Iterator[Entry]:
    """The tables of all bridges, tunnel ports and neighbours in the namespace of ``kernel``."""
    for family in (AF_BRIDGE, AF_INET):
        request = NDMSG.pack(family, 0, 0, 0, 0, 0, 0)
        for payload in kernel.dump(RTM_GETNEIGH, request):
            _, _, _, index, _, flags, _ = NDMSG.unpack_from(payload)
            values = dict(attributes(payload, NDMSG.size))
            if NDA_LLADDR not in values:
                continue
            mac = bytes(values[NDA_LLADDR]).hex(":")
            of_bridge = family == AF_BRIDGE and flags & NTF_MASTER and not flags & NTF_SELF
            if of_bridge or NDA_DST not in values:
                yield Entry(interface=index, mac=mac)
            else:
                yield Entry(interface=index, mac=mac, address=IPv4Address(bytes(values[NDA_DST])))
