"""The driver of a script: its ranks, the fabric, and who goes on when.

A rank runs until it waits.  When all wait, or have ended, the fabric's time passes until something
is over that a rank waits for; then that rank goes on, and its clock is that instant at least.  No
event of the fabric is run beyond the least clock of a rank that may still call something.  So order
and times depend on nothing of the host: not on its load, and not on the number of workers.

Calls of one group follow each other at each rank, as on a stream.  Messages and other groups
overlap them.
"""

from __future__ import annotations

import contextlib
import selectors
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from emulator.errors import UserError
from emulator.sim.endpoint.operations.elementwise import element_type
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.torch_backend.arena import Arena, ArenaFullError
from emulator.torch_backend.call_records import CallRecord, Span, executed
from emulator.torch_backend.calls import (
    ALLTOALL,
    ANY,
    BARRIER,
    POINT_TO_POINT,
    RECEIVE,
    SEND,
    Begin,
    Call,
    Exited,
    StoreAnswer,
    StoreCall,
    Wait,
    Woken,
)
from emulator.torch_backend.compiled_calls import (
    DIVISOR,
    INPUT,
    OUTPUT,
    CallKey,
    Compile,
    PlacedCalls,
)
from emulator.torch_backend.launching import ForkServer, RankPlace, RankProcess
from emulator.torch_backend.message_sides import MessageSides
from emulator.torch_backend.output import FOLDER, RankOutput, Show
from emulator.torch_backend.passthrough import DRAIN_S, end_of, watch_streams
from emulator.torch_backend.shared_store import SharedStore
from emulator.workers.open_execution import OpenExecution

#: Of each GPU's memory: the rank puts inputs into the first half, and the fabric works in the rest.
ROOM_OCTETS = 16 << 30
#: Orders of what is done in one instant, behind what ranks have come to (OpenExecution).
_CALLED, _POLLED, _STORED, _FAILED, _LAUNCHED = 2, 3, 4, 5, 6


@dataclass
class _Rank:
    """A rank as the driver knows it.

    ``waits`` is what it waits for, a wait for calls or the answer of the store; None while it runs.
    """

    process: RankProcess
    connection: Connection
    clock_ns: int
    waits: Wait | StoreCall | None = None
    exited: Exited | None = None
    records: dict[int, CallRecord] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    #: since when it computes, and the spans in which it has
    busy_ns: int = 0
    computed: list[Span] = field(default_factory=list)
    #: reported to the rank, and not taken yet
    given: dict[int, CallRecord] = field(default_factory=dict)
    consumed: list[int] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Return its number."""
        return self.process.place.rank

    @property
    def idle(self) -> bool:
        """Return whether it sends nothing more by itself."""
        return self.waits is not None or self.exited is not None


class ScriptDriver:
    """Drives a script on ranks at ``places``; ``records`` are its calls of the last execution.

    ``compile_call`` is the fabric's collectives, ``show`` gets what ranks print, and ``tell`` what
    is under way.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        places: Sequence[RankPlace],
        compile_call: Compile,
        show: Show,
        tell: Callable[[str], None],
    ) -> None:
        self._fork_server, self._places = fork_server, places
        self._compile, self._show, self._tell = compile_call, show, tell
        self.records: list[CallRecord] = []
        self._began_ns = 0
        self._computed: Mapping[int, Sequence[Span]] = {}
        self._gpus = 0

    def __call__(self, execution: OpenExecution, folder: Path) -> None:
        self._gpus = len(execution.memories)
        earlier = self._fork_server.executions
        later = f"-{earlier + 1}" if earlier else ""
        output = RankOutput(folder / f"{FOLDER}{later}", self._show)
        drive = _Drive(
            self._fork_server, self._places, self._compile, execution, output, self._tell
        )
        self.records, self._computed = drive.records, drive.computed
        self._began_ns = execution.now_ns
        try:
            drive.run()
        finally:
            self._fork_server.end_ranks()
            output.close()

    def executed(self) -> tuple[list[Schedule], list[RankResult]]:
        """Return what the ranks have done, for the timeline."""
        return executed(self._gpus, self.records, self._computed, self._began_ns)


class _Drive:
    """One execution of the script."""

    def __init__(
        self,
        fork_server: ForkServer,
        places: Sequence[RankPlace],
        compile_call: Compile,
        execution: OpenExecution,
        output: RankOutput,
        tell: Callable[[str], None],
    ) -> None:
        self._fork_server, self._execution, self._output = fork_server, execution, output
        self._tell = tell
        self._memories = execution.memories
        self._calls = PlacedCalls(compile_call, ROOM_OCTETS)
        self._arenas = {
            rank: Arena(one.path, one.capacity // 2, one.capacity)
            for rank, one in self._memories.items()
        }
        self._store, self._sides = SharedStore(), MessageSides()
        self._failure: str | None = None
        self.records: list[CallRecord] = []
        self._under_way: dict[int, CallRecord] = {}
        self._by_name: dict[str, CallRecord] = {}
        #: how many collectives of each group each rank has called
        self._counts: dict[tuple[str, int], int] = defaultdict(int)
        self._matched: dict[tuple[str, int], CallRecord] = {}
        #: the messages of calls whose other side has not come
        self._one_sided: dict[tuple[int, int], CallRecord] = {}
        #: the calls of a group that have not ended at a rank, in their order
        self._streams: dict[tuple[str, int], deque[CallRecord]] = defaultdict(deque)
        execution.heard, execution.failed = self._heard, self._failed
        self._lost: dict[int, str] = {}
        self._dead: set[int] = set()
        self._ranks = [
            _Rank(one, Connection(one.channel.detach()), execution.now_ns, busy_ns=execution.now_ns)
            for one in fork_server.spawn(places)
        ]
        #: when each rank has computed
        self.computed = {number: rank.computed for number, rank in enumerate(self._ranks)}

    def run(self) -> None:
        """Run the script to its end."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._fork_server, selectors.EVENT_READ, self._process_exited)
            self._open_streams = watch_streams(ready, [one.process for one in self._ranks])
            for number, rank in enumerate(self._ranks):
                memory = self._memories[number]
                rank.connection.send(
                    Begin(str(memory.path), memory.capacity, self._execution.now_ns)
                )
                ready.register(rank.connection, selectors.EVENT_READ, rank)
            try:
                self._go_on(ready)
            except UserError:
                self._fork_server.kill_ranks()
                self._drain(ready)
                raise
            finally:
                for rank in self._ranks:
                    rank.connection.close()

    def _go_on(self, ready: selectors.BaseSelector) -> None:
        while True:
            self._serve(ready)
            for number, rank in enumerate(self._ranks):
                self._free(number, rank)
            if self._wake():
                continue
            over = all(rank.exited is not None for rank in self._ranks)
            if self._dead and over:
                break
            if over and not self._execution.awaits and not self._under_way:
                break
            if not (self._execution.awaits or self._goes_on() or self._dead):
                raise UserError(self._standstill())
            self._tell(self._place("its calls under way"))
            happened = self._execution.run()
            self._check()
            if not self._wake() and not happened:
                raise UserError(self._standstill())
        self._read_rest(ready)

    def _place(self, what: str) -> str:
        """Return where the script is, for who watches."""
        return f"the script is at {self._execution.now_ns / 1000:.0f} us of fabric time, {what},"

    def _goes_on(self) -> bool:
        """Return whether a call under way will end by itself, or fail: all members are in it."""
        able: dict[int, bool] = {}
        for one in self._under_way.values():  # in the order of their first calls
            able[one.number] = len(one.calls) == len(one.members) and all(
                able.get(before.number, True)
                for member in one.members
                for before in islice(self._streams.get((one.name, member), ()), 1)
                if before is not one
            )
        return any(able.values())

    # -- what ranks send -----------------------------------------------------------------------

    def _serve(self, ready: selectors.BaseSelector) -> None:
        """Read until no rank sends anything more by itself."""
        while busy := [rank.number for rank in self._ranks if not rank.idle]:
            self._tell(self._place(f"rank{'s' * (len(busy) > 1)} {_listed(busy)} computing"))
            for key, _ in ready.select():
                self._read(ready, key)

    def _read_rest(self, ready: selectors.BaseSelector) -> None:
        """Read what the processes print until they have ended."""
        while self._open_streams or any(one.process.status is None for one in self._ranks):
            over = all(one.process.status is not None for one in self._ranks)
            found = ready.select(DRAIN_S if over else None)
            if not found:
                break
            for key, _ in found:
                self._read(ready, key)
        for rank in self._ranks:
            if rank.process.status and rank.number not in self._dead:
                raise UserError(self._ended_all(rank, end_of(rank.process)))

    def _read(self, ready: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, _Rank):
            try:
                message = key.data.connection.recv()
            except (EOFError, OSError):
                ready.unregister(key.fileobj)
                return
            self._handle(key.data, message)
        elif isinstance(key.data, tuple):
            if not self._output.take(*key.data):
                ready.unregister(key.fileobj)
                self._open_streams -= 1
        else:
            self._process_exited(ready)

    def _process_exited(self, ready: selectors.BaseSelector) -> None:
        """The process of a rank has ended, before its script maybe: that fails at its last word."""
        process = self._fork_server.next_exit()
        rank = self._ranks[process.place.rank]
        if rank.number in self._dead:
            return
        with contextlib.suppress(EOFError, OSError):
            while rank.connection.poll():
                self._handle(rank, rank.connection.recv())
        if rank.exited is None:
            self._handle(rank, Exited(rank.busy_ns, end_of(process)))

    def _ended_all(self, rank: _Rank, how: str) -> str:
        return f"{how}, which ended all ranks{self._output.where(rank.number)}"

    def _drain(self, ready: selectors.BaseSelector) -> None:
        """Keep what the ranks have printed before they were ended."""
        for key in list(ready.get_map().values()):
            if not isinstance(key.data, tuple):
                ready.unregister(key.fileobj)
        while self._open_streams and (found := ready.select(DRAIN_S)):
            for key, _ in found:
                self._read(ready, key)

    def _handle(self, rank: _Rank, message: object) -> None:
        if isinstance(message, Call | Wait | StoreCall | Exited):
            if message.clock_ns > rank.busy_ns:
                rank.computed.append((rank.busy_ns, message.clock_ns, "compute"))
            rank.busy_ns = message.clock_ns
        execution, number = self._execution, rank.number
        match message:
            case Call():
                order = (_CALLED, number, message.number)
                execution.at(message.clock_ns, order, partial(self._arrive, message))
            case Wait():
                rank.clock_ns, rank.waits = message.clock_ns, message
                rank.consumed += message.consumed
                if message.until_ns is not None:
                    execution.at(message.until_ns, (_POLLED, number), execution.stop)
            case StoreCall():
                rank.clock_ns, rank.waits = message.clock_ns, message
                serve = partial(self._serve_store, rank, message)
                execution.at(message.clock_ns, (_STORED, number), serve)
            case Exited():
                rank.clock_ns, rank.exited, rank.waits = message.clock_ns, message, None
                rank.consumed += message.consumed
                if message.failure:
                    execution.at(message.clock_ns, (_FAILED, number), partial(self._fail, rank))

    def _serve_store(self, rank: _Rank, asked: StoreCall) -> None:
        """Answer ``asked``, or leave the rank waiting for keys that are not there yet."""
        if rank.waits is not asked:
            return  # its GPU has died
        answer = self._store.answer(asked)
        if answer is None:
            return
        rank.waits, rank.busy_ns = None, answer.clock_ns
        _say(rank, answer)
        self._execution.stop()
        if asked.operation in ("set", "add", "compare"):
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        for rank in self._ranks:
            asked = rank.waits
            if not isinstance(asked, StoreCall) or asked.operation not in ("get", "wait"):
                continue
            if asked.clock_ns <= self._execution.now_ns:
                self._serve_store(rank, asked)

    # -- who goes on ---------------------------------------------------------------------------

    def _wake(self) -> bool:
        """Let ranks go on that wait for nothing any more; return whether there are any."""
        now = self._execution.now_ns
        woken = False
        for rank in self._ranks:
            wait = rank.waits
            if not isinstance(wait, Wait):
                continue
            due = wait.until_ns is not None and wait.until_ns <= now
            if not due and not all(self._is_over(rank, one) for one in wait.numbers):
                continue
            own = rank.number
            ended = [one for one in wait.numbers if self._is_over(rank, one)]
            waited_for = [rank.records[one] for one in wait.numbers if one in rank.records]
            results: dict[int, tuple[int, int, int]] = {}
            for number in ended:
                if number in rank.records:
                    record = rank.given[number] = rank.records.pop(number)
                    call = record.calls[own]
                    begin = record.places[own].get(OUTPUT, 0) + record.results.get(own, 0)
                    sender = record.members[0] if call.kind == RECEIVE else -1
                    results[number] = begin, call.result_octets, sender
            errors = {one: rank.errors[one] for one in ended if one in rank.errors}
            rank.waits = None
            rank.clock_ns = max(rank.clock_ns, now)
            if wait.until_ns is not None:
                rank.clock_ns = max(rank.clock_ns, min(now, wait.until_ns))
            rank.busy_ns = rank.clock_ns
            for record in waited_for:
                record.waited[own] = record.waited.get(own, 0) + rank.clock_ns - wait.clock_ns
            _say(rank, Woken(rank.clock_ns, results, errors))
            woken = True
        return woken

    def _is_over(self, rank: _Rank, number: int) -> bool:
        if number in rank.errors:
            return True
        record = rank.records.get(number)
        return record is not None and rank.number in record.ended

    def _awaited(self, rank: _Rank, number: int) -> bool:
        return isinstance(rank.waits, Wait) and number in rank.waits.numbers

    def _check(self) -> None:
        if self._failure is not None:
            raise UserError(self._failure)

    def _stop(self, failure: str) -> None:
        self._failure = self._failure or failure
        self._execution.stop()

    def _fail(self, rank: _Rank) -> None:
        """The script of ``rank`` fails now, which ends all."""
        if rank.number not in self._dead and rank.exited is not None:
            self._stop(self._ended_all(rank, rank.exited.failure))

    # -- calls, in the fabric's time -----------------------------------------------------------

    def _arrive(self, call: Call) -> None:
        """A rank calls now."""
        if self._failure is not None:
            return
        rank = self._ranks[call.rank]
        if call.rank in self._lost:
            rank.errors[call.number] = self._lost[call.rank]
            self._execution.stop()
            return
        find = self._message_of if call.kind in POINT_TO_POINT else self._collective_of
        record = find(call)
        if record is None:
            return
        try:
            self._begin(call, record)
        except (ArenaFullError, UserError) as refused:
            self._stop(f"{call.words()}: {refused}")

    def _collective_of(self, call: Call) -> CallRecord | None:
        """Return the record that ``call`` belongs to; None if it contradicts that of another."""
        group, members = call.group, call.members
        count = self._counts[group, call.rank]
        self._counts[group, call.rank] += 1
        record = self._matched.get((group, count))
        if record is None:
            record = self._matched[group, count] = self._new_record(group, members)
        elif record.first.shared != call.shared:
            self._stop(
                f"ranks of group {group!r} do not agree on its call number {count + 1}: "
                f"{record.first.words()}, but {call.words()}; have all call the same in one order"
            )
            return None
        self._enter(call, record)
        if len(record.calls) == len(members):
            del self._matched[group, count]
        self._streams[group, call.rank].append(record)
        return record

    def _message_of(self, call: Call) -> CallRecord | None:
        """Return the record of a message; None while nobody knows who sends it."""
        other = self._sides.partner(call)
        if other is None and call.root == ANY:
            return None
        if other is not None and (other.octets, other.dtype) != (call.octets, call.dtype):
            self._stop(
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
        self._under_way[record.number] = record
        self._by_name[record.over] = self._by_name[record.relayed] = record
        return record

    def _enter(self, call: Call, record: CallRecord) -> None:
        record.calls[call.rank] = call
        self._ranks[call.rank].records[call.number] = record

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
        compiled = self._calls.compiled(key)
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
        schedules = self._calls.placed(key, record.places, barriers)
        self._execution.add(schedules, self._calls.layout)
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
            record = self._by_name.get(name)
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
        if self._awaited(self._ranks[member], call.number):
            self._execution.stop()
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
            del self._by_name[name]
        del self._under_way[record.number]
        if not self._under_way:
            self._execution.stop()
        for rank, places in record.places.items():
            for name in [one for one in places if one != OUTPUT]:
                self._arenas[rank].free(places.pop(name))

    def _free(self, number: int, rank: _Rank) -> None:
        """Give back the results that the rank has taken."""
        for call in rank.consumed:
            record = rank.given.pop(call)
            at = record.places[number].pop(OUTPUT, None)
            if at is not None:
                self._arenas[number].free(at)
        rank.consumed.clear()

    def _failed(self, result: RankResult) -> None:
        """A GPU's part has failed: all its calls under way have, and those to come.

        A GPU that has died takes its process along; others learn of it from their transports.
        """
        if result.error == "dead":
            lost = self._ranks[result.rank]
            self._dead.add(result.rank)
            self._fork_server.kill(lost.process)
            lost.waits, lost.exited = None, Exited(self._execution.now_ns)
            self._execution.stop()
            return
        stated = f"{result.error}: {result.detail}"
        self._lost[result.rank] = stated
        rank = self._ranks[result.rank]
        waits = rank.waits.numbers if isinstance(rank.waits, Wait) else ()
        for number in {*rank.records, *waits}:
            if not self._is_over(rank, number):
                rank.errors[number] = stated
        self._execution.stop()

    # -- sentences -----------------------------------------------------------------------------

    def _standstill(self) -> str:
        """Return who waits for whom, where nothing will ever happen again."""
        parts = []
        for number, rank in enumerate(self._ranks):
            if isinstance(rank.waits, StoreCall):
                keys = ", ".join(rank.waits.keys)
                parts.append(f"rank {number} waits for {keys} of the store")
            elif isinstance(rank.waits, Wait):
                for call in rank.waits.numbers:
                    parts.append(self._waiting(rank, call))
        if not parts:
            parts = [self._missing(one, one.first) for one in self._under_way.values()]
        more = f", and {len(parts) - 4} more" if len(parts) > 4 else ""
        return (
            f"nothing will ever happen again: {'; '.join(parts[:4])}{more}"
            f"{self._execution.standing()}"
        )

    def _waiting(self, rank: _Rank, number: int) -> str:
        record = rank.records.get(number)
        if record is None:
            call = self._sides.named(rank.number, number)
            what = f"call number {number}" if call is None else call.words()
            return f"rank {rank.number} waits for {what}"
        return self._missing(record, record.calls[rank.number])

    def _missing(self, record: CallRecord, call: Call) -> str:
        died = sorted(self._dead.intersection(record.places or record.members))
        if died:
            return f"{call.words()} waits for rank {died[0]}, whose GPU has died"
        missing = [one for one in record.members if one not in record.calls]
        if not missing:
            return f"{call.words()} is under way"
        ended = [one for one in missing if self._ranks[one].exited is not None]
        own = self._ranks[missing[0]].waits if len(missing) == 1 else None
        what = "have not called it" if len(missing) > 1 else "has not called it"
        if len(ended) == len(missing):
            what += " and " + ("have ended" if len(missing) > 1 else "has ended")
        elif isinstance(own, Wait):
            what += f" and waits at {own.site}"
        whom = f"rank{'s' * (len(missing) > 1)} {_listed(missing)}"
        return f"{call.words()} waits for {whom}, which {what}"


def _say(rank: _Rank, answer: Woken | StoreAnswer) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end will be reported
        rank.connection.send(answer)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
