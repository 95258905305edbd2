"""Fabrics without rails have bottom switches, and servers whose GPUs stand at one or at several."""

from __future__ import annotations

from ipaddress import IPv4Network

from topologies.model import TopologyError
from topologies.parts.assembly import MAX_GPUS, Assembly
from topologies.parts.design import CabledDesign

#: Inside a bottom switch, the bridge of its GPUs.
BRIDGE = "gpus"


class Servers:
    """Servers of ``gpus_per_host`` GPUs, numbered as they are plugged in.

    Raises TopologyError, which advises to take ``fewer``, where there would be too many.
    """

    def __init__(
        self, shape: CabledDesign, fabric: Assembly, *, total: int, gpus_per_host: int, fewer: str
    ) -> None:
        if total * gpus_per_host > MAX_GPUS:
            raise TopologyError(
                f"there would be {total * gpus_per_host} GPUs, above {MAX_GPUS}; take fewer {fewer}"
            )
        self.shape, self.fabric = shape, fabric
        self.gpus_per_host = gpus_per_host
        self._next = 0
        self._group: list[tuple[str, ...]] = []

    def plug(self, switch: str, servers: int, subnet: IPv4Network, *, pod: int | None) -> None:
        """``servers`` servers, all of whose GPUs share ``subnet``, at the bottom switch."""
        self.fabric.bridge(switch, BRIDGE, rail=0, subnet=subnet)
        for _ in range(servers):
            for gpu in self._server(pod):
                self._attach(gpu, switch)

    def plug_rank(
        self, rank: int, switch: str, servers: int, subnet: IPv4Network, *, pod: int | None
    ) -> None:
        """Plug in the GPUs of local ``rank`` of ``servers`` servers at the bottom switch.

        They share ``subnet``.  Rank 0 of each group comes first and makes its servers.
        """
        self.fabric.bridge(switch, BRIDGE, rail=0, subnet=subnet)
        if rank == 0:
            self._group = [self._server(pod) for _ in range(servers)]
        for gpus in self._group:
            self._attach(gpus[rank], switch)

    def _server(self, pod: int | None) -> tuple[str, ...]:
        name = f"h{self._next}"
        self._next += 1
        return self.fabric.server(
            name, self.gpus_per_host, scale_up=self.shape.scale_up_network, pod=pod, rails=False
        )

    def _attach(self, gpu: str, switch: str) -> None:
        shape = self.shape
        self.fabric.attach(gpu, switch, BRIDGE, rate_bps=shape.nic_rate, delay_ns=shape.nic_delay)
