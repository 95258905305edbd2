"""The transports that a run can use, and what each needs to know about a fabric.

The factories named here are called in the agents (see :class:`~emulator.endpoint.spec.AgentSpec`);
everything else happens in the runner, before any process exists.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emulator.endpoint.frame_filter import TransportFrames
from emulator.errors import UserError
from emulator.run.ideal import WireCost
from topologies.addressing import gpu_address, next_hops
from topologies.model import End, Topology
from uet.config import PAYLOAD_MTUS, FepConfig
from uet.fep import FabricEndpoint
from uet.wire import headers

#: What a link spends on a frame beside the frame: preamble 8, FCS 4, gap 12 (IEEE 802.3).
_FRAMING = 24
_PREFERRED_PAYLOAD = 4096  # UES 3.4.1.11: every implementation has it


@dataclass(frozen=True)
class TransportChoice:
    """A transport fitted to a fabric.

    ``factory`` (``module:function``) makes an endpoint from ``configs[gpu]`` and a seed.
    ``data_packets`` and ``retransmitted`` name its counters of first transmissions and repeats.
    """

    name: str
    factory: str
    frames: TransportFrames
    configs: Mapping[str, Mapping[str, object]]
    wire: WireCost
    data_packets: str
    retransmitted: str


def fit(name: str, topology: Topology) -> TransportChoice:
    """The transport ``name`` for ``topology``; :class:`UserError` if there is none or it cannot."""
    if name not in _TRANSPORTS:
        near = difflib.get_close_matches(name, _TRANSPORTS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"there is no transport {name!r}{hint}; known are {', '.join(_TRANSPORTS)}")
    return _TRANSPORTS[name](topology)


def uet_endpoint(*, seed: int, **config: object) -> FabricEndpoint:
    """An Ultra Ethernet endpoint; ``config`` are the fields of :class:`~uet.config.FepConfig`."""
    return FabricEndpoint(FepConfig(**config), seed=seed)  # type: ignore[arg-type]


def _fit_uet(topology: Topology) -> TransportChoice:
    uet_headers = (
        headers.ETHERNET,
        headers.IPV4,
        headers.UDP_HEADER,
        headers.RUD_REQ,
        headers.SES_STD_SOM,
    )
    header_octets = sum(header.size for header in uet_headers)
    smallest_mtu = min(link.mtu for link in topology.links)
    room = smallest_mtu + headers.ETHERNET.size - header_octets
    fitting = [mtu for mtu in PAYLOAD_MTUS if mtu <= min(room, _PREFERRED_PAYLOAD)]
    if not fitting:
        raise UserError(
            f"an MTU of {smallest_mtu} octets leaves room for {room} octets of payload and UET "
            f"needs at least {PAYLOAD_MTUS[0]}; raise mtu to "
            f"{smallest_mtu - room + PAYLOAD_MTUS[0]}"
        )
    wire = WireCost(around_bytes=header_octets + _FRAMING, payload_mtu=max(fitting))
    configs = {}
    for gpu in topology.gpus:
        configs[gpu.name] = {
            "address": str(gpu_address(gpu).ip),
            "mac": gpu.ports[0].mac,
            "neighbours": next_hops(topology, gpu.name),
            "payload_mtu": wire.payload_mtu,
            "window_bytes": _window(topology, gpu.name, wire),
        }
    return TransportChoice(
        name="uet",
        factory="emulator.transports:uet_endpoint",
        frames=TransportFrames(),
        configs=configs,
        wire=wire,
        data_packets="tx_data_packets",
        retransmitted="tx_retransmitted_packets",
    )


def _window(topology: Topology, gpu: str, wire: WireCost) -> int:
    """Octets in flight that keep the NIC busy on its longest path, and no more.

    Rate times round trip; and as much as the receiver may leave unacknowledged (UES 3.5.12), and
    one packet that is being serialised at each hop.
    """
    rate = topology.link_at(End(gpu, topology.node(gpu).ports[0].name)).rate_bps
    reached = topology.paths(gpu)
    paths = [reached.get(peer.name, ()) for peer in topology.gpus]
    round_trip = 2 * max(sum(link.delay_ns for link in path) for path in paths)
    hops = max(len(path) for path in paths)
    trigger = FepConfig.ack_gen_trigger
    packet = wire.payload_mtu + wire.around_bytes
    return rate * round_trip // (8 * 10**9) + trigger + (hops + 1) * packet


_TRANSPORTS: Mapping[str, Callable[[Topology], TransportChoice]] = {"uet": _fit_uet}
