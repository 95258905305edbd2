"""Measure what an endpoint costs: agents to start, memory of an idle one, packets it carries.

The packet rate is told as a ratio to a bare raw socket (:mod:`tests.bench.raw`) through the same
fabric in the same run, so that it means the same on any machine.  One flow of large writes
between two GPUs on different rails, reliable unordered delivery, 4 KiB payloads::

    h0g0 (agent) -- rail0 -- spine -- rail1 -- h1g1 (agent)

The fabric is not slowed down (dilation 1), so that its 400 Gb/s never limit.
"""

from __future__ import annotations

import json
import re
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from emulator.endpoint.agent_pool import AgentPool
from emulator.endpoint.agent_spec import AgentSpec
from emulator.endpoint.clock import Clock
from emulator.endpoint.operations.schedule import Operation, Receive, Region, Schedule, Write
from emulator.lab import Lab
from emulator.run.run_agents import agent_specs
from emulator.transports import fit
from tests.bench import raw
from topologies import catalogue

#: Congestion control would take the host for a fabric whose queues never end.
PLAIN = "uet:cc=none,spray=oblivious"
#: Window and timers for a host that is much slower than the fabric: an agent's turn must not look
#: like a loss.
SLOW_HOST = {
    "window_bytes": 1 << 20,
    "rto_init_time": 500_000_000,
    "nack_retx_time": 500_000_000,
    "tail_loss_time": 0,
}
MESSAGE_OCTETS = 4 << 20


def measure(lab: Lab, *, seconds: float = 1.0, rounds: int = 5) -> dict[str, float]:
    """Measure on ``lab``, which has dilation 1 and at least two servers of two GPUs.

    ``agents_ready_s``: from nothing to all agents ready, one per GPU.  ``agent_private_mb``:
    memory that an idle agent shares with nobody, the mean of all.  ``end_to_end_ratio``: median
    over ``rounds`` of data packets per second of an endpoint over those of a bare socket.
    ``tss_ratio``: the same of an endpoint whose packets are secured over one whose are not.
    """
    plain = specs(lab, PLAIN)
    facts = start_cost(lab, plain)
    per_server = _per_server(lab)
    source, target = plain[0], plain[per_server + 1]
    secure = specs(lab, f"{PLAIN},tss=cluster")
    secure_source, secure_target = secure[1], secure[per_server]
    raw_source, raw_target = plain[1].node, plain[per_server].node
    bare: list[float] = []
    carried: list[float] = []
    secured: list[float] = []
    clock = Clock.start(lab.dilation)
    with (
        AgentPool(lab.name, [_alone(source), _alone(target)], clock) as pool,
        AgentPool(lab.name, [_alone(secure_source), _alone(secure_target)], clock) as secure_pool,
    ):
        pool.start()
        secure_pool.start()
        load(pool, source, target, seconds)
        load(secure_pool, secure_source, secure_target, seconds)
        for _ in range(rounds):
            carried.append(flow_rate(pool))
            secured.append(flow_rate(secure_pool))
    # The bare sockets share namespaces with the secured endpoints: these must be gone.
    with AgentPool(lab.name, [_alone(source), _alone(target)], clock) as pool:
        pool.start()
        load(pool, source, target, seconds)
        again: list[float] = []
        for _ in range(rounds):
            bare.append(raw.packet_rate(lab, raw_source, raw_target, seconds))
            again.append(flow_rate(pool))
    return facts | {
        "bare_packets_per_s": statistics.median(bare),
        "uet_packets_per_s": statistics.median(again),
        "end_to_end_ratio": statistics.median(
            ours / theirs for ours, theirs in zip(again, bare, strict=True)
        ),
        "tss_ratio": statistics.median(
            ours / theirs for ours, theirs in zip(secured, carried, strict=True)
        ),
    }


def specs(lab: Lab, transport: str) -> Sequence[AgentSpec]:
    """One for every GPU of ``lab``, all with this transport."""
    return agent_specs(
        lab.topology,
        fit(transport, lab.topology, seed=lab.seed),
        namespace=lambda node: str(lab.netns(node)),
        nic_delays=True,
        seed=lab.seed,
        memory_octets=1 << 28,
    )


def _alone(spec: AgentSpec) -> AgentSpec:
    """The rest of its server is not there, and its host is slow."""
    config = {**spec.transport_config, **SLOW_HOST}
    return replace(spec, transport_config=config, scale_up_peers={})


def load(pool: AgentPool, source: AgentSpec, target: AgentSpec, seconds: float) -> None:
    """Load a flow that lasts for about ``seconds``."""
    pool.load(one_flow(source.rank, target.rank, 1))
    octets = round(flow_rate(pool) * raw.PAYLOAD * seconds)
    pool.load(one_flow(source.rank, target.rank, max(1, octets // MESSAGE_OCTETS)))


def start_cost(lab: Lab, specs: Sequence[AgentSpec]) -> dict[str, float]:
    """Start one agent per GPU: how long it takes, and what one of them holds for itself."""
    with AgentPool(lab.name, specs, Clock.start(lab.dilation)) as pool:
        begin = time.perf_counter()
        pool.start()
        ready = time.perf_counter() - begin
        private = [private_octets(pid) for pid in pool.pids.values()]
    return {
        "agents": len(specs),
        "agents_ready_s": ready,
        "agent_private_mb": statistics.mean(private) / 1e6,
    }


def private_octets(pid: int) -> int:
    """Memory of process ``pid`` that no other process shares (``smaps_rollup``)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(map(int, re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB", text, re.M)))


def one_flow(source: int, target: int, messages: int) -> list[Schedule]:
    """``messages`` writes of 4 MiB, all posted at once, into a ring of four regions."""
    regions = [Region("data", n % 4 * MESSAGE_OCTETS, MESSAGE_OCTETS) for n in range(messages)]
    buffers = {"data": 4 * MESSAGE_OCTETS}
    writes: list[Operation] = [
        Write(peer=target, tag=n, local=region, remote=region, after=(n - 4,) if n >= 4 else ())
        for n, region in enumerate(regions)
    ]
    receives: list[Operation] = [
        Receive(peer=source, tag=n, into=region) for n, region in enumerate(regions)
    ]
    return [
        Schedule(rank=source, buffers=buffers, operations=tuple(writes)),
        Schedule(rank=target, buffers=buffers, operations=tuple(receives)),
    ]


def flow_rate(pool: AgentPool) -> float:
    """Run the loaded flow once: data packets per second, retransmissions not counted."""
    before = _data_packets(pool.counters())
    results = pool.run(timeout=60)
    packets = _data_packets(pool.counters()) - before
    fabric_ns = max(r.end_ns for r in results) - min(r.start_ns for r in results)
    return packets / pool.clock.host_seconds(fabric_ns)


def _data_packets(counters: Mapping[int, Mapping[str, Mapping[str, int]]]) -> int:
    return sum(layers["transport"].get("tx_data_packets", 0) for layers in counters.values())


def _per_server(lab: Lab) -> int:
    return len(lab.topology.servers[0].gpus)


def main() -> None:
    """Build the reference fabric, measure, print JSON."""
    topology = catalogue.load("rail_clos")
    name = f"bench-{secrets.token_hex(3)}"
    with Lab.create(name, topology, dilation=1, seed=1, spec="rail_clos") as lab:
        print(json.dumps(measure(lab), indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
