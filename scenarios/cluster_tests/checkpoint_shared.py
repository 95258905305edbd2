"""Checkpoints go to the file system that all servers share, and other servers restore them.

::

    h0 -- state0 --+                                  +-- state3 --> h0
    h1 -- state1 --+== NFS: storage0:/data ===========+-- state0 --> h1
    h2 -- state2 --+                                  +-- state1 --> h2

Traffic: every server writes its state of ``state`` octets to a file of its own on ``storage0``, all
at once (``nfs-cp``, NFSv3). The command ends when the server has committed the file. Then every
server reads the file of the server before it, as a job does that comes back on other machines, and
compares it. In ``checkpoint_storage`` each server has blocks of its own, and finds only its own.

Measured, in the storage network's time (the machine's divided by its dilation): the slowest server,
with the start of its client; GB/s of all together; ``port_share``, their octets over what the port
of ``storage0`` carries in that time; states that are right, compared outside of the measured time.

What should be seen: the port of ``storage0`` is full, or else this machine sets the pace: a larger
``--network-dilation storage=N`` gives it time. Every state is right.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator.cluster_run.clients.sharded_dataset import content
from emulator.cluster_run.cluster_context import ClusterContext
from emulator.cluster_run.timed_commands import run_together
from emulator.errors import UserError
from emulator.scenario import parameter
from emulator.services.kinds.nfs import EXPORT, NFS, SHARED
from topologies.model import STORAGE
from topologies.parts.design_parameters import SIZE

TOPOLOGY = "cluster"
SERVICES = NFS.name
#: What states are drawn from, beside the seed and the server's number.
_STATE = 3


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The states."""

    state: int = parameter(16 * 2**20, SIZE, help="octets of each server's state")


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Let all servers write their states, and each read that of the one before it."""
    servers = run.machines.servers
    if len(servers) < 2:
        raise UserError("one server has no other one to restore its state; take hosts=2 or more")
    (store,) = run.services.of_kind(NFS)
    shared = run.services.folder(store.name) / SHARED
    states = {
        server: content(run.seed, _STATE, number, octets=parameters.state)
        for number, server in enumerate(servers)
    }
    before = dict(zip(servers, (servers[-1], *servers[:-1]), strict=True))
    with TemporaryDirectory(prefix="uetemu-states-") as name:
        folder = Path(name)
        for server, state in states.items():
            (folder / server).write_bytes(state)
        remote = {server: f"nfs://{store.address}{EXPORT}/{server}" for server in servers}
        run.event("all write")
        took_s = _timed(run, {one: ("nfs-cp", str(folder / one), remote[one]) for one in servers})
        written = [(shared / one).read_bytes() == state for one, state in states.items()]
        yield _row(run, store.machine, "written", took_s, parameters.state, written)
        run.event("all read another one's")
        copies = {one: folder / f"{one}-restored" for one in servers}
        took_s = _timed(
            run, {one: ("nfs-cp", remote[before[one]], str(copies[one])) for one in servers}
        )
        restored = [copies[one].read_bytes() == states[before[one]] for one in servers]
        yield _row(run, store.machine, "restored by others", took_s, parameters.state, restored)


def _timed(run: ClusterContext, commands: Mapping[str, Sequence[str]]) -> float:
    """Run ``commands`` together and return the time of the slowest, in the network's time (s)."""
    began = time.monotonic()
    ends = run_together(run, commands, "copy its state")
    return (max(ends.values()) - began) / run.dilation(STORAGE)


def _row(
    run: ClusterContext, machine: str, what: str, took_s: float, octets: int, right: Sequence[bool]
) -> Mapping[str, object]:
    """Return the row of states of ``octets`` each, of which some are ``right``."""
    link, _, _ = next(run.cluster.labs[STORAGE].topology.neighbours(machine))
    total = octets * len(right)
    return {
        "what": what,
        "servers": len(right),
        "octets": total,
        "slowest_ms": took_s * 1e3,
        "GBps": total / took_s / 1e9,
        "port_share": total * 8 / took_s / link.rate_bps,
        "right": sum(right),
        "ok": all(right),
    }
