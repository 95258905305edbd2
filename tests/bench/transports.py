"""Measure RoCEv2 against Ultra Ethernet: one flow of large writes, 4 KiB payloads, in turn.

In memory: two endpoints in one process, a list as the wire; frames are copied once on the way, as a
socket would.  Over a fabric: as in :mod:`tests.bench.endpoint`, agents on two GPUs on different
rails, without congestion control.  Ratios mean the same on any machine.
"""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from emulator.endpoint.agent_pool import AgentPool
from emulator.endpoint.clock import Clock
from emulator.lab import Lab
from emulator.rocev2.connection_agreement import Connection
from emulator.rocev2.hca import HostChannelAdapter
from emulator.rocev2.hca_config import HcaConfig
from tests.bench import endpoint
from topologies import catalogue
from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.transport import Transport, WriteRequest

HERE, THERE = "10.0.1.1", "10.0.1.2"
_MACS = {HERE: "02:00:00:00:00:01", THERE: "02:00:00:00:00:02"}
_KEY = 1
_MESSAGE = 4 << 20
_BATCH = 32
_NS_A_TURN = 2_000
#: With a host that is much slower than the fabric, an agent's turn must not look like a loss.
ROCEV2 = "rocev2:cc=none,timeout=17,window=bdp"
_HEADER_DATA = 7

Ends = tuple[Transport, Transport]


def uet_ends() -> Ends:
    """Two Ultra Ethernet endpoints, reliable unordered delivery."""
    here, there = (
        FabricEndpoint(
            FepConfig(
                address=own,
                mac=_MACS[own],
                neighbours={peer: _MACS[peer]},
                window_bytes=1 << 20,
                rto_init_time=500_000_000,
            ),
            seed=1,
        )
        for own, peer in ((HERE, THERE), (THERE, HERE))
    )
    return here, there


def rocev2_ends() -> Ends:
    """Two RoCEv2 endpoints, one reliable connection."""
    here, there = (
        HostChannelAdapter(
            HcaConfig(
                address=own,
                mac=_MACS[own],
                neighbours={peer: _MACS[peer]},
                connections={peer: (Connection(local_qpn=local, remote_qpn=remote),)},
                timeout=17,
                endless_receives=True,
            )
        )
        for own, peer, local, remote in ((HERE, THERE, 17, 18), (THERE, HERE, 18, 17))
    )
    return here, there


def packets_per_s(ends: Ends, messages: int) -> float:
    """Data packets a second of ``messages`` writes of 4 MiB."""
    here, there = ends
    source, target = memoryview(bytearray(_MESSAGE)), memoryview(bytearray(_MESSAGE))
    there.register(target, key=_KEY)
    for _ in range(messages):
        here.post(
            WriteRequest(peer=THERE, key=_KEY, offset=0, payload=source, header_data=_HEADER_DATA)
        )
    now = done = 0
    start = time.perf_counter()
    while done < messages:
        now += _NS_A_TURN
        for one, other in ((here, there), (there, here)):
            frames = [memoryview(b"".join(frame)) for frame in one.transmit(now, _BATCH)]
            if frames:
                other.receive(frames, now)
        done += len(here.completions())
        there.completions()
    return messages * (_MESSAGE // 4096) / (time.perf_counter() - start)


def in_memory(*, messages: int = 12, rounds: int = 5) -> dict[str, float]:
    """Median rates of both stacks, and RoCEv2's over Ultra Ethernet's, measured in turn."""
    makers: dict[str, Callable[[], Ends]] = {"uet": uet_ends, "rocev2": rocev2_ends}
    rates: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(rounds):
        for name, make in makers.items():
            rates[name].append(packets_per_s(make(), messages))
    return {
        "uet_memory_packets_per_s": statistics.median(rates["uet"]),
        "rocev2_memory_packets_per_s": statistics.median(rates["rocev2"]),
        "rocev2_memory_ratio": statistics.median(
            ours / theirs for ours, theirs in zip(rates["rocev2"], rates["uet"], strict=True)
        ),
    }


def over_a_fabric(lab: Lab, *, seconds: float = 1.0, rounds: int = 5) -> dict[str, float]:
    """Median rates on ``lab``, which has dilation 1 and at least two servers of two GPUs."""
    requested = {"uet": (endpoint.PLAIN, endpoint.SLOW_HOST), "rocev2": (ROCEV2, {})}
    rates: dict[str, list[float]] = {name: [] for name in requested}
    clock = Clock.start(lab.dilation)
    with ExitStack() as stack:
        pools = {}
        for shift, (name, (transport, slow)) in enumerate(requested.items()):
            specs = endpoint.specs(lab, transport)
            per_server = len(lab.topology.servers[0].gpus)
            source, target = specs[shift], specs[per_server + 1 - shift]
            alone = [
                replace(spec, scale_up_peers={}, transport_config={**spec.transport_config, **slow})
                for spec in (source, target)
            ]
            pools[name] = stack.enter_context(AgentPool(lab.name, alone, clock))
            pools[name].start()
            endpoint.load(pools[name], source, target, seconds)
        for _ in range(rounds):
            for name, pool in pools.items():
                rates[name].append(endpoint.flow_rate(pool))
    return {
        "uet_fabric_packets_per_s": statistics.median(rates["uet"]),
        "rocev2_fabric_packets_per_s": statistics.median(rates["rocev2"]),
        "rocev2_fabric_ratio": statistics.median(
            ours / theirs for ours, theirs in zip(rates["rocev2"], rates["uet"], strict=True)
        ),
    }


def measure() -> dict[str, float]:
    """Both, on the reference fabric."""
    topology = catalogue.load("rail_clos")
    name = f"bench-{secrets.token_hex(4)}"
    with Lab.create(name, topology, dilation=1, seed=1, spec="rail_clos") as lab:
        return in_memory() | over_a_fabric(lab)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
