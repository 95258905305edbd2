"""Frames that the kernel hands on late come at the same virtual time, or are known to be lost."""

import os
import subprocess

import pytest

from emulator.dataplane.dataplane import Astray
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.frames.packet_ring import sender
from emulator.dataplane.lab import Lab
from emulator.dataplane.switch.switch_choice import parse
from emulator.sim.endpoint.operations.schedule import Operation, Receive, Region, Schedule, Write
from emulator.sim.event_queue import EventQueue
from emulator.sim.line import LOW
from emulator.sim.network import Network
from tests.harness.engine.bench_of_gpus import gpu_bench
from tests.harness.lab.wire_tap import datagram, virtual
from tests.system.conftest import LabFactory
from topologies.model import CableEnd

pytestmark = pytest.mark.root

RAIL = "rail_clos:hosts=2,gpus_per_host=1,spines=1,nic_delay=200ns"
MESSAGE = Region("x", 0, 1 << 16)
#: Receive packet steering (Documentation/networking/scaling.rst) of all ports of a namespace.
STEERED = "mount -t sysfs none /sys; echo {} | tee /sys/class/net/*/queues/rx-*/rps_cpus"


def steer(lab: Lab, processor: int) -> None:
    """Have ``processor`` take in the frames of all ports, whoever sends them."""
    command = ["unshare", "--mount", "sh", "-ec", STEERED.format(f"{1 << processor:x}")]

    def steered() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    for path in namespaces.of_lab(lab.name).values():
        namespaces.visitor().inside(path, steered)


def schedule(rank: int, *operations: Operation) -> Schedule:
    return Schedule(rank=rank, buffers={"x": 1 << 16}, operations=operations)


def times(name: str, processor: int | None) -> list[object]:
    """The times and lengths of all frames on two cables, and the account, of one write."""
    with gpu_bench(name, RAIL) as bench:
        if processor is not None:
            steer(bench.lab, processor)
        seen = [bench.arrivals("h1g0", "eth0"), bench.arrivals("rail0", "down0")]
        bench.run(
            [
                schedule(0, Receive(peer=1, tag=1, into=MESSAGE)),
                schedule(1, Write(peer=0, tag=1, local=MESSAGE, remote=MESSAGE)),
            ]
        )
        bench.pool.settled()
        return [*(each.frames for each in seen), bench.network.account.as_dict()]


def test_frames_that_another_processor_hands_on_come_at_the_same_time(lab_name: str) -> None:
    usual = times(lab_name, None)
    for processor in sorted(os.sched_getaffinity(0))[:2]:
        assert times(lab_name, processor) == usual


def test_a_frame_that_nobody_asked_for_ends_the_run(lab: LabFactory) -> None:
    """The account would not close with it, and it comes by the host's clock."""
    made = virtual(lab, RAIL, switch=parse("shallow"))
    network = Network(made, EventQueue())
    try:
        frame = datagram(made, "h0g0", "h1g0")
        stranger = made.inside("h1g0", lambda: sender("eth0"))
        stranger.send(frame)
        stranger.close()
        network.lines[CableEnd("h0g0", "eth0")].enqueue(frame, LOW)
        with pytest.raises(Astray, match="one frame went into rail0 and 2 came out"):
            network.events.run()
    finally:
        network.close()
