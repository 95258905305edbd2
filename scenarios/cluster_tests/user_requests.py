"""Users send bursts of requests to model servers over the frontend.

::

    user0 --- border0 === front-spine0,1 === front-leaf0,1 --- h0 ... h3
              firewall      ECMP by 5-tuple                     HTTP, tokens streamed

Traffic: ``bursts`` bursts of ``burst`` requests, each a TCP connection of its own to a server that
is drawn from the seed.  Each streams ``tokens`` tokens.  Between bursts, ``pause`` on average,
nothing is asked: the use of the network over time is low, and its peaks are short.

Meanwhile a user tries what the firewall refuses: to log in, and to reach another network.

Measured, in the frontend's time (the machine's divided by its dilation): the time to first token
(TTFT) and between tokens (ITL), by percentile.  ``stated`` is what the servers wait by themselves;
the rest is network, HTTP and this machine.  5-tuples are counted at the users' machines.  The
shares of the uplinks are those of the border router: many short flows spread well by ECMP.  For
comparison the same columns stand for the backend's elephants.  There every GPU sends to one other
over RoCEv2 with one queue pair, in virtual time, and each rail switch chooses by its hash of the
flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.cluster import isolation
from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.services import kinds, request_load
from emulator.errors import UserError
from emulator.scenario import parameter
from topologies.cluster import BORDER, MODEL_PORT
from topologies.model import FRONTEND, STORAGE
from topologies.parts.design_parameters import COUNT, SIZE, TIME

TOPOLOGY = "cluster"
SERVICES = "llm"
NS_PER_S = 10**9
PERCENTILES = (50, 90, 99)
ELEPHANT = "1MiB"  # what each GPU sends


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The load; times are the frontend's."""

    bursts: int = parameter(5, COUNT, help="bursts of requests of each user's machine")
    burst: int = parameter(40, COUNT, help="requests of a burst, each a TCP connection")
    tokens: int = parameter(8, COUNT, help="tokens of each answer")
    prompt: int = parameter("2KiB", SIZE, help="octets of each prompt")
    pause: int = parameter("20ms", TIME, help="mean time from one burst to the next")


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Apply the load, try the firewall, and report latencies, spread and refusals."""
    machines = run.machines
    if not machines.users:
        raise UserError("the cluster has no users: take users=1 or more")
    dilation = run.dilation(FRONTEND)
    servers = [(record.address, MODEL_PORT) for record in run.services.of_kind(kinds.llm)]
    before = run.samples.port_octets(FRONTEND)
    began = run.samples.now_s
    records: list[Mapping[str, Any]] = []
    for number, user in enumerate(machines.users):
        run.event(f"{user} sends {parameters.bursts} bursts")
        records += run.client(
            user,
            request_load.__name__,
            {
                "servers": servers,
                "bursts": parameters.bursts,
                "burst": parameters.burst,
                "tokens": parameters.tokens,
                "prompt_bytes": parameters.prompt,
                "pause_s": parameters.pause / NS_PER_S * dilation,
                "seed": run.seed + number,
            },
        )
    took = run.samples.now_s - began
    after = run.samples.port_octets(FRONTEND)
    failed = [record["error"] for record in records if record["error"]]
    yield {
        "what": "requests",
        "sent": len(records),
        "failed": len(failed),
        "first_error": failed[0] if failed else None,
        "servers": len(servers),
        "ok": not failed,
    }
    stated = kinds.AnswerTimes()
    for name, values, own in (
        ("TTFT", [record["token_s"][0] for record in records if record["token_s"]], stated.ttft),
        ("ITL", [gap for record in records for gap in np.diff(record["token_s"])], stated.itl),
    ):
        yield _latency(name, np.array(values) / dilation * 1e3, own * 1e3)
    sent = {port: after[port] - before[port] for port in after}
    flows = {(record["server"], record["port"]) for record in records}
    shares = _uplinks(sent, BORDER)
    rate = run.cluster.labs[FRONTEND].topology.links[-1].rate_bps
    capacity = rate / dilation / 8 * took * len(shares)
    use = sum(shares) / capacity if capacity else None
    yield _spread(f"uplinks of {BORDER}, users' requests", len(flows), shares, use)
    yield from _elephants(run)
    yield _refusals(run)


def _latency(what: str, values_ms: np.ndarray, stated_ms: float) -> Mapping[str, object]:
    row: dict[str, object] = {"what": what, "stated_ms": stated_ms, "samples": len(values_ms)}
    for percentile in PERCENTILES:
        found = float(np.percentile(values_ms, percentile)) if len(values_ms) else None
        row[f"p{percentile}_ms"] = found
    return row


def _uplinks(sent: Mapping[str, int], switch: str) -> list[int]:
    """Return what each uplink of ``switch`` has sent (octets)."""
    return [octets for port, octets in sent.items() if port.startswith(f"{switch}:up")]


def _spread(
    what: str, flows: int, uplinks: Sequence[int], mean_use: float | None
) -> Mapping[str, object]:
    """Return how evenly ``flows`` have filled ``uplinks`` (octets).

    ``entropy_share`` is Shannon's entropy of the shares over its largest value: 1 where all are
    alike, 0 where one has all.
    """
    total = sum(uplinks)
    shares = np.array(uplinks) / total if total else np.zeros(len(uplinks))
    used = shares[shares > 0]
    several = len(shares) > 1
    entropy = float(-(used * np.log2(used)).sum() / np.log2(len(shares))) if several else None
    return {
        "what": what,
        "flows": flows,
        "uplinks": len(uplinks),
        "least_share": float(shares.min()) if len(shares) else None,
        "most_share": float(shares.max()) if len(shares) else None,
        "entropy_share": entropy,
        "mean_use_share": mean_use,
    }


def _elephants(run: ClusterContext) -> Iterator[Mapping[str, object]]:
    """Run a permutation over the backend in virtual time; yield the spread of each rail switch."""
    backend = run.cluster.backend.topology
    uplinked = [
        switch.name
        for switch in backend.switches
        if any(port.name.startswith("up") for port in switch.ports)
    ]
    if not uplinked:
        return
    run.event("elephants on the backend, in virtual time")
    result = run.fabric_run(
        "permutation",
        *("--transport", "rocev2", "--param", f"sizes={ELEPHANT}", "--param", "iterations=1"),
    )
    sent = {port: counted["tx_bytes"] for port, counted in result["ports"].items()}
    flows = result["rows"][-1]["flows"] // len(uplinked)
    for switch in uplinked:
        yield _spread(f"uplinks of {switch}, elephants", flows, _uplinks(sent, switch), None)


def _refusals(run: ClusterContext) -> Mapping[str, object]:
    """Try what users may not do, and report what the border router refused."""
    frontend = run.cluster.labs[FRONTEND]
    before = isolation.refused_by_border(frontend).packets
    user, machines = run.machines.users[0], run.machines
    server = machines.servers[0]
    tried = [f"http://{machines.address(server, FRONTEND)}:22/"]
    if STORAGE in machines.addresses[server]:
        tried.append(f"http://{machines.address(server, STORAGE)}:{MODEL_PORT}/")
    run.event(f"{user} tries what it may not do")
    reached = 0
    for url in tried:
        lab = run.cluster.lab_of(user)
        done = lab.exec(user, ["curl", "-s", "-m", "2", url], timeout=30)
        reached += done.returncode == 0
    refused = isolation.refused_by_border(frontend).packets - before
    return {
        "what": f"firewall of {BORDER}",
        "tried": len(tried),
        "reached": reached,
        "refused_packets": refused,
        "ok": reached == 0 and refused > 0,
    }
