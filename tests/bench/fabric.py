"""How fast a fabric comes and goes, against Mininet's own builder on the same topology."""

import json
import secrets
import statistics
import time
from typing import Any

from mininet.link import Link
from mininet.net import Mininet
from mininet.node import Node

from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from topologies import catalogue
from topologies.mininet_topo import FabricTopo
from topologies.model import Topology

REFERENCE = "rail_clos:hosts=6,gpus_per_host=4"
REPEATS = 3


class Router(Node):
    """A switch for stock Mininet: a namespace that forwards."""

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **params | {"inNamespace": True})

    def start(self, _controllers: object) -> None:
        self.cmd("sysctl -q -w net.ipv4.ip_forward=1")


def measure(spec: str = REFERENCE) -> dict[str, float]:
    """Seconds to bring the fabric of ``spec`` up and down, and how many times longer Mininet takes.

    Ours makes shaped and routed ports that are ready to send; Mininet's makes nodes, links and
    the GPUs' addresses only.  Medians of a few alternating runs.
    """
    topology = catalogue.load(spec)
    up, down, stock = [], [], []
    for _ in range(REPEATS):
        seconds = _ours(topology, spec)
        up.append(seconds[0])
        down.append(seconds[1])
        stock.append(_mininet(topology))
    fabric_up = statistics.median(up)
    return {
        "fabric_up_s": fabric_up,
        "fabric_down_s": statistics.median(down),
        "mininet_up_s": statistics.median(stock),
        "mininet_builder_ratio": statistics.median(stock) / fabric_up,
    }


def _ours(topology: Topology, spec: str) -> tuple[float, float]:
    start = time.perf_counter()
    lab = Lab.create(
        f"bench{secrets.token_hex(4)}", topology, FabricSettings(dilation=1000, seed=1, spec=spec)
    )
    built = time.perf_counter()
    lab.close()
    return built - start, time.perf_counter() - built


def _mininet(topology: Topology) -> float:
    Mininet.inited = True  # its initialisation changes limits of the whole host
    start = time.perf_counter()
    net = Mininet(FabricTopo(topology), switch=Router, link=Link, controller=None)
    try:
        net.start()
        return time.perf_counter() - start
    finally:
        net.stop()


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
