"""Elements that a fault can hit: a cable, a switch, a NIC, a GPU, or a server.

::

    link rail0:up1      the cable that is plugged in there, both ways; either end may be named
    switch spine0       every cable of the switch
    nic h0g0            every cable of the GPU's NIC;  nic h0g0:eth0  one of them;  a NIC that
                        several GPUs share goes by its own name
    gpu h0g0            the GPU and its process; its NIC's cables keep their carrier
    server h0           all GPUs of the server, and every cable of their NICs
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from emulator.errors import UserError
from topologies.advice import meant
from topologies.model import CableEnd, Link, Node, Topology

KINDS = ("link", "switch", "nic", "gpu", "server")
#: Kinds that die, and never come up again.
MORTAL = ("gpu", "server")


@dataclass(frozen=True)
class Element:
    """An element of the fabric, with the cables ``links`` that it stands for.

    ``gpus`` are the names of the GPUs whose processes end with it.  ``name`` is one spelling of
    several: two elements are the same if they are of a kind and have the same cables and GPUs.
    """

    kind: str
    name: str = field(compare=False)
    links: tuple[Link, ...]
    gpus: tuple[str, ...] = ()

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
            "link NODE:PORT, switch NAME, nic GPU[:PORT], gpu NAME or server NAME"
        )
    if kind == "server":
        return _server(name, topology)
    node_name, colon, port = name.partition(":")
    node = _node(kind, node_name, topology)
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
    }[kind]
    what = {"link": "node", "switch": "switch", "nic": "GPU or NIC", "gpu": "GPU"}[kind]
    names = [node.name for node in nodes]
    if name not in names:
        raise UserError(
            f"{kind} {name}: topology {topology.name} has no {what} {name!r}"
            f"{meant(name, names)}; it has {some(names)}"
        )
    return topology.node(name)


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
