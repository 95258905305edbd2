"""One-way delays of an idle fabric, beside the bounds that its networks should keep.

Toni Pasanen's books have one-way delays below 10 us in the backend (figure 14-1), and below 1 us in
the scale-up network of a server (figure 13-1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from topologies.analysis.round_trip import mtu_frame_bytes, representatives
from topologies.model import BACKEND, VXLAN_OVERHEAD, Topology
from topologies.routing.paths import longest_paths_from, spans_from
from topologies.units import format_time
from topologies.wiring import Span, ticks_of

#: Places that GPUs are looked from, times the nodes that are reached: more would take seconds.
MOST_PLACES, FEWEST_PLACES = 1 << 18, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWayDelay:
    """The longest one-way delay of the network ``name``, which ``parts`` explains."""

    name: str
    delay_ns: int
    bound_ns: int
    parts: str

    def __str__(self) -> str:
        over = self.delay_ns - self.bound_ns
        bound = format_time(self.bound_ns)
        kept = f"{format_time(over)} above the bound of {bound}" if over > 0 else f"bound {bound}"
        return f"{format_time(self.delay_ns)}, {kept} ({self.parts})"

    @property
    def warning(self) -> str | None:
        """The sentence that says by how much the bound is exceeded, if it is."""
        if self.delay_ns <= self.bound_ns:
            return None
        return f"the longest one-way delay of the {self.name} network is {self}"


def one_way_delays(
    topology: Topology, scale_out_bound_ns: int, scale_up_bound_ns: int
) -> Iterator[OneWayDelay]:
    """Yield the longest one-way delays of a backend; other networks have no bound.

    Over the fabric it is that of the largest frame from GPU to GPU: cables and pipelines of
    switches on the longest path that the routing in force takes, and the time to send the frame at
    each port.  NICs and queues are not in it.  Of large fabrics the paths are those from some of
    the places where GPUs are attached, which ``parts`` says.  In scale-up networks it is their
    latency.
    """
    if topology.network != BACKEND:
        return
    fabric = _over_the_fabric(topology, scale_out_bound_ns)
    if fabric is not None:
        yield fabric
    joined = [server.scale_up for server in topology.servers if len(server.gpus) > 1]
    joined += [server.scale_up for server in topology.servers if server.scale_up.hosts > 1]
    if joined:
        yield OneWayDelay(
            name="scale-up",
            delay_ns=max(scale_up.latency_ns for scale_up in joined),
            bound_ns=scale_up_bound_ns,
            parts="its latency",
        )


def _over_the_fabric(topology: Topology, bound_ns: int) -> OneWayDelay | None:
    octets, ticks = mtu_frame_bytes(topology), ticks_of(topology)
    alike = list(representatives(topology))
    most = max(FEWEST_PLACES, MOST_PLACES // len(topology.nodes))
    places = alike[:: -(-len(alike) // most)]
    found: dict[Span, tuple[str, str]] = {}
    for source, mate in places:
        reached = spans_from(topology, source, longest=True)
        for peer in (mate, *(gpu for gpu, _ in alike)):
            if peer is not None and peer != source and peer in reached:
                found.setdefault(reached[peer], (source, peer))
    if not found:
        return None

    def delay_of(span: Span) -> Fraction:
        sent = span.serialisation_ns(octets, ticks, tunnel_octets=VXLAN_OVERHEAD)
        return span.delay_ns + sent

    longest = max(found, key=delay_of)
    delay, (source, peer) = round(delay_of(longest)), found[longest]
    path = longest_paths_from(topology, source)[peer]
    nodes = [source]
    for link in path:
        nodes.append(link.b.node if link.a.node == nodes[-1] else link.a.node)
    cables = sum(link.delay_ns for link in path)
    switches = sum(topology.latency_ns(name) for name in nodes)
    sending = delay - cables - switches
    seen = "" if len(places) == len(alike) else f"; from {len(places)} of {len(alike)} places"
    return OneWayDelay(
        name="scale-out",
        delay_ns=delay,
        bound_ns=bound_ns,
        parts=f"{' - '.join(nodes)}: cables {format_time(cables)}, switches "
        f"{format_time(switches)}, sending {octets} octets {len(path)} times: "
        f"{format_time(sending)}{seen}",
    )
