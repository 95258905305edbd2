"""The attachment of GPUs: one port or several, alone or behind a shared NIC.

::

    g0 --eth0-- rail0        two ports: what each carries adds up
       --eth1-- rail4

    g0 --pcie0-- NIC --port0-- rail0     a shared NIC: no faster than its own cable
    g1 --pcie1--/
"""

from __future__ import annotations

from topologies.model import CableEnd, Link, Topology


def way_out(topology: Topology, port: CableEnd) -> tuple[Link, ...]:
    """The cables from the GPU port ``port`` to the first switch, through a shared NIC or not."""
    cables = [topology.link_at(port)]
    far = topology.far_end(port)
    while topology.node(far.node).transparent:
        outside = next(
            (
                (link, theirs)
                for link, _, theirs in topology.neighbours(far.node)
                if link is not cables[-1] and topology.node(theirs.node).forwards
            ),
            None,
        )
        if outside is None:  # a NIC without a cable
            break
        cables.append(outside[0])
        far = outside[1]
    return tuple(cables)


def switch_ends(topology: Topology, gpu: str) -> tuple[CableEnd, ...]:
    """The switch ports that ``gpu`` hangs on, in the order of its own ports."""
    found = []
    for port in topology.node(gpu).ports:
        cable = way_out(topology, CableEnd(gpu, port.name))[-1]
        found += [end for end in cable.ends if topology.node(end.node).is_switch]
    return tuple(found)


def port_rate_bps(topology: Topology, port: CableEnd) -> int:
    """Return what a GPU that has its NIC for itself sends through ``port``, in bit/s."""
    return min(cable.rate_bps for cable in way_out(topology, port))


def nic_rate_bps(topology: Topology, gpu: str) -> int:
    """Return the rate (bit/s) of all ports of ``gpu`` together."""
    return sum(port_rate_bps(topology, CableEnd(gpu, p.name)) for p in topology.node(gpu).ports)
