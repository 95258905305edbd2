"""Cables and their ports: Mininet's Link and Intf, made by netlink instead of by ``ip link``.

A cable is a veth pair whose ends are born in their namespaces with their final names, addresses
and indices.  Indices are unique in the lab, so that one eBPF map can be keyed by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from mininet.link import Intf
from mininet.link import Link as MininetLink

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel.fabric.fabric_plan import alias_of
from emulator.dataplane.kernel.fabric.inner.inner_ends import InnerEnds
from emulator.dataplane.kernel.fabric.tunnel_fields import identification_requests
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.offloads import switch_off
from emulator.dataplane.kernel.release import release_requests
from emulator.dataplane.kernel.shaping import Egress, egress_requests
from emulator.dataplane.switch.fabric_asic import FabricAsic
from topologies.model import CableEnd, Link, Node, Port


class PortOwner(Protocol):
    """A node as its ports need it: its ``lab``, its ``model``, and the way into its namespace."""

    name: str
    lab: str
    model: Node
    kernel: RouteSocket

    @property
    def handle(self) -> int:
        """The open namespace of the node."""
        ...


class VethPort(Intf):
    """One end of a cable.  ``model`` is the port, ``cable`` the link as the topology has them."""

    node: PortOwner
    model: Port
    cable: Link
    index: int

    def config(self, **parameters: Any) -> dict[str, object]:
        """Take the topology's parameters; the kernel gets them in the node's turn."""
        self.model = parameters["model"]
        self.cable = parameters["cable"]
        self.index = parameters["index"]
        if self.model.address is not None:
            self.ip = str(self.model.address.ip)
            self.prefixLen = self.model.address.network.prefixlen
        return {}

    @property
    def end(self) -> CableEnd:
        return CableEnd(self.node.name, self.model.name)

    def configure(
        self,
        egress: Egress | None,
        *,
        bridge: int,
        vlan: int | None = None,
        bond: int = 0,
        asic: FabricAsic | None = None,
    ) -> None:
        """Queue what makes the port work: shaping, ASIC, then up, address, bridge membership.

        ``bridge`` is the index of the bridge that it is a member of, in ``vlan`` if that has VLANs.
        ``bond`` is that of its bond, which takes only ports that are down.  Without ``egress`` the
        port has no queues: it finishes each frame at once. A queueing discipline is exchanged ten
        times faster while its interface is down.
        """
        kernel, subject = self.node.kernel, str(self.end)
        if egress is None:
            self._finish_frames()
        for request in egress_requests(egress) if egress is not None else ():
            kernel.queue(
                request.kind, request.flags, request.body(self.index), f"{subject}, egress queues"
            )
        bridged = self.model.bridge is not None and self.node.model.is_switch
        for request in release_requests() if bridged and egress is not None else ():
            kernel.queue(
                request.kind, request.flags, request.body(self.index), f"{subject}, release"
            )
        if asic is not None:
            asic.attach(kernel, self.end)
        if bond:
            kernel_object.bond_port(kernel, self.index, bond, subject=f"{subject}, in its bond")
        alias = alias_of(self.node.lab, self.end)
        kernel_object.raise_link(kernel, self.index, alias=alias, bridge=bridge, subject=subject)
        if vlan is not None:
            kernel_object.vlan_member(kernel, self.index, vlan, subject=f"{subject}, VLAN {vlan}")
        if self.model.address is not None and self.model.bond is None:
            kernel_object.address(kernel, self.index, self.model.address, subject=subject)

    def _finish_frames(self) -> None:
        """Queue what makes frames of a port without queues repeat, and be whole when they leave."""
        kernel, node = self.node.kernel, self.node.model
        switch_off(kernel, self.model.name)
        if self.model.bridge is None and any(bridge.vni is not None for bridge in node.bridges):
            for request in identification_requests():
                body = request.body(self.index)
                kernel.queue(request.kind, request.flags, body, f"{self.end}, identification")


class VethLink(MininetLink):
    """A cable between two namespaces.

    Parameters besides Mininet's: ``model`` (:class:`topologies.model.Link`), ``indices``, the
    interface index of each end, and ``inner_ends``, where the cable is in two parts.
    """

    def __init__(
        self,
        node1: PortOwner,
        node2: PortOwner,
        *,
        model: Link,
        indices: Mapping[CableEnd, int],
        inner_ends: InnerEnds | None = None,
        **parameters: Any,
    ) -> None:
        a, b = model.ends if node1.name == model.a.node else model.ends[::-1]
        self.model = model
        self.indices = indices
        self.inner_ends = inner_ends
        near, far = node1.model.port(a.port), node2.model.port(b.port)
        parameters.update(intfName1=near.name, intfName2=far.name, addr1=near.mac, addr2=far.mac)
        super().__init__(
            node1,
            node2,
            params1={"model": near, "cable": model, "index": indices[a]},
            params2={"model": far, "cable": model, "index": indices[b]},
            **parameters,
        )

    def makeIntfPair(
        self,
        intfname1: str,
        intfname2: str,
        addr1: str,
        addr2: str,
        node1: PortOwner,
        node2: PortOwner,
        deleteIntfs: bool = True,
    ) -> None:
        """Queue the veth pair on the first node, or one on each where they meet in the middle."""
        near, far = CableEnd(node1.name, intfname1), CableEnd(node2.name, intfname2)
        if self.inner_ends is not None:
            for node, end, mac in ((node1, near, addr1), (node2, far, addr2)):
                if self.inner_ends.wires.here(end.node):
                    self.inner_ends.lay(node.kernel, end, mac=mac, mtu=self.model.mtu)
            return
        kernel_object.veth(
            node1.kernel,
            (intfname1, self.indices[near], addr1),
            (intfname2, self.indices[far], addr2),
            far_namespace=node2.handle,
            mtu=self.model.mtu,
            subject=f"cable {near} - {far}",
        )

    def ends(self) -> Iterator[VethPort]:
        yield self.intf1
        yield self.intf2
