"""Requests for the kernel's network objects: links, addresses, neighbours, routes.

Each function queues one request on the :class:`RouteSocket` of the namespace concerned; nothing
happens before ``flush``.  ``index`` is always an interface index in that namespace.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from socket import AF_BRIDGE, AF_INET, inet_aton

from emulator.dataplane.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RTM_DELLINK,
    RTM_DELNEIGH,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    RTM_NEWRULE,
    RTM_SETLINK,
    U8,
    U16,
    U32,
    RouteSocket,
    attribute,
    nested,
    text,
)

IFINFOMSG = struct.Struct("=BBHiII")  # family, padding, type, index, flags, change
IFADDRMSG = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
NDMSG = struct.Struct("=BBHiHBB")  # family, padding, padding, index, state, flags, type
RTMSG = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, protocol, scope, type, flags
RTNEXTHOP = struct.Struct("=HBBi")  # length, flags, weight - 1, index
NHMSG = struct.Struct("=BBBBI")  # family, scope, protocol, padding, flags
NEXTHOP_GROUP = struct.Struct("=I4x")  # number of a member; its weight, padding

IFF_UP = 0x1
IF_OPER_UP = 6  # RFC 2863
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_TXQLEN = 1, 3, 4, 5, 10, 13
IFLA_OPERSTATE = 16
IFLA_LINKINFO, IFLA_IFALIAS, IFLA_AF_SPEC, IFLA_GROUP, IFLA_NET_NS_FD = 18, 20, 26, 27, 28
IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES, IFLA_GSO_MAX_SEGS = 31, 32, 40
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFLA_BR_FORWARD_DELAY, IFLA_BR_STP_STATE, IFLA_BR_MCAST_SNOOPING = 1, 5, 23
IFLA_VXLAN_ID, IFLA_VXLAN_LOCAL, IFLA_VXLAN_TTL, IFLA_VXLAN_TOS = 1, 4, 5, 6
IFLA_VXLAN_LEARNING, IFLA_VXLAN_PORT, IFLA_VXLAN_UDP_CSUM = 7, 15, 18
VXLAN_UDP_PORT, INHERIT, TUNNEL_TTL = 4789, 1, 64
IFLA_BR_VLAN_FILTERING, IFLA_BR_VLAN_DEFAULT_PVID, IFLA_VLAN_ID = 7, 39, 1
IFLA_BRIDGE_FLAGS, IFLA_BRIDGE_VLAN_INFO, BRIDGE_FLAGS_SELF = 0, 2, 2
BRIDGE_VLAN_INFO_PVID, BRIDGE_VLAN_INFO_UNTAGGED = 2, 4
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFLA_PROTINFO, IFLA_BRPORT_LEARNING, IFLA_BRPORT_UNICAST_FLOOD = 12, 8, 9
IFLA_BRPORT_MCAST_FLOOD, IFLA_BRPORT_BCAST_FLOOD, IFLA_BRPORT_BACKUP_PORT = 27, 30, 34
IFLA_BOND_MODE, IFLA_BOND_MIIMON, IFLA_BOND_XMIT_HASH_POLICY = 1, 3, 14
BOND_MODE_XOR, BOND_XMIT_POLICY_LAYER34 = 2, 1
NDA_DST, NDA_LLADDR, NDA_VLAN, NDA_NH_ID = 1, 2, 5, 13
RTM_NEWNEXTHOP, RTM_GETNEXTHOP = 104, 106  # linux/rtnetlink.h, linux/nexthop.h
NHA_ID, NHA_GROUP, NHA_GATEWAY, NHA_FDB = 1, 2, 6, 11
NUD_REACHABLE, NUD_NOARP, NUD_PERMANENT = 0x02, 0x40, 0x80
NTF_SELF, NTF_MASTER, NTF_EXT_LEARNED = 0x02, 0x04, 0x10
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PREFSRC, RTA_MULTIPATH = 1, 4, 5, 7, 9
RTA_PRIORITY, RTA_TABLE, IFLA_VRF_TABLE = 6, 15, 1
RT_TABLE_UNSPEC, RT_TABLE_MAIN, RTPROT_STATIC, RTNH_F_ONLINK = 0, 254, 4, 4
RTN_UNICAST, RTN_UNREACHABLE = 1, 7
LARGEST_SHORT_TABLE = 255  # in a header, whose field has 8 bits
LAST_RESORT = 4_278_198_272  # the metric that Linux's own documentation gives such a route
FRA_SRC, FRA_IIFNAME, FRA_PRIORITY, FR_ACT_TO_TBL = 2, 3, 6, 1

NEW = NLM_F_CREATE | NLM_F_EXCL
NEW_OR_OTHER = NLM_F_CREATE | NLM_F_REPLACE
LOOPBACK_INDEX = 1
GROUP = 0x7565  # of every interface of a fabric: what is deleted with one request
VRF_TABLES = 1000  # of VRFs
FIRST_TABLE = 100  # of those that rules lead to: clear of what the kernel and its users number
RULE_PRIORITY = 1000  # after the kernel's local table (0), before main (32766)
TX_QUEUE_PACKETS = 1000  # HTB's queue of last resort only; the real limits are in octets


def veth(
    kernel: RouteSocket,
    near: tuple[str, int, str],
    far: tuple[str, int, str],
    *,
    far_namespace: int,
    mtu: int,
    subject: str,
) -> None:
    """A veth pair: ``near`` in this namespace, ``far`` in the one open as ``far_namespace``.

    Ends are (name, index, MAC address).  ``mtu`` is the largest IP packet, in octets.
    """

    def end(name: str, mac: str) -> bytes:
        return (
            text(IFLA_IFNAME, name)
            + attribute(IFLA_ADDRESS, _mac(mac))
            + attribute(IFLA_MTU, U32(mtu))
            + attribute(IFLA_TXQLEN, U32(TX_QUEUE_PACKETS))
            + attribute(IFLA_NUM_TX_QUEUES, U32(1))
            + attribute(IFLA_NUM_RX_QUEUES, U32(1))
            # a port serialises frames, not the kernel's bundles of them
            + attribute(IFLA_GSO_MAX_SEGS, U32(1))
            + attribute(IFLA_GROUP, U32(GROUP))
        )

    peer = IFINFOMSG.pack(0, 0, 0, far[1], 0, 0) + end(far[0], far[2])
    peer += attribute(IFLA_NET_NS_FD, U32(far_namespace))
    kind = nested(
        IFLA_LINKINFO,
        text(IFLA_INFO_KIND, "veth"),
        nested(IFLA_INFO_DATA, attribute(VETH_INFO_PEER, peer)),
    )
    body = IFINFOMSG.pack(0, 0, 0, near[1], 0, 0) + end(near[0], near[2]) + kind
    kernel.queue(RTM_NEWLINK, NEW, body, subject)


def bridge(
    kernel: RouteSocket,
    name: str,
    index: int,
    mac: str,
    *,
    vlans: bool = False,
    mtu: int = 0,
    subject: str,
) -> None:
    """A bridge that forwards from the first moment: no spanning tree, no multicast snooping.

    With ``vlans`` it minds VLANs, of which its members have none to begin with.  Without ``mtu``
    it has the smallest of its members.
    """
    filtering = attribute(IFLA_BR_VLAN_FILTERING, U8(1))
    filtering += attribute(IFLA_BR_VLAN_DEFAULT_PVID, U16(0))
    settings = [
        attribute(IFLA_BR_STP_STATE, U32(0)),
        attribute(IFLA_BR_FORWARD_DELAY, U32(0)),
        attribute(IFLA_BR_MCAST_SNOOPING, U8(0)),
        filtering if vlans else b"",
    ]
    facts = attribute(IFLA_ADDRESS, _mac(mac)) + (attribute(IFLA_MTU, U32(mtu)) if mtu else b"")
    _make(kernel, "bridge", name, index, settings, facts, subject)


def vxlan(
    kernel: RouteSocket,
    name: str,
    index: int,
    *,
    vni: int,
    local: IPv4Address,
    mtu: int,
    subject: str,
    namespace: int | None = None,
) -> None:
    """A tunnel port of ``vni`` whose packets come from ``local``; ``mtu`` is that inside.

    Its packets go the ways of this namespace, also if the port is in the open ``namespace``.

    It learns nothing from packets: its forwarding entries are configured.  DSCP and ECN of the
    packet inside go on the outside, and a mark set on the way comes in again (RFC 6040).  The UDP
    source port is a hash of the packet inside (RFC 7348, 5), the checksum zero as switches send it.
    """
    settings = [
        attribute(IFLA_VXLAN_ID, U32(vni)),
        attribute(IFLA_VXLAN_LOCAL, local.packed),
        attribute(IFLA_VXLAN_PORT, struct.pack("!H", VXLAN_UDP_PORT)),
        attribute(IFLA_VXLAN_TOS, U8(INHERIT)),
        attribute(IFLA_VXLAN_TTL, U8(TUNNEL_TTL)),
        attribute(IFLA_VXLAN_LEARNING, U8(0)),
        attribute(IFLA_VXLAN_UDP_CSUM, U8(0)),
    ]
    facts = attribute(IFLA_MTU, U32(mtu))
    if namespace is not None:
        facts += attribute(IFLA_NET_NS_FD, U32(namespace))
    _make(kernel, "vxlan", name, index, settings, facts, subject)


def vrf(kernel: RouteSocket, name: str, index: int, *, table: int, subject: str) -> None:
    """A VRF: what comes in by its member interfaces is looked up in ``table`` alone."""
    _make(kernel, "vrf", name, index, [attribute(IFLA_VRF_TABLE, U32(table))], b"", subject)
    body = RTMSG.pack(AF_INET, 0, 0, 0, RT_TABLE_UNSPEC, RTPROT_STATIC, 0, RTN_UNREACHABLE, 0)
    body += attribute(RTA_TABLE, U32(table)) + attribute(RTA_PRIORITY, U32(LAST_RESORT))
    kernel.queue(RTM_NEWROUTE, NEW, body, f"{subject}, what has no route")


def vlan_interface(
    kernel: RouteSocket, name: str, index: int, vlan: int, *, bridge: int, mac: str, subject: str
) -> None:
    """The address of the switch itself in ``vlan`` of the bridge of index ``bridge`` (an SVI).

    Its MAC must be the bridge's: for another the kernel would have the bridge hand over a copy of
    every frame that it forwards.
    """
    facts = attribute(IFLA_LINK, U32(bridge)) + attribute(IFLA_ADDRESS, _mac(mac))
    _make(kernel, "vlan", name, index, [attribute(IFLA_VLAN_ID, U16(vlan))], facts, subject)


def vlan_member(
    kernel: RouteSocket, index: int, vlan: int, *, of_bridge: bool = False, subject: str
) -> None:
    """Put the port ``index`` of a bridge in ``vlan``, in which its cable carries no tags.

    With ``of_bridge``, ``index`` is the bridge's own and stands for the switch itself.
    """
    flags = 0 if of_bridge else BRIDGE_VLAN_INFO_PVID | BRIDGE_VLAN_INFO_UNTAGGED
    membership = attribute(IFLA_BRIDGE_VLAN_INFO, U16(flags) + U16(vlan))
    if of_bridge:
        membership = attribute(IFLA_BRIDGE_FLAGS, U16(BRIDGE_FLAGS_SELF)) + membership
    body = IFINFOMSG.pack(AF_BRIDGE, 0, 0, index, 0, 0) + nested(IFLA_AF_SPEC, membership)
    kernel.queue(RTM_SETLINK, 0, body, subject)


def keep_quiet(kernel: RouteSocket, index: int, *, subject: str) -> None:
    """The port ``index`` of a bridge is flooded nothing, and nobody is learned to be behind it."""
    settings = (
        *(IFLA_BRPORT_LEARNING, IFLA_BRPORT_UNICAST_FLOOD),
        *(IFLA_BRPORT_MCAST_FLOOD, IFLA_BRPORT_BCAST_FLOOD),
    )
    _bridge_port(kernel, index, [attribute(each, U8(0)) for each in settings], subject)


def backup_port(kernel: RouteSocket, index: int, backup: int, *, subject: str) -> None:
    """Let the bridge use port ``backup`` while port ``index`` has no carrier."""
    _bridge_port(kernel, index, [attribute(IFLA_BRPORT_BACKUP_PORT, U32(backup))], subject)


def _bridge_port(kernel: RouteSocket, index: int, settings: list[bytes], subject: str) -> None:
    body = IFINFOMSG.pack(AF_BRIDGE, 0, 0, index, 0, 0) + nested(IFLA_PROTINFO, *settings)
    kernel.queue(RTM_SETLINK, 0, body, subject)


def bond(
    kernel: RouteSocket, name: str, index: int, mac: str, *, mtu: int, look_ms: int, subject: str
) -> None:
    """A bond that spreads flows over its ports by addresses and port numbers (``balance-xor``).

    It looks every ``look_ms`` whether they have carrier.
    """
    settings = [
        attribute(IFLA_BOND_MODE, U8(BOND_MODE_XOR)),
        attribute(IFLA_BOND_MIIMON, U32(look_ms)),
        attribute(IFLA_BOND_XMIT_HASH_POLICY, U8(BOND_XMIT_POLICY_LAYER34)),
    ]
    facts = attribute(IFLA_ADDRESS, _mac(mac)) + attribute(IFLA_MTU, U32(mtu))
    _make(kernel, "bond", name, index, settings, facts, subject)


def _make(
    kernel: RouteSocket,
    kind: str,
    name: str,
    index: int,
    settings: list[bytes],
    facts: bytes,
    subject: str,
) -> None:
    """An interface of the fabric: ``settings`` are attributes of its kind, ``facts`` of any."""
    body = IFINFOMSG.pack(0, 0, 0, index, 0, 0) + text(IFLA_IFNAME, name) + facts
    body += attribute(IFLA_GROUP, U32(GROUP))
    body += nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, kind), nested(IFLA_INFO_DATA, *settings))
    kernel.queue(RTM_NEWLINK, NEW, body, subject)


def bond_port(kernel: RouteSocket, index: int, bond: int, *, subject: str) -> None:
    """Make an interface, which must be down, a port of the bond of index ``bond``."""
    body = IFINFOMSG.pack(0, 0, 0, index, 0, 0) + attribute(IFLA_MASTER, U32(bond))
    kernel.queue(RTM_NEWLINK, 0, body, subject)


def raise_link(
    kernel: RouteSocket, index: int, *, alias: str = "", bridge: int = 0, subject: str
) -> None:
    """Set an interface up, with its alias and the index of the bridge it is a member of."""
    body = IFINFOMSG.pack(0, 0, 0, index, IFF_UP, IFF_UP)
    if alias:
        body += attribute(IFLA_IFALIAS, alias.encode())
    if bridge:
        body += attribute(IFLA_MASTER, U32(bridge))
    kernel.queue(RTM_NEWLINK, 0, body, subject)


def lower_link(kernel: RouteSocket, index: int, *, subject: str) -> None:
    """Set an interface down; its neighbours go, and routes that have no other way."""
    kernel.queue(RTM_NEWLINK, 0, IFINFOMSG.pack(0, 0, 0, index, 0, IFF_UP), subject)


def learn_nothing(kernel: RouteSocket, index: int, *, subject: str) -> None:
    """The bridge of port ``index`` does not conclude from frames who is behind it."""
    _bridge_port(kernel, index, [attribute(IFLA_BRPORT_LEARNING, U8(0))], subject)


def delete_fabric_links(kernel: RouteSocket) -> None:
    """Delete every fabric interface of the namespace, and the far ends of its cables, at once."""
    body = IFINFOMSG.pack(0, 0, 0, 0, 0, 0) + attribute(IFLA_GROUP, U32(GROUP))
    kernel.queue(RTM_DELLINK, 0, body, "the fabric's interfaces")


def address(kernel: RouteSocket, index: int, interface: IPv4Interface, *, subject: str) -> None:
    octets = inet_aton(str(interface.ip))
    body = IFADDRMSG.pack(AF_INET, interface.network.prefixlen, 0, 0, index)
    body += attribute(IFA_LOCAL, octets) + attribute(IFA_ADDRESS, octets)
    kernel.queue(RTM_NEWADDR, NEW, body, subject)


def neighbour(
    kernel: RouteSocket,
    index: int,
    peer: IPv4Address,
    mac: str,
    *,
    subject: str,
    replace: bool = False,
) -> None:
    """Add a permanent neighbour: ``peer`` is at ``mac``, without ARP.

    ``replace``: overwrite an entry that exists.
    """
    body = NDMSG.pack(AF_INET, 0, 0, index, NUD_PERMANENT, 0, 0)
    body += attribute(NDA_DST, peer.packed) + attribute(NDA_LLADDR, _mac(mac))
    kernel.queue(RTM_NEWNEIGH, NEW_OR_OTHER if replace else NEW, body, subject)


def forget_neighbour(kernel: RouteSocket, index: int, peer: IPv4Address, *, subject: str) -> None:
    """Remove the neighbour ``peer``, permanent or not."""
    body = NDMSG.pack(AF_INET, 0, 0, index, 0, 0, 0) + attribute(NDA_DST, peer.packed)
    kernel.queue(RTM_DELNEIGH, 0, body, subject)


def router_mac(
    kernel: RouteSocket, bridge: int, tunnel: int, end: IPv4Address, mac: str, *, subject: str
) -> None:
    """Enter the router MAC of the switch at the ``end`` of a tunnel, as zebra does, and flush.

    The bridge of an L3 VNI has ``end`` as a neighbour at ``mac``, and ``mac`` is behind its port
    ``tunnel`` (RFC 9135).  Whatever is there is replaced.
    """
    body = NDMSG.pack(AF_INET, 0, 0, bridge, NUD_NOARP, NTF_EXT_LEARNED, 0)
    body += attribute(NDA_DST, end.packed) + attribute(NDA_LLADDR, _mac(mac))
    kernel.queue(RTM_NEWNEIGH, NEW_OR_OTHER, body, subject)
    both = NTF_SELF | NTF_MASTER | NTF_EXT_LEARNED
    body = NDMSG.pack(AF_BRIDGE, 0, 0, tunnel, NUD_REACHABLE | NUD_NOARP, both, 0)
    body += attribute(NDA_LLADDR, _mac(mac)) + attribute(NDA_DST, end.packed)
    kernel.queue(RTM_NEWNEIGH, NEW_OR_OTHER, body, subject)
    kernel.flush()


def forwarding_entry(
    kernel: RouteSocket, index: int, mac: str, *, vlan: int | None = None, subject: str
) -> None:
    """Add a forwarding entry: ``mac`` is behind port ``index``, so that its bridge does not flood.

    ``vlan`` is the one that the port is in, if the bridge minds VLANs.
    """
    body = NDMSG.pack(AF_BRIDGE, 0, 0, index, NUD_NOARP, NTF_MASTER, 0)
    body += attribute(NDA_LLADDR, _mac(mac))
    if vlan is not None:
        body += attribute(NDA_VLAN, U16(vlan))
    kernel.queue(RTM_NEWNEIGH, NEW, body, subject)


def route(
    kernel: RouteSocket,
    destination: IPv4Network,
    hops: list[tuple[int, IPv4Address, bool]],
    *,
    source: IPv4Address | None = None,
    table: int = RT_TABLE_MAIN,
    subject: str,
    replace: bool = False,
) -> None:
    """Queue a route to ``destination`` over ``hops``, all of equal weight.

    Of each hop: the interface's index, the next address, and whether that holds although no address
    of the interface covers it.

    ``replace``: instead of the route that may be there.
    """
    flags = RTNH_F_ONLINK if len(hops) == 1 and hops[0][2] else 0
    short = table if table <= LARGEST_SHORT_TABLE else RT_TABLE_UNSPEC
    body = RTMSG.pack(
        AF_INET, destination.prefixlen, 0, 0, short, RTPROT_STATIC, 0, RTN_UNICAST, flags
    )
    if short != table:
        body += attribute(RTA_TABLE, U32(table))
    if destination.prefixlen:
        body += attribute(RTA_DST, destination.network_address.packed)
    if source is not None:
        body += attribute(RTA_PREFSRC, source.packed)
    if len(hops) == 1:
        index, via, _ = hops[0]
        body += attribute(RTA_OIF, U32(index)) + attribute(RTA_GATEWAY, via.packed)
    else:
        paths = []
        for index, via, on_link in hops:
            gateway = attribute(RTA_GATEWAY, via.packed)
            flags = RTNH_F_ONLINK if on_link else 0
            paths.append(RTNEXTHOP.pack(RTNEXTHOP.size + len(gateway), flags, 0, index) + gateway)
        body += attribute(RTA_MULTIPATH, b"".join(paths))
    kernel.queue(RTM_NEWROUTE, NEW_OR_OTHER if replace else NEW, body, subject)


def routing_table(number: int) -> int:
    """The kernel's number of table ``number`` of a switch; 0 is the main one."""
    return FIRST_TABLE + number if number else RT_TABLE_MAIN


def lookup_rule(
    kernel: RouteSocket,
    interface: str,
    table: int,
    *,
    source: IPv4Network | None = None,
    subject: str,
) -> None:
    """Look up what comes in by ``interface`` in ``table`` before the main one.

    With ``source`` only packets from there.
    """
    length = 0 if source is None else source.prefixlen
    body = RTMSG.pack(AF_INET, 0, length, 0, table, 0, 0, FR_ACT_TO_TBL, 0)  # a fib_rule_hdr
    body += text(FRA_IIFNAME, interface) + attribute(FRA_PRIORITY, U32(RULE_PRIORITY))
    if source is not None:
        body += attribute(FRA_SRC, source.network_address.packed)
    kernel.queue(RTM_NEWRULE, NEW, body, subject)


def _mac(written: str) -> bytes:
    return bytes.fromhex(written.replace(":", ""))
