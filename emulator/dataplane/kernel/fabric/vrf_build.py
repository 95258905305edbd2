"""VRFs of tenants in a switch, as devices of the kernel or as network namespaces beside its own.

::

    device       down0 -[tenant0-net0]- vxlan20000          two bridges in the VRF device tenant0,
                        [tenant0-l3]--- vxlan30000          whose table has the routes

    namespace    down0 -[tenant0-net0]- trunk20000          in the switch's namespace: no address
                                            |
                        [tenant0-net0]------+--- vxlan20000 in that of the VRF, which has the
                        [tenant0-l3]------------ vxlan30000 routes; its tunnels go the switch's ways

The ports of a switch are in its own namespace in both forms, so that captures, counters and faults
find them there.  In the second form a subnet therefore has two bridges, the outer one of which has
no address and passes frames on.  A link inside a border leaf joins the tenant to the switch's own
routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import BinaryIO

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.fabric_plan import FabricPlan
from emulator.dataplane.kernel.fabric.tunnels import mtu_inside
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.sysctls import (
    FORWARDING,
    HASH_SEED,
    QUIET,
    kernel_seed,
    write_sysctl,
)
from topologies.interface_indices import (
    handoff_ends,
    routing_bridge,
    trunk_ends,
    trunk_port,
    tunnel_port,
    vrf_space,
)
from topologies.model import VXLAN_OVERHEAD, Bridge, CableEnd, Handoff, Node, Vrf

#: The second octet of MACs of ends that nobody addresses: of the outer bridge, of its link's ends.
_OUTER, _NEAR, _FAR, _OUT, _IN = 0x22, 0x23, 0x24, 0x25, 0x26


class VrfSpace:
    """The namespace of a VRF, with a netlink socket in it."""

    def __init__(self, lab: str, switch: Node, vrf: Vrf) -> None:
        self.path: Path = namespaces.path_of(lab, vrf_space(switch.name, vrf.name))

        def make() -> None:
            namespaces.make(self.path)
            for name, value in (*QUIET, *FORWARDING, (HASH_SEED, str(kernel_seed(switch)))):
                write_sysctl(name, value)
            self.kernel = RouteSocket()

        namespaces.visitor().run(make)
        self._file: BinaryIO = self.path.open("rb")

    @property
    def handle(self) -> int:
        """Return a file descriptor of the namespace."""
        return self._file.fileno()

    def close(self) -> None:
        self.kernel.close()
        self._file.close()


class SwitchVrfs:
    """The VRFs of ``switch``, to be configured by its netlink socket ``kernel``."""

    def __init__(self, plan: FabricPlan, switch: Node, kernel: RouteSocket, handle: int) -> None:
        self._plan, self._switch = plan, switch
        self._kernel, self._handle = kernel, handle
        made = switch.vrfs if plan.of_namespaces else ()
        self.spaces = {vrf.name: VrfSpace(plan.lab, switch, vrf) for vrf in made}

    def close(self) -> None:
        for space in self.spaces.values():
            space.close()

    def flush(self) -> None:
        """Have the kernel do what is queued."""
        for space in self.spaces.values():
            space.kernel.flush()

    def kernel_at(self, bridge: Bridge | None) -> RouteSocket:
        """Return the socket where the gateway of ``bridge`` is."""
        space = self.spaces.get(bridge.vrf or "") if bridge is not None else None
        return space.kernel if space is not None else self._kernel

    def names(self) -> Iterator[str]:
        """Yield the interfaces that a VRF has beside the bridges of subnets."""
        for vrf in self._switch.vrfs:
            yield from (vrf.name, routing_bridge(vrf.name), tunnel_port(vrf.vni))

    # ------------------------------------------------------------------ what stands before ports

    def make(self) -> None:
        """Queue the VRFs with their L3 VNIs."""
        for vrf in self._switch.vrfs:
            space = self.spaces.get(vrf.name)
            if space is None:
                index = self._index(vrf, vrf.name)
                table, subject = self.table(vrf), f"{self._switch.name}, VRF {vrf.name}"
                kernel_object.vrf(self._kernel, vrf.name, index, table=table, subject=subject)
                self._raise(self._kernel, vrf, vrf.name)
            else:
                loopback = kernel_object.LOOPBACK_INDEX
                kernel_object.raise_link(space.kernel, loopback, subject=str(space.path))
            self._routing_bridge(vrf)

    def _routing_bridge(self, vrf: Vrf) -> None:
        """The bridge of the L3 VNI: its address on the wire is the router MAC."""
        kernel, name = self._kernel_of(vrf), routing_bridge(vrf.name)
        subject = f"{self._switch.name}:{name}"
        index = self._index(vrf, name)
        kernel_object.bridge(kernel, name, index, vrf.mac, subject=subject)
        self._raise(kernel, vrf, name, master=self._master(vrf))
        mtu = min(
            link.mtu
            for link, ours, _ in self._plan.topology.neighbours(self._switch.name)
            if self._switch.port(ours.port).address is not None
        )
        self._tunnel(vrf, vrf.vni, mtu - VXLAN_OVERHEAD, self._index(vrf, tunnel_port(vrf.vni)))
        self._raise(kernel, vrf, tunnel_port(vrf.vni), master=index)
        kernel_object.learn_nothing(kernel, self._index(vrf, tunnel_port(vrf.vni)), subject=subject)

    def _tunnel(self, vrf: Vrf, vni: int, mtu: int, index: int) -> None:
        """A tunnel port whose packets go the ways of the switch, wherever it is itself."""
        space = self.spaces.get(vrf.name)
        kernel_object.vxlan(
            self._kernel,
            tunnel_port(vni),
            index,
            vni=vni,
            local=self._plan.topology.loopbacks[self._switch.name],
            mtu=mtu,
            subject=f"{self._switch.name}:{tunnel_port(vni)}",
            namespace=None if space is None else space.handle,
        )
        self._kernel.flush()  # the other namespace's socket has the next word

    def subnet(self, bridge: Bridge, vni: int) -> None:
        """Queue what is to be behind ``bridge`` of ``vni``, which stands in the switch's namespace.

        Only the bridge of a subnet in a namespace of its own has it.
        """
        vrf = self._vrf(bridge)
        space = self.spaces[vrf.name]
        outer, inner = self._trunk(bridge, vni)
        index = self._plan.indices[CableEnd(self._switch.name, bridge.name)]
        name, subject = trunk_port(vni), f"{self._switch.name}:{bridge.name}"
        mtu = mtu_inside(self._plan, self._switch, bridge)
        kernel_object.bridge(space.kernel, bridge.name, index, bridge.mac, subject=subject)
        kernel_object.raise_link(space.kernel, index, subject=subject)
        kernel_object.veth(
            self._kernel,
            (name, outer, _mac(bridge.mac, _NEAR, vrf)),
            (name, inner, _mac(bridge.mac, _FAR, vrf)),
            far_namespace=space.handle,
            mtu=mtu,
            subject=f"{subject}, {name}",
        )
        tunnel = self._plan.indices[CableEnd(self._switch.name, tunnel_port(vni))]
        self._tunnel(vrf, vni, mtu, tunnel)
        kernel_object.raise_link(self._kernel, outer, bridge=index, subject=f"{subject}, {name}")
        for port in (inner, tunnel):
            kernel_object.raise_link(space.kernel, port, bridge=index, subject=subject)
        kernel_object.learn_nothing(space.kernel, tunnel, subject=subject)

    def is_apart(self, bridge: Bridge) -> bool:
        """Return whether the gateway of ``bridge`` is in a namespace of its own."""
        return bridge.vrf in self.spaces

    def outer_mac(self, bridge: Bridge) -> str:
        """Return the MAC of the outer bridge of a subnet, which nobody addresses."""
        return _mac(bridge.mac, _OUTER, self._vrf(bridge))

    def device_of(self, bridge: Bridge) -> int:
        """Return the index of the device whose member ``bridge`` is, 0 for none."""
        return self._master(self._vrf(bridge)) if bridge.vrf is not None else 0

    # ------------------------------------------------------------------ what takes ports

    def members(self, bridge: Bridge, vni: int, macs: Iterator[str]) -> None:
        """Queue where the gateway and ``macs`` are, at both ends of the link between bridges."""
        outer, inner = self._trunk(bridge, vni)
        subject = f"{self._switch.name}:{bridge.name}"
        kernel_object.forwarding_entry(self._kernel, outer, bridge.mac, subject=subject)
        kernel = self.kernel_at(bridge)
        for mac in macs:
            kernel_object.forwarding_entry(kernel, inner, mac, subject=f"{subject}, {mac}")

    def hand_off(self) -> None:
        """Queue the links between tenants and the switch's own routes, and the routes over them."""
        for vrf in self._switch.vrfs:
            if vrf.handoff is not None:
                self._hand_off(vrf, vrf.handoff)

    def _hand_off(self, vrf: Vrf, handoff: Handoff) -> None:
        space, (out, into) = self.spaces.get(vrf.name), handoff_ends(vrf.name)
        far, subject = self._kernel_of(vrf), f"{self._switch.name}, link to {vrf.name}"
        kernel_object.veth(
            self._kernel,
            (out, self._index(vrf, out), _mac(vrf.mac, _OUT, vrf)),
            (into, self._index(vrf, into), _mac(vrf.mac, _IN, vrf)),
            far_namespace=self._handle if space is None else space.handle,
            mtu=min(link.mtu for link in self._plan.topology.links) - VXLAN_OVERHEAD,
            subject=subject,
        )
        self._kernel.flush()
        self._raise(self._kernel, vrf, out)
        self._raise(far, vrf, into, master=self._master(vrf))
        for kernel, name, address in (
            (self._kernel, out, handoff.outside),
            (far, into, handoff.inside),
        ):
            kernel_object.address(kernel, self._index(vrf, name), address, subject=subject)
        for network in handoff.networks:
            self._route(self._kernel, vrf, network, (out, handoff.inside.ip))
        table = kernel_object.RT_TABLE_MAIN if space is not None else self.table(vrf)
        for network in handoff.shared:
            self._route(far, vrf, network, (into, handoff.outside.ip), table)

    def _route(
        self,
        kernel: RouteSocket,
        vrf: Vrf,
        network: IPv4Network,
        hop: tuple[str, IPv4Address],
        table: int = kernel_object.RT_TABLE_MAIN,
    ) -> None:
        port, via = hop
        hops = [(self._index(vrf, port), via, False)]
        subject = f"{self._switch.name}, {vrf.name}, route to {network}"
        kernel_object.route(kernel, network, hops, table=table, subject=subject)

    # ------------------------------------------------------------------ names and numbers

    def table(self, vrf: Vrf) -> int:
        """Return the kernel's number of the table of ``vrf``, where that is a device."""
        return kernel_object.VRF_TABLES + self._switch.vrfs.index(vrf)

    def _trunk(self, bridge: Bridge, vni: int) -> tuple[int, int]:
        outer, inner = trunk_ends(self._switch, bridge, self._vrf(bridge), vni)
        return self._plan.indices[outer], self._plan.indices[inner]

    def _vrf(self, bridge: Bridge) -> Vrf:
        return next(vrf for vrf in self._switch.vrfs if vrf.name == bridge.vrf)

    def _kernel_of(self, vrf: Vrf) -> RouteSocket:
        space = self.spaces.get(vrf.name)
        return self._kernel if space is None else space.kernel

    def _master(self, vrf: Vrf) -> int:
        return 0 if vrf.name in self.spaces else self._index(vrf, vrf.name)

    def _index(self, vrf: Vrf, name: str) -> int:
        return self._plan.indices[CableEnd(vrf_space(self._switch.name, vrf.name), name)]

    def _raise(self, kernel: RouteSocket, vrf: Vrf, name: str, *, master: int = 0) -> None:
        end = CableEnd(vrf_space(self._switch.name, vrf.name), name)
        kernel_object.raise_link(
            kernel,
            self._plan.indices[end],
            alias=self._plan.alias(end),
            bridge=master,
            subject=str(end),
        )


def _mac(mac: str, kind: int, vrf: Vrf) -> str:
    """Return a MAC of ``kind`` that differs with the subnet, or the switch, that ``mac`` is of."""
    return f"{mac[:3]}{kind:02x}{mac[5:9]}{vrf.mac[9:11]}{mac[11:]}"
