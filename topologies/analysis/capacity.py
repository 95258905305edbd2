"""The capacity of a fabric, computed from its links: oversubscription, bisection bandwidth."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain

from topologies.analysis.twins import twins_of
from topologies.model import AXES, Node, Role, Topology, TopologyError
from topologies.parts.attachment import switch_ends
from topologies.wiring import once_per_topology

#: Every role from the servers upwards; a link leads up when its far end stands further right.
TIERS = (
    Role.SERVER,
    Role.GPU,
    Role.NIC,
    Role.RAIL,
    Role.LEAF,
    Role.ROUTER,
    Role.SPINE,
    Role.SUPER_SPINE,
)
HEIGHT = {role: height for height, role in enumerate(TIERS)}

#: Links by rate (bit/s): down, across and up.
Rates = tuple[Counter[int], Counter[int], Counter[int]]
#: What can still be sent (bit/s) from each vertex to each other.
Residual = dict[object, dict[object, int]]


@once_per_topology
def rates_by_kind(topology: Topology) -> Sequence[tuple[Node, int, Rates]]:
    """Return a node of each kind of twins, how many there are, and the links of each.

    Links across lead to the same tier, as in a torus.
    """
    height = {node.name: HEIGHT[node.role] for node in topology.nodes}
    found = []
    for kind in twins_of(topology):
        first, sides = kind.nodes[0], (Counter[int](), Counter[int](), Counter[int]())
        here = height[first.name]
        for name, rate in (*zip(kind.far, kind.rates, strict=True), *kind.standby):
            there = height[name]
            sides[1 + (there > here) - (there < here)][rate] += 1
        found.append((first, len(kind.nodes), sides))
    return found


def oversubscription(topology: Topology) -> dict[Role, Fraction]:
    """Downlink over uplink capacity of each tier that has uplinks, its worst switch or shared NIC.

    1 is non-blocking, above 1 oversubscribed, below 1 has more uplinks than it can fill.  Links
    across count for neither: what they carry for others depends on the traffic, and
    :func:`bisection_bandwidth` describes such a fabric better.
    """
    ratios: dict[Role, Fraction] = {}
    for node, _, sides in rates_by_kind(topology):
        down, _, up = (sum(r * n for r, n in side.items()) for side in sides)
        if up and node.forwards:
            ratio = Fraction(down, up)
            ratios[node.role] = max(ratio, ratios.get(node.role, ratio))
    return ratios


def switch_ports(topology: Topology) -> int:
    """Ports of all switches together, which is what a fabric costs."""
    return sum(len(switch.ports) for switch in topology.switches)


def format_ratio(ratio: Fraction) -> str:
    """``ratio`` as ``3:1``, ``1:1`` or ``0.83:1``, to two decimals."""
    return f"{round(float(ratio), 2):g}:1"


def bisection_bandwidth(topology: Topology) -> dict[str, int]:
    """Max flow (bit/s, one way) between two halves of the GPUs, for the cuts that matter.

    ``servers``: lower against upper half of the servers, what a ring over all servers crosses.
    ``rails``: lower against upper half of the rails, which only the spines join.  ``along x`` and
    so on, of a torus: across that dimension; the longest has the fewest cables.  A cut that the
    fabric is too small for (one server, one rail) is left out; with an odd number the middle one
    takes no part.  The flow takes any path, also ones that the fabric's routing does not.
    Scale-up networks are not counted.
    """
    servers = [server.gpus for server in topology.servers]
    rails: dict[int, list[str]] = {}
    for gpu in topology.gpus:
        if gpu.rail is not None:
            rails.setdefault(gpu.rail, []).append(gpu.name)
    groups = {"servers": servers, "rails": [tuple(rails[rail]) for rail in sorted(rails)]}
    groups |= _slices(topology)
    return {
        name: max_flow(
            topology, _names(parts[: len(parts) // 2]), _names(parts[-(len(parts) // 2) :])
        )
        for name, parts in groups.items()
        if len(parts) > 1
    }


def _slices(topology: Topology) -> dict[str, list[tuple[str, ...]]]:
    """Return the GPUs at each place along each dimension of a torus."""
    if not any(switch.position for switch in topology.switches):
        return {}
    at: dict[tuple[int, ...], list[str]] = {}
    for gpu in topology.gpus:
        for end in switch_ends(topology, gpu.name)[:1]:
            at.setdefault(topology.node(end.node).position, []).append(gpu.name)
    if () in at:
        return {}
    return {
        f"along {axis}": [
            tuple(gpu for position, gpus in at.items() if position[d] == place for gpu in gpus)
            for place in sorted({position[d] for position in at})
        ]
        for d, axis in enumerate(AXES[: min(map(len, at), default=0)])
    }


def _names(groups: Iterable[Iterable[str]]) -> set[str]:
    return {name for group in groups for name in group}


def max_flow(topology: Topology, sources: set[str], sinks: set[str]) -> int:
    """Return the most bit/s that the links carry from ``sources`` to ``sinks`` together.

    Parallel links count together, and a GPU does not forward for others.
    """
    if sources & sinks:
        raise TopologyError(f"{min(sources & sinks)} is a source and a sink of the same flow")
    source, sink = object(), object()
    kinds = twins_of(topology)
    first = {node.name: kind.nodes[0].name for kind in kinds for node in kind.nodes}

    def vertex(name: str) -> object:
        return source if name in sources else sink if name in sinks else first[name]

    residual: Residual = {source: {}, sink: {}}
    for kind in kinds:  # through twins as much flows as through one node of their rates together
        for here, count in Counter(vertex(node.name) for node in kind.nodes).items():
            if not _carries(topology, here):
                continue
            row = residual.setdefault(here, {})
            for name, rate in zip(kind.far, kind.rates, strict=True):
                there = vertex(name)
                if there is not here and _carries(topology, there):
                    row[there] = row.get(there, 0) + count * rate
    return saturate(residual, source, sink)


def _carries(topology: Topology, vertex: object) -> bool:
    return not isinstance(vertex, str) or topology.node(vertex).forwards


def saturate(residual: Residual, source: object, sink: object) -> int:
    """Send the maximum flow from ``source`` to ``sink`` through ``residual``; return it (bit/s).

    The algorithm is Dinic's.  Every capacity has an entry for its opposite direction, too.
    """
    # networkx 3.6 with the best of three algorithms: 2.3 to 6.1 times as long on eight designs.
    total, everything = 0, sum(residual[source].values())
    while sink in (depths := _depths(residual, source)):
        ways = {here: iter(row) for here, row in residual.items()}
        total += _push(residual, depths, ways, source, sink, everything)
    return total


def _depths(residual: Residual, source: object) -> dict[object, int]:
    """Return every vertex to which there is room from ``source``, with its distance."""
    depths = {source: 0}
    queue = deque([source])
    while queue:
        here = queue.popleft()
        for there, room in residual[here].items():
            if room and there not in depths:
                depths[there] = depths[here] + 1
                queue.append(there)
    return depths


def _push(
    residual: Residual,
    depths: Mapping[object, int],
    ways: dict[object, Iterator[object]],
    here: object,
    sink: object,
    most: int,
) -> int:
    """Send up to ``most`` from ``here``, one step deeper at a time; return what arrives."""
    if here is sink:
        return most
    sent = 0
    row = residual[here]
    for there in ways[here]:
        if not row[there] or depths.get(there) != depths[here] + 1:
            continue
        step = _push(residual, depths, ways, there, sink, min(most - sent, row[there]))
        row[there] -= step
        residual[there][here] += step
        sent += step
        if sent == most:
            ways[here] = chain((there,), ways[here])  # it may have room for others
            break
    return sent
