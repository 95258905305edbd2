"""An interface as the kernel has it, and how peers are reached through it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
)
from typing import Any

from emulator.errors import UserError

Ip = IPv4Address | IPv6Address

# linux/neighbour.h
_NTF_USE = 0x01
_NUD_USABLE = 0x02 | 0x04 | 0x08 | 0x10 | 0x80  # REACHABLE STALE DELAY PROBE PERMANENT
_NUD_FAILED = 0x20
_ETHERNET, _LOOPBACK = 1, 0x8
_IFF_UP = 0x1
_LINK_SCOPE = 253
#: How long a neighbour has to answer (s), and how often the kernel is polled meanwhile.
NEIGHBOUR_S = 5.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """An interface of the current namespace; ``networks`` has those of wider scope first."""

    name: str
    index: int
    mac: str
    mtu: int
    networks: tuple[IPv4Interface | IPv6Interface, ...]
    ethernet: bool = True
    up: bool = True

    @property
    def addresses(self) -> tuple[Ip, ...]:
        return tuple(network.ip for network in self.networks)

    def must_work(self) -> None:
        """Raise :class:`UserError` if it cannot carry Ethernet frames now."""
        if not self.ethernet:
            raise UserError(f"{self.name} is no Ethernet interface; one is needed, a veth will do")
        if not self.up:
            raise UserError(f"{self.name} is down; bring it up: ip link set {self.name} up")


def interface(name: str) -> NetworkInterface:
    """The interface of that name.  Raises :class:`UserError`."""
    from pyroute2 import IPRoute

    with IPRoute() as kernel:
        try:
            index = socket.if_nametoindex(name)
        except OSError:
            names = [str(link.get_attr("IFLA_IFNAME")) for link in kernel.get_links()]
            raise UserError(
                f"there is no interface {name!r} in this network namespace; it has"
                f" {', '.join(names)}"
            ) from None
        (link,) = kernel.get_links(index)
        found: list[tuple[bool, IPv4Interface | IPv6Interface]] = []
        for record in kernel.get_addr(index=index):
            text = record.get_attr("IFA_LOCAL") or record.get_attr("IFA_ADDRESS")
            network = ip_interface(f"{text}/{record['prefixlen']}")
            found.append((record["scope"] == _LINK_SCOPE, network))
        # Global addresses first, each kind in the kernel's order.
        networks = [network for _, network in sorted(found, key=lambda item: item[0])]
        return NetworkInterface(
            name=name,
            index=index,
            mac=str(link.get_attr("IFLA_ADDRESS")),
            mtu=int(link.get_attr("IFLA_MTU")),
            networks=tuple(networks),
            ethernet=link["ifi_type"] == _ETHERNET and not link["flags"] & _LOOPBACK,
            up=bool(link["flags"] & _IFF_UP),
        )


def own_address(port: NetworkInterface, requested: str | None, version: int | None) -> str:
    """Return the fabric address: the requested one, or the interface's first of the version."""
    if requested is not None:
        return requested
    for address in port.addresses:
        if version is None or address.version == version:
            return str(address)
    what = "IP" if version is None else f"IPv{version}"
    raise UserError(f"{port.name} has no {what} address; give one with --address")


def mac_of(port: NetworkInterface, peer: str, stop: Callable[[], bool] = lambda: False) -> str:
    """The MAC address behind ``port`` that reaches ``peer``: its own, or its route's gateway's.

    The kernel looks up the route and, by its own ARP or neighbour discovery, the neighbour. Raises
    :class:`UserError` without a route or an answer, and ``KeyboardInterrupt`` when ``stop`` returns
    true.
    """
    from pyroute2 import IPRoute

    with IPRoute() as kernel:
        hop = _next_hop(kernel, port, peer)
        family = socket.AF_INET if ip_address(hop).version == 4 else socket.AF_INET6
        give_up = time.monotonic() + NEIGHBOUR_S
        asked = False
        while True:
            state, mac = _neighbour(kernel, family, port, hop)
            if mac is not None and state & _NUD_USABLE:
                return mac
            if not asked or state & _NUD_FAILED:
                # "Use" makes the kernel resolve the entry as if it had a packet for it.
                kernel.neigh(
                    "replace", dst=hop, ifindex=port.index, family=family, flags=_NTF_USE, state=0
                )
                asked = True
            if stop():
                raise KeyboardInterrupt
            if time.monotonic() > give_up:
                gateway = "" if hop == peer else f" (the gateway to {peer})"
                raise UserError(
                    f"no MAC address is known for {hop}{gateway}, which does not answer on"
                    f" {port.name}; check the link, or give the MAC address with the peer"
                )
            time.sleep(_LOOK_S)


def _next_hop(kernel: Any, port: NetworkInterface, peer: str) -> str:
    """The gateway to ``peer``, or ``peer`` itself if it is on the link."""
    mend = "add one, or give the MAC address of the next hop with the peer"
    from pyroute2.netlink.exceptions import NetlinkError

    if any(ip_address(peer) in network.network for network in port.networks):
        return peer
    try:
        # Queried with the interface, the kernel would take everybody to be on its link.
        (usual, *_) = kernel.route("get", dst=peer)
        (route, *_) = kernel.route("get", dst=peer, oif=port.index)
    except NetlinkError as error:
        reason = os.strerror(error.code) if error.code else str(error)
        raise UserError(
            f"the kernel has no route to {peer} through {port.name} ({reason}); {mend}"
        ) from None
    gateway = route.get_attr("RTA_GATEWAY")
    if gateway is None and (via := route.get_attr("RTA_VIA")) is not None:
        gateway = via["addr"]
    if gateway is not None:
        return str(ip_address(str(gateway)))
    if usual.get_attr("RTA_OIF") != port.index:
        raise UserError(f"the kernel has no route to {peer} through {port.name}; {mend}")
    return peer


def _neighbour(
    kernel: Any, family: int, port: NetworkInterface, hop: str
) -> tuple[int, str | None]:
    for entry in kernel.get_neighbours(family, ifindex=port.index):
        if ip_address(str(entry.get_attr("NDA_DST"))) == ip_address(hop):
            mac = entry.get_attr("NDA_LLADDR")
            return int(entry["state"]), None if mac is None else str(mac)
    return 0, None
