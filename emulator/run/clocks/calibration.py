"""Calibration of the dilation (``--dilation auto``): how slowly this machine runs the fabric.

A short probe on a fabric of two servers with two GPUs each runs chains of transfers and sums. It
does so once with small and once with large messages.  The processor time that both took gives the
cost of one operation and the cost of one data packet through endpoint, kernel and back::

    cost = operations * cost per operation + packets * cost per packet

The dilation is the smallest at which the processors are busy for no more than
:data:`UTILISATION` of the time, both

1. with every NIC sending at line rate at once, and
2. during each trial of the scenario, if it took no longer than its ideal time.

A packet costs more the fewer there are at a time, because each then wakes its process alone.  So
the probe runs at about the dilation that a fabric of that many GPUs comes out at.

It is rounded up to a preferred number, so that the same machine mostly gets the same dilation.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator.asic.switch_choice import SwitchChoice
from emulator.endpoint.agent_pool import AgentPool
from emulator.endpoint.clock import Clock
from emulator.endpoint.operations.schedule import (
    Copy,
    Operation,
    Receive,
    Reduce,
    Region,
    Schedule,
    Write,
)
from emulator.lab import LARGEST_DILATION, Lab
from emulator.run.measurement import duration_ns
from emulator.run.plan.trial_load import TrialLoad
from emulator.run.run_agents import agent_specs
from emulator.transports import TransportChoice, fit
from topologies import catalogue
from topologies.model import CableEnd, Topology
from topologies.parts.attachment import way_out

#: Share of the processors that agents and fabric may need on average; the rest is for bursts.
UTILISATION = 0.5
#: Preferred numbers of one decade.
STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)

#: Dilation of the probe for each GPU of the fabric that is to be emulated.
_PROBE_DILATION_PER_GPU = 1200.0
_PROBE_STEPS = 4
_PROBE_LANES = 4
_PROBE_RUNS = 2
_SMALL, _LARGE = 1024, 65_536
#: What one packet or operation costs at the least (s), should the probe's noise be less.
_LEAST_COST = 2e-6


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measurements of the calibration and the dilation chosen; all go into ``environment.json``."""

    dilation: float
    cost_per_packet_us: float
    cost_per_operation_us: float
    line_rate_packets_per_s: float
    processors: int
    utilisation: float
    bound_by: str
    probe: Sequence[dict[str, float]]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class CalibrationWork:
    """The fabric, transport and switches that trials of ``loads`` run on."""

    transport: TransportChoice
    switch: SwitchChoice | None
    loads: Sequence[TrialLoad]


def calibrate(
    topology: Topology,
    works: Sequence[CalibrationWork],
    *,
    seed: int,
    logged: bool = False,
    progress: Callable[[str], None],
) -> Calibration:
    """Probe the machine and choose the dilation for the most demanding of ``works``.

    Each transport is probed once, on the first switch that it is to run on: what switches do costs
    far less than what endpoints do.  ``logged``: the endpoints will write event logs, and do so in
    the probe too.
    """
    probes: dict[str, list[dict[str, float]]] = {}
    found = []
    for work in works:
        name = work.transport.name
        if name not in probes:
            probes[name] = _probe(topology, name, work.switch, seed, logged, progress)
        costs = solve(probes[name])
        found.append(choose(topology, work.transport, work.loads, *costs, probes[name]))
    return max(found, key=lambda calibration: calibration.dilation)


def solve(probe: Sequence[dict[str, float]]) -> tuple[float, float]:
    """Seconds per packet and per operation from the two runs of the probe."""
    small, large = probe
    packets = large["packets"] - small["packets"]
    per_packet = max(_LEAST_COST, (large["cpu_s"] - small["cpu_s"]) / packets)
    rest = small["cpu_s"] - per_packet * small["packets"]
    return per_packet, max(_LEAST_COST, rest / small["operations"])


def choose(
    topology: Topology,
    transport: TransportChoice,
    loads: Sequence[TrialLoad],
    per_packet: float,
    per_operation: float,
    probe: Sequence[dict[str, float]] = (),
) -> Calibration:
    """The smallest dilation that these costs (in seconds) allow."""
    processors = min(len(os.sched_getaffinity(0)), len(topology.gpus))
    capacity = processors * UTILISATION
    frame_bits = 8 * (transport.wire.payload_mtu + transport.wire.around_bytes)
    cables = {  # that of a shared NIC once
        cable.a: cable.rate_bps
        for gpu in topology.gpus
        for port in gpu.ports
        for cable in way_out(topology, CableEnd(gpu.name, port.name))[-1:]
    }
    line_rate = sum(cables.values()) / frame_bits
    needs = {"all NICs at line rate": line_rate * per_packet / capacity}
    for load in loads:
        cost = load.packets * per_packet + load.operations * per_operation
        if load.ideal_ns:
            needs[f"size {load.size_bytes} B"] = cost / (load.ideal_ns * 1e-9) / capacity
    bound_by = max(needs, key=lambda name: needs[name])
    return Calibration(
        dilation=round_up(needs[bound_by]),
        cost_per_packet_us=per_packet * 1e6,
        cost_per_operation_us=per_operation * 1e6,
        line_rate_packets_per_s=line_rate,
        processors=processors,
        utilisation=UTILISATION,
        bound_by=bound_by,
        probe=tuple(probe),
    )


def round_up(dilation: float) -> float:
    """The next preferred number, between 1 and the largest dilation of a lab."""
    if dilation <= 1:
        return 1.0
    decade = 10.0 ** math.floor(math.log10(dilation))
    for step in (*STEPS, 10.0):
        if step * decade >= dilation * (1 - 1e-9):
            return min(float(round(step * decade, 6)), float(LARGEST_DILATION))
    raise AssertionError("a decade ends at ten")


def _probe(
    topology: Topology,
    transport_name: str,
    switch: SwitchChoice | None,
    seed: int,
    logged: bool,
    progress: Callable[[str], None],
) -> list[dict[str, float]]:
    first = topology.gpus[0]
    nic = way_out(topology, CableEnd(first.name, first.ports[0].name))[-1]
    spec = f"rail_clos:hosts=2,gpus_per_host=2,spines=1,nic_rate={nic.rate_bps}bps,mtu={nic.mtu}"
    small_fabric = catalogue.load(spec)
    transport = fit(transport_name, small_fabric, switch=switch)
    progress("calibrating")
    dilation = min(float(LARGEST_DILATION), _PROBE_DILATION_PER_GPU * max(4, len(topology.gpus)))
    name = f"probe-{secrets.token_hex(4)}"
    with (
        TemporaryDirectory(prefix="uetemu-") as logs,
        Lab.create(
            name, small_fabric, dilation=dilation, seed=seed, spec=spec, switch=switch
        ) as lab,
    ):
        clock = Clock.start(dilation)
        specs = agent_specs(
            small_fabric,
            transport,
            namespace=lambda node: str(lab.netns(node)),
            nic_delays=lab.cable_delay == "nic",
            seed=seed,
            memory_octets=1 << 26,
            event_logs={gpu.name: Path(logs, gpu.name) for gpu in small_fabric.gpus if logged},
        )
        with AgentPool(name, specs, clock) as pool:
            pool.start()
            runs: list[dict[str, float]] = []
            for length in (_SMALL, _LARGE):
                schedules = probe_schedules(length)
                load = TrialLoad.weigh(length, schedules, small_fabric, transport.wire)
                pool.load(schedules)
                if not runs:
                    pool.run()  # opens the connections, fills the caches
                # Whatever else the machine does adds to the cost, never takes from it.
                runs.append(min((_once(pool) for _ in range(_PROBE_RUNS)), key=_cpu_seconds))
                runs[-1] |= {
                    "message_bytes": length,
                    "packets": load.packets,
                    "operations": load.operations,
                }
    return runs


def _once(pool: AgentPool) -> dict[str, float]:
    """Return what one run of the loaded schedules costs the agents.

    Forwarding runs in the context of whoever sends, so it is in there; the few per cent that the
    kernel spends in other contexts are covered by :data:`UTILISATION`.
    """
    results = pool.run()
    return {
        "cpu_s": sum(result.cpu_ns for result in results) * 1e-9,
        "wall_s": pool.clock.host_seconds(duration_ns(results)),
    }


def _cpu_seconds(run: dict[str, float]) -> float:
    return run["cpu_s"]


def probe_schedules(length: int) -> list[Schedule]:
    """Chains around 2 servers of 2 GPUs: NVLink, fabric, NVLink, fabric, with a sum at each stop.

    Ranks 0 and 1 share a server, and 2 and 3.  Everybody sends in every step.
    """
    ring = (0, 1, 3, 2)  # 1 -> 3 and 2 -> 0 stay on their rails
    schedules = []
    for place, rank in enumerate(ring):
        successor, predecessor = ring[(place + 1) % 4], ring[place - 1]
        kind: type[Copy] | type[Write] = Copy if rank // 2 == successor // 2 else Write
        operations: list[Operation] = []
        last: list[tuple[int, ...]] = [()] * _PROBE_LANES
        for step in range(_PROBE_STEPS):
            for lane in range(_PROBE_LANES):
                tag = step * _PROBE_LANES + lane
                slot = tag * length
                local = Region("slots", slot, length)
                arrival = Region("slots", slot + _PROBE_LANES * length, length)
                operations.append(
                    kind(peer=successor, tag=tag, local=local, remote=arrival, after=last[lane])
                )
                operations.append(Receive(peer=predecessor, tag=tag, into=arrival))
                source = Region("own", lane * length, length)
                after = (len(operations) - 1,)
                operations.append(Reduce(source=source, into=arrival, after=after))
                last[lane] = (len(operations) - 1,)
        buffers = {
            "own": _PROBE_LANES * length,
            "slots": (_PROBE_STEPS + 1) * _PROBE_LANES * length,
        }
        schedules.append(Schedule(rank=rank, buffers=buffers, operations=tuple(operations)))
    return sorted(schedules, key=lambda schedule: schedule.rank)
