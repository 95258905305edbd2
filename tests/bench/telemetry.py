"""Measure what sampling all ports costs a lab: packets per second with and without, in turn.

A bare raw socket sends through the switches of the reference fabric as fast as the machine
goes, so whatever sampling takes is missing at once.  The links are too fast to limit.
"""

import json
import secrets
import statistics
import time
from collections.abc import Callable

from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.switch_choice import DEFAULT, parse
from emulator.dataplane.switch.switch_counters import read
from emulator.lab.live.sampler import LabSampler
from tests.bench import raw
from topologies import catalogue

SPEC = "rail_clos"
DILATION = 10  # a link of 400 Gb/s at 40: more than a socket fills
SOURCE, TARGET = "h0g1", "h1g0"
ROUNDS, STRETCH_S = 30, 0.5  # the interval of ``uetemu top``


def measure(spec: str = SPEC, *, rounds: int = ROUNDS) -> dict[str, float]:
    """``telemetry_ratio``: the median of rates with sampling over those without.

    One flow runs all the time, and each round is two short stretches of it, so that what else
    happens on the machine strikes both; which of them goes first alternates.  One sample falls
    into a stretch.
    """
    name = f"bench-{secrets.token_hex(4)}"
    topology = catalogue.load(spec)
    ratios: list[float] = []
    with (
        Lab.create(
            name,
            topology,
            FabricSettings(dilation=DILATION, seed=1, spec=spec, switch=parse(DEFAULT)),
        ) as lab,
        raw.flow(lab, SOURCE, TARGET, 10 * rounds * STRETCH_S),
    ):
        sample = LabSampler(lab).sample
        while not _rate(lab):  # until the sender is up
            pass
        for turn in range(rounds):
            ways = (object, sample) if turn % 2 else (sample, object)
            rates = {way: _rate(lab, way) for way in ways}
            ratios.append(rates[sample] / rates[object])
    lower, _, upper = statistics.quantiles(ratios, n=4)
    return {
        "telemetry_ratio": statistics.median(ratios),
        "telemetry_ratio_quartiles": upper - lower,
        "telemetry_ports": float(sum(len(node.ports) for node in topology.nodes)),
    }


def _rate(lab: Lab, sample: Callable[[], object] = object) -> float:
    """Packets per second at the last switch port, over a stretch in which ``sample`` is called."""
    before, began = _packets(lab), time.perf_counter()
    sample()
    time.sleep(max(0.0, began + STRETCH_S - time.perf_counter()))
    packets, ended = _packets(lab), time.perf_counter()
    return (packets - before) / (ended - began)


def _packets(lab: Lab) -> int:
    assert lab.asic is not None
    ((_, _, last),) = lab.topology.neighbours(TARGET)
    port = lab.asic.port(str(last))
    return read(lab.asic.program, port.index).classes[TrafficClass.DATA].packets


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
