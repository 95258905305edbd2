"""How long a packet and its acknowledgement take through an idle fabric, and what fits into that.

Transports and switches size their windows and thresholds by these numbers, so both must have them
from here.  They differ from a sum of cable delays in counting what store-and-forward adds: each
port on the way receives a packet whole before it sends it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from topologies.model import Link, Topology, TopologyError

#: Octets on the wire beside an IP packet: Ethernet header 14, preamble 8, FCS 4, gap 12
#: (IEEE 802.3).
WIRE_OVERHEAD_BYTES = 38
#: Octets on the wire of an acknowledgement: IPv4 20, UDP 8, ACK_CC 32, SES response 12.
ACK_BYTES = WIRE_OVERHEAD_BYTES + 72


def base_rtt_ns(topology: Topology, frame_bytes: int, *, ack_bytes: int = ACK_BYTES) -> int:
    """Round trip (ns of fabric time) of a packet on the longest idle path between two GPUs.

    Cable delays both ways, and at each port the serialisation of ``frame_bytes`` on the way there
    and of ``ack_bytes`` on the way back, both as on the wire (38 more than the IP packet).  This
    is what NSCC calls the base RTT.  The longest path is that of the largest sum among those that
    the routing in force takes between all pairs (by default the shortest).  A fabric that joins no
    two GPUs has the round trip from one to the farthest switch.
    """
    octets = frame_bytes + ack_bytes
    return max((_round_trip(path, octets) for path in _paths(topology)), default=0)


def plane_bdp_bytes(topology: Topology, frame_bytes: int, *, ack_bytes: int = ACK_BYTES) -> int:
    """Octets that the slowest port of a switch sends in one :func:`base_rtt_ns`.

    The unit of switch thresholds (UES 4.1 and its congestion control calls it Plane_BDP).
    """
    return bdp_bytes(topology, base_rtt_ns(topology, frame_bytes, ack_bytes=ack_bytes))


def bdp_bytes(topology: Topology, round_trip_ns: int) -> int:
    """Octets that the slowest port of a switch sends in ``round_trip_ns``."""
    switches = {switch.name for switch in topology.switches}
    at_switches = [link for link in topology.links if switches & {link.a.node, link.b.node}]
    slowest = min(link.rate_bps for link in at_switches or topology.links)  # not PCIe
    return slowest * round_trip_ns // (8 * 10**9)


def mtu_frame_bytes(topology: Topology) -> int:
    """The largest frame of the fabric on the wire, in octets."""
    return max(link.mtu for link in topology.links) + WIRE_OVERHEAD_BYTES


def _round_trip(path: tuple[Link, ...], octets: int) -> int:
    serialisation = sum(Fraction(octets * 8 * 10**9, link.rate_bps) for link in path)
    return ceil(2 * sum(link.delay_ns for link in path) + serialisation)


def _paths(topology: Topology) -> Iterator[tuple[Link, ...]]:
    """Paths between GPUs, of GPUs that are attached alike only those of the first."""
    if not topology.links:
        raise TopologyError(f"topology {topology.name} has no links")
    alike = set()
    lonely: list[tuple[Link, ...]] = []
    joined = False
    for gpu in topology.gpus:
        attached = frozenset(
            (theirs.node, link.rate_bps, link.delay_ns)
            for link, _, theirs in topology.neighbours(gpu.name)
        )
        if attached in alike:
            continue
        alike.add(attached)
        reached = topology.longest_paths(gpu.name)
        for peer in topology.gpus:
            if peer.name != gpu.name and peer.name in reached:
                joined = True
                yield reached[peer.name]
        lonely.extend(
            reached[switch.name] for switch in topology.switches if switch.name in reached
        )
    if not joined:
        yield from lonely
