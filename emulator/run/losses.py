"""Expected losses and delays, which the fidelity verdict compares with: cables and drops."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from emulator.kernel.port_counters import PortCounters
from topologies.model import Topology
from topologies.routing.fabric_paths import spans_from

#: Counters of frames that the sockets of agents lost or refused.
NIC_LOSSES = ("socket_drops", "send_refused", "oversized")


def nic_losses(endpoints: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the frames that the sockets of agents lost or refused in a whole run, by node."""
    return {
        f"{node} {name}": counters.get(f"nic.{name}", 0)
        for node, counters in endpoints.items()
        for name in NIC_LOSSES
    }


def cable_rtt_ns(topology: Topology) -> int:
    """There and back over cables on the shortest path between GPUs that the fabric joins."""
    delays: list[int] = []
    gpus = topology.gpus
    for gpu in gpus:
        reached = spans_from(topology, gpu.name)
        delays += [
            reached[peer.name].delay_ns
            for peer in gpus
            if peer.name in reached and peer.server != gpu.server
        ]
    if not delays:  # one server: its scale-up network is all there is
        return 2 * topology.servers[0].scale_up.latency_ns
    return 2 * min(delays)


def port_losses(
    ports: Mapping[str, PortCounters], *, modelled: Collection[str] = ()
) -> dict[str, int]:
    """Drops that interfaces count and no modelled queue, by port.

    At the ``modelled`` ports an ASIC has decided already, and the kernel's queues below are to
    drop nothing more.
    """
    losses = {
        f"{name} {what}": getattr(port, what)
        for name, port in ports.items()
        for what in ("rx_dropped", "tx_dropped")
    }
    return losses | {
        f"{name} queue": ports[name].data.drops + ports[name].control.drops for name in modelled
    }
