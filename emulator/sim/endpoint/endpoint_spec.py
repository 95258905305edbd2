"""The endpoint of one GPU in a run: what it is, what makes its transport, how it fails."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.errors import UserError
from emulator.sim.endpoint.nic.delay_line import PathDelay
from emulator.sim.endpoint.nic.nic_profile import NicTimes
from emulator.sim.endpoint.operations.nvlink import ScaleUpLink
from emulator.sim.endpoint.operations.rank_result import RankResult
from uet.transport import Transport

#: Default capacity of a GPU's memory in octets (sparse: only what is used takes memory).
GPU_MEMORY_OCTETS = 1 << 30
#: Told how many of how many endpoints there are.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSpec:
    """One port: its interface, its MAC, its gateway's MAC, and the delays of paths by source."""

    interface: str
    mac: str
    gateway_mac: str
    path_delays: Mapping[str, PathDelay] = field(default_factory=dict)

    @property
    def macs(self) -> bytes:
        """Return what a frame that leaves here begins with."""
        return bytes.fromhex((self.gateway_mac + self.mac).replace(":", ""))


@dataclass(frozen=True, kw_only=True)
class EndpointSpec:
    """One rank: where it lives, whom it reaches, and which transport it speaks.

    ``transport`` names a function ``module:function``; it is called with ``transport_config`` as
    keyword arguments and ``seed``, and returns a :class:`uet.transport.Transport`; for each later
    life of the endpoint, which no packet of an earlier one must reach, with its number ``life``,
    too. ``netns`` is the path of the namespace (``None``: the current one) and ``ports`` are those
    of the NIC in it; ``fep_per_port``: each has a fabric endpoint of its own.  ``peers`` maps every
    rank that the fabric reaches to its fabric address, the first plane's where it has several.
    ``scale_up_peers`` maps the ranks that its scale-up network reaches to their node names.
    ``mtu`` is that of the port and ``frame_octets`` the longest frame that the transport makes
    (``None``: what the MTU allows), by which receive slots are sized.  ``scale_up`` is its NVLink
    (``None``: there is none).  ``send_by_class``: the port's data can be paused, and control leaves
    meanwhile.  ``header_bits``: what the transport carries of a write's header data.  ``nic``: the
    time that its NIC takes (``None``: no time).
    """

    rank: int
    node: str
    netns: str | None
    ports: tuple[PortSpec, ...]
    address: str
    peers: Mapping[int, str]
    transport: str
    transport_config: Mapping[str, object]
    frames: TransportFrames = field(default_factory=TransportFrames)
    seed: int = 0
    scale_up_peers: Mapping[int, str] = field(default_factory=dict)
    scale_up: ScaleUpLink | None = None
    mtu: int = 4500
    frame_octets: int | None = None
    memory_octets: int = GPU_MEMORY_OCTETS
    receive_slots: int = 512
    send_queue_frames: int = 8
    send_by_class: bool = False
    header_bits: int = 64
    fep_per_port: bool = False
    nic: NicTimes | None = None


def make_transport(reference: str, config: dict[str, object], seed: int) -> Transport:
    """Call the function ``module:function`` with ``config`` and ``seed``."""
    module, _, name = reference.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as missing:
        raise UserError(
            f"the transport {reference!r} cannot be loaded ({missing}); name it module:function"
        ) from missing
    transport: Transport = factory(**config, seed=seed)
    return transport


class EndpointError(UserError):
    """A rank failed: ``rank`` and ``node`` (-1 and "" for a worker).

    ``results`` holds what the ranks had done by then, and ``counters`` what they counted, both only
    of ranks that still answered. ``traceback`` is that of a failure inside the endpoint.
    ``died``: its process did, or answers no more; else the rank has ended its schedule with an
    error.
    """

    def __init__(
        self,
        sentence: str,
        *,
        rank: int = -1,
        node: str = "",
        traceback: str = "",
        died: bool = False,
        results: Sequence[RankResult] = (),
        counters: Mapping[int, Mapping[str, Mapping[str, int]]] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.rank, self.node, self.traceback, self.died = rank, node, traceback, died
        self.results = list(results)
        self.counters = dict(counters or {})
