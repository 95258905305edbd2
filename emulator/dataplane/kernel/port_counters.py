"""Counters of a namespace's ports, read by netlink in two dumps."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from emulator.dataplane.kernel.kernel_objects import GROUP as FABRIC_GROUP
from emulator.dataplane.kernel.kernel_objects import (
    IF_OPER_UP,
    IFINFOMSG,
    IFLA_GROUP,
    IFLA_IFNAME,
    IFLA_LINKINFO,
    IFLA_OPERSTATE,
)
from emulator.dataplane.kernel.netlink import RTM_GETLINK, RTM_GETQDISC, RouteSocket, attributes
from emulator.dataplane.kernel.shaping import CONTROL_QUEUE, DATA_QUEUE, TCMSG

IFLA_STATS64 = 23
VETH = b"veth\0"  # the kind of both ends of a cable
TCA_STATS2, TCA_STATS_BASIC, TCA_STATS_QUEUE, TCA_STATS_PKT64 = 7, 1, 3, 8
LINK_STATS = struct.Struct("=8Q")  # rx/tx packets, rx/tx octets, rx/tx errors, rx/tx dropped
BASIC_STATS = struct.Struct("=QI")  # octets, packets
QUEUE_STATS = struct.Struct("=IIIII")  # length, backlog, drops, requeues, over limits

NETSTAT = Path("/proc/thread-self/net/netstat")


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """One egress queue: what left it, what it dropped for lack of room, what it holds now."""

    packets: int = 0
    bytes: int = 0
    drops: int = 0
    backlog_packets: int = 0
    backlog_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PortCounters:
    """One port since it was made.  Octets count from the Ethernet header, without FCS."""

    rx_packets: int
    rx_bytes: int
    rx_dropped: int
    tx_packets: int
    tx_bytes: int
    tx_dropped: int
    control: QueueCounters = QueueCounters()
    data: QueueCounters = QueueCounters()

    def as_dict(self) -> dict[str, object]:
        """The port's counts by name, and those of its queues."""
        queues = {"control": self.control, "data": self.data}
        own = {name: getattr(self, name) for name in _OWN_COUNTS}
        return own | {name: _counts(queue) for name, queue in queues.items()}


_OWN_COUNTS = tuple(one.name for one in fields(PortCounters) if one.type == "int")
_QUEUE_COUNTS = tuple(one.name for one in fields(QueueCounters))


def _counts(queue: QueueCounters) -> dict[str, int]:
    return {name: getattr(queue, name) for name in _QUEUE_COUNTS}


@dataclass(frozen=True, slots=True)
class _Link:
    index: int
    name: str
    ready: bool
    is_cable: bool
    statistics: tuple[int, ...]


def read_ports(kernel: RouteSocket) -> dict[str, PortCounters]:
    """Counters of every cable end in the namespace, by port name."""
    queues = _queues(kernel)
    ports = {}
    for link in _fabric_links(kernel):
        if not link.is_cable:
            continue
        rx_packets, tx_packets, rx_bytes, tx_bytes, _, _, rx_dropped, tx_dropped = link.statistics
        ports[link.name] = PortCounters(
            rx_packets=rx_packets,
            rx_bytes=rx_bytes,
            rx_dropped=rx_dropped,
            tx_packets=tx_packets,
            tx_bytes=tx_bytes,
            tx_dropped=tx_dropped,
            control=queues.get((link.index, CONTROL_QUEUE), QueueCounters()),
            data=queues.get((link.index, DATA_QUEUE), QueueCounters()),
        )
    return ports


def unrouted_packets() -> int:
    """Return the count of packets without a route in the calling thread's namespace.

    RFC 4293, ipSystemStatsInNoRoutes.
    """
    rows = (line.split() for line in NETSTAT.read_text().splitlines() if line.startswith("IpExt:"))
    names, values = rows
    return int(dict(zip(names, values, strict=True))["InNoRoutes"])


def ports_not_ready(kernel: RouteSocket) -> list[str]:
    """Names of fabric interfaces in the namespace that cannot send yet.

    An interface that is up and has carrier still discards what it is given for a while. The
    kernel's own worker must first put its queueing discipline in place.  The operational state (RFC
    2863) turns to up under the same lock; the running flag is no evidence, being set while that
    state is unknown.
    """
    return [link.name for link in _fabric_links(kernel) if not link.ready]


def _fabric_links(kernel: RouteSocket) -> Iterator[_Link]:
    for payload in kernel.dump(RTM_GETLINK, IFINFOMSG.pack(0, 0, 0, 0, 0, 0)):
        _, _, _, index, _, _ = IFINFOMSG.unpack_from(payload)
        name, group, is_cable, ready = "", 0, False, False
        statistics: tuple[int, ...] = (0,) * 8
        for kind, value in attributes(payload, IFINFOMSG.size):
            if kind == IFLA_IFNAME:
                name = bytes(value).rstrip(b"\0").decode()
            elif kind == IFLA_GROUP:
                (group,) = struct.unpack_from("=I", value)
            elif kind == IFLA_OPERSTATE:
                ready = value[0] == IF_OPER_UP
            elif kind == IFLA_LINKINFO:
                is_cable = VETH in (bytes(each) for _, each in attributes(value))
            elif kind == IFLA_STATS64:
                statistics = LINK_STATS.unpack_from(value)
        if group == FABRIC_GROUP:
            yield _Link(index, name, ready, is_cable, statistics)


def _queues(kernel: RouteSocket) -> dict[tuple[int, int], QueueCounters]:
    found = {}
    for payload in kernel.dump(RTM_GETQDISC, TCMSG.pack(0, 0, 0, 0, 0, 0, 0)):
        _, _, _, index, handle, _, _ = TCMSG.unpack_from(payload)
        if handle in (CONTROL_QUEUE, DATA_QUEUE):
            for kind, value in attributes(payload, TCMSG.size):
                if kind == TCA_STATS2:
                    found[index, handle] = _queue_counters(value)
    return found


def _queue_counters(statistics: memoryview) -> QueueCounters:
    octets = packets = length = backlog = drops = 0
    packets64: int | None = None
    for kind, value in attributes(statistics):
        if kind == TCA_STATS_BASIC:
            octets, packets = BASIC_STATS.unpack_from(value)
        elif kind == TCA_STATS_QUEUE:
            length, backlog, drops, _, _ = QUEUE_STATS.unpack_from(value)
        elif kind == TCA_STATS_PKT64:
            (packets64,) = struct.unpack_from("=Q", value)
    return QueueCounters(
        packets=packets if packets64 is None else packets64,
        bytes=octets,
        drops=drops,
        backlog_packets=length,
        backlog_bytes=backlog,
    )
