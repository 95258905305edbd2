"""The endpoint of every GPU of a topology: who it is, whom it reaches, what it speaks."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from emulator.sim.endpoint.endpoint_spec import EndpointSpec, PortSpec
from emulator.sim.endpoint.nic.delay_line import PathDelay
from emulator.sim.endpoint.nic.host_staging import HostStaging
from emulator.sim.endpoint.nic.nic_profile import NicTimes
from emulator.sim.endpoint.operations.nvlink import ScaleUpLink
from emulator.sim.endpoint.peer_addresses import PeerAddresses, RankAddresses
from emulator.transports import TransportChoice
from topologies.addressing import gateway_mac, gpu_address
from topologies.analysis.round_trip import base_rtt_ns
from topologies.model import SWITCH, CableEnd, Node, Port, Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.scale_up import ScaleUpDomains
from topologies.routing.paths import octet_times, path_delays, spans_from, tunnel_times

#: What the receive rings of all endpoints together may take of the machine's memory (octets).
RINGS_OCTETS = 256 << 20


def receive_slots(topology: Topology, frame_octets: int) -> int:
    """Return how many frames the ring of each endpoint holds: what its peers may have under way.

    All others may send a GPU their first windows, 1.5 bandwidth-delay products each (UES 3.6.13).
    Every packet takes a slot, trimmed or not, and what was trimmed comes again while its header
    lies there.  Beyond the default all rings share :data:`RINGS_OCTETS`.
    """
    gpus = topology.gpus
    round_trip = base_rtt_ns(topology, frame_octets)
    window = max(nic_rate_bps(topology, gpu.name) for gpu in gpus) * round_trip // (8 * 10**9)
    requested = 2 * (len(gpus) - 1) * -(-3 * window // (2 * frame_octets))
    share = RINGS_OCTETS // (len(gpus) * frame_octets)
    return max(EndpointSpec.receive_slots, min(requested, share))


def endpoint_specs(  # noqa: PLR0913  each is a field of what it makes
    topology: Topology,
    transport: TransportChoice,
    *,
    namespace: Callable[[str], str] | None = None,
    nic_delays: bool,
    paced: bool = True,
    seed: int,
    memory_octets: int,
    event_logs: Mapping[str, Path] | None = None,
    began: str | None = None,
    pausing: bool = False,
    nic: NicTimes | None = None,
    staging: HostStaging | None = None,
) -> list[EndpointSpec]:
    """A spec for each GPU in rank order, with keys of their own unless ``transport`` has some.

    ``namespace`` gives the path of a node's network namespace.  With ``nic_delays`` the NICs stand
    for the cables' delay (else the links do); unless ``paced``, somebody else keeps the time of
    paths (the virtual clock).  Every GPU gets ``memory_octets``; those in ``event_logs`` write what
    their endpoint does into a file, which states when time ``began``. ``pausing``: switches may
    pause the data of a NIC.  ``nic``: the time that NICs take; ``staging``: whose data go through
    host memory.
    """
    transport = transport.keyed(secrets.token_bytes())
    if nic is not None:
        nic = replace(nic, qps_each=transport.queue_pairs)
    logs = event_logs or {}
    gpus = topology.gpus
    addresses = RankAddresses([str(gpu_address(gpu).ip) for gpu in gpus])
    domains = ScaleUpDomains(topology)
    rank_of = {gpu.name: rank for rank, gpu in enumerate(gpus)}
    rng = random.Random(f"agents {seed}")  # an older word, which decides the draws of all runs
    slots = receive_slots(topology, transport.wire.payload_mtu + transport.wire.around_bytes)
    specs = []
    for rank, gpu in enumerate(gpus):
        scale_up = domains.network(gpu.name)
        joined = domains.peers(gpu.name)
        cables = [port for port in gpu.ports if port.address is not None]
        links = [topology.link_at(CableEnd(gpu.name, port.name)) for port in cables]
        ports: dict[str, Port] = {}
        for port in cables:
            ports.setdefault(port.interface, port)  # of a bond, its first
        queue_frames = EndpointSpec.send_queue_frames * len(cables) // len(ports)
        reached = spans_from(topology, gpu.name)
        frame_octets = transport.wire.payload_mtu + transport.wire.around_bytes
        specs.append(
            EndpointSpec(
                rank=rank,
                node=gpu.name,
                netns=None if namespace is None else namespace(gpu.name),
                ports=tuple(
                    _port(
                        topology,
                        gpu,
                        port,
                        _path_delays(topology, gpu, port, propagation=nic_delays) if paced else {},
                    )
                    for port in ports.values()
                ),
                address=addresses.addresses[rank],
                peers=_peers(topology, addresses, rank, reached),
                transport=transport.factory,
                transport_config=_config(transport, gpu.name, logs.get(gpu.name), began),
                frames=transport.frames,
                seed=rng.getrandbits(63),
                scale_up_peers=dict(sorted((rank_of[peer], peer) for peer in joined)),
                scale_up=ScaleUpLink(
                    rate_bps=max(joined.values(), default=scale_up.rate_bps),
                    latency_ns=scale_up.latency_ns,
                    shared=scale_up.shape == SWITCH,
                ),
                frame_octets=frame_octets,
                mtu=min(link.mtu for link in links),
                memory_octets=memory_octets,
                send_by_class=pausing,
                receive_slots=slots,
                header_bits=transport.header_bits,
                fep_per_port=bool(gpu.feps),
                nic=nic if staging is None else staging.times(nic, gpu.server),
                # A NIC holds frames back rather than overrun the queue of its own port, even if
                # all that a bond is given leaves by one of its ports.
                send_queue_frames=min(
                    queue_frames,
                    max(1, min(link.buffer_bytes for link in links) // frame_octets),
                ),
            )
        )
    return specs


def _peers(
    topology: Topology, addresses: RankAddresses, rank: int, reached: Collection[str]
) -> Mapping[int, str]:
    """Return the addresses of the peers of ``rank``, to which paths lead: nodes in ``reached``."""
    if len(reached) == len(topology.nodes):
        return PeerAddresses(addresses, rank)
    return {
        peer: addresses.addresses[peer]
        for peer, other in enumerate(topology.gpus)
        if peer != rank and other.name in reached
    }


def _config(
    transport: TransportChoice, gpu: str, event_log: Path | None, began: str | None
) -> Mapping[str, object]:
    config = transport.configs[gpu]
    if event_log is None:
        return config
    log = {"event_log": str(event_log.absolute()), "name": gpu}
    return {**config, **log, "reference": began}


def _port(
    topology: Topology, gpu: Node, port: Port, path_delays: Mapping[str, PathDelay]
) -> PortSpec:
    return PortSpec(
        interface=port.interface,
        mac=port.mac,
        gateway_mac=gateway_mac(topology, gpu, port.name) if len(gpu.ports) > 1 else port.mac,
        path_delays=path_delays,
    )


def _path_delays(
    topology: Topology, gpu: Node, port: Port, *, propagation: bool
) -> dict[str, PathDelay]:
    """Return what ``port`` of ``gpu`` adds to frames, by their source.

    Where several ports are to choose from, paths are alike in both directions. So a path that ends
    at a port is one that begins there.  The ports of a bond are alike, and ``port`` is its first.
    """
    delays = path_delays(topology, gpu.name, port.name)
    tunnels = tunnel_times(topology, gpu.name)
    return {
        peer: PathDelay(
            (delays[peer] if propagation else 0) + round(tunnels.get(peer, 0)), per_octet
        )
        for peer, per_octet in octet_times(topology, gpu.name, port.name).items()
    }
