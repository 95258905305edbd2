"""GPUs with two ports: both carry, either may be pulled, and what waited leaves by the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from emulator.asic.choice import parse
from emulator.asic.faults import Faults
from emulator.endpoint.clock import Clock
from emulator.endpoint.spawn import AgentPool
from emulator.endpoint.spec import AgentSpec
from emulator.lab import Lab
from emulator.run.agents import agent_specs
from emulator.transports import fit
from scenarios import allreduce
from tests.fabric.endpoint_lab import needs_root, root, small_lab

pytestmark = [root, needs_root]

SIZE = 1 * 2**20
TWO_PORTS = "clos:hosts=2,gpus_per_host=2,spines=1,nic_ports=2"
PLANES = f"{TWO_PORTS},planes=own"
#: Packets that a port has seen when the transfer is well under way, and far from its end.
UNDER_WAY = 60
BUDGET_S = 60.0


class AllReduce:
    """One AllReduce on ``lab``; ``trouble`` befalls it while data pass the port ``watched``."""

    def __init__(self, lab: Lab, transport: str, switch: str | None) -> None:
        self.lab = lab
        chosen = None if switch is None else parse(switch)
        self.transport = fit(transport, lab.topology, switch=chosen)
        parameters = allreduce.Parameters(sizes=(SIZE,))
        (self.trial,) = allreduce.schedules(parameters, lab.topology, 1)
        self.struck_at = 0
        self.end_ns = 0
        self.wrong = 0
        self.counters: dict[str, dict[str, int]] = {}

    def run(self, trouble: Callable[[], object] | None = None, watched: str = "") -> None:
        lab, clock = self.lab, Clock.start(self.lab.dilation)
        specs = agent_specs(
            lab.topology,
            self.transport,
            namespace=lambda node: str(lab.netns(node)),
            nic_delays=True,
            seed=1,
            memory_octets=16 << 20,
            pausing=lab.asic is not None and lab.asic.choice.pausing is not None,
        )

        def strike() -> None:
            node = watched.partition(":")[0]
            give_up = time.monotonic() + BUDGET_S
            before = lab.counters([node])[watched].rx_packets
            while time.monotonic() < give_up:
                if lab.counters([node])[watched].rx_packets > before + UNDER_WAY:
                    assert trouble is not None
                    trouble()
                    self.struck_at = clock.now()
                    return
                time.sleep(0.002)

        with AgentPool(lab.name, specs, clock) as pool:
            pool.start()
            schedules = self.trial.compile()
            pool.load(schedules)
            for rank, memory in pool.memories.items():
                for name, content in self.trial.inputs(rank).items():
                    memory.array(name, content.dtype)[:] = content
            thread = threading.Thread(target=strike, daemon=True)

            def started(_: int) -> None:
                if trouble is not None:
                    thread.start()

            results = pool.run(timeout=BUDGET_S, started=started)
            if trouble is not None:
                thread.join()
            self.end_ns = max(result.end_ns for result in results)
            for rank, memory in pool.memories.items():
                for name, content in self.trial.expected(rank).items():
                    found = memory.array(name, content.dtype)
                    self.wrong += int(np.count_nonzero(found != content))
            for rank, layers in pool.counters().items():
                self.counters[lab.topology.gpus[rank].name] = {
                    f"{layer}.{name}": value
                    for layer, values in layers.items()
                    for name, value in values.items()
                }


@contextmanager
def fabric(spec: str, switch: str | None = "shallow", dilation: float = 20_000) -> Iterator[Lab]:
    chosen = None if switch is None else parse(switch)
    with small_lab(spec, dilation=dilation, switch=chosen) as lab:
        yield lab


def into_the_void(job: AllReduce, gpu: str) -> int:
    """Frames that the NIC gave to its first port and that the port did not send."""
    return (
        job.counters[gpu]["nic.port0_frames_out"]
        - job.lab.counters([gpu])[f"{gpu}:eth0"].tx_packets
    )


@pytest.mark.parametrize("spec", [TWO_PORTS, PLANES])
def test_a_pulled_port_is_left_alone_and_the_data_are_right(spec: str) -> None:
    with fabric(spec) as lab:
        job = AllReduce(lab, "uet", "shallow")
        job.run(
            lambda: lab.exec("rail0", ["ip", "link", "set", "down0", "down"]).check_returncode(),
            watched="rail0:down0",
        )
        assert job.wrong == 0
        assert 0 < job.struck_at < job.end_ns
        print(job.struck_at, job.end_ns, job.counters["h0g0"])
        assert into_the_void(job, "h0g0") <= AgentSpec.send_queue_frames


def test_a_silent_fault_of_a_port_is_avoided() -> None:
    """Nothing comes in by the port any more: its entropy values are not acknowledged."""
    with fabric(TWO_PORTS) as lab:
        asic = lab.asic
        assert asic is not None
        job = AllReduce(lab, "uet", "shallow")
        job.run(lambda: asic.inject("rail0:down0", Faults(black_hole=True)), watched="rail0:down0")
        assert job.wrong == 0
        assert 0 < job.struck_at < job.end_ns
        print(job.struck_at, job.end_ns, job.counters["h0g0"])
