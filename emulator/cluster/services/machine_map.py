"""The machines of a cluster and the addresses that they have in its networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network
from types import MappingProxyType

from topologies.cluster import tenant_of_bridge
from topologies.model import FRONTEND, CableEnd, Topology, TopologyError


@dataclass(frozen=True)
class MachineMap:
    """The machines of the cluster ``topology``, in the order of its networks."""

    topology: Topology

    @cached_property
    def addresses(self) -> Mapping[str, Mapping[str, str]]:
        """Machine -> network -> its IPv4 address there."""
        found: dict[str, dict[str, str]] = {}
        for network in self.topology.networks:
            for node in network.gpus:
                address = node.loopback or next(
                    (port.address.ip for port in node.ports if port.address is not None), None
                )
                if address is not None:
                    found.setdefault(node.name, {})[network.network] = str(address)
        return MappingProxyType(found)

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the machines with GPUs."""
        names = {server.name for server in self.topology.servers}
        return tuple(name for name in self.addresses if name in names)

    @property
    def users(self) -> tuple[str, ...]:
        """Return the machines outside the border router."""
        return tuple(
            name
            for name, networks in self.addresses.items()
            if set(networks) == {FRONTEND} and name.startswith("user")
        )

    @property
    def storage(self) -> tuple[str, ...]:
        return self.named("storage")

    def nodes(self) -> tuple[str, ...]:
        """Return all nodes of the networks of machines: the machines, and the switches."""
        names = (node.name for network in self.topology.networks for node in network.nodes)
        return tuple(dict.fromkeys(names))

    def named(self, prefix: str) -> tuple[str, ...]:
        return tuple(name for name in self.addresses if name.rstrip("0123456789") == prefix)

    def within(self, network: str) -> tuple[str, ...]:
        return tuple(name for name, networks in self.addresses.items() if network in networks)

    def tenant(self, server: str) -> str | None:
        """Return the tenant that ``server`` belongs to on the frontend, None if it has none."""
        frontend = next((one for one in self.topology.networks if one.network == FRONTEND), None)
        if frontend is None or server not in {node.name for node in frontend.gpus}:
            return None
        for _, _, leaf in frontend.neighbours(server):
            ports = frontend.node(leaf.node).ports
            bridge = next((port.bridge for port in ports if port.name == leaf.port), None)
            if bridge is not None and (tenant := tenant_of_bridge(bridge)) is not None:
                return tenant
        return None

    def subnet(self, machine: str, network: str) -> IPv4Network:
        end = CableEnd(machine, self.port(machine, network))
        return self.topology.network_named(network).addresses[end].network

    def port(self, machine: str, network: str) -> str:
        self.address(machine, network)
        return self.topology.network_named(network).node(machine).ports[0].name

    def address(self, machine: str, network: str) -> str:
        """Return the address of ``machine`` in ``network``; TopologyError if it has none."""
        networks = self.addresses.get(machine)
        if networks is None:
            raise TopologyError(
                f"there is no machine {machine!r}; there are {', '.join(self.addresses) or 'none'}"
            )
        if network not in networks:
            raise TopologyError(
                f"{machine} is not in the network {network}; it is in {', '.join(networks)}"
            )
        return networks[network]
