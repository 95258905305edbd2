"""A small fabric of the virtual clock with GPUs that do what a test's schedules say."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.switch_choice import requested
from emulator.run.endpoint_specs import endpoint_specs
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.sim.event_queue import EventQueue
from emulator.sim.network import Network
from emulator.transports import fit
from emulator.workers.partition import Partition
from emulator.workers.virtual_fabric import VirtualFabric
from emulator.workers.virtual_pool import VirtualPool
from topologies import catalogue
from topologies.model import CableEnd


@dataclass
class Seen:
    """Times (ps) and lengths of the frames that pass one side of a line."""

    frames: list[tuple[int, int]] = field(default_factory=list)

    def frame(self, when_ps: int, frame: bytes) -> None:
        """Note a frame."""
        self.frames.append((when_ps, len(frame)))


@dataclass
class GpuBench:
    """The parts of a run, without a run."""

    lab: Lab
    events: EventQueue
    fabric: VirtualFabric
    pool: VirtualPool

    @property
    def network(self) -> Network:
        """The part of the fabric that is in this process."""
        return self.fabric.network

    def departures(self, node: str, port: str) -> Seen:
        """The frames that a port begins to send from now on."""
        seen = Seen()
        self.network.lines[CableEnd(node, port)].departing = seen
        return seen

    def arrivals(self, node: str, port: str) -> Seen:
        """The frames that have come over the cable from ``node:port``, at their last octet."""
        seen = Seen()
        self.network.lines[CableEnd(node, port)].arriving = seen
        return seen

    def run(self, schedules: Sequence[Schedule], start_in_ns: int = 1000) -> list[RankResult]:
        """Execute ``schedules`` ``start_in_ns`` from now."""
        self.pool.load(schedules)
        return self.pool.run(start_in_ns=start_in_ns)


@contextmanager
def gpu_bench(
    name: str,
    spec: str,
    *,
    transport: str = "uet",
    switch: str = "shallow",
    seed: int = 1,
    workers: int = 1,
) -> Iterator[GpuBench]:
    """The fabric ``spec`` as the lab ``name``, its GPUs speaking ``transport``."""
    topology = catalogue.load(spec)
    choice = requested(switch)
    delayed = topology.with_switch_latency(0 if choice is None else choice.latency_ns)
    fitted = fit(transport, delayed, seed=seed, switch=choice).keyed(bytes(32))
    with Lab.create(
        name,
        topology,
        FabricSettings(
            dilation=1,
            clock="virtual",
            seed=seed,
            spec=spec,
            switch=choice,
            worker_of=Partition.of(topology, workers).worker_of,
        ),
    ) as lab:
        events = EventQueue()
        fabric = VirtualFabric(lab, events)
        try:
            specs = endpoint_specs(
                topology,
                fitted,
                nic_delays=False,
                seed=seed,
                memory_octets=1 << 20,
                pausing=choice is not None and choice.pausing is not None,
            )
            with VirtualPool(name, specs, fabric) as pool:
                pool.start()
                yield GpuBench(lab, events, fabric, pool)
        finally:
            fabric.close()
