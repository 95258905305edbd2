"""Commands to storage nodes by RDMA: reads and writes of their disks, as schedules of all ranks.

A command's messages are those of NVMe over RDMA, in which only the controller begins RDMA
operations (NVM Express RDMA Transport Specification 1.0)::

    read    server -- command capsule --> node        write   server -- command capsule --> node
            server <-- RDMA WRITE: data - node                server <-- RDMA READ request - node
            server <-- response capsule - node                server -- data of it --------> node
                                                              server <-- response capsule -- node

Every message is an RDMA write here, the data of an RDMA READ too: its request is a message of a
RETH's length, and the server's answer follows when that is there.  A command ends when its data and
its response are there.  At most ``depth`` commands of a server are under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from emulator.scenario import Contents
from emulator.sim.endpoint.operations import schedule

#: A submission queue entry and a completion queue entry (NVM Express Base 2.0, 3.3.3), and the RETH
#: of a READ request (InfiniBand Architecture 1, 9.2).
COMMAND_OCTETS, COMPLETION_OCTETS, REQUEST_OCTETS = 64, 16, 16
#: The shortest data of a command (octets), by which its messages are known from the others.
SHORTEST_OCTETS = 512
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
        return sum(one.octets for one in self.commands)

    @property
    def memory_octets(self) -> int:
        """Return about what the busiest rank's buffers take."""
        filled = [len(one) for one in self._filled().values()]
        return max([len(one) for one in self.memories.values()] + filled, default=0)

    def schedules(self) -> list[schedule.Schedule]:
        """Return one schedule for each rank, also for those that take no part.

        Only ranks that are compiled have operations.
        """
        build = _CommandSchedules(self)
        for command in self.commands:
            build.add(command)
        return [
            schedule.Schedule(
                rank=rank, buffers=build.buffers[rank], operations=tuple(build.operations[rank])
            )
            for rank in range(self.ranks)
        ]

    def inputs(self, rank: int) -> Contents:
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


class _MessageKind(IntEnum):
    CAPSULE = 0
    REQUEST = 1
    DATA = 2
    RESPONSE = 3


#: Offset and length of the messages that are not data, in a command's slot of a queue (octets).
_IN_SLOT = {
    _MessageKind.CAPSULE: (0, COMMAND_OCTETS),
    _MessageKind.REQUEST: (COMMAND_OCTETS, REQUEST_OCTETS),
    _MessageKind.RESPONSE: (COMMAND_OCTETS + REQUEST_OCTETS, COMPLETION_OCTETS),
}
_SLOT_OCTETS = sum(length for _, length in _IN_SLOT.values())


@dataclass(frozen=True, kw_only=True)
class _Message:
    """A message between two ranks: its number there, where it is taken from, and where it goes."""

    sender: int
    receiver: int
    tag: int
    local: schedule.Region
    remote: schedule.Region


class _CommandSchedules:
    def __init__(self, commands: StorageCommands) -> None:
        self.commands = commands
        ranks = range(commands.ranks)
        self.operations: list[list[schedule.Operation]] = [[] for _ in ranks]
        self.buffers: list[dict[str, int]] = [{} for _ in ranks]
        self._ends: dict[int, list[int]] = {}
        self._pairs: Counter[tuple[int, int]] = Counter()
        for rank, content in commands.memories.items():
            self.buffers[rank][DATA if commands.writes else DISK] = len(content)
        for rank in ranks:
            for name, content in commands.expected(rank).items():
                self.buffers[rank][name] = len(content)

    def add(self, command: StorageCommand) -> None:
        """Append the messages of ``command`` to the schedules of its server and its node."""
        server, node = command.server, command.node
        number = self._pairs[server, node]
        self._pairs[server, node] += 1
        self._grow(server, node, number + 1)
        capsule = _queued(_MessageKind.CAPSULE, server, node, number)
        requested = self._send(capsule, self._free(server))
        tag = _tag(_MessageKind.DATA, number)
        data = schedule.Region(DATA, command.data, command.octets)
        disk = schedule.Region(DISK, command.disk, command.octets)
        moved: tuple[int, ...] = ()
        if self.commands.writes:
            request = _queued(_MessageKind.REQUEST, node, server, number)
            wanted = self._send(request, (requested,))
            requested = self._send(
                _Message(sender=server, receiver=node, tag=tag, local=data, remote=disk), (wanted,)
            )
        else:
            answer = _Message(sender=node, receiver=server, tag=tag, local=disk, remote=data)
            moved = (self._send(answer, (requested,)),)
        response = _queued(_MessageKind.RESPONSE, node, server, number)
        self._ends[server].append(self._send(response, (requested,), moved))

    def _free(self, server: int) -> tuple[int, ...]:
        ends = self._ends.setdefault(server, [])
        depth = self.commands.depth
        return (ends[-depth],) if len(ends) >= depth else ()

    def _grow(self, server: int, node: int, commands: int) -> None:
        """Give both sides' queues room for ``commands``."""
        for rank, peer in ((server, node), (node, server)):
            self.buffers[rank][_queue(peer)] = commands * _SLOT_OCTETS

    def _send(
        self, message: _Message, after: tuple[int, ...], receive_after: tuple[int, ...] = ()
    ) -> int:
        """Append ``message`` to its sender's schedule, and return its index in the receiver's.

        The index of a receiver that is not compiled stands for nothing.
        """
        if schedule.has_operations(message.sender):
            write = schedule.Write(
                peer=message.receiver,
                tag=message.tag,
                local=message.local,
                remote=message.remote,
                after=after,
            )
            self.operations[message.sender].append(write)
        received = self.operations[message.receiver]
        index = len(received)
        if schedule.has_operations(message.receiver):
            into = message.remote
            received.append(
                schedule.Receive(
                    peer=message.sender, tag=message.tag, into=into, after=receive_after
                )
            )
        return index


def _queue(peer: int) -> str:
    return f"queue{peer}"


def _tag(kind: _MessageKind, number: int) -> int:
    return number * len(_MessageKind) + kind


def _queued(kind: _MessageKind, sender: int, receiver: int, number: int) -> _Message:
    """Return the message of ``kind`` of the ``number``-th command between two ranks."""
    start, length = _IN_SLOT[kind]
    at = number * _SLOT_OCTETS + start
    return _Message(
        sender=sender,
        receiver=receiver,
        tag=_tag(kind, number),
        local=schedule.Region(_queue(receiver), at, length),
        remote=schedule.Region(_queue(sender), at, length),
    )
