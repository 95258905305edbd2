"""Writes relayed one by one in all schedules at once: plain, and as slow as that is."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from emulator.run.pxn import ALIGNMENT, BUFFER, Pair, Pxn
from emulator.sim.endpoint.operations.operation_table import WRITE, OperationTable
from emulator.sim.endpoint.operations.schedule import (
    Copy,
    Operation,
    Receive,
    Region,
    Schedule,
    Write,
)


def relayed_one_by_one(pxn: Pxn, schedules: Sequence[Schedule]) -> list[Schedule]:
    """Return the schedules of all ranks, with writes relayed as ``pxn`` chooses."""
    pairs = {
        (schedule.rank, peer)
        for schedule in schedules
        for peer in OperationTable.of(schedule.operations).peers(WRITE)
        if 0 <= peer < len(schedules)
    }
    relays = {pair: relay for pair in sorted(pairs) if (relay := pxn.relay(*pair)) is not None}
    return _Relaying(schedules, relays).schedules() if relays else list(schedules)


class _Relaying:
    """``schedules`` with the writes of some pairs relayed by another rank."""

    def __init__(self, schedules: Sequence[Schedule], relays: Mapping[Pair, int]) -> None:
        self._before = schedules
        self._relays = relays
        self._operations = [list(schedule.operations) for schedule in schedules]
        self._staged = [0] * len(schedules)  # octets
        self._used: dict[Pair, set[int]] = defaultdict(set)  # tags
        self._next_tag: dict[Pair, int] = defaultdict(int)
        self._buffer = BUFFER
        while any(self._buffer in schedule.buffers for schedule in schedules):
            self._buffer += "-"

    def schedules(self) -> list[Schedule]:
        receives: dict[tuple[int, int, int], int] = {}
        for schedule in self._before:
            for index, operation in enumerate(schedule.operations):
                if isinstance(operation, Write | Copy):
                    self._used[schedule.rank, operation.peer].add(operation.tag)
                elif isinstance(operation, Receive):
                    receives[operation.peer, schedule.rank, operation.tag] = index
        for schedule in self._before:
            for index, operation in enumerate(schedule.operations):
                if isinstance(operation, Write):
                    relay = self._relays.get((schedule.rank, operation.peer))
                    if relay is not None:
                        receive = receives.get((schedule.rank, operation.peer, operation.tag))
                        self._relay(schedule.rank, index, operation, relay, receive)
        return [
            replace(
                schedule,
                buffers={**schedule.buffers, self._buffer: staged} if staged else schedule.buffers,
                operations=tuple(operations),
            )
            for schedule, operations, staged in zip(
                self._before, self._operations, self._staged, strict=True
            )
        ]

    def _relay(
        self, source: int, index: int, write: Write, relay: int, receive: int | None
    ) -> None:
        destination, length = write.peer, write.local.length
        if relay == destination:
            self._operations[source][index] = Copy(
                after=write.after,
                peer=relay,
                tag=write.tag,
                local=write.local,
                remote=write.remote,
            )
            return
        stage = Region(self._buffer, self._staged[relay], length)
        self._staged[relay] += -(-length // ALIGNMENT) * ALIGNMENT
        inside, outside = self._tag(source, relay), self._tag(relay, destination)
        self._operations[source][index] = Copy(
            after=write.after, peer=relay, tag=inside, local=write.local, remote=stage
        )
        added: list[Operation] = self._operations[relay]
        added.append(Receive(peer=source, tag=inside, into=stage))
        added.append(
            Write(
                after=(len(added) - 1,),
                peer=destination,
                tag=outside,
                local=stage,
                remote=write.remote,
            )
        )
        if receive is not None:
            before = self._operations[destination][receive]
            assert isinstance(before, Receive)
            self._operations[destination][receive] = replace(before, peer=relay, tag=outside)

    def _tag(self, source: int, destination: int) -> int:
        """One that nothing else from ``source`` to ``destination`` has."""
        pair = (source, destination)
        tag = self._next_tag[pair]
        while tag in self._used[pair]:
            tag += 1
        self._next_tag[pair] = tag + 1
        return tag
