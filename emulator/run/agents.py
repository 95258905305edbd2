"""One agent for every GPU of a topology: who it is, whom it reaches, what it speaks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from emulator.endpoint.clock import Clock
from emulator.endpoint.delay_line import PathDelay
from emulator.endpoint.nvlink import ScaleUpLink
from emulator.endpoint.spec import AgentSpec
from emulator.transports import TransportChoice
from topologies.addressing import gpu_address, octet_times, path_delays
from topologies.model import End, Topology


def agent_specs(
    topology: Topology,
    transport: TransportChoice,
    *,
    namespace: Callable[[str], str],
    nic_delays: bool,
    seed: int,
    memory_octets: int,
    event_logs: Mapping[str, Path] | None = None,
    clock: Clock | None = None,
    pausing: bool = False,
) -> list[AgentSpec]:
    """A spec for each GPU in rank order.

    ``namespace`` gives the path of a node's network namespace.  With ``nic_delays`` the NICs stand
    for the cables' delay (else the links do).  Every GPU gets ``memory_octets``; those in
    ``event_logs`` write what their endpoint does into a file, which says when ``clock`` began.
    ``pausing``: switches may pause the data of a NIC.
    """
    logs = event_logs or {}
    gpus = topology.gpus
    addresses = {rank: str(gpu_address(gpu).ip) for rank, gpu in enumerate(gpus)}
    rng = random.Random(f"agents {seed}")
    specs = []
    for rank, gpu in enumerate(gpus):
        server = topology.server_of(gpu.name)
        port = next(port for port in gpu.ports if port.address is not None)
        link = topology.link_at(End(gpu.name, port.name))
        frame_octets = transport.wire.payload_mtu + transport.wire.around_bytes
        specs.append(
            AgentSpec(
                rank=rank,
                node=gpu.name,
                netns=namespace(gpu.name),
                interface=port.name,
                address=addresses[rank],
                peers={peer: address for peer, address in addresses.items() if peer != rank},
                transport=transport.factory,
                transport_config=_config(transport, gpu.name, logs.get(gpu.name), clock),
                frames=transport.frames,
                seed=rng.getrandbits(63),
                server_peers={
                    peer: other.name
                    for peer, other in enumerate(gpus)
                    if peer != rank and other.server == gpu.server
                },
                scale_up=ScaleUpLink(
                    rate_bps=server.scale_up.rate_bps, latency_ns=server.scale_up.latency_ns
                ),
                path_delays=_path_delays(topology, gpu.name, propagation=nic_delays),
                frame_octets=frame_octets,
                mtu=link.mtu,
                memory_octets=memory_octets,
                send_by_class=pausing,
                # A NIC holds frames back rather than overrun the queue of its own port.
                send_queue_frames=min(
                    AgentSpec.send_queue_frames, max(1, link.buffer_bytes // frame_octets)
                ),
            )
        )
    return specs


def _config(
    transport: TransportChoice, gpu: str, event_log: Path | None, clock: Clock | None
) -> Mapping[str, object]:
    config = transport.configs[gpu]
    if event_log is None:
        return config
    log = {"event_log": str(event_log.absolute()), "name": gpu}
    return {**config, **log, "reference": None if clock is None else clock.began}


def _path_delays(topology: Topology, gpu: str, *, propagation: bool) -> dict[str, PathDelay]:
    """What the NIC of ``gpu`` adds to frames, by source."""
    delays = path_delays(topology, gpu)
    return {
        peer: PathDelay(delays[peer] if propagation else 0, per_octet)
        for peer, per_octet in octet_times(topology, gpu).items()
    }
