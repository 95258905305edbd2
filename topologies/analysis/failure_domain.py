"""Failure domains: the GPUs and the capacity lost with each kind of switch, NIC and link.

One of each kind is taken away, the first, and the fabric without it compared with the whole.  What
a GPU can send is bounded three times, the last two by a maximum flow:

- by its own ports.  One that reaches no GPU behind another NIC is **cut off**;
- by its share of what gets out of its bottom switch (or of two that its group of GPUs shares), to
  all other GPUs.  Where nothing does any more, the group is **apart**;
- by its share of what gets out of its pod.

A GPU's loss is how much lower the lowest bound is.  That is at full load, when all GPUs of the
group send out at once; a fabric with less to carry feels less.  GPUs that are cut off are no loss
to the others.  Scale-up networks are not counted, and routes are taken to have found every way
that is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from topologies.analysis.capacity import HEIGHT, Residual, saturate
from topologies.model import Link, Role, Topology

Group = frozenset[str]
_Bounds = dict[str, int | Fraction]  # bit/s by GPU


@dataclass(frozen=True, kw_only=True)
class FailureDomain:
    """The loss when one element of ``kind`` fails, such as ``example``.

    ``cut_off`` GPUs reach nothing any more, ``apart`` none outside of their switches or pod.
    ``slower`` are the others, counted by the share of their bandwidth that they lose, above 0.
    """

    kind: str
    example: str
    cut_off: int
    apart: int
    slower: Mapping[Fraction, int]

    def reported(self) -> str:
        """``32 cut off; 224 lose 25 %``, or ``nothing``."""
        parts = [f"{self.cut_off} cut off"] if self.cut_off else []
        if self.apart:
            parts.append(f"{self.apart} apart from the rest")
        for share, count in sorted(self.slower.items(), reverse=True):
            parts.append(f"{count} lose{'s' if count == 1 else ''} {100 * float(share):.3g} %")
        return "; ".join(parts) or "nothing"

    def as_data(self) -> dict[str, object]:
        """Return the failure domain as JSON types."""
        return {
            "kind": self.kind,
            "example": self.example,
            "cut_off_gpus": self.cut_off,
            "apart_gpus": self.apart,
            "slower": [
                {"gpus": count, "lost_share": round(float(share), 6)}
                for share, count in sorted(self.slower.items(), reverse=True)
            ],
        }


def failure_domains(topology: Topology) -> list[FailureDomain]:
    """Return the failure domain of every kind of element, from the servers upwards."""
    fabric = _Fabric(topology)
    levels = _levels(topology)
    connected = fabric.connected()
    whole = connected, *fabric.bounds(levels, connected)
    found = []
    for kind, link in _first_links(topology).items():
        found.append(_domain(whole, _Fabric(topology, link=link), levels, kind, _shown(link)))
    for kind, name in _first_nodes(topology).items():
        found.append(_domain(whole, _Fabric(topology, node=name), levels, kind, name))
    return found


def _domain(
    whole: tuple[Group, _Bounds, Group],
    left: _Fabric,
    levels: Sequence[Sequence[Group]],
    kind: str,
    example: str,
) -> FailureDomain:
    reached = left.connected()
    connected, before, apart_before = whole
    after, apart = left.bounds(levels, reached)
    apart -= apart_before
    losses = Counter(
        1 - Fraction(after[gpu], before[gpu]) for gpu in reached - apart if after[gpu] < before[gpu]
    )
    return FailureDomain(
        kind=kind,
        example=example,
        cut_off=len(connected - reached),
        apart=len(apart),
        slower=dict(losses),
    )


class _Fabric:
    """A fabric, or what is left of one without ``node`` or ``link``, its parallel links as one."""

    def __init__(
        self, topology: Topology, *, node: str | None = None, link: Link | None = None
    ) -> None:
        self.roles = {each.name: each.role for each in topology.nodes}
        self.inner: dict[object, dict[object, int]] = {
            each.name: {} for each in topology.nodes if each.forwards
        }
        self.ports: dict[str, Counter[str]] = {gpu.name: Counter() for gpu in topology.gpus}
        for each in topology.links:
            if each is link or each.standby or node in (each.a.node, each.b.node):
                continue
            for near, far in ((each.a.node, each.b.node), (each.b.node, each.a.node)):
                if near in self.inner and far in self.inner:
                    row = self.inner[near]
                    row[far] = row.get(far, 0) + each.rate_bps
                elif near in self.ports and far in self.inner:
                    self.ports[near][far] += each.rate_bps
        self.colours = self._refined()

    def connected(self) -> Group:
        """Return the GPUs that reach one behind another NIC, by forwarding nodes."""
        # networkx 3.6 (connected_components) takes 1.2 to 4.7 times as long on eight designs.
        behind: dict[object, set[str]] = {name: set() for name in self.inner}
        for gpu, ports in self.ports.items():
            for name in ports:
                behind[name].add(gpu)
        found: set[str] = set()
        seen: set[object] = set()
        for start in self.inner:
            if start in seen:
                continue
            front, part = [start], {start}
            while front:
                for far in self.inner[front.pop()]:
                    if far not in part:
                        part.add(far)
                        front.append(far)
            seen |= part
            gpus = set().union(*(behind[name] for name in part))
            if len({self._nic(gpu) for gpu in gpus}) > 1:
                found |= gpus
        return frozenset(found)

    def _nic(self, gpu: str) -> str:
        """Return what stands for the NIC of a GPU: the shared one, or the GPU itself."""
        shared = (name for name in self.ports[gpu] if self.roles[name] is Role.NIC)
        return next(shared, gpu)

    def bounds(self, levels: Sequence[Sequence[Group]], among: Group) -> tuple[_Bounds, Group]:
        """Return what each GPU of ``among`` can send (bit/s) to the others, and which are apart."""
        bound: _Bounds = {gpu: sum(self.ports[gpu].values()) for gpu in among}
        apart: set[str] = set()
        for groups in levels:
            narrowed = dict(bound)
            total = sum(bound.values())
            known: dict[object, int] = {}  # groups that look alike get out alike
            for group in groups:
                inside = group & among
                if not inside or len(inside) == len(among):
                    continue
                alike = self._look(inside)
                if alike not in known:
                    known[alike] = self._flow(inside, among - group)
                flow, offered = known[alike], sum(bound[gpu] for gpu in inside)
                if not flow:
                    apart |= inside
                elif flow < (most := min(offered, total - offered)):
                    lowered = Fraction(flow, most)
                    for gpu in inside:
                        narrowed[gpu] = bound[gpu] * lowered
            bound = narrowed
        return bound, frozenset(apart)

    def _flow(self, inside: Group, outside: Group) -> int:
        residual: Residual = {name: dict(row) for name, row in self.inner.items()}
        source, sink = object(), object()
        residual[source], residual[sink] = {}, {}
        for end, gpus in ((source, inside), (sink, outside)):
            for gpu in gpus:
                for name, rate in self.ports[gpu].items():
                    for x, y in ((end, name), (name, end)):
                        residual[x][y] = residual[x].get(y, 0) + rate
        return saturate(residual, source, sink)

    def _refined(self) -> dict[object, int]:
        """Return a number for each forwarding node, equal for those alike in all counts of cables.

        This is the coarsest stable partition.
        """
        # networkx 3.6 (Weisfeiler-Lehman hashes) takes 2.5 to 13 times as long on eight designs.
        attached: dict[object, Counter[int]] = {name: Counter() for name in self.inner}
        for ports in self.ports.values():
            for name, rate in ports.items():
                attached[name][rate] += 1
        looks: dict[object, object] = {
            name: (self.roles[str(name)], tuple(sorted(attached[name].items())))
            for name in self.inner
        }
        colours = _numbered(looks)
        while True:
            looks = {
                name: (
                    colours[name],
                    tuple(sorted((colours[far], rate) for far, rate in row.items())),
                )
                for name, row in self.inner.items()
            }
            finer = _numbered(looks)
            if max(finer.values(), default=0) == max(colours.values(), default=0):
                return colours
            colours = finer

    def _look(self, group: Group) -> object:
        seen: Counter[object] = Counter()
        for gpu in group:
            ports = self.ports[gpu].items()
            seen[tuple(sorted((self.colours[name], rate) for name, rate in ports))] += 1
        return frozenset(seen.items())


def _numbered(looks: Mapping[object, object]) -> dict[object, int]:
    numbers: dict[object, int] = {}
    return {name: numbers.setdefault(look, len(numbers)) for name, look in looks.items()}


def _levels(topology: Topology) -> list[list[Group]]:
    """The GPUs with the same bottom switches, then those of the same pod."""
    by_switches: dict[Group, set[str]] = {}
    by_pod: dict[int | None, set[str]] = {}
    for gpu in topology.gpus:
        by_switches.setdefault(frozenset(_bottom(topology, gpu.name)), set()).add(gpu.name)
        by_pod.setdefault(gpu.pod, set()).add(gpu.name)
    return [[frozenset(group) for group in level.values()] for level in (by_switches, by_pod)]


def _bottom(topology: Topology, name: str) -> Iterator[str]:
    """The switches behind the ports of a GPU, beyond its NIC if that is shared."""
    for _, _, far in topology.neighbours(name):
        node = topology.node(far.node)
        if node.is_switch:
            yield node.name
        elif node.forwards:
            yield from (e.node for _, _, e in topology.neighbours(node.name) if e.node != name)


def _first_links(topology: Topology) -> dict[str, Link]:
    """Return the first link between each two roles, lowest first.

    Those that join two pods are apart, as only the groups of a dragonfly are joined.
    """
    found: dict[tuple[tuple[Role, ...], bool], Link] = {}
    for link in topology.links:
        ends = [topology.node(end.node) for end in link.ends]
        pods = {node.pod for node in ends} - {None}
        found.setdefault((_by_height(node.role for node in ends), len(pods) > 1), link)
    ordered = sorted(found, key=lambda kind: ([HEIGHT[role] for role in kind[0]], kind[1]))
    return {
        f"link {' - '.join(roles)}{', between groups' if joins else ''}": found[roles, joins]
        for roles, joins in ordered
    }


def _first_nodes(topology: Topology) -> dict[str, str]:
    """The first node of each role through which others' frames pass, lowest first."""
    found: dict[Role, str] = {}
    for node in topology.nodes:
        if node.forwards:
            found.setdefault(node.role, node.name)
    names = {Role.NIC: "shared NIC", Role.ROUTER: "router"}
    return {names.get(role, f"{role} switch"): found[role] for role in _by_height(found)}


def _by_height(roles: Iterable[Role]) -> tuple[Role, ...]:
    return tuple(sorted(roles, key=HEIGHT.__getitem__))


def _shown(link: Link) -> str:
    return f"{link.a} - {link.b}"
