"""The calls of a script on the fabric, in its time: who has called, what begins, and what is over.

Calls of one group follow each other at each rank, as on a stream.  Messages and other groups
overlap them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

import numpy as np

from emulator.errors import UserError
from emulator.sim.endpoint.operations.elementwise import element_type
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.torch_backend.arena import Arena, ArenaFullError
from emulator.torch_backend.call_records import CallRecord
from emulator.torch_backend.calls import (
    ALLTOALL,
    ANY,
    BARRIER,
    POINT_TO_POINT,
    RECEIVE,
    SEND,
    Call,
)
from emulator.torch_backend.compiled_calls import (
    DIVISOR,
    INPUT,
    OUTPUT,
    CallKey,
    Compile,
    PlacedCalls,
)
from emulator.torch_backend.message_sides import MessageSides
from emulator.workers.open_execution import OpenExecution

#: Of each GPU's memory: the rank puts inputs into the first half, and the fabric works in the rest.
ROOM_OCTETS = 16 << 30
#: Order of a launch among what is done in one instant (OpenExecution, driver).
_LAUNCHED = 6
#: A rank, and the number of its call.
Own = tuple[int, int]


class FabricCalls:
    """Calls of ranks on ``execution``, compiled by ``compile_call``; ``records`` are all of them.

    ``refuse`` gets the sentence on a call that cannot be, and ``notice`` the rank and number of one
    that is over.
    """

    def __init__(
        self,
        execution: OpenExecution,
        compile_call: Compile,
        refuse: Callable[[str], None],
        notice: Callable[[Own], None],
    ) -> None:
        self._execution, self._refuse, self._notice = execution, refuse, notice
        self._memories = execution.memories
        self._compiled = PlacedCalls(compile_call, ROOM_OCTETS)
        self._arenas = {
            rank: Arena(one.path, one.capacity // 2, one.capacity)
            for rank, one in self._memories.items()
        }
        self.records: list[CallRecord] = []
        #: those that are not over, in the order of their first calls
        self.under_way: dict[int, CallRecord] = {}
        self._by_barrier: dict[str, CallRecord] = {}
        self._by_call: dict[Own, CallRecord] = {}
        self._errors: dict[Own, str] = {}
        #: why the calls of a rank fail from now on
        self.lost: dict[int, str] = {}
        #: how many collectives of each group each rank has called
        self._counts: dict[tuple[str, int], int] = defaultdict(int)
        #: collectives that not all members have called, by group and number
        self._partly_called: dict[tuple[str, int], CallRecord] = {}
        self._sides = MessageSides()
        #: the messages of calls whose other side has not come
        self._one_sided: dict[Own, CallRecord] = {}
        #: the calls of a group that have not ended at a rank, in their order
        self._streams: dict[tuple[str, int], deque[CallRecord]] = defaultdict(deque)
        execution.heard = self._heard

    # -- what ranks ask ------------------------------------------------------------------------

    def record_of(self, own: Own) -> CallRecord | None:
        """Return the record of a call; None while nobody knows who sends what it receives."""
        return self._by_call.get(own)

    def words_of(self, own: Own) -> str:
        """Return a call that has no record as a sentence names it."""
        known = {(one.rank, one.number): one.words() for one in self._sides.open}
        return known.get(own, f"rank {own[0]}'s call number {own[1]}")

    def error_of(self, own: Own) -> str | None:
        """Return why a call has failed, if it has."""
        return self._errors.get(own)

    def is_over(self, own: Own) -> bool:
        """Return whether a call has ended, well or not."""
        record = self._by_call.get(own)
        return own in self._errors or (record is not None and own[0] in record.ended)

    def result_of(self, own: Own) -> tuple[int, int, int]:
        """Return where the result of a call begins, its octets, and who has sent it (-1: all)."""
        rank, record = own[0], self._by_call[own]
        call = record.calls[rank]
        begin = record.places[rank].get(OUTPUT, 0) + record.results.get(rank, 0)
        return begin, call.result_octets, record.members[0] if call.kind == RECEIVE else -1

    def free(self, rank: int, numbers: Iterable[int]) -> None:
        """Give back the results that ``rank`` has taken."""
        for number in numbers:
            record = self._by_call.pop((rank, number))
            at = record.places[rank].pop(OUTPUT, None)
            if at is not None:
                self._arenas[rank].free(at)

    def goes_on(self) -> bool:
        """Return whether a call under way will end by itself, or fail: all members are in it."""
        able: dict[int, bool] = {}
        for one in self.under_way.values():
            able[one.number] = len(one.calls) == len(one.members) and all(
                able.get(before.number, True)
                for member in one.members
                for before in islice(self._streams.get((one.name, member), ()), 1)
                if before is not one
            )
        return any(able.values())

    def fail(self, result: RankResult) -> None:
        """Let all calls of a GPU fail that are under way, and those to come.

        What it should have sent on fails at the members.
        """
        stated = f"{result.error}: {result.detail}"
        self.lost[result.rank] = stated
        waiting = [(one.rank, one.number) for one in self._sides.open]
        for own in [*self._by_call, *waiting]:
            if own[0] == result.rank and not self.is_over(own):
                self._errors[own] = stated
        for record in self.under_way.values():
            if result.rank not in record.relaying:
                continue
            for member, call in record.calls.items():
                if not self.is_over((member, call.number)):
                    words = f"rank {result.rank}, which sends it on: {stated}"
                    self._errors[member, call.number] = words

    def give_up(self, own: Own, why: str) -> None:
        """Let a call fail that would wait for ever."""
        if not self.is_over(own):
            self._errors[own] = why

    # -- calls ---------------------------------------------------------------------------------

    def arrive(self, call: Call) -> None:
        """A rank calls now."""
        if call.rank in self.lost:
            self._errors[call.rank, call.number] = self.lost[call.rank]
            self._execution.stop()
            return
        find = self._message_of if call.kind in POINT_TO_POINT else self._collective_of
        record = find(call)
        if record is None:
            return
        try:
            self._begin(call, record)
        except (ArenaFullError, UserError) as refused:
            self._refuse(f"{call.words()}: {refused}")

    def _collective_of(self, call: Call) -> CallRecord | None:
        """Return the record that ``call`` belongs to; None if it contradicts that of another."""
        group, members = call.group, call.members
        count = self._counts[group, call.rank]
        self._counts[group, call.rank] += 1
        record = self._partly_called.get((group, count))
        if record is None:
            record = self._partly_called[group, count] = self._new_record(group, members)
        elif record.first.shared != call.shared:
            self._refuse(
                f"ranks of group {group!r} do not agree on its call number {count + 1}: "
                f"{record.first.words()}, but {call.words()}; have all call the same in one order"
            )
            return None
        self._enter(call, record)
        if len(record.calls) == len(members):
            del self._partly_called[group, count]
        self._streams[group, call.rank].append(record)
        return record

    def _message_of(self, call: Call) -> CallRecord | None:
        """Return the record of a message; None while nobody knows who sends it."""
        other = self._sides.partner(call)
        if other is None and call.root == ANY:
            return None
        if other is not None and (other.octets, other.dtype) != (call.octets, call.dtype):
            self._refuse(
                f"{other.words()} ({other.dtype}) meets {call.words()} ({call.dtype}); have both "
                "sides of a message take the same tensors"
            )
            return None
        known = self._one_sided.pop((other.rank, other.number), None) if other else None
        if known is None:
            send = call if call.kind == SEND or other is None else other
            ends = (send.rank, send.members[send.root])
            known = self._new_record(call.group, ends if send.kind == SEND else ends[::-1])
            if other is None:
                self._one_sided[call.rank, call.number] = known
            else:
                self._enter(other, known)
        self._enter(call, known)
        return known

    def _new_record(self, group: str, members: tuple[int, ...]) -> CallRecord:
        record = CallRecord(len(self.records), group, members)
        self.records.append(record)
        self.under_way[record.number] = record
        self._by_barrier[record.over] = self._by_barrier[record.relayed] = record
        return record

    def _enter(self, call: Call, record: CallRecord) -> None:
        record.calls[call.rank] = call
        self._by_call[call.rank, call.number] = record

    def _begin(self, call: Call, record: CallRecord) -> None:
        """Begin the part of ``call``, and before the whole if it can be known now."""
        if record.key is None:
            whole = len(record.calls) == len(record.members)
            if call.splits is not None and not whole:
                return  # what goes where is known when all have called
            self._add(call, record)
            for member in record.calls:
                self._pass(member, record)
        else:
            self._pass(call.rank, record)

    def _add(self, call: Call, record: CallRecord) -> None:
        """Compile the call, and give all members their operations."""
        record.key = key = self._key(call, record)
        if len(key.members) == 1 or self._moves_nothing(key):
            for rank in record.members:
                record.places[rank] = {}
            record.algorithm = "none"
            return
        compiled = self._compiled.compiled(key)
        record.algorithm = compiled.algorithm
        record.results.update(compiled.results)
        for rank, schedule in compiled.schedules.items():
            arena = self._arenas[rank]
            record.places[rank] = {
                name: arena.allocate(octets) for name, octets in schedule.buffers.items()
            }
            if (octets := schedule.buffers.get(DIVISOR)) is not None:
                dtype = element_type(key.dtype)
                at = record.places[rank][DIVISOR]
                self._memories[rank].octets[at : at + octets].view(dtype)[:] = compiled.divided_by
        record.relaying, record.launch_ns = compiled.relays, compiled.launch_ns
        barriers = record.go, record.over, record.relayed
        schedules = self._compiled.placed(key, record.places, barriers)
        self._execution.add(schedules, self._compiled.layout)
        others = record.relaying.difference(record.members)
        self._execution.pass_barrier(record.go, others)

    def _moves_nothing(self, key: CallKey) -> bool:
        if key.kind == BARRIER:
            return False
        return not (key.octets or (key.matrix and any(map(any, key.matrix))))

    def _key(self, call: Call, record: CallRecord) -> CallKey:
        kind, root = call.kind, call.root
        matrix = None
        if kind in POINT_TO_POINT:
            kind, root = SEND, 0
        if call.splits is not None:
            matrix = tuple(record.calls[rank].splits or () for rank in record.members)
            received = [sum(column) for column in zip(*matrix, strict=True)]
            for position, rank in enumerate(record.members):
                one = record.calls[rank]
                if one.result_octets != received[position]:
                    raise UserError(
                        f"the others send {received[position]} B, and its output at {one.site} has "
                        f"{one.result_octets} B; make output splits what the others' input splits "
                        "say"
                    )
        return CallKey(
            kind,
            record.members,
            call.octets,
            call.dtype,
            call.reduction,
            root,
            matrix if kind == ALLTOALL else None,
        )

    def _pass(self, member: int, record: CallRecord) -> None:
        """Let the member's part begin, if it has called and its earlier calls have ended."""
        call = record.calls.get(member)
        if call is None or record.key is None or member in record.begun:
            return
        stream = self._streams.get((record.name, member))
        if call.kind not in POINT_TO_POINT and stream is not None and stream[0] is not record:
            return
        record.begun[member] = self._execution.now_ns
        octets = self._memories[member].octets
        source = octets[call.source : call.source + call.source_octets]
        if not record.places[member]:
            self._pass_alone(member, call, record, source)
            return
        at = record.places[member].get(INPUT)
        if at is not None:
            octets[at : at + len(source)] = source
        go = partial(self._execution.pass_barrier, record.go, [member])
        if not record.launch_ns:
            go()
            return
        launched = record.begun[member] + record.launch_ns
        self._execution.at(launched, (_LAUNCHED, member, record.number), go)

    def _pass_alone(self, member: int, call: Call, record: CallRecord, source: np.ndarray) -> None:
        """End a call that moves nothing: its result is what the rank has put in."""
        if call.result_octets:
            at = self._arenas[member].allocate(call.result_octets)
            record.places[member] = {OUTPUT: at}
            self._memories[member].octets[at : at + len(source)] = source
        self._end(member, record)

    def _heard(self, rank: int, names: Sequence[str]) -> None:
        """Take what a rank has come to: the ends of its parts, and of what it sends on."""
        for name in names:
            record = self._by_barrier.get(name)
            if record is None:
                continue
            self._execution.pass_barrier(name, [rank])
            if name == record.relayed:
                record.relaying.remove(rank)
                self._close(record)
            elif rank in record.members:
                self._end(rank, record)

    def _end(self, member: int, record: CallRecord) -> None:
        record.ended[member] = self._execution.now_ns
        call = record.calls[member]
        self._close(record)
        self._notice((member, call.number))
        if call.kind in POINT_TO_POINT:
            return
        stream = self._streams[record.name, member]
        stream.popleft()
        if stream:
            self._pass(member, stream[0])

    def _close(self, record: CallRecord) -> None:
        """Give the memory of ``record`` back, but for the results, if it is all over."""
        if len(record.ended) < len(record.members) or record.relaying:
            return
        for name in (record.over, record.relayed):
            del self._by_barrier[name]
        del self.under_way[record.number]
        if not self.under_way:
            self._execution.stop()
        for rank, places in record.places.items():
            for name in [one for one in places if one != OUTPUT]:
                self._arenas[rank].free(places.pop(name))
