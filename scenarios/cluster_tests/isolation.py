"""All other networks are loaded, and management stays up and sees none of it.

::

    backend       GPUs send datagrams across the spines          \\
    frontend      users send requests to model servers            |  nothing of that
    storage       servers read a file of the shared file system  /   on management
    management    DNS, files, rendezvous, NTP, logins; probed all the time

Traffic: for ``seconds`` GPUs send ``rate`` of datagrams each, users send bursts of requests, and
every server reads a file of ``file`` octets from the shared file system, ten times.  Meanwhile the
telemetry machine probes every server over management ten times a second, and each server rolls out
a file from the head node and asks it for names.

Measured: what each network carried; the loss and the round trips of the probes, before the load and
under it; and every packet that the management switch saw, by addresses and ports: those that are
not of the management network are listed.  A training, storage or user's packet would be one.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.cluster.run.clients import udp_burst
from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.packet_survey import foreign_ports, survey
from emulator.cluster.services import kinds, request_load
from emulator.cluster.services.service_runner import ServiceRecord
from emulator.errors import UserError
from emulator.scenario import parameter
from topologies.addressing import NETWORK_BLOCKS
from topologies.cluster import MANAGEMENT_SWITCH, MODEL_PORT, TELEMETRY
from topologies.model import BACKEND, FRONTEND, MANAGEMENT, STORAGE
from topologies.parts.design_parameters import COUNT, RATE, SIZE

TOPOLOGY = "cluster"
SERVICES = "dns,files,llm,nfs,rendezvous,ssh"
PROBES_A_SECOND = 10
DATAGRAM_OCTETS = 4096
LIMIT_S = 120.0
READS = " ".join(map(str, range(10)))
EQUAL = "read 10 times, equal"
_RTT = re.compile(r"time=([0-9.]+) ms")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The load; seconds are the machine's, the rate is the backend's."""

    seconds: int = parameter(5, COUNT, help="how long the load lasts, in seconds of this machine")
    rate: int = parameter("40Gbps", RATE, help="what each GPU sends over the backend")
    file: int = parameter("4MiB", SIZE, help="octets of the file that each server reads")


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Probe, load, probe under load, and report what management has seen."""
    source = run.services.folder(_store(run).name) / kinds.SHARED / "dataset"
    source.write_bytes(np.random.default_rng(run.seed).bytes(parameters.file))
    offered = run.services.folder(f"{kinds.files.name}@head0") / kinds.OFFERED / "rolled-out"
    offered.write_text("the same on every server\n")
    with run.watched(MANAGEMENT_SWITCH, "management") as capture:
        yield _probed(run, "management alone", parameters.seconds)
        run.event("load begins")
        load = list(_load(run, parameters, str(source)))
        yield _probed(run, "management under load", parameters.seconds)
        yield _used(run)
        for what, process in load:
            yield _ended(what, process)
        run.event("load has ended")
    yield from run.samples.total_rows()
    found = survey(capture, [NETWORK_BLOCKS[MANAGEMENT]], foreign_ports())
    protocols = " ".join(f"{name}:{n}" for name, n in found.packets.most_common(8))
    yield found.row("packets on management", protocols=protocols)


def _load(
    run: ClusterContext, parameters: Parameters, source: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the load of every other network; yield its processes."""
    backend = run.cluster.backend
    addresses = {gpu.name: gpu.ports[0].address for gpu in backend.topology.gpus}
    for gpu, own in addresses.items():
        peers = [str(one.ip) for one in addresses.values() if one and one != own]
        given = {
            "peers": peers,
            "octets": DATAGRAM_OCTETS,
            "rate_bps": parameters.rate / backend.dilation,
            "seconds": parameters.seconds,
        }
        yield f"{BACKEND}, {gpu}", run.begin(gpu, udp_burst.__name__, given)
    servers = [(record.address, MODEL_PORT) for record in run.services.of_kind(kinds.llm)]
    for user in run.machines.users:
        requests = {
            "servers": servers,
            "bursts": parameters.seconds,
            "burst": 20,
            "tokens": 4,
            "prompt_bytes": 2048,
            "pause_s": 0.5,
            "seed": run.seed,
        }
        yield f"{FRONTEND}, {user}", run.begin(user, request_load.__name__, requests)
    remote = f"nfs://{_store(run).address}{kinds.EXPORT}/dataset?version=4"
    read = f'for i in {READS}; do nfs-cat "{remote}" | cmp - "{source}" || exit 1; done'
    for server in run.machines.servers:
        yield f"{STORAGE}, {server}", run.started(server, ["sh", "-c", f"{read}; echo {EQUAL}"])


def _store(run: ClusterContext) -> ServiceRecord:
    """Return the service that is the shared file system."""
    (store,) = run.services.of_kind(kinds.nfs)
    return store


def _ended(what: str, process: subprocess.Popen[str]) -> Mapping[str, object]:
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise UserError(f"the load of {what} has not ended after {LIMIT_S:g} s") from None
    words = err.strip().splitlines()
    return {
        "what": f"load of {what}",
        "result": _stated(out),
        "ok": process.returncode == 0,
        "error": words[-1] if process.returncode and words else None,
    }


def _stated(out: str) -> str:
    """Return a short statement of what a client printed."""
    try:
        content: Any = json.loads(out)
    except ValueError:
        return out.strip() or "nothing"
    if isinstance(content, list):
        failed = sum(record["error"] is not None for record in content)
        return f"{len(content)} requests, {failed} failed"
    return f"{content['sent']} datagrams"


def _probed(run: ClusterContext, what: str, seconds: int) -> Mapping[str, object]:
    count = seconds * PROBES_A_SECOND
    probes = []
    for server in run.machines.servers:
        address = run.machines.address(server, MANAGEMENT)
        argv = ["ping", "-c", str(count), "-i", str(1 / PROBES_A_SECOND), "-W", "2", address]
        probes.append(run.started(TELEMETRY, argv))
    times: list[float] = []
    for probe in probes:
        out, _ = probe.communicate(timeout=seconds + LIMIT_S)
        times += map(float, _RTT.findall(out))
    sent = count * len(probes)
    return {
        "what": what,
        "probes": sent,
        "lost": sent - len(times),
        "p50_ms": float(np.percentile(times, 50)) if times else None,
        "p99_ms": float(np.percentile(times, 99)) if times else None,
        "ok": len(times) == sent,
    }


def _used(run: ClusterContext) -> Mapping[str, object]:
    """Use the services of management on every server, as its operators do."""
    head = run.machines.address("head0", MANAGEMENT)
    right = 0
    for server in run.machines.servers:
        got = run.execute(server, ["curl", "-sf", f"http://{head}:{kinds.files.port}/rolled-out"])
        named = run.execute(server, ["busybox", "nslookup", "-type=a", server, head])
        right += "same on every" in got and run.machines.address(server, MANAGEMENT) in named
    servers = len(run.machines.servers)
    return {
        "what": "services of management",
        "servers": servers,
        "right": right,
        "ok": right == servers,
    }
