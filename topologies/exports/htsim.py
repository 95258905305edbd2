"""A fabric in the ``.topo`` format of the packet simulator htsim (csg-htsim, uet-htsim).

The format describes a fat tree by a few numbers for each tier. So only a fabric in which all
switches of a tier are alike has one::

    Nodes 24                    GPUs
    Tiers 2                     of switches, 2 or 3
    Podsize 24                  GPUs of a pod; of two tiers, all are one
    Tier 0                      rail switches or leaves (ToR), then spines (aggregation), then core
    Downlink_speed_Gbps 400     of the links below the tier, as are latency and bundle
    Radix_Down 6
    Radix_Up 6                  not of the highest tier
    # Queue_Down 1048576        octets, of ports that lead down; Queue_Up likewise: a comment
    Bundle 1                    parallel links to the same switch below
    Oversubscribed 1            capacity down over up, whole
    Switch_Latency_ns 0         our links' delays include the switch
    Downlink_Latency_ns 600

htsim wires by number: node ``n`` hangs on ToR ``n / Radix_Down``, and a pod's ToRs have all its
aggregation switches. The ``p``-th aggregation switch of every pod has the core switches ``p, p + A,
p + 2A, ...`` of ``A`` per pod.  Whether that is our fabric is checked, up to the names; comments in
the file say which GPU is which node.  How its reader behaves is taken from its source
(``FatTreeTopologyCfg::read_cfg``, ``set_custom_params``, ``initialize``; in csg-htsim
``FatTreeTopology::load``): it divides radixes as integers where it checks ``Oversubscribed``, and
different versions stop at 64, 96 or 128 ports of a switch.

Two things that a fabric has are not for this file.  Queues: a size in it ends csg-htsim, which has
a ``-q`` even if none is given, and uet-htsim with ``-q``; without, uet-htsim sets all sizes to a
bandwidth-delay product after it has read them. It derives ECN thresholds from the longest round
trip, and refuses them above ``-q``.  NICs send at ``-linkspeed`` (100 Gb/s if not given), however
fast their links are.  So comments state what to give on the command line for a fabric as a run has
it: packets as long as they are on the wire there, and switches that trim what finds one
bandwidth-delay product before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from topologies.analysis.capacity import TIERS
from topologies.analysis.round_trip import mtu_frame_bytes, plane_bdp_bytes
from topologies.ethernet import PACKET_OVERHEAD_OCTETS
from topologies.exports.export_registry import EXPORTS, Export
from topologies.model import Link, Node, Topology, TopologyError

GBPS = 10**9
LARGEST_NUMBER = 2**31 - 1  # what its reader takes
PAYLOAD_BYTES = (4096, 2048, 1024)  # of a UET packet: the first that fits (UES 3.4.1.11)
#: IPv4 20, UDP 8, RUD_REQ 12, SES standard request 44 octets (UES Tables 3-33, 3-8).
HEADER_BYTES = 84
ECN_BDP = (0.2, 0.8)  # between which switches of a run mark ever more (UES 3.6.17)
PATHS = 256  # entropy values that a run's endpoints spray over
NAMED = 16  # GPUs of a switch that are named one by one
PORTS_OF_ALL = 64  # of a switch, which no version refuses


@dataclass(frozen=True)
class _Below:
    rate_gbps: int
    latency_ns: int
    queue_bytes: int
    bundle: int
    radix_down: int  # ports of each upper switch
    radix_up: int  # ports of each lower one


def to_htsim(topology: Topology) -> str:
    """``topology`` as a ``.topo`` file.

    Raises TopologyError, which names the obstacle, for a fabric that is no such tree.
    """
    return _Tree(topology).text()


class _Tree:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        present = {switch.role for switch in topology.switches}
        self.tiers = [
            [switch for switch in topology.switches if switch.role is role]
            for role in TIERS
            if role in present
        ]
        if len(self.tiers) not in (2, 3):
            raise self._refused(f"it takes 2 or 3 tiers of switches, and here is {len(self.tiers)}")
        self._level = {node.name: 0 for node in topology.nodes}
        for level, switches in enumerate(self.tiers, start=1):
            self._level |= {switch.name: level for switch in switches}
        self._up: dict[str, Counter[str]] = {node.name: Counter() for node in topology.nodes}
        self.below = self._tiers_below(self._sorted_links())
        self.pods = self._pods()
        self.oversubscribed = self._oversubscription()
        if len(self.tiers) == 3:
            self._check_core()

    def _refused(self, why: str) -> TopologyError:
        return TopologyError(
            f"htsim's .topo format cannot express {self.topology.name}: {why}; "
            "other formats of this fabric are json, csv and dot"
        )

    def _sorted_links(self) -> list[list[Link]]:
        found: list[list[Link]] = [[] for _ in self.tiers]
        for link in self.topology.links:
            a, b = (self._level[end.node] for end in link.ends)
            if abs(a - b) != 1:
                raise self._refused(
                    f"link {link.a} - {link.b} does not join a tier to the next above"
                )
            lower, upper = (link.a, link.b) if a < b else (link.b, link.a)
            self._up[lower.node][upper.node] += 1
            found[max(a, b) - 1].append(link)
        return found

    def _tiers_below(self, links: Sequence[Sequence[Link]]) -> list[_Below]:
        lower_sides: list[Sequence[Node]] = [self.topology.gpus, *self.tiers]
        found = []
        for level, (own, lower, upper) in enumerate(
            zip(links, lower_sides, self.tiers, strict=False)
        ):
            where = f"links below tier {level}"
            bundles = {
                f"{low.name} - {high}": count
                for low in lower
                for high, count in self._up[low.name].items()
            }
            down: Counter[str] = Counter()
            for low in lower:
                down.update(self._up[low.name])
            rate_bps = self._one(f"the rates of {where}", {str(x.a): x.rate_bps for x in own})
            if rate_bps % GBPS:
                raise self._refused(f"the rate of {where} is no whole number of Gbps")
            latency = self._one(f"the delays of {where}", {str(x.a): x.delay_ns for x in own})
            if latency < 1:
                raise self._refused(f"the delay of {where} is 0, which it takes for missing")
            found.append(
                _Below(
                    rate_gbps=rate_bps // GBPS,
                    latency_ns=self._fitting(f"the delay of {where}", latency),
                    queue_bytes=self._one(
                        f"the buffers of {where}", {str(x.a): x.buffer_bytes for x in own}
                    ),
                    bundle=self._one(f"the parallel {where}", bundles),
                    radix_down=self._one(
                        f"the downlinks of tier {level}", {x.name: down[x.name] for x in upper}
                    ),
                    radix_up=self._one(
                        f"the uplinks of {'GPUs' if level == 0 else f'tier {level - 1}'}",
                        {x.name: self._up[x.name].total() for x in lower},
                    ),
                )
            )
        if found[0].radix_up != 1:
            raise self._refused(
                f"its GPUs have {found[0].radix_up} links each, and a node of htsim has one"
            )
        return found

    def _one(self, what: str, values: Mapping[str, int]) -> int:
        different = list(dict.fromkeys(values.values()))
        if len(different) > 1:
            first, second = (
                next(name for name, value in values.items() if value == requested)
                for requested in different[:2]
            )
            raise self._refused(
                f"{what} differ ({different[0]} at {first}, {different[1]} at {second})"
            )
        if not different:
            raise self._refused(f"{what}: there are none")
        return different[0]

    def _fitting(self, what: str, value: int) -> int:
        if value > LARGEST_NUMBER:
            raise self._refused(f"{what} is {value}, and it reads numbers up to {LARGEST_NUMBER}")
        return value

    def _pods(self) -> list[list[Node]]:
        """The lowest switches of each pod; every pod is checked to be a complete mesh."""
        pods = _together(
            self.tiers[0], {x.name: frozenset(self._up[x.name]) for x in self.tiers[0]}
        )
        shared = Counter(name for pod in pods for name in self._up[pod[0].name])
        if common := [name for name, count in shared.items() if count > 1]:
            raise self._refused(
                f"{common[0]} has links to switches of tier 0 that do not have the same switches "
                "of tier 1"
            )
        if len(self.tiers) == 2 and len(pods) > 1:
            raise self._refused("its tier 1 does not join all switches of tier 0")
        self._one("the sizes of pods", {pod[0].name: len(pod) for pod in pods})
        return pods

    def _oversubscription(self) -> list[int]:
        """Return the oversubscription of every tier but the highest."""
        found = []
        for level, (own, above) in enumerate(zip(self.below, self.below[1:], strict=False)):
            ratio = Fraction(own.radix_down * own.rate_gbps, above.radix_up * above.rate_gbps)
            if ratio.denominator != 1:
                raise self._refused(
                    f"tier {level} is oversubscribed {round(float(ratio), 3):g}:1, "
                    "and it takes whole numbers"
                )
            if level == 0 and own.radix_down // above.radix_up != ratio:
                raise self._refused(
                    f"tier 0 has {own.radix_down} links down and {above.radix_up} up of another "
                    f"rate, oversubscribed {ratio}:1, and it computes that from the numbers alone"
                )
            found.append(int(ratio))
        return found

    def _check_core(self) -> None:
        """Every pod has one aggregation switch for each set of core switches, and only one."""
        sets = {x.name: frozenset(self._up[x.name]) for x in self.tiers[1]}
        planes = _together(self.tiers[1], sets)
        names = [name for plane in planes for name in sets[plane[0].name]]
        if len(set(names)) != len(names):
            raise self._refused(
                "switches of tier 1 share some of their switches of tier 2, but not all"
            )
        for plane in planes:
            pods = {frozenset(self._pod_of(switch)) for switch in plane}
            if len(pods) != len(plane) or len(plane) != len(self.pods):
                raise self._refused(
                    f"{plane[0].name} and others of tier 1 that share its switches of tier 2 are "
                    "not one in each pod"
                )

    def _pod_of(self, upper: Node) -> Iterable[str]:
        return (x.name for x in self.tiers[0] if upper.name in self._up[x.name])

    def text(self) -> str:
        gpus, pods = len(self.topology.gpus), len(self.pods)
        lines = [
            f"# {self.topology.name}",
            *(f"# {line}" for line in self._advice()),
        ]
        number = 0
        for tor in (switch for pod in self.pods for switch in pod):
            names = [x.name for x in self.topology.gpus if tor.name in self._up[x.name]]
            shown = names if len(names) <= NAMED else [names[0], names[1], "...", names[-1]]
            lines.append(
                f"# Nodes {number}..{number + len(names) - 1} {tor.name}: {' '.join(shown)}"
            )
            number += len(names)
        lines += [f"Nodes {gpus}", f"Tiers {len(self.tiers)}", f"Podsize {gpus // pods}"]
        for level, below in enumerate(self.below):
            above = self.below[level + 1] if level + 1 < len(self.below) else None
            lines += [
                "",
                f"Tier {level}",
                f"Downlink_speed_Gbps {below.rate_gbps}",
                f"Radix_Down {below.radix_down}",
                *([f"Radix_Up {above.radix_up}"] if above else []),
                f"# Queue_Down {below.queue_bytes}",
                *([f"# Queue_Up {above.queue_bytes}"] if above else []),
                f"Bundle {below.bundle}",
                *([f"Oversubscribed {self.oversubscribed[level]}"] if above else []),
                "Switch_Latency_ns 0",
                f"Downlink_Latency_ns {below.latency_ns}",
            ]
        return "\n".join([*lines, ""])

    def _advice(self) -> Iterator[str]:
        """Yield what to give on the command line, since it is not read from the file."""
        nic_mbps = self.below[0].rate_gbps * 1000
        packet = packet_bytes(self.topology)
        bdp = plane_bdp_bytes(self.topology, mtu_frame_bytes(self.topology))
        queue = max((bdp + packet // 2) // packet, 1)
        low, high = (min(round(share * bdp / packet), queue) for share in ECN_BDP)
        yield f"Give htsim -linkspeed {nic_mbps} -mtu {packet} -q {queue} -ecn {low} {high}"
        yield f"-paths {PATHS}: it does not take from here the rate of NICs, the length of packets"
        yield "(a full one of UET over UDP and IPv4, as on the wire), the depth at which switches"
        yield f"trim (one BDP, {bdp} octets) and those between which they mark, and the number of"
        yield "paths.  Without -ecn it stops where its own thresholds are above that -q."
        ports = max(
            below.radix_down + (above.radix_up if above else 0)
            for below, above in zip(self.below, [*self.below[1:], None], strict=True)
        )
        if ports > PORTS_OF_ALL:
            yield f"Switches have up to {ports} ports; some versions stop at {PORTS_OF_ALL} or 96."


def packet_bytes(topology: Topology) -> int:
    """Octets on the wire of a full UET data packet, preamble and gap included."""
    mtu = min(link.mtu for link in topology.links)
    fitting = [size for size in PAYLOAD_BYTES if size + HEADER_BYTES <= mtu]
    return (fitting or PAYLOAD_BYTES[-1:])[0] + HEADER_BYTES + PACKET_OVERHEAD_OCTETS


def _together(nodes: Iterable[Node], keys: Mapping[str, Hashable]) -> list[list[Node]]:
    found: dict[Hashable, list[Node]] = {}
    for node in nodes:
        found.setdefault(keys[node.name], []).append(node)
    return list(found.values())


EXPORTS.register(Export("htsim", "topology of htsim", (".topo",), to_htsim))
