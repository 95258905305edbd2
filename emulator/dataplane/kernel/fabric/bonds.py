"""GPUs whose two ports are one interface, and the pair of rail switches they are plugged into.

::

    rail0 (10.0.1.1, MAC M) --- peer0 --- rail4 (10.0.1.1, MAC M)     one gateway, twice
        down0 \\                           / down0
               eth0 --- bond0 --- eth1                               10.0.1.2, one MAC

A frame to a GPU leaves a switch by the GPU's own port there.  If that has no carrier the bridge
takes the port's **backup**, the standby link, and the other switch delivers.  Nothing else passes a
standby link: it is flooded nothing and learns nothing, so that nothing circles and nothing comes
twice. But a broadcast misses a GPU whose port at the sender's switch is down.  Nobody broadcasts
here, since neighbours and forwarding entries are the topology's.

As Ethernet segments (homing=esi, RFC 7432) the two switches have no link, and each port an access
bond of its own, ``es0``: one port in the bridge.  They learn by BGP EVPN that a port of the other
has no carrier, and then reach its GPU over a tunnel (:mod:`topologies.wiring`).

The endpoint of a run sends and receives by the bond, whose queues are those of its ports.  What
waits there is still on the account of its socket, so that it holds back as it would on one port.
"""

from __future__ import annotations

from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel.fabric.fabric_plan import FabricPlan
from emulator.dataplane.kernel.netlink import RouteSocket
from topologies.model import CableEnd, Node, Topology
from topologies.stretch import segments_of

#: How often a bond looks whether its ports have carrier (ms of the machine's time).
LOOK_MS = 10


def any_in(topology: Topology) -> bool:
    """Return whether GPUs of ``topology`` have bonds."""
    return any(port.bond for gpu in topology.gpus for port in gpu.ports)


def check(topology: Topology) -> None:
    """Raise UserError if ``topology`` has bonds and the kernel cannot have them."""
    if any_in(topology):
        homing = "esi" if segments_of(topology) else "bond"
        needed = ("bonding", "vlan", "fdb-nexthop") if segments_of(topology) else ("bonding",)
        capabilities.require(
            *needed,
            purpose=f"make two ports of a GPU one (homing={homing}; homing=paths uses both)",
        )


def configure(kernel: RouteSocket, plan: FabricPlan, node: Node, *, bridge: int = 0) -> None:
    """Queue the bonds of ``node``, whose ports follow.

    Access bonds are ports of the ``bridge`` of that index, in the VLANs of their ports.
    """
    for bond, members in node.bonds.items():
        end = CableEnd(node.name, bond)
        index = plan.indices[end]
        kernel_object.bond(
            kernel,
            bond,
            index,
            members[0].mac,
            mtu=min(plan.topology.link_at(CableEnd(node.name, port.name)).mtu for port in members),
            look_ms=LOOK_MS,
            subject=str(end),
        )
        kernel_object.raise_link(
            kernel, index, alias=plan.alias(end), bridge=bridge, subject=str(end)
        )
        joined = node.bridge_of(members[0])
        if joined is not None and joined.vlan is not None:
            vlan = joined.vlan
            kernel_object.vlan_member(kernel, index, vlan, subject=f"{end}, VLAN {vlan}")


def stand_by(kernel: RouteSocket, node: Node, topology: Topology, indices: dict[str, int]) -> None:
    """Queue what makes standby links of ``node`` the backup of the ports beside them.

    ``indices`` are those of its ports, which are members of their bridges.
    """
    standby = {
        port.bridge: port
        for port in node.ports
        if CableEnd(node.name, port.name) in topology.standby_ends
    }
    for peer in standby.values():
        kernel_object.keep_quiet(
            kernel, indices[peer.name], subject=f"{node.name}:{peer.name}, standby"
        )
    for port in node.ports:
        backup = standby.get(port.bridge) if port.bridge else None
        if backup is not None and backup is not port:
            kernel_object.backup_port(
                kernel,
                indices[port.name],
                indices[backup.name],
                subject=f"{node.name}:{port.name}, its backup {backup.name}",
            )
