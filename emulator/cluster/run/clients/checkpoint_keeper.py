"""A server's checkpoints on NVMe/TCP: ``python -m ...clients.checkpoint_keeper JSON``.

A copy of a server has two slots on a storage node, which checkpoints take in turn, so that the one
before stays whole.  A checkpoint is committed by its header: it is written after the data are
flushed, and flushed itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.run.clients.block_transfer import (
    NSID,
    BlockTransfer,
    connected,
    ended_with_sentence,
    released,
)
from emulator.cluster.run.clients.dataset_reader import content
from emulator.errors import UserError

WRITE, RESTORE = "write", "restore"
#: Checkpoints that a copy keeps.
SLOTS = 2
#: What a header takes on the disk (octets).
HEADER_OCTETS = 4096
#: What content is drawn from, beside the seed, the server and the checkpoint.
_STATE = 2
CONNECT_S, RECONNECT_S = 1.0, 0.25


@dataclass(frozen=True, kw_only=True)
class CheckpointCopy:
    """A copy of a server's checkpoints: its storage node, and where its slots begin there."""

    node: str
    address: str
    nqn: str
    offset: int


@dataclass(frozen=True, kw_only=True)
class CheckpointTask:
    """One phase of ``server``: write checkpoint ``number`` to all copies, or restore the newest.

    A state has ``octets``.  Times are the machine's (s): a command is given up after
    ``command_timeout_s``, a storage node after ``lost_s``.  With ``held`` it begins when it is
    released, before it connects.
    """

    phase: str
    copies: Sequence[CheckpointCopy]
    server: int
    number: int
    octets: int
    seed: int
    command: int
    depth: int
    command_timeout_s: float
    lost_s: float
    held: bool = False

    def state(self, number: int) -> bytes:
        return content(self.seed, _STATE, self.server, number, octets=self.octets)

    def slot(self, copy: CheckpointCopy, number: int) -> int:
        """Return the place of the header of checkpoint ``number``, which its state follows."""
        return copy.offset + number % SLOTS * slot_octets(self.octets)

    def options(self, copy: CheckpointCopy) -> HostOptions:
        """Return how to connect to the node of ``copy``."""
        return HostOptions(
            copy.address,
            copy.nqn,
            queue_entries=max(2, self.depth + 1),
            command_timeout_s=self.command_timeout_s,
            connect_timeout_s=CONNECT_S,
            reconnect_delay_s=RECONNECT_S,
            ctrl_loss_s=self.lost_s,
        )


@dataclass(kw_only=True)
class CopyWritten:
    """The outcome of a checkpoint at one storage node.

    ``seconds`` are the machine's, from the connection to the commit, and ``cpu_s`` what the
    client's process computed in them.
    """

    node: str
    committed: bool = False
    acknowledged: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    error: str | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class StateRestored:
    """The outcome of a restore: which checkpoint, from where; ``number`` None: none was whole.

    ``seconds`` are the machine's, of reading; connections and the comparison are outside.
    ``cpu_s`` is what the client's process computed in them.
    """

    number: int | None = None
    node: str | None = None
    seconds: float = 0.0
    cpu_s: float = 0.0
    wrong: bool = False
    errors: list[str] = field(default_factory=list)


def slot_octets(octets: int) -> int:
    return HEADER_OCTETS + octets


async def write(task: CheckpointTask) -> list[CopyWritten]:
    """Write the checkpoint to all copies at once; each has its own outcome."""
    state = task.state(task.number)
    if task.held:
        await released()
    return list(await asyncio.gather(*(_copy(task, one, state) for one in task.copies)))


async def _copy(task: CheckpointTask, copy: CheckpointCopy, state: bytes) -> CopyWritten:
    done = CopyWritten(node=copy.node)
    try:
        async with connected([task.options(copy)], task.command, task.depth) as (node,):
            began, cpu = time.perf_counter(), time.process_time()
            try:
                await _committed(task, copy, node, state)
                done.committed = True
            finally:
                done.seconds = time.perf_counter() - began
                done.cpu_s = time.process_time() - cpu
                done.acknowledged = min(node.acknowledged, len(state))
                done.counters = node.host.counters()
    except UserError as error:
        done.error = str(error)
    return done


async def _committed(
    task: CheckpointTask, copy: CheckpointCopy, node: BlockTransfer, state: bytes
) -> None:
    """Write data, flush, write the header, flush."""
    slot = task.slot(copy, task.number)
    await node.write(slot + HEADER_OCTETS, state)
    await node.host.flush(NSID)
    header = {"number": task.number, "octets": len(state), "sha256": _digest(state)}
    await node.write(slot, json.dumps(header).encode().ljust(HEADER_OCTETS, b"\0"))
    await node.host.flush(NSID)


async def restore(task: CheckpointTask) -> StateRestored:
    """Read the newest whole checkpoint from the first copy that has it, and compare it."""
    done = StateRestored()
    if task.held:
        await released()
    for copy in task.copies:
        try:
            async with connected([task.options(copy)], task.command, task.depth) as (node,):
                began, cpu = time.perf_counter(), time.process_time()
                found = await _newest(task, copy, node)
                done.seconds += time.perf_counter() - began
                done.cpu_s += time.process_time() - cpu
        except UserError as error:
            done.errors.append(f"{copy.node}: {error}")
            continue
        if found is not None and (done.number is None or found[0] > done.number):
            done.number, state = found
            done.node = copy.node
            done.wrong = state != task.state(done.number)
        if done.number == task.number:
            break
    return done


async def _newest(
    task: CheckpointTask, copy: CheckpointCopy, node: BlockTransfer
) -> tuple[int, bytes] | None:
    """Return number and state of the newest checkpoint of ``copy`` whose digest fits."""
    found = []
    for number in range(SLOTS):
        slot = task.slot(copy, number)
        header = _header(await node.read(slot, HEADER_OCTETS))
        if header is not None and header["octets"] == task.octets:
            found.append((header["number"], slot, header["sha256"]))
    for number, slot, digest in sorted(found, reverse=True):
        state = await node.read(slot + HEADER_OCTETS, task.octets)
        if _digest(state) == digest:
            return number, state
    return None


def _header(octets: bytes) -> dict[str, Any] | None:
    """Return the header in ``octets``, None if there is none."""
    try:
        header = json.loads(octets.rstrip(b"\0"))
    except ValueError:
        return None
    kinds = {"number": int, "octets": int, "sha256": str}
    if isinstance(header, dict) and all(isinstance(header.get(k), t) for k, t in kinds.items()):
        return header
    return None


def _digest(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()


def main(text: str) -> None:
    """Carry out the task in ``text`` and print its outcome."""
    given = json.loads(text)
    copies = [CheckpointCopy(**one) for one in given.pop("copies")]
    task = CheckpointTask(copies=copies, **given)
    with ended_with_sentence():
        if task.phase == WRITE:
            json.dump([asdict(one) for one in asyncio.run(write(task))], sys.stdout)
        else:
            json.dump(asdict(asyncio.run(restore(task))), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
