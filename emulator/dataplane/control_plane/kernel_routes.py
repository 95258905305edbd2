"""The routes that a switch's kernel has, read by netlink."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network
from socket import AF_INET
from typing import NamedTuple

from emulator.dataplane.kernel.kernel_objects import (
    RT_TABLE_MAIN,
    RTA_DST,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_OIF,
    RTA_TABLE,
    RTMSG,
    RTN_UNICAST,
    RTNEXTHOP,
)
from emulator.dataplane.kernel.netlink import RTM_GETROUTE, RouteSocket, attributes

#: What FRR makes of a neighbour that has IPv6 only; its neighbour table has where that is.
UNNUMBERED = "169.254.0.1"


class NextHop(NamedTuple):
    """Leave through ``port`` towards the neighbour's ``address``."""

    port: str
    address: str

    def __str__(self) -> str:
        return f"{self.port} ({self.address})"


Hops = tuple[NextHop, ...]  # in order
Routes = Mapping[IPv4Network, Hops]


def read_routes(
    kernel: RouteSocket, ports: Mapping[int, str], *, table: int = RT_TABLE_MAIN
) -> Routes:
    """Every unicast route of ``table``, by default the main one, that leads to a next hop.

    ``ports`` names interfaces by index; routes over others, and those of connected subnets, are
    left out.
    """
    found: dict[IPv4Network, Hops] = {}
    request = RTMSG.pack(AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)
    for payload in kernel.dump(RTM_GETROUTE, request):
        _, length, _, _, _, _, _, kind, _ = RTMSG.unpack_from(payload)
        values = dict(attributes(payload, RTMSG.size))
        if kind != RTN_UNICAST or struct.unpack("=I", values[RTA_TABLE]) != (table,):
            continue
        hops = tuple(sorted(_hops(values, ports)))
        if hops:
            start = bytes(values[RTA_DST]) if RTA_DST in values else bytes(4)
            found[IPv4Network((start, length))] = hops
    return found


def _hops(values: Mapping[int, memoryview], ports: Mapping[int, str]) -> Iterator[NextHop]:
    if RTA_MULTIPATH in values:
        rest = values[RTA_MULTIPATH]
        while len(rest) >= RTNEXTHOP.size:
            length, _, _, index = RTNEXTHOP.unpack_from(rest)
            yield from _hop(dict(attributes(rest[:length], RTNEXTHOP.size)), index, ports)
            rest = rest[(length + 3) & ~3 :]
    elif RTA_OIF in values:
        (index,) = struct.unpack("=I", values[RTA_OIF])
        yield from _hop(values, index, ports)


def _hop(
    values: Mapping[int, memoryview], index: int, ports: Mapping[int, str]
) -> Iterator[NextHop]:
    if index in ports and RTA_GATEWAY in values:
        yield NextHop(ports[index], str(IPv4Address(bytes(values[RTA_GATEWAY]))))
