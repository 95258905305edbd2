"""Measure what sampling all switch ports costs a run: packets per second with and without, in turn.

A bare raw socket sends through the switches of the reference fabric as fast as the machine
goes, so whatever sampling takes is missing at once.  The links are too fast to limit.
"""

from __future__ import annotations

import json
import secrets
import statistics
import tempfile
import time
from pathlib import Path

from emulator.asic.bpf.layout import TrafficClass
from emulator.asic.switch_choice import DEFAULT, parse
from emulator.asic.switch_counters import read
from emulator.asic.telemetry import FILE, Telemetry
from emulator.endpoint.clock import Clock
from emulator.lab import Lab
from tests.bench import raw
from topologies import catalogue

SPEC = "rail_clos"
DILATION = 10  # a link of 400 Gb/s at 40: more than a socket fills
SOURCE, TARGET = "h0g1", "h1g0"
ROUNDS, STRETCH_S = 60, 0.25


def measure(spec: str = SPEC, *, rounds: int = ROUNDS) -> dict[str, float]:
    """``telemetry_ratio``: the median of rates with sampling over those without.

    One flow runs all the time, and each round is two short stretches of it, so that what else
    happens on the machine strikes both; which of them goes first alternates.
    """
    topology = catalogue.load(spec)
    name = f"bench-{secrets.token_hex(4)}"
    ratios: list[float] = []
    samples = 0
    with (
        tempfile.TemporaryDirectory(prefix="uetemu-bench-") as folder,
        Lab.create(
            name, topology, dilation=DILATION, seed=1, spec=spec, switch=parse(DEFAULT)
        ) as lab,
        raw.flow(lab, SOURCE, TARGET, 10 * rounds * STRETCH_S),
    ):
        assert lab.asic is not None
        clock = Clock.start(lab.dilation)
        while not _rate(lab):  # until the sender is up
            pass
        for turn in range(rounds):
            rates = {}
            for sampled in (turn % 2 == 0, turn % 2 == 1):
                if sampled:
                    with Telemetry(lab.asic, Path(folder) / FILE, clock) as telemetry:
                        rates[sampled] = _rate(lab)
                    samples += telemetry.samples
                else:
                    rates[sampled] = _rate(lab)
            ratios.append(rates[True] / rates[False])
    lower, _, upper = statistics.quantiles(ratios, n=4)
    return {
        "telemetry_ratio": statistics.median(ratios),
        "telemetry_ratio_quartiles": upper - lower,
        "telemetry_samples_per_s": samples / (rounds * STRETCH_S),
        "telemetry_ports": float(sum(len(switch.ports) for switch in topology.switches)),
    }


def _rate(lab: Lab) -> float:
    """Packets per second at the last switch port, over a stretch."""
    before, began = _packets(lab), time.perf_counter()
    time.sleep(STRETCH_S)
    packets, ended = _packets(lab), time.perf_counter()
    return (packets - before) / (ended - began)


def _packets(lab: Lab) -> int:
    assert lab.asic is not None
    ((_, _, last),) = lab.topology.neighbours(TARGET)
    port = lab.asic.port(str(last))
    return read(lab.asic.program, port.index).classes[TrafficClass.DATA].packets


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
