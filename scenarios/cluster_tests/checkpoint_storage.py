"""Checkpoints of all servers go to the storage nodes over NVMe/TCP, one of which fails meanwhile.

::

    h0 -- state --+                        +-- storage0   2 slots of each copy   X cables down
    h1 -- state --+== stor-leaf, spine ====+
    h2 -- state --+                        +-- storage1   2 slots of each copy
       <------------- restore ------------

Traffic: each server writes its state of ``state`` octets to ``copies`` storage nodes (server n to
node n, n + 1, ...), by NVMe writes of ``command`` octets, ``depth`` at a time. It flushes, writes a
header with number and SHA-256, and flushes again: that commits the checkpoint. Checkpoints take two
slots in turn, so that the one before stays whole. Checkpoint 1 is undisturbed. While checkpoint 2
is written, and half of its octets have reached ``storage0``, that node's cables go down. Then every
server restores the newest checkpoint that is whole, and compares it with what the seed gives.

``kill=dead`` leaves the cables down. ``outage`` plugs them in after ``outage`` of the machine's
time: commands time out after ``timeout``, hosts connect again and send them again. A host gives a
storage node up after ``lost``. These times are the machine's: NVMe's timers know no dilation.
``kill=none`` is the same without a fault.

The scenario ``checkpoint`` is of another kind: a training job in virtual time that stores states in
GPUs' memories over the backend, and loses GPUs. Here the storage network carries states to disks by
the kernel's TCP, and storage is lost; nothing is trained. ``uetemu run checkpoint --param
over=storage`` writes and restores states by RDMA, in virtual time, and nothing is lost.

Measured, for each checkpoint and node: copies committed, octets acknowledged, the slowest copy in
the storage network's time, GB/s of all copies, commands sent again, timeouts, reconnects, and the
errors. ``lost_octets`` are those of states that were acknowledged, but not committed. Then the
restore: states restored of each checkpoint, those for which no copy is left, and wrong ones, of
which there may be none.

What should be seen: with one copy and ``dead`` the servers of ``storage0`` lose both checkpoints,
and the job with them, for it needs every state: a job restores the newest checkpoint that all
servers have. With ``copies=2`` all restore checkpoint 2. After an outage all is committed, late.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from emulator.cluster.run.clients import checkpoint_keeper
from emulator.cluster.run.clients.checkpoint_keeper import (
    RESTORE,
    SLOTS,
    WRITE,
    CheckpointCopy,
    CheckpointTask,
    slot_octets,
)
from emulator.cluster.run.cluster_context import (
    CHECKPOINT_RESTORE,
    CHECKPOINT_WRITE,
    ClusterContext,
)
from emulator.cluster.run.storage_nodes import StorageNodes
from emulator.cluster.services import kinds
from emulator.errors import UserError
from emulator.scenario import parameter
from topologies.model import STORAGE
from topologies.parts.design_parameters import COUNT, SIZE, TIME

TOPOLOGY = "cluster"
SERVICES = "nvme"
BY_RDMA = ("storage_rdma", {"work": "checkpoint,restore"})
RUN_BY_RDMA = "uetemu run checkpoint --param over=storage"
NONE, OUTAGE, DEAD = "none", "outage", "dead"
NS_PER_S = 10**9
#: The node that fails.
VICTIM = 0
#: How long the first half of a checkpoint may take to arrive (s).
HALF_S = 120.0
POLL_S = 0.005
LONG = replace(TIME, maximum=600 * NS_PER_S)
COUNTERS = ("retries", "timeouts", "reconnects")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The states, their copies, and the fault; times are the machine's."""

    state: int = parameter(16 * 2**20, SIZE, help="octets of each server's state")
    copies: int = parameter(1, COUNT, help="storage nodes that get each state")
    kill: str = parameter(DEAD, choices=(NONE, OUTAGE, DEAD), help="what becomes of storage0")
    outage: int = parameter(10**9, LONG, help="how long an outage lasts")
    timeout: int = parameter(
        10**9, LONG, help="when a command is given up, and the host reconnects"
    )
    lost: int = parameter(3 * 10**9, LONG, help="how long a host tries a lost storage node again")
    command: int = parameter(128 * 2**10, SIZE, help="octets of an NVMe command")
    depth: int = parameter(16, COUNT, help="commands at a time")

    def __post_init__(self) -> None:
        kinds.check_whole_blocks(state=self.state, command=self.command)


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Write two checkpoints, the second one under a fault, and restore."""
    nodes = StorageNodes(run)
    if parameters.copies > len(nodes.names):
        raise UserError(
            f"copies is {parameters.copies} and there are {len(nodes.names)} storage nodes; take "
            "fewer copies, or storage_nodes=N of the cluster"
        )
    tasks = keeper_tasks(run, parameters, nodes)
    for number in (1, 2):
        run.event(f"checkpoint {number} begins")
        disturbed = number == 2 and parameters.kill != NONE
        with run.work(CHECKPOINT_WRITE):
            begun = {
                server: run.begin(
                    server, checkpoint_keeper.__name__, {**asdict(task), "number": number}
                )
                for server, task in tasks.items()
            }
            if disturbed:
                _strike(run, parameters, nodes, tasks, list(begun.values()))
            outcomes = [one for _, copies in run.gathered(begun) for one in copies]
        for name in nodes.names:
            own = [one for one in outcomes if one["node"] == name]
            yield _written(run, f"checkpoint {number}, {name}", own, disturbed=disturbed)
        yield from _errors(f"checkpoint {number}", outcomes)
        run.event(f"checkpoint {number} has ended")
    restoring = {
        server: {**asdict(task), "phase": RESTORE, "number": 2} for server, task in tasks.items()
    }
    with run.work(CHECKPOINT_RESTORE):
        restored = run.together(checkpoint_keeper.__name__, restoring)
    yield _restored(list(restored.values()), parameters)


def keeper_tasks(
    run: ClusterContext, parameters: Parameters, nodes: StorageNodes
) -> dict[str, CheckpointTask]:
    """Return each server's task; its copies are on nodes in turn, at places of their own."""
    found = {}
    targets, room = nodes.targets, SLOTS * slot_octets(parameters.state)
    for number, server in enumerate(run.machines.servers):
        copies = []
        for each in range(parameters.copies):
            node = (number + each) % len(targets)
            address, nqn = targets[node]
            place = (number * parameters.copies + each) * room
            copies.append(
                CheckpointCopy(node=nodes.names[node], address=address, nqn=nqn, offset=place)
            )
        found[server] = CheckpointTask(
            phase=WRITE,
            copies=copies,
            server=number,
            number=1,
            octets=parameters.state,
            seed=run.seed,
            command=parameters.command,
            depth=parameters.depth,
            command_timeout_s=parameters.timeout / NS_PER_S,
            lost_s=parameters.lost / NS_PER_S,
        )
    return found


def _strike(
    run: ClusterContext,
    parameters: Parameters,
    nodes: StorageNodes,
    tasks: Mapping[str, CheckpointTask],
    writers: Sequence[subprocess.Popen[str]],
) -> None:
    """Pull the victim's cables once half of the octets that ``tasks`` send have reached it."""
    victim = nodes.names[VICTIM]
    copies = sum(copy.node == victim for task in tasks.values() for copy in task.copies)
    half = copies * parameters.state / 2
    first, deadline = nodes.received_octets(VICTIM), time.monotonic() + HALF_S
    while nodes.received_octets(VICTIM) - first < half:
        if all(one.poll() is not None for one in writers) or time.monotonic() > deadline:
            raise UserError(
                f"{victim} was not hit in the middle of the checkpoint: its writers "
                "have ended before; take a larger state"
            )
        time.sleep(POLL_S)
    run.strike(STORAGE, f"nic {victim} down")
    if parameters.kill == OUTAGE:
        time.sleep(parameters.outage / NS_PER_S)
        run.strike(STORAGE, f"nic {victim} up")


def _written(
    run: ClusterContext, what: str, copies: Sequence[Mapping[str, Any]], *, disturbed: bool
) -> Mapping[str, object]:
    """Return the row of a checkpoint at one storage node."""
    committed = [one for one in copies if one["committed"]]
    acknowledged = sum(one["acknowledged"] for one in copies)
    counted: Counter[str] = Counter()
    for one in copies:
        counted.update({name: one["counters"].get(name, 0) for name in COUNTERS})
    slowest_s = max((one["seconds"] for one in committed), default=0.0) / run.dilation(STORAGE)
    octets = sum(one["acknowledged"] for one in committed)
    return {
        "what": what,
        "copies": len(copies),
        "committed": len(committed),
        "acked_octets": acknowledged,
        "lost_octets": acknowledged - octets,
        "slowest_ms": slowest_s * 1e3 if committed else None,
        "GBps": octets / slowest_s / 1e9 if committed else None,
        **{name: counted[name] for name in COUNTERS},
        "ok": len(committed) == len(copies) or disturbed,
    }


def _errors(what: str, copies: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, object]]:
    """Yield every error of ``copies`` once, with how many have it."""
    counted = Counter((one["node"], one["error"]) for one in copies if one["error"])
    for (node, error), number in counted.items():
        yield {"what": what, "node": node, "copies_failed": number, "error": error}


def _restored(states: Sequence[Mapping[str, Any]], parameters: Parameters) -> Mapping[str, object]:
    numbers = [one["number"] for one in states]
    whole = [number for number in numbers if number is not None]
    wrong = sum(one["wrong"] for one in states)
    survives = parameters.kill != DEAD or parameters.copies > 1
    return {
        "what": "restore",
        "servers": len(states),
        "from_2": numbers.count(2),
        "from_1": numbers.count(1),
        "no_copy_left": numbers.count(None),
        "job_restores": min(whole) if len(whole) == len(states) else None,
        "wrong": wrong,
        "ok": not wrong and (len(whole) == len(states) or not survives),
    }
