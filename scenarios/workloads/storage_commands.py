"""Commands to storage nodes by RDMA: reads and writes of their disks, as schedules of all ranks.

A read is what NVMe over RDMA does on the wire (NVMe RDMA Transport Specification 1.0): the server
sends a command capsule, and the storage node answers with an RDMA write into the server's memory.
A write is an RDMA write into the storage node's memory; when all of a server's are there, the node
answers with a completion.  At most ``depth`` commands of a server are under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.endpoint.operations.schedule import (
    Operation,
    Receive,
    Region,
    Schedule,
    Write,
)
from emulator.scenario import Contents

#: A submission queue entry, and a completion queue entry (NVM Express Base 2.0, 3.3.3).
COMMAND_OCTETS, COMPLETION_OCTETS = 64, 16
#: Buffers: a server's, and a storage node's.
DATA, DISK = "data", "disk"


@dataclass(frozen=True, kw_only=True)
class StorageCommand:
    """``octets`` between ``data`` of a ``server``'s memory and ``disk`` of a storage ``node``.

    ``server`` and ``node`` are ranks, ``data`` and ``disk`` offsets in octets.
    """

    server: int
    node: int
    data: int
    disk: int
    octets: int


@dataclass(frozen=True, kw_only=True)
class StorageCommands:
    """Commands of all servers, each in its order.

    ``memories`` has what each server's memory, and each node's disk, holds before: reads fill the
    memories, and writes the disks.
    """

    ranks: int
    commands: Sequence[StorageCommand]
    depth: int
    writes: bool
    memories: Mapping[int, np.ndarray]

    @property
    def octets(self) -> int:
        """Return what all commands carry."""
        return sum(one.octets for one in self.commands)

    @property
    def memory_octets(self) -> int:
        """Return about what the busiest rank's buffers take."""
        filled = [len(one) for one in self._filled().values()]
        return max([len(one) for one in self.memories.values()] + filled, default=0)

    def schedules(self) -> list[Schedule]:
        """Return one schedule for each rank, also for those that take no part."""
        build = _WriteSchedules(self) if self.writes else _ReadSchedules(self)
        for command in self.commands:
            build.add(command)
        build.end()
        return [
            Schedule(
                rank=rank, buffers=build.buffers[rank], operations=tuple(build.operations[rank])
            )
            for rank in range(self.ranks)
        ]

    def inputs(self, rank: int) -> Contents:
        """Return what ``rank`` holds before."""
        if rank not in self.memories:
            return {}
        return {self._source: self.memories[rank]}

    def expected(self, rank: int) -> Contents:
        """Return what ``rank`` must hold afterwards."""
        filled = self._filled()
        return {self._target: filled[rank]} if rank in filled else {}

    @property
    def _source(self) -> str:
        return DATA if self.writes else DISK

    @property
    def _target(self) -> str:
        return DISK if self.writes else DATA

    def _filled(self) -> dict[int, np.ndarray]:
        """Return the memories that the commands fill; they fill them whole."""
        sizes: Counter[int] = Counter()
        for one in self.commands:
            sizes[one.node if self.writes else one.server] += one.octets
        found = {rank: np.zeros(size, np.uint8) for rank, size in sizes.items()}
        for one in self.commands:
            disk, data = (
                slice(one.disk, one.disk + one.octets),
                slice(one.data, one.data + one.octets),
            )
            if self.writes:
                found[one.node][disk] = self.memories[one.server][data]
            else:
                found[one.server][data] = self.memories[one.node][disk]
        return found


class _Schedules:
    """Schedules of all ranks while commands are added."""

    def __init__(self, commands: StorageCommands) -> None:
        self.commands = commands
        ranks = range(commands.ranks)
        self.operations: list[list[Operation]] = [[] for _ in ranks]
        self.buffers: list[dict[str, int]] = [{} for _ in ranks]
        self.ends: dict[int, list[int]] = {}
        self.pairs: Counter[tuple[int, int]] = Counter()
        for rank, content in commands.memories.items():
            self.buffers[rank][DATA if commands.writes else DISK] = len(content)
        for rank in ranks:
            for name, content in commands.expected(rank).items():
                self.buffers[rank][name] = len(content)

    def put(self, rank: int, operation: Operation) -> int:
        """Append ``operation`` to the schedule of ``rank`` and return its index."""
        self.operations[rank].append(operation)
        return len(self.operations[rank]) - 1

    def free(self, server: int) -> tuple[int, ...]:
        """Return what the next command of ``server`` has to wait for."""
        ends = self.ends.setdefault(server, [])
        depth = self.commands.depth
        return (ends[-depth],) if len(ends) >= depth else ()

    def tag(self, command: StorageCommand) -> int:
        """Return the number of ``command`` between its server and node."""
        pair = command.server, command.node
        self.pairs[pair] += 1
        return self.pairs[pair] - 1

    def end(self) -> None:
        """Add what follows all commands."""


class _ReadSchedules(_Schedules):
    """A command capsule to the node, and an RDMA write back, for each command."""

    def add(self, command: StorageCommand) -> None:
        server, node, tag = command.server, command.node, self.tag(command)
        asks, asked = f"to{node}", f"from{server}"
        self.buffers[server][asks] = self.buffers[node][asked] = (tag + 1) * COMMAND_OCTETS
        capsule = Region(asked, tag * COMMAND_OCTETS, COMMAND_OCTETS)
        data = Region(DATA, command.data, command.octets)
        self.put(
            server,
            Write(
                peer=node,
                tag=tag,
                local=Region(asks, tag * COMMAND_OCTETS, COMMAND_OCTETS),
                remote=capsule,
                after=self.free(server),
            ),
        )
        arrived = self.put(node, Receive(peer=server, tag=tag, into=capsule))
        self.put(
            node,
            Write(
                peer=server,
                tag=tag,
                local=Region(DISK, command.disk, command.octets),
                remote=data,
                after=(arrived,),
            ),
        )
        self.ends[server].append(self.put(server, Receive(peer=node, tag=tag, into=data)))


class _WriteSchedules(_Schedules):
    """An RDMA write to the node for each command, and a completion for all of a server."""

    def __init__(self, commands: StorageCommands) -> None:
        super().__init__(commands)
        self.arrived: dict[tuple[int, int], list[int]] = {}

    def add(self, command: StorageCommand) -> None:
        server, node, tag = command.server, command.node, self.tag(command)
        disk = Region(DISK, command.disk, command.octets)
        before = self.free(server)
        write = Write(
            peer=node,
            tag=tag,
            local=Region(DATA, command.data, command.octets),
            remote=disk,
            after=before,
        )
        self.ends[server].append(self.put(server, write))
        arrived = self.put(node, Receive(peer=server, tag=tag, into=disk))
        self.arrived.setdefault((server, node), []).append(arrived)

    def end(self) -> None:
        for (server, node), arrived in self.arrived.items():
            there, here = f"to{server}", f"from{node}"
            self.buffers[node][there] = self.buffers[server][here] = COMPLETION_OCTETS
            into = Region(here, 0, COMPLETION_OCTETS)
            local = Region(there, 0, COMPLETION_OCTETS)
            self.put(
                node, Write(peer=server, tag=0, local=local, remote=into, after=tuple(arrived))
            )
            self.put(server, Receive(peer=node, tag=0, into=into))
