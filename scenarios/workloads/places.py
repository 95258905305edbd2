"""Places in a fabric: the port of a GPU, and the cables that flows share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.run.measures.metrics import max_min, payload_rate
from emulator.transports.wire_cost import WireCost
from topologies.model import VXLAN_OVERHEAD, CableEnd, Topology
from topologies.parts.attachment import nic_rate_bps, switch_ends
from topologies.stretch import stretch_of


def switch_port(topology: Topology, rank: int) -> str:
    """The switch port (``node:port``) that the GPU of ``rank`` hangs on, by its first port."""
    return switch_ports(topology, rank)[0]


def switch_ports(topology: Topology, rank: int) -> list[str]:
    """The switch ports (``node:port``) that the GPU of ``rank`` hangs on, one for each of its."""
    return list(map(str, switch_ends(topology, topology.gpus[rank].name)))


def switch_of(topology: Topology, rank: int) -> str:
    """The rail switch of ``rank``."""
    return switch_port(topology, rank).partition(":")[0]


def uplinks(topology: Topology, switch: str) -> list[CableEnd]:
    """The ports of ``switch`` that lead to other switches."""
    return [
        ours
        for _, ours, theirs in topology.neighbours(switch)
        if topology.node(theirs.node).is_switch
    ]


def scale_up_domains(topology: Topology) -> list[str]:
    """The scale-up domain of each rank: a server, unless several share their network.

    Traffic between two GPUs of one domain is not the fabric's.
    """
    return list(topology.scale_up_domains.values())


def one_of_each_server(topology: Topology) -> dict[str, list[int]]:
    """The first rank of each server (or larger scale-up domain) on each rail switch."""
    domains = scale_up_domains(topology)
    found: dict[str, dict[str, int]] = {}
    for rank, domain in enumerate(domains):
        found.setdefault(switch_of(topology, rank), {}).setdefault(domain, rank)
    return {switch: list(ranks.values()) for switch, ranks in found.items()}


def require_joined(topology: Topology, switch: str) -> None:
    """Raise UserError if ``switch`` has no link to another one."""
    if not uplinks(topology, switch):
        raise UserError(f"the rail switches of {topology.name} are not joined; take spines")


def captured_ports(topology: Topology, *ranks: int) -> str:
    """All switch ports that ``ranks`` hang on, as ``--capture`` takes them."""
    names = (gpu.name for gpu in map(topology.gpus.__getitem__, ranks))
    return ",".join(str(end) for name in names for end in switch_ends(topology, name))


def captured_uplinks(topology: Topology, rank: int) -> str:
    """The uplinks of all switches that ``rank`` hangs on, likewise; empty if they have none."""
    switches = dict.fromkeys(end.node for end in switch_ends(topology, topology.gpus[rank].name))
    return ",".join(str(end) for switch in switches for end in uplinks(topology, switch))


def nic_payload_gbps(topology: Topology, rank: int, wire: WireCost) -> float:
    """Payload that the NIC of ``rank`` can receive at best."""
    rate = nic_rate_bps(topology, topology.gpus[rank].name)
    return payload_rate(rate, wire.payload_mtu, wire.around_bytes)


@dataclass(frozen=True)
class Shares:
    """Max-min fair rates (GB/s on the wire of NICs) of flows, by pair of ranks."""

    rates: Mapping[tuple[int, int], float]

    def payload_gbps(self, pair: tuple[int, int], wire: WireCost) -> float:
        """The fair rate of ``pair`` without headers."""
        return self.rates[pair] * wire.payload_mtu / (wire.payload_mtu + wire.around_bytes)


def fair_shares(
    topology: Topology, pairs: Sequence[tuple[int, int]], wire: WireCost | None = None
) -> Shares:
    """Return what is fair if load balancing were perfect.

    Flows share the NICs of their ends, and so does whoever shares these. Where they change the rail
    switch they share all uplinks of the one switch upwards and all of the other downwards. With
    several ports, they share those of all switches that the NIC hangs on.  With ``wire``, what
    tunnels put around its packets takes its part of the uplinks.
    """
    capacities: dict[str, float] = {}
    used = []
    for source, destination in pairs:
        path: dict[str, float] = {}
        for rank, way in ((source, "out"), (destination, "in")):
            gpu = topology.gpus[rank].name
            ends = switch_ends(topology, gpu)
            capacities[f"{gpu} {way}"] = nic_rate_bps(topology, gpu) / 8e9
            access = f"{' '.join(map(str, ends))} {way}"
            capacities[access] = sum(topology.link_at(end).rate_bps for end in ends) / 8e9
            path |= {f"{gpu} {way}": 1.0, access: 1.0}
        up, down = (
            sorted({end.node for end in switch_ends(topology, topology.gpus[rank].name)})
            for rank in (source, destination)
        )
        if up != down:
            tunnels = _in_tunnels(topology, source, destination)
            for switches, way, tunnelled in zip((up, down), ("up", "down"), tunnels, strict=True):
                border = f"{' '.join(switches)} {way}"
                ends = tuple(end for switch in switches for end in uplinks(topology, switch))
                capacities[border] = sum(topology.link_at(end).rate_bps for end in ends) / 8e9
                path[border] = 1 + tunnelled * VXLAN_OVERHEAD / wire.full_octets if wire else 1.0
        used.append(path)
    return Shares(dict(zip(pairs, max_min(used, capacities), strict=True)))


def _in_tunnels(topology: Topology, source: int, destination: int) -> tuple[float, float]:
    """Return the shares (0..1) of packets in a tunnel at their first and at their last switch.

    The packets go from one rank to another: where they leave their first switch, and where they
    come to their last one.
    """
    stretch = stretch_of(topology)
    if stretch is None:
        return 0.0, 0.0
    gpus = topology.gpus
    passages = stretch.passages(gpus[source].name, gpus[destination].name)
    if not passages:
        return 0.0, 0.0
    begun = sum(one.enters == one.joins != one.leaves for one in passages)
    ending = sum(one.joins != one.leaves for one in passages)
    return begun / len(passages), ending / len(passages)
