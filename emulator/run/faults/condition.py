"""The condition of a fabric: cables without carrier or with silent faults, and dead GPUs.

A cable is dead while anything holds it down: itself, a switch at one of its ends, a NIC.  So a
switch that comes up again does not revive a cable that was pulled for itself.

::

    link rail0:up1      the cable that is plugged in there, both ways; either end may be named
    switch spine0       every cable of the switch
    nic h0g0            every cable of the GPU's NIC;  nic h0g0:eth0  one of them;  a NIC that
                        several GPUs share goes by its own name
    gpu h0g0            the GPU and its process; its NIC's cables keep their carrier
    server h0           all GPUs of the server, and every cable of their NICs
    scale-up h0g0       all links of the GPU to its scale-up network, both ways;  without a switch
                        scale-up h0g0:h0g1  the one between two GPUs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.errors import UserError
from topologies.advice import meant
from topologies.model import SWITCH, CableEnd, Link, Node, ScaleUp, Topology, TopologyError
from topologies.parts.scale_up import ScaleUpDomains

KINDS = ("link", "switch", "nic", "gpu", "server", "scale-up")
#: Kinds that die, and never come up again.
MORTAL = ("gpu", "server")


@dataclass(frozen=True)
class Element:
    """An element of the fabric, with the cables ``links`` that it stands for.

    ``gpus`` are the names of the GPUs whose processes end with it; of scale-up the one whose links
    to ``scale_up`` it is, or the two whose link.  ``name`` is one spelling of several: two elements
    are the same if they are of a kind and have the same cables and GPUs.
    """

    kind: str
    name: str = field(compare=False)
    links: tuple[Link, ...]
    gpus: tuple[str, ...] = ()
    scale_up: ScaleUp | None = None

    @property
    def mortal(self) -> bool:
        """Return whether the element dies, where others go down."""
        return self.kind in MORTAL

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def element(kind: str, name: str, topology: Topology) -> Element:
    """The element that a user calls ``kind name``.

    Raises :class:`UserError`, which names what there is, if ``topology`` has none.
    """
    if kind not in KINDS:
        raise UserError(
            f"{kind!r} is nothing that a fault strikes{meant(kind, KINDS)}; write "
            "link NODE:PORT, switch NAME, nic GPU[:PORT], gpu NAME, server NAME or scale-up GPU"
        )
    if kind == "server":
        return _server(name, topology)
    node_name, colon, port = name.partition(":")
    node = _node(kind, node_name, topology)
    if kind == "scale-up":
        return _scale_up(name, node, port if colon else None, topology)
    if kind in ("switch", "gpu") and colon:
        whole = "for all of its cables" if kind == "switch" else "for the GPU"
        raise UserError(
            f"{kind} {name} names a port; write {kind} {node_name} {whole}, or "
            f"link {name} for this one"
        )
    if kind == "gpu":
        return Element(kind, name, (), (node.name,))
    if kind == "switch":
        return Element(kind, name, _cables(node, topology))
    if kind == "nic" and not colon:
        return Element(kind, name, _cables(node, topology))
    if not colon:
        raise UserError(
            f"link {name} names no port; write link NODE:PORT, such as "
            f"link {node.name}:{node.ports[0].name}"
        )
    ports = [one.name for one in node.ports]
    if port not in ports:
        raise UserError(
            f"{kind} {name}: {node_name} has no port {port!r}{meant(port, ports)}; "
            f"it has {some(ports)}"
        )
    return Element(kind, name, (topology.link_at(CableEnd(node.name, port)),))


def _node(kind: str, name: str, topology: Topology) -> Node:
    nodes = {
        "link": topology.nodes,
        "switch": topology.switches,
        "nic": [one for one in topology.nodes if not one.is_switch],
        "gpu": topology.gpus,
        "scale-up": topology.gpus,
    }[kind]
    what = {"link": "node", "switch": "switch", "nic": "GPU or NIC"}.get(kind, "GPU")
    names = [node.name for node in nodes]
    if name not in names:
        raise UserError(
            f"{kind} {name}: topology {topology.name} has no {what} {name!r}"
            f"{meant(name, names)}; it has {some(names)}"
        )
    return topology.node(name)


def _scale_up(name: str, gpu: Node, peer: str | None, topology: Topology) -> Element:
    domains = ScaleUpDomains(topology)
    network, peers = domains.network(gpu.name), domains.peers(gpu.name)
    if not peers:
        raise UserError(
            f"scale-up {name}: no other GPU is in the scale-up network of {gpu.name}, so that it "
            "carries nothing; take a topology with gpus_per_host= above 1"
        )
    if peer is None:
        return Element("scale-up", name, (), (gpu.name,), network)
    if network.shape == SWITCH:
        raise UserError(
            f"scale-up {name}: all links of {gpu.name} lead to a switch; write scale-up "
            f"{gpu.name}, with links= for some of them"
        )
    if peer not in peers:
        raise UserError(
            f"scale-up {name}: {gpu.name} has no link to {peer!r}{meant(peer, list(peers))}; it "
            f"has links to {some(peers)}"
        )
    link = replace(network, rate_bps=peers[peer])
    return Element("scale-up", name, (), tuple(sorted((gpu.name, peer))), link)


def _server(name: str, topology: Topology) -> Element:
    names = [server.name for server in topology.servers]
    if name not in names:
        raise UserError(
            f"server {name}: topology {topology.name} has no server {name!r}{meant(name, names)}; "
            f"it has {some(names)}"
        )
    inside = {node.name for node in topology.nodes if not node.is_switch and node.server == name}
    links = tuple(
        link for link in topology.links if not inside.isdisjoint(end.node for end in link.ends)
    )
    return Element(
        "server", name, links, tuple(gpu.name for gpu in topology.gpus if gpu.server == name)
    )


def _cables(node: Node, topology: Topology) -> tuple[Link, ...]:
    return tuple(link for link, _, _ in topology.neighbours(node.name))


def some(names: Iterable[str], most: int = 8) -> str:
    """The first of ``names``, so that a sentence stays one."""
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")


@dataclass(frozen=True)
class Condition:
    """The elements that are ``down``, in the order of their failures, and the silent ``faults``.

    Faults are those of cables, both ways, but for a black hole that is ``one_way``.  ``scale_up``
    has the share that is left of the rate of a GPU's scale-up links, or of the link between two
    GPUs, where that is not all and not down.
    """

    down: tuple[Element, ...] = ()
    faults: Mapping[Link, Faults] = field(default_factory=dict)
    scale_up: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        return not self.down and not self.faults and not self.scale_up

    @property
    def dead(self) -> frozenset[Link]:
        """The cables without carrier."""
        return frozenset(link for one in self.down for link in one.links)

    @property
    def dead_gpus(self) -> frozenset[str]:
        """Return the GPUs whose processes have ended, whatever their cables have."""
        return frozenset(name for one in self.down if one.mortal for name in one.gpus)

    @property
    def separates(self) -> bool:
        """Return whether anything may be cut off: a cable is impassable, or a GPU dead."""
        return bool(self.impassable or self.dead_gpus)

    @property
    def impassable(self) -> frozenset[Link]:
        """The cables that no transport comes over: dead, or a black hole, if only one way."""
        black = {link for link, faults in self.faults.items() if faults.black_hole}
        return self.dead | black

    @property
    def left_of_scale_up(self) -> Mapping[tuple[str, ...], float]:
        """Return what is left of the rate of a GPU's links, or the link of two, if not all."""
        down = [one.gpus for one in self.down if one.scale_up is not None]
        return {**self.scale_up, **dict.fromkeys(down, 0.0)}

    def of(self, link: Link) -> Faults:
        """Return the faults of ``link`` at the switch ports at its ends.

        A dead cable swallows all.
        """
        faults = self.faults.get(link, NONE)
        return replace(faults, unplugged=True) if link in self.dead else faults

    def __hash__(self) -> int:
        return hash((self.down, frozenset(self.faults.items()), frozenset(self.scale_up.items())))

    def lowered(self, one: Element) -> Condition:
        return replace(self, down=(*self.down, one))

    def raised(self, one: Element) -> Condition:
        return replace(self, down=tuple(other for other in self.down if other != one))

    def faulted(self, links: tuple[Link, ...], **changes: Any) -> Condition:
        """Return this condition with ``changes`` to the silent faults of ``links``."""
        faults = dict(self.faults)
        for link in links:
            after = replace(faults.pop(link, NONE), **changes)
            if after != NONE:
                faults[link] = after
        return replace(self, faults=faults)

    def healed(self, links: tuple[Link, ...]) -> Condition:
        """Return the condition without silent faults of ``links``."""
        left = {link: faults for link, faults in self.faults.items() if link not in links}
        return replace(self, faults=left)

    def words(self) -> list[str]:
        """One clause for each thing that is not as it should be."""
        lines = [f"{one} {'dead' if one.mortal else 'down'}" for one in self.down]
        for link, faults in self.faults.items():
            reported = " ".join(described(faults, link))
            lines.append(f"link {link.a} {reported}")
        for gpus, share in self.scale_up.items():
            lines.append(f"scale-up {':'.join(gpus)} has {share:.3g} of its rate")
        return lines

    def as_data(self) -> dict[str, object]:
        """Return the condition as JSON has it; :func:`from_data` reads it."""
        return {
            "down": [[one.kind, one.name] for one in self.down],
            "faults": {str(link.a): asdict(faults) for link, faults in self.faults.items()},
        }


SOUND = Condition()


def from_data(data: Mapping[str, Any], topology: Topology) -> Condition:
    """Return what :meth:`Condition.as_data` wrote.  Raises :class:`UserError` if it is not that."""
    try:
        return Condition(
            tuple(element(kind, name, topology) for kind, name in data["down"]),
            {
                element("link", name, topology).links[0]: Faults(**fields)
                for name, fields in data["faults"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError, TopologyError) as wrong:
        raise UserError(f"the record of the faults cannot be read ({wrong})") from None


def described(faults: Faults, link: Link) -> list[str]:
    """``faults`` of ``link`` in the words of the grammar."""
    way = f"={faults.one_way}" if faults.one_way else ""
    reported = [f"blackhole{way}"] if faults.black_hole else []
    if faults.rate != 1:
        reported.append(f"rate={faults.rate * link.rate_bps / 1e9:g}Gbps")
    if faults.scaled:
        reported.append("thresholds=scaled")
    if faults.loss:
        reported.append(f"loss={100 * faults.loss:g}%")
    if faults.bit_errors:
        reported.append(f"ber={faults.bit_errors:g}")
    if faults.corruption:
        reported.append(f"corrupt={100 * faults.corruption:g}%")
    return reported
