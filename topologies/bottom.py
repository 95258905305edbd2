"""What fabrics without rails have in common: bottom switches with all GPUs of their servers."""

from __future__ import annotations

from ipaddress import IPv4Network

from topologies.assembly import Assembly
from topologies.design import Cabling
from topologies.model import TopologyError

MAX_GPUS = 65_536
#: Inside a bottom switch, the bridge of its GPUs.
BRIDGE = "gpus"


class Servers:
    """Servers of ``gpus_per_host`` GPUs, numbered as they are plugged in.  Raises TopologyError,
    which says to take ``fewer``, where there would be too many."""

    def __init__(
        self, shape: Cabling, fabric: Assembly, *, total: int, gpus_per_host: int, fewer: str
    ) -> None:
        if total * gpus_per_host > MAX_GPUS:
            raise TopologyError(
                f"there would be {total * gpus_per_host} GPUs, above {MAX_GPUS}; take fewer {fewer}"
            )
        self.shape, self.fabric = shape, fabric
        self.gpus_per_host = gpus_per_host
        self._next = 0

    def plug(self, switch: str, servers: int, subnet: IPv4Network, *, pod: int | None) -> None:
        """``servers`` servers, all of whose GPUs share ``subnet``, at the bottom switch."""
        shape = self.shape
        self.fabric.bridge(switch, BRIDGE, rail=0, subnet=subnet)
        for _ in range(servers):
            gpus = self.fabric.server(
                f"h{self._next}",
                self.gpus_per_host,
                scale_up=shape.scale_up,
                pod=pod,
                rails=False,
            )
            self._next += 1
            for gpu in gpus:
                self.fabric.attach(
                    gpu, switch, BRIDGE, rate_bps=shape.nic_rate, delay_ns=shape.nic_delay
                )
