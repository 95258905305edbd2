"""The round trip of a packet through an idle fabric, and the octets in flight meanwhile.

Transports and switches size their windows and thresholds by these numbers, so both must have them
from here.  They differ from a sum of cable delays in counting what store-and-forward adds: each
port on the way receives a packet whole before it sends it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from topologies.analysis.twins import first_twins
from topologies.ethernet import PACKET_OVERHEAD_OCTETS
from topologies.model import SHORTEST, VXLAN_OVERHEAD, Topology, TopologyError
from topologies.routing.paths import spans_from
from topologies.stretch import stretch_of
from topologies.wiring import Span, Wiring, once_per_topology, shortest_spans, ticks_of

#: Octets on the wire of an acknowledgement: IPv4 20, UDP 8, ACK_CC 32, SES response 12.
ACK_BYTES = PACKET_OVERHEAD_OCTETS + 72


def base_rtt_ns(topology: Topology, frame_bytes: int, *, ack_bytes: int = ACK_BYTES) -> int:
    """Round trip (ns of fabric time) of a packet on the longest idle path between two GPUs.

    Delays of cables and switches both ways, and serialisation at each port: of ``frame_bytes`` on
    the way there and of ``ack_bytes`` on the way back. Both are as on the wire (38 more than the IP
    packet), with what a tunnel adds where they are in one.  This is what NSCC calls the base RTT.
    The longest path is that of the largest sum among those that the routing in force takes between
    all pairs (by default the shortest).  A fabric that joins no two GPUs has the round trip from
    one to the farthest switch.
    """
    octets = frame_bytes + ack_bytes
    ticks = ticks_of(topology)
    longest = max(
        (
            2 * span.delay_ns
            + span.serialisation_ns(octets, ticks, tunnel_octets=2 * VXLAN_OVERHEAD)
            for span in _spans(topology)
        ),
        default=0,
    )
    return ceil(longest)


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
    """The largest frame of the fabric on the wire, in octets, outside of tunnels."""
    links = topology.links
    if stretch_of(topology) is not None:  # others have room for what a tunnel adds
        switches = {switch.name for switch in topology.switches}
        links = tuple(one for one in links if not {one.a.node, one.b.node} <= switches) or links
    return max(link.mtu for link in links) + PACKET_OVERHEAD_OCTETS


@once_per_topology
def _spans(topology: Topology) -> set[Span]:
    """Lengths of paths between GPUs, of GPUs that are attached alike only those of the first."""
    if not topology.links:
        raise TopologyError(f"topology {topology.name} has no links")
    seen: Wiring = topology
    if topology.profile.routing == SHORTEST and stretch_of(topology) is None:
        seen = first_twins(topology)
    # where few nodes have twins, spans_from walks as far, and keeps what it finds for others
    few = 2 * len(seen.links) < len(topology.links)
    gpus = [gpu.name for gpu in topology.gpus if gpu.name in seen.by_name]
    switches = [switch.name for switch in seen.switches]
    lonely: set[Span] = set()
    joined: set[Span] = set()
    for gpu, _ in representatives(topology):
        reached = shortest_spans(seen, gpu) if few else spans_from(topology, gpu, longest=True)
        joined.update([reached[peer] for peer in gpus if peer in reached and peer != gpu])
        if not joined:
            lonely.update([reached[switch] for switch in switches if switch in reached])
    return joined or lonely


def representatives(topology: Topology) -> Iterator[tuple[str, str | None]]:
    """Yield of GPUs that are attached alike the first, and the second if there is one."""
    alike: dict[object, list[str]] = {}
    for gpu in topology.gpus:
        attached = frozenset(
            (theirs.node, link.rate_bps, link.delay_ns)
            for link, _, theirs in topology.neighbours(gpu.name)
        )
        alike.setdefault(attached, []).append(gpu.name)
    for first, *others in alike.values():
        yield first, others[0] if others else None
