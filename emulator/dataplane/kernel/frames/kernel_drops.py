"""Why the kernel of a switch has dropped a frame that the switch program never saw again.

The kernel counts drops of all packets alike, those of tools and routing daemons too.  So a count
alone does not explain a loss where the frame itself shows whether the reason applies.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from emulator.dataplane.kernel.netlink import KernelRefusal, RouteSocket, attribute
from emulator.dataplane.model.tunnel import BACK_INTO_TUNNEL, REFUSED_IN_TUNNEL, opened

NO_ROUTE = "no route"
#: A tunnelled packet whose next switch has routed it back: the kernel takes its source for forged,
#: and counts it nowhere that a namespace shows.
CAME_BACK = "packet of its own that came back"
#: MIB-II groups (RFC 4293) as Linux shows them, and the counters of drops in them.
_FILES = ("/proc/thread-self/net/snmp", "/proc/thread-self/net/netstat")
_NO_ROUTE, _HEADER = "InNoRoutes", "InHdrErrors"
_COUNTED: Mapping[str, str] = {
    _NO_ROUTE: NO_ROUTE,
    _HEADER: "time to live exceeded",
    "InAddrErrors": "address that is none here",
    "InTruncatedPkts": "packet cut short",
    "InDiscards": "no memory on arrival",
    "OutDiscards": "no neighbour or no memory on departure",
    "FragFails": "packet too long for the link",
    "IPReversePathFilter": "source that is not reached that way",
}
# linux/rtnetlink.h, linux/socket.h
_RTM_GETROUTE, _RTA_DST, _AF_INET, _RTN_LOCAL = 26, 1, 2, 2
_RTMSG = struct.Struct("=8BI")
_GROUPS = frozenset({"Ip:", "IpExt:", "TcpExt:"})
_LONGEST_FILE = 1 << 16
#: IPv4 in a frame without VLAN tag: EtherType, time to live, destination.
_TYPE_AT, _TTL_AT, _SOURCE_AT, _DESTINATION_AT = 12, 22, 26, 30
_IPV4 = b"\x08\x00"


@dataclass(frozen=True)
class TunnelEnds:
    """Tunnels of the networks ``vnis`` that end at one switch, and the MACs of GPUs.

    ``behind_ports`` are those of the GPUs at its own ports, ``everybody`` those of all.
    """

    vnis: Collection[int]
    behind_ports: Collection[bytes]
    everybody: Collection[bytes]

    def lost(self, frame: bytes) -> str | None:
        """Return why nothing comes of ``frame``, a packet for an address of the switch.

        The kernel counts by far not all that it refuses there.
        """
        inside = opened(frame)
        if inside is None or inside.vni not in self.vnis:
            return REFUSED_IN_TUNNEL
        to = inside.frame[:6]
        if to in self.everybody and to not in self.behind_ports:
            return BACK_INTO_TUNNEL  # it would be flooded if the tunnel did not know it
        return None


class KernelDrops:
    """Explains frames that the kernel dropped in the namespace that this is made in.

    ``macs`` are those of the node: frames for another one are bridged, and need no route.
    ``tunnels`` are those that end here.
    """

    def __init__(self, macs: Collection[bytes], tunnels: TunnelEnds | None = None) -> None:
        self._macs, self._tunnels = frozenset(macs), tunnels
        self._kernel = RouteSocket()
        self._files = [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in _FILES]
        self._known = self._read()

    def __call__(self, frame: bytes) -> str | None:
        """The reason for which the kernel dropped ``frame``, whose way through it is over."""
        now = self._read()
        grown = [name for name, count in now.items() if count > self._known[name]]
        self._known = now
        routed = frame[:6] in self._macs and frame[_TYPE_AT : _TYPE_AT + 2] == _IPV4
        if routed and frame[_TTL_AT] <= 1 and _HEADER in grown:
            return _COUNTED[_HEADER]
        if routed and self._kind(frame[_SOURCE_AT : _SOURCE_AT + 4]) == _RTN_LOCAL:
            return CAME_BACK
        to = self._kind(frame[_DESTINATION_AT : _DESTINATION_AT + 4]) if routed else 0
        if to is None:
            return NO_ROUTE
        if to == _RTN_LOCAL and self._tunnels is not None:
            lost = self._tunnels.lost(frame)
            if lost is not None:
                return lost
        others = (name for name in grown if name not in (_NO_ROUTE, _HEADER))
        return next((_COUNTED[name] for name in others), None)

    def _kind(self, address: bytes) -> int | None:
        """The type of the route to ``address``, None without one."""
        body = _RTMSG.pack(_AF_INET, 32, 0, 0, 0, 0, 0, 0, 0) + attribute(_RTA_DST, address)
        try:
            answer = self._kernel.ask(_RTM_GETROUTE, body, "a route")
        except KernelRefusal:
            return None
        return int(_RTMSG.unpack_from(answer)[7])

    def _read(self) -> dict[str, int]:
        """The counters of all drops so far."""
        found = dict.fromkeys(_COUNTED, 0)
        for file in self._files:
            rows = [line.split() for line in os.pread(file, _LONGEST_FILE, 0).decode().splitlines()]
            for names, values in zip(rows[::2], rows[1::2], strict=True):
                found |= {
                    name: found[name] + int(value)
                    for name, value in zip(names[1:], values[1:], strict=True)
                    if name in found and names[0] in _GROUPS
                }
        return found

    def close(self) -> None:
        """Give up the files and the socket."""
        self._kernel.close()
        while self._files:
            os.close(self._files.pop())
