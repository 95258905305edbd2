"""The driver of a script: its ranks, the fabric, and who goes on when.

A rank runs until it waits.  When all wait, or have ended, the fabric's time passes until something
is over that a rank waits for; then that rank goes on, and its clock is that instant at least.  No
event of the fabric is run beyond the least clock of a rank that may still call something.  So order
and times depend on nothing of the host: not on its load, and not on the number of workers.

What becomes of calls on the fabric is in :mod:`emulator.torch_backend.fabric_calls`.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from emulator.errors import UserError
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.torch_backend.call_records import CallRecord, Span, executed
from emulator.torch_backend.calls import (
    Begin,
    Call,
    Exited,
    StoreAnswer,
    StoreCall,
    Wait,
    Woken,
)
from emulator.torch_backend.compiled_calls import (
    Compile,
)
from emulator.torch_backend.fabric_calls import FabricCalls, Own
from emulator.torch_backend.launching import ForkServer, RankPlace, RankProcess
from emulator.torch_backend.output import FOLDER, RankOutput, Show
from emulator.torch_backend.passthrough import DRAIN_S, end_of, watch_streams
from emulator.torch_backend.shared_store import SharedStore
from emulator.workers.open_execution import OpenExecution

#: Orders of what is done in one instant, behind what ranks have come to (OpenExecution).
_CALLED, _POLLED, _STORED, _FAILED = 2, 3, 4, 5


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
    #: since when it computes, and the spans in which it has
    busy_ns: int = 0
    computed: list[Span] = field(default_factory=list)
    #: calls whose results it has taken
    consumed: list[int] = field(default_factory=list)

    @property
    def number(self) -> int:
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
        self._calls = FabricCalls(execution, compile_call, self._stop, self._over)
        self.records = self._calls.records
        self._store = SharedStore()
        self._failure: str | None = None
        execution.failed = self._failed
        execution.spare = range(len(places), len(execution.memories))
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
                memory = self._execution.memories[number]
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
            for rank in self._ranks:
                self._calls.free(rank.number, rank.consumed)
                rank.consumed.clear()
            if self._wake():
                continue
            over = all(rank.exited is not None for rank in self._ranks)
            is_missing = bool(self._dead or self._calls.lost)
            if is_missing and over:
                break
            if over and not self._execution.awaits and not self._calls.under_way:
                break
            if not (self._execution.awaits or self._calls.goes_on() or is_missing):
                raise UserError(self._standstill())
            self._tell(self._place("its calls under way"))
            happened = self._execution.run()
            self._check()
            if not self._wake() and not happened:
                self._give_up()
                if not self._wake():
                    raise UserError(self._standstill())
        self._read_rest(ready)

    def _place(self, what: str) -> str:
        """Return where the script is, for who watches."""
        return f"the script is at {self._execution.now_ns / 1000:.0f} us of fabric time, {what},"

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
                execution.at(message.clock_ns, order, partial(self._calls.arrive, message))
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
            calls = [(rank.number, one) for one in wait.numbers]
            ended = [one for one in calls if self._calls.is_over(one)]
            due = wait.until_ns is not None and wait.until_ns <= now
            if not due and len(ended) < len(calls):
                continue
            rank.waits = None
            rank.clock_ns = max(rank.clock_ns, now)
            if wait.until_ns is not None:
                rank.clock_ns = max(rank.clock_ns, min(now, wait.until_ns))
            rank.busy_ns = rank.clock_ns
            for own in calls:
                if (record := self._calls.record_of(own)) is not None:
                    stood_ns = rank.clock_ns - wait.clock_ns
                    record.waited[own[0]] = record.waited.get(own[0], 0) + stood_ns
            _say(rank, self._woken(rank, ended))
            woken = True
        return woken

    def _woken(self, rank: _Rank, ended: Sequence[Own]) -> Woken:
        """Return what a rank hears of its calls that have ``ended``."""
        errors = {one[1]: self._calls.error_of(one) for one in ended}
        return Woken(
            rank.clock_ns,
            {one[1]: self._calls.result_of(one) for one in ended if errors[one[1]] is None},
            {number: stated for number, stated in errors.items() if stated is not None},
        )

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

    def _over(self, own: Own) -> None:
        """A call is over: stop if its rank waits for that."""
        waits = self._ranks[own[0]].waits
        if isinstance(waits, Wait) and own[1] in waits.numbers:
            self._execution.stop()

    def _failed(self, result: RankResult) -> None:
        """A GPU's part has failed.

        One that has died takes its process along; others learn of it from their transports.
        """
        self._execution.stop()
        if result.error != "dead":
            self._calls.fail(result)
            return
        if result.rank in self._execution.spare:
            return
        self._dead.add(result.rank)
        lost = self._ranks[result.rank]
        self._fork_server.kill(lost.process)
        lost.waits, lost.exited = None, Exited(self._execution.now_ns)

    def _give_up(self) -> None:
        """Have calls fail that wait for ever for what is lost; NCCL's watchdog would end them."""
        for rank in self._ranks:
            waits = rank.waits.numbers if isinstance(rank.waits, Wait) else ()
            for own in ((rank.number, call) for call in waits):
                record = self._calls.record_of(own)
                if record is not None and (lost := self._lost_of(record)):
                    self._calls.give_up(own, f"{record.calls[rank.number].words()} {lost}")

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
                    parts.append(self._waiting((number, call)))
        if not parts:
            parts = [self._missing(one, one.first) for one in self._calls.under_way.values()]
        more = f", and {len(parts) - 4} more" if len(parts) > 4 else ""
        return (
            f"nothing will ever happen again: {'; '.join(parts[:4])}{more}"
            f"{self._execution.standing()}"
        )

    def _waiting(self, own: Own) -> str:
        record = self._calls.record_of(own)
        if record is None:
            return f"{self._calls.words_of(own)} waits for a message of any rank"
        return self._missing(record, record.calls[own[0]])

    def _lost_of(self, record: CallRecord) -> str:
        """Return which rank ``record`` waits for that is lost; empty if there is none."""
        ranks, lost = sorted(record.places or record.members), self._calls.lost
        for one in ranks:
            if one in self._dead:
                return f"waits for rank {one}, whose GPU has died"
        for one in ranks:
            if one in lost:
                return f"waits for rank {one}, whose transport has failed: {lost[one]}"
        return ""

    def _missing(self, record: CallRecord, call: Call) -> str:
        if lost := self._lost_of(record):
            return f"{call.words()} {lost}"
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
