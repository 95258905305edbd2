"""Measure a NIC of two ports against one of a single port: frames of 4 KiB, one fabric.

Bare NICs without a transport above, one batch after the other, each sent and then received.  Told
as ratios of processor time a frame: the tenth percentile of all batches, as whatever else a machine
does only ever adds.
"""

from __future__ import annotations

import json
import secrets
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import replace

from emulator.endpoint.agent import open_nic
from emulator.endpoint.agent_spec import AgentSpec
from emulator.endpoint.clock import Clock
from emulator.endpoint.nic.multi_port_nic import MultiPortNic
from emulator.endpoint.nic.packet_nic import Nic
from emulator.lab import Lab
from emulator.run.run_agents import agent_specs
from emulator.transports import fit
from topologies import catalogue
from uet.transport import Frame

SPEC = "clos:hosts=2,gpus_per_host=1,spines=1,nic_ports=2"
PAYLOAD = 4096
BATCH = 8
BATCHES = 400
ROUNDS = 5
TIME_LIMIT_S = 1.0
_IPV4, _UDP = struct.Struct("!BBHHHBBH4s4s"), struct.Struct("!HHHH")
_ENTROPY, _UET = 50_000, 4793


def measure(spec: str = SPEC, *, rounds: int = ROUNDS) -> dict[str, float]:
    """``two_ports_send_ratio`` and ``two_ports_receive_ratio``: medians over ``rounds``."""
    with Lab.create(
        f"bench-{secrets.token_hex(4)}", catalogue.load(spec), dilation=1, seed=1, spec=spec
    ) as lab:
        here, there = agent_specs(
            lab.topology,
            fit("uet", lab.topology),
            namespace=str,
            nic_delays=True,
            seed=1,
            memory_octets=1,
        )
        ratios = []
        for _ in range(rounds):
            one = _costs(lab, here, there, ports=1)
            two = _costs(lab, here, there, ports=2)
            ratios.append([b / a for a, b in zip(one, two, strict=True)])
    send, receive = (statistics.median(column) for column in zip(*ratios, strict=True))
    return {"two_ports_send_ratio": send, "two_ports_receive_ratio": receive}


def _costs(lab: Lab, here: AgentSpec, there: AgentSpec, *, ports: int) -> tuple[float, float]:
    """Seconds that sending a frame takes, and receiving one."""
    clock = Clock.start(lab.dilation)
    sender, receiver = (_open(lab, spec, clock, ports) for spec in (here, there))
    try:
        frames = _frames(here, there)
        sending, receiving = [], []
        for _ in range(BATCHES):
            begin = time.thread_time()
            sender.send(frames)
            sending.append((time.thread_time() - begin) / len(frames))
            got, give_up = 0, time.monotonic() + TIME_LIMIT_S
            while got < len(frames) and time.monotonic() < give_up:
                begin = time.thread_time()
                taken = len(receiver.receive(clock.now()))
                spent = time.thread_time() - begin
                got += taken
                if taken == len(frames):
                    receiving.append(spent / taken)
                sender.send([])
        return _tenth(sending), _tenth(receiving)
    finally:
        sender.close()
        receiver.close()


def _tenth(values: list[float]) -> float:
    return sorted(values)[len(values) // 10]


def _open(lab: Lab, spec: AgentSpec, clock: Clock, ports: int) -> Nic | MultiPortNic:
    chosen = replace(spec, ports=spec.ports[:ports])
    return lab.inside(spec.node, lambda: open_nic(chosen, clock))


def _frames(here: AgentSpec, there: AgentSpec) -> Sequence[Frame]:
    first = here.ports[0].macs
    a, b = (socket.inet_aton(spec.address) for spec in (here, there))
    payload = memoryview(bytes(PAYLOAD))
    frames: list[Frame] = []
    for number in range(BATCH):
        length = _UDP.size + PAYLOAD
        ip = _IPV4.pack(0x45, 0, _IPV4.size + length, 0, 0x4000, 64, 17, 0, a, b)
        checksum = -int.from_bytes(ip, "big") % 0xFFFF
        ip = ip[:10] + checksum.to_bytes(2, "big") + ip[12:]
        udp = _UDP.pack(_ENTROPY + number, _UET, length, 0)
        frames.append((first + b"\x08\x00" + ip + udp, payload))
    return frames


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
