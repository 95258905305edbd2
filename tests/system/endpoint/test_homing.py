"""GPUs with two ports: both carry, either may be pulled, and what waited leaves by the other."""

from __future__ import annotations

import select
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

from emulator.asic.port_faults import Faults
from emulator.asic.switch_choice import requested
from emulator.endpoint.agent_pool import AgentPool
from emulator.endpoint.clock import Clock
from emulator.endpoint.nic.multi_port_nic import MultiPortNic, PortSpec, hash_of
from emulator.kernel.frame_filter import TransportFrames
from emulator.lab import Lab
from emulator.run.run_agents import agent_specs
from emulator.transports import fit
from scenarios.collective_benchmarks import allreduce
from tests.harness.lab.endpoint_lab import needs_root, root, small_lab, within
from topologies.addressing import gateway_mac
from topologies.model import CableEnd, Link
from topologies.parts.attachment import switch_ends
from uet.congestion.spraying.port_entropy import choices

pytestmark = [root, needs_root]

SIZE = 1 * 2**20
FOUR_PORTS = "clos:hosts=2,gpus_per_host=2,rails_per_switch=2,spines=1,nic_ports=4"
TWO_PORTS = "clos:hosts=2,gpus_per_host=2,spines=1,nic_ports=2"
PLANES = f"{TWO_PORTS},planes=own"
#: Packets that a port has seen when the transfer is well under way, and far from its end.
UNDER_WAY = 60
BUDGET_S = 60.0
SO_RCVBUFFORCE = 33  # asm-generic/socket.h


class Job:
    """The agents of ``lab``, on an AllReduce again and again."""

    def __init__(self, lab: Lab, transport: str) -> None:
        self.lab = lab
        self.clock = Clock.start(lab.dilation)
        asic = lab.asic
        assert asic is not None
        parameters = allreduce.Parameters(sizes=(SIZE,))
        (self.trial,) = allreduce.schedules(parameters, lab.topology, 1)
        self.pool = AgentPool(
            lab.name,
            agent_specs(
                lab.topology,
                fit(transport, lab.topology, switch=asic.choice),
                namespace=lambda node: str(lab.netns(node)),
                nic_delays=True,
                seed=1,
                memory_octets=16 << 20,
                pausing=asic.choice.pausing is not None,
            ),
            self.clock,
        )

    def __enter__(self) -> Job:
        self.pool.start()
        self.pool.load(self.trial.compile())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.pool.stop(orderly=kind is None)

    def run(self, trouble: Callable[[], object] | None = None) -> None:
        """Once; ``trouble`` befalls it while data come to h0g0 by its first port."""
        faulted: list[int] = []

        def apply_fault() -> None:
            assert trouble is not None
            before = self._arrived()
            within(BUDGET_S, lambda: self._arrived() > before + UNDER_WAY, "data are under way")
            trouble()
            faulted.append(self.clock.now())

        for rank, memory in self.pool.memories.items():
            for name in self.trial.expected(rank):
                memory.array(name, np.uint8)[:] = 0xFF
            for name, content in self.trial.inputs(rank).items():
                memory.array(name, content.dtype)[:] = content
        thread = threading.Thread(target=apply_fault, daemon=True)
        results = self.pool.run(
            timeout=BUDGET_S, started=lambda _: thread.start() if trouble else None
        )
        if trouble is not None:
            thread.join()
            assert faulted
            assert faulted[0] < max(result.end_ns for result in results), "it came too late"
        for rank, memory in self.pool.memories.items():
            for name, content in self.trial.expected(rank).items():
                assert np.array_equal(memory.array(name, content.dtype), content)

    def _arrived(self) -> int:
        return self.lab.counters(["h0g0"])["h0g0:eth0"].rx_packets

    def nic(self, gpu: str) -> Mapping[str, int]:
        rank = [one.name for one in self.lab.topology.gpus].index(gpu)
        return self.pool.counters()[rank]["nic"]


@contextmanager
def fabric(
    spec: str, switch: str = "shallow", dilation: float = 20_000, plane: str | None = None
) -> Iterator[Lab]:
    with small_lab(spec, dilation=dilation, switch=requested(switch), plane=plane) as lab:
        yield lab


def cable(lab: Lab) -> list[Link]:
    """Return the cable of h0g0's first port."""
    return [lab.topology.link_at(CableEnd("h0g0", "eth0"))]


def pull(lab: Lab) -> None:
    lab.cables.pull(cable(lab))


@pytest.mark.parametrize("spec", [TWO_PORTS, PLANES, FOUR_PORTS])
def test_a_port_without_carrier_is_left_alone(spec: str) -> None:
    with fabric(spec) as lab, Job(lab, "uet") as job:
        job.run(lambda: pull(lab))
        before = job.nic("h0g0")
        assert before["port0_frames_out"] > 0
        job.run()
        after = job.nic("h0g0")
        assert after["port0_frames_out"] == before["port0_frames_out"]
        assert after["port1_frames_out"] > before["port1_frames_out"]
        lab.cables.plug(cable(lab))
        job.run()
        assert job.nic("h0g0")["port0_frames_out"] > after["port0_frames_out"]


def test_no_frame_has_the_entropy_of_a_port_without_carrier() -> None:
    """Such a frame would leave by the other port, but its answer by the plane of the dead one."""
    with fabric(TWO_PORTS) as lab, Job(lab, "uet") as job:
        mac = bytes.fromhex(lab.topology.node("h0g0").ports[1].mac.replace(":", ""))
        with seen_at(lab, switch_ends(lab.topology, "h0g0")[1]) as seen:
            pull(lab)
            job.run()
            seen.setblocking(False)
            frames = []
            with suppress(BlockingIOError):
                while True:
                    frames.append(seen.recv(64))
        left = [frame for frame in frames if frame[6:12] == mac]
        assert len(left) > UNDER_WAY
        ports = choices(range(2))
        assert {ports[hash_of(frame)] for frame in left} == {1}


def test_a_port_that_swallows_what_comes_in_is_avoided() -> None:
    """Its entropy values are not acknowledged; the neighbour that sends to h0g0 learns that."""
    with fabric(TWO_PORTS) as lab, Job(lab, "uet") as job:
        asic = lab.asic
        assert asic is not None
        job.run(lambda: asic.inject("rail0:down0", Faults(black_hole=True)))
        before = job.nic("h1g0")
        job.run()
        after = job.nic("h1g0")
        swallowed, carried = (
            after[name] - before[name] for name in ("port0_frames_out", "port1_frames_out")
        )
        assert swallowed < carried / 4


def test_rocev2_goes_on_where_the_fabric_hears_of_the_loss() -> None:
    """Its flows cannot leave their ports, so those towards the pulled one need another route."""
    with (
        fabric(TWO_PORTS, "lossless", plane="ebgp") as lab,
        Job(lab, "rocev2:qps=4,rto=60us") as job,
    ):
        job.run(lambda: pull(lab))
        before = job.nic("h0g0")
        job.run()
        assert job.nic("h0g0")["port0_frames_out"] == before["port0_frames_out"]
        fabric_address = str(lab.topology.node("h0g0").loopback)
        assert "proto bgp" in lab.exec("rail0", ["ip", "route", "show", fabric_address]).stdout
        lab.cables.plug(cable(lab))
        direct = f"{fabric_address} via 10.0.1.2 dev down0"
        within(
            BUDGET_S,
            lambda: direct in lab.exec("rail0", ["ip", "route", "show", fabric_address]).stdout,
            "the way over the cable is back",
        )


@pytest.mark.parametrize("down", [0, 1])
def test_frames_that_wait_leave_by_the_other_port(down: int) -> None:
    """At a rate so low that a port is full at once."""
    with fabric(TWO_PORTS, "none", dilation=1_000_000) as lab, ExitStack() as stack:
        gpu = lab.topology.node("h0g0")
        ports = [
            PortSpec(
                interface=port.name,
                mac=port.mac,
                gateway_mac=gateway_mac(lab.topology, gpu, port.name),
            )
            for port in gpu.ports
        ]
        clock = Clock.start(lab.dilation)
        nic = lab.inside("h0g0", lambda: MultiPortNic(ports, clock, frames=TransportFrames()))
        stack.callback(nic.close)
        seen = stack.enter_context(seen_at(lab, switch_ends(lab.topology, "h0g0")[1 - down]))
        frames = [(frame_with(entropy, ports[0].macs), bytes(4000)) for entropy in range(64)]
        nic.send(frames)
        waited = nic.backlog
        assert waited > 0
        lab.exec("h0g0", ["ip", "link", "set", f"eth{down}", "down"]).check_returncode()
        (event,) = nic.events

        def look() -> None:
            readable, _, _ = select.select([event], [], [], 0)
            if readable:
                nic.acknowledge(event)

        def moved() -> bool:
            look()
            return nic.counters()["moved"] > 0

        within(BUDGET_S, moved, "what waited was moved")
        assert 0 < nic.counters()["moved"] < waited
        sent = nic.counters()[f"port{down}_frames_out"]
        within(BUDGET_S, lambda: nic.send([]) >= 0 and not nic.backlog, "all have left")
        assert nic.counters()[f"port{down}_frames_out"] == sent
        assert nic.counters()[f"port{1 - down}_frames_out"] == len(frames) - sent
        heads = Counter(seen.recv(64)[:12] for _ in range(len(frames) - sent))
        assert heads == {ports[1 - down].macs: len(frames) - sent}

        lab.exec("h0g0", ["ip", "link", "set", f"eth{down}", "up"]).check_returncode()

        def back() -> bool:
            look()
            nic.send(frames[:8])
            return nic.counters()[f"port{down}_frames_out"] > sent

        within(BUDGET_S, back, "the port is used again")


@contextmanager
def seen_at(lab: Lab, port: CableEnd) -> Iterator[socket.socket]:
    """A socket that has a copy of every frame at ``port``, as long as there is room for them."""
    seen = lab.inside(port.node, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    with seen:
        seen.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        seen.settimeout(BUDGET_S)
        seen.bind((port.port, 0x0003))
        yield seen


def frame_with(entropy: int, macs: bytes) -> bytes:
    ip = bytes.fromhex("45000000000040004011") + bytes(10)
    return macs + b"\x08\x00" + ip + entropy.to_bytes(2, "big") + bytes(6)
