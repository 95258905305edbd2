"""A topology as a Mininet ``Topo``: a graph whose nodes and links carry the full model.

Stock Mininet runs it as one layer-2 network of Linux bridges, in which the spanning tree blocks all
but one path. So it shows cabling and names, but neither routing nor ECMP::

    mn --custom topologies/mininet_topo.py --topo rail_clos,hosts=2,uplinks_per_spine=1 \\
       --switch lxbr,stp=1 --controller none --wait --test pingall

(``lxbr`` needs ``brctl`` of the package bridge-utils.)  The fabric builder of uetemu uses the same
class with its own node and link classes. They read the parameter ``model``.
"""

from __future__ import annotations

import functools
import pathlib
import sys

if __name__ == "builtins":  # `mn --custom` executes this text without making it a module
    _HERE = (lambda: None).__code__.co_filename
    sys.path.insert(0, str(pathlib.Path(_HERE).resolve().parents[1]))

from mininet.topo import Topo

from topologies import catalogue, model


class FabricTopo(Topo):
    """Hosts are GPUs, switches are switches.

    Node parameters: ``model`` (:class:`topologies.model.Node`) and, for stock Mininet, ``ip`` and
    ``mac`` of a GPU (its own address, but with the prefix /8: one flat subnet) and ``dpid`` of a
    switch.  Link parameters: ``model`` (:class:`topologies.model.Link`; ``node1`` is the node of
    its end ``a``), and ``port1``, ``port2``: the port's position in ``Node.ports``, counted from 0
    on a GPU and from 1 on a switch, as Mininet does.
    """

    def build(self, topology: model.Topology) -> None:
        self.topology = topology
        number: dict[model.CableEnd, int] = {}
        for position, node in enumerate(topology.nodes):
            first = 1 if node.forwards else 0
            for index, port in enumerate(node.ports, start=first):
                number[model.CableEnd(node.name, port.name)] = index
            if node.forwards:
                self.addSwitch(node.name, model=node, dpid=f"{position + 1:016x}")
            else:
                port = node.ports[0]
                address = {"ip": f"{port.address.ip}/8"} if port.address else {}
                self.addHost(node.name, model=node, mac=port.mac, **address)
        for link in topology.links:
            self.addLink(
                link.a.node,
                link.b.node,
                port1=number[link.a],
                port2=number[link.b],
                model=link,
            )


def design_topo(design: str, *bare: object, **parameters: object) -> FabricTopo:
    """The Topo of one catalogue design, with parameters as ``mn --topo NAME,param=value`` has them.

    Mininet turns numerals into numbers first, so they are turned back before they are read.  A bad
    value ends ``mn`` by SystemExit: on any other exception it would first run its machine-wide
    clean-up, which kills processes and deletes interfaces of other networks by name pattern.
    """
    values = {name: str(value) for name, value in parameters.items()}
    if bare:
        raise SystemExit(f"mn: {bare[0]!r} has no name; write --topo {design},param=value")
    try:
        return FabricTopo(catalogue.build(design, values))
    except model.TopologyError as error:
        raise SystemExit(f"mn: {error}") from None


topos = {name: functools.partial(design_topo, name) for name in catalogue.DESIGNS}
