"""Consistency of the networks of one cluster, each of which is valid on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network

from topologies.elements import BACKEND, END_ROLES, NETWORKS, TopologyError
from topologies.wiring import Wiring


def validate_networks(backend: Wiring, networks: Sequence[Wiring]) -> None:
    """Raise TopologyError unless ``networks`` can be those of the servers of ``backend``.

    They have names of their own, and their subnets do not overlap.  Only machines are nodes of
    several networks, by ports of other names.
    """
    if backend.network not in NETWORKS:
        raise TopologyError(
            f"there is no network {backend.network!r}; it is one of {', '.join(NETWORKS)}"
        )
    if networks and backend.network != BACKEND:
        raise TopologyError(
            f"network {backend.network} has networks of its own: only the {BACKEND} has others"
        )
    named: dict[str, Wiring] = {}
    for network in (backend, *networks):
        if named.setdefault(network.network, network) is not network:
            raise TopologyError(f"two networks of the cluster are named {network.network}")
    _validate_nodes((backend, *networks))
    _validate_subnets((backend, *networks))


def _validate_nodes(networks: Sequence[Wiring]) -> None:
    owners: dict[str, tuple[Wiring, set[str]]] = {}
    for network in networks:
        for node in network.nodes:
            ports = {port.name for port in node.ports}
            if node.name not in owners:
                owners[node.name] = network, ports
                continue
            first, taken = owners[node.name]
            both = f"{node.name} is in the networks {first.network} and {network.network}"
            alike = {first.node(node.name).role, node.role}
            if not alike <= END_ROLES or len(alike) > 1:
                raise TopologyError(f"{both}: only machines are in several, rename one of the two")
            if taken & ports:
                raise TopologyError(
                    f"{both} by ports of one name, {min(taken & ports)}: rename one of them"
                )
            taken |= ports


def _validate_subnets(networks: Sequence[Wiring]) -> None:
    claimed: dict[IPv4Network, str] = {}
    for network in networks if len(networks) > 1 else ():
        own = dict.fromkeys(_subnets(network))
        for subnet in own:
            for other, owner in claimed.items():
                if subnet.overlaps(other):
                    raise TopologyError(
                        f"the subnet {subnet} of network {network.network} overlaps {other} of "
                        f"network {owner}: give one of them another"
                    )
        claimed |= dict.fromkeys(own, network.network)


def _subnets(network: Wiring) -> Iterator[IPv4Network]:
    """Yield the subnets of bridges and of end nodes' cables."""
    for node in network.nodes:
        for bridge in node.bridges:
            if bridge.gateway is not None:
                yield bridge.gateway.network
