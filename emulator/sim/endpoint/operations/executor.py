"""Executes a rank's schedule: a DAG of operations, each started when those before it are done.

The executor owns no socket and reads no clock.  The endpoint feeds it the transport's completions
and the scale-up notices, calls :meth:`Executor.advance` in its loop, and reads the result once
:attr:`Executor.finished` is set.  A failure of any kind ends the execution with a named error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt
from librt.vecs import append, vec
from mypy_extensions import i64

from emulator.sim.endpoint.nic.nic_profile import NicTimes
from emulator.sim.endpoint.operations.data_arrival import Arrivals, DataArrival
from emulator.sim.endpoint.operations.gpu_functions import GpuFunctionError
from emulator.sim.endpoint.operations.gpu_memory import (
    SLICE_OCTETS,
    GpuMemory,
    crc32c,
    sliced_crc32c,
    slices,
)
from emulator.sim.endpoint.operations.nvlink import CopyNotice
from emulator.sim.endpoint.operations.operation_table import (
    BARRIER,
    COMPUTE,
    COPY,
    RECEIVE,
    REDUCE,
    WRITE,
    fans,
)
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.sim.endpoint.operations.schedule_program import (
    AT,
    FAR,
    FOLLOWERS,
    KIND,
    NUMBER,
    OCTETS,
    PEER,
    ROW,
    TAG,
    TAG_BITS,
    ScheduleProgram,
    describe,
)
from emulator.sim.endpoint.peer_addresses import ranks_at
from emulator.sim.event_queue import PS
from emulator.sim.scale_up_copies import ScaleUpCopies
from uet.transport import Completion, Transport
from uet.transport import WriteRequest as RmaWrite

#: Key under which every rank registers all of its GPU's memory.
MEMORY_KEY: Final = 1

# Header data of a write: a label of execution number (8 bits) and tag (24), and the CRC32C of the
# region (32).  Where the transport carries 32 bits they are label XOR CRC32C: the receiver sees
# where the data went, reckons their CRC32C, and gets a label that it waits for, or the data are
# wrong.
WIDE: Final = 64
NARROW: Final = 32
_TAG_MASK: Final = (1 << TAG_BITS) - 1
_EXECUTION_MASK: Final = 0xFF
#: Of one operation, in octets of work, when sharing the loop with the NIC.
_STARTING_COST: Final = 4096
#: Compiled code looks names of other modules up in a dictionary.
_push: Final = heappush
_pop: Final = heappop
#: Words of an operation's state: how many others it waits for, when it has started and ended (-1:
#: it has not), and whether the data of a receive is there.
_STATE: Final = 4
_WAITING: Final = 0
_STARTED: Final = 1
_ENDED: Final = 2
_HEARD: Final = 3


class Executor:
    """One rank's executions, one after another.  ``peers`` maps ranks to fabric addresses.

    ``header_bits`` is what the transport carries of a write's header data: 64, or 32.  ``nic`` is
    what the NIC takes (``None``: no time).
    """

    def __init__(  # noqa: PLR0913  what a GPU has
        self,
        rank: int,
        node: str,
        transport: Transport,
        memory: GpuMemory,
        peers: Mapping[int, str],
        *,
        nvlink: ScaleUpCopies | None = None,
        scale_up_memories: Mapping[int, GpuMemory] | None = None,
        header_bits: int = WIDE,
        nic: NicTimes | None = None,
    ) -> None:
        self._rank, self._node = rank, node
        self._transport = transport
        self._memory = memory
        self._view = memory.view()
        self._addresses, self._rank_of = peers, ranks_at(peers)
        self._scale_up_memories = dict(scale_up_memories or {})
        self._program = ScheduleProgram(Schedule(rank=rank, buffers={}), {})
        self._nvlink = nvlink
        #: the memories that copies go into, and this one by types of elements, as far as needed
        self._far_views: dict[int, memoryview] = {}
        self._elements: dict[int, np.ndarray] = {}
        self._nic = nic
        self._completion_ns = 0 if nic is None else nic.completion_ns
        #: what begins when the GPU's channels and the NIC have come to it
        self._late_writes = self._late_copies = False
        #: until when (ps) the GPU's channels, the way to host memory, and the NIC's doorbells are
        #: taken
        self._channels_free = self._staging_free = self._nic_free = 0
        #: by peer the next queue pair; those whose contexts the NIC has, the last in use behind the
        #: others, and those it has dropped
        self._qp_turns: dict[int, int] = {}
        self._cached_qps: dict[int, None] = {}
        self._dropped_qps: set[int] = set()
        self._narrow = header_bits == NARROW
        #: immediates that came before the start
        self._unread: list[tuple[int, int, DataArrival]] = []
        self._number = self._execution = 0  # and the number's low bits, as they travel
        self.arrivals: Arrivals = {}
        self._barriers_reached: list[str] = []
        self.running, self.stale_arrivals = False, 0
        #: the program that was loaded, and whether operations may be added, and were
        self._loaded = self._program
        self._open = self._added = False
        #: writes given to the transport, and octets that went through host memory
        self.posts = self.octets_staged = 0
        self._reset(0)

    def _reset(self, now: int) -> None:
        self._now = self._start = now
        self._deadline = now
        program = self._program
        self._left = program.count
        self._ready: list[int] = []
        state = vec[i64]()
        before = program.before
        index: i64 = 0
        while index < len(before):
            waits = before[index]
            if not waits:
                self._ready.append(int(index))
            state = append(append(append(append(state, waits), -1), -1), 0)
            index += 1
        self._state = state
        self._elements.clear()
        #: what begins with the launch
        self._launching: list[int] = []
        self._work: deque[Generator[int, None, None]] = deque()
        #: times (ns) and operations; ~i is what begins late, or the launch where there is none
        self._timers: list[tuple[int, int]] = []
        self._at_barrier: dict[str, int] = {}
        self._barriers_reached.clear()
        self._error: tuple[str, str] | None = None
        self._channels_free = self._staging_free = self._nic_free = 0

    def use(self, transport: Transport) -> None:
        """Send by ``transport`` from now on; no execution runs, and what came before is void."""
        self._transport = transport
        self.arrivals.clear()
        self._unread.clear()
        self._qp_turns.clear()
        self._cached_qps.clear()
        self._dropped_qps.clear()

    def load(self, program: ScheduleProgram) -> None:
        """Take ``program`` for the executions to come."""
        if self.running:
            raise ValueError("an execution is running; load when it has ended")
        self._memory.lay_out(program.layout)
        self._program = self._loaded = program
        self._late_copies = program.gpu_time is not None
        self._late_writes = self._late_copies or self._nic is not None
        self._reset(0)

    # Running

    def start(self, execution: int, now: int, deadline: int, is_open: bool = False) -> None:
        """Begin execution number ``execution``; it fails at ``deadline`` (ns) at the latest.

        One that ``is_open`` takes more operations (:meth:`add`), and lasts until :meth:`finish`;
        its program has none.
        """
        self._open, self._added, self._program = is_open, False, self._loaded
        self._number, self._execution = execution, execution & _EXECUTION_MASK
        self._reset(now)
        self._deadline = deadline
        self.running = True
        self._work.extend(self._identify(*unread) for unread in self._unread)
        self._unread.clear()
        for key in [key for key in self.arrivals if self._is_stale(key[0])]:
            del self.arrivals[key]
        gpu = self._program.gpu_time
        if gpu is not None and self._left:
            self._launching, self._ready = self._ready, []
            _push(self._timers, (now + gpu.launch_ns, ~self._left))

    def add(self, program: ScheduleProgram, now: int) -> None:
        """Add the operations of ``program`` to the execution, which is open.

        Whoever adds them has let the time of their launch pass.
        """
        if not self.running or self._error is not None:
            return
        if program.gpu_time is not None:
            self._late_copies = self._late_writes = True
        self._now, self._added = now, True
        if not self._left:  # what is over is not kept
            self._program = program
            self._left = program.count
            self._state = vec[i64]()
            self._elements.clear()
        else:
            self._program.add(program)
            self._left += program.count
        first = self._program.count - program.count
        state = self._state
        index: i64 = 0
        while index < len(program.before):
            waits = program.before[index]
            if not waits:
                _push(self._ready, first + int(index))
            state = append(append(append(append(state, waits), -1), -1), 0)
            index += 1
        self._state = state

    def finish(self, now: int) -> None:
        """Let an open execution end once all of its operations have."""
        self._open = False
        if self.running and self._error is None:
            self._now = now

    def _is_stale(self, execution: int) -> bool:
        return (execution - self._execution) & _EXECUTION_MASK >= 128

    @property
    def finished(self) -> bool:
        """Return whether the execution has ended, well or not, and its result waits to be taken."""
        return self.running and (self._error is not None or (self._left == 0 and not self._open))

    def take_result(self) -> RankResult:
        """Return the result of the execution that has ended, with the endpoint's own counters."""
        self.running = False
        error, detail = self._error or (None, "")
        state = np.array(memoryview(self._state), np.int64).reshape(-1, _STATE)
        early = error is not None or self._added
        end = self._now if early else int(state[:, _ENDED].max(initial=self._start))
        if self._added:  # times are of what was loaded, of which an open execution has nothing
            state = state[:0]
        self._ready.clear()
        self._launching.clear()
        self._work.clear()
        self._timers.clear()
        return RankResult(
            rank=self._rank,
            node=self._node,
            execution=self._number,
            start_ns=self._start,
            end_ns=end,
            operation_start=state[:, _STARTED].copy(),
            operation_end=state[:, _ENDED].copy(),
            error=error,
            detail=detail,
        )

    def fail(self, error: str, detail: str) -> None:
        """End the execution with ``error``; the first one counts."""
        if self.running and self._error is None:
            self._error = (error, detail)

    def advance(self, now: int) -> bool:
        """Do a bounded share of the work that is ready; true when there was any."""
        error = self._error  # mypy takes an attribute that was None for None, whatever is called
        if not self.running or error is not None:
            return False
        self._now = now
        if now >= self._deadline:
            self.fail("deadline", self.unfinished())
            return True
        timers = self._timers
        busy = False
        while timers and timers[0][0] <= now:
            self._expire(_pop(timers)[1])
            busy = True
        budget = SLICE_OCTETS
        while budget > 0 and self._error is None:
            if self._work:
                budget -= next(self._work[0], 0) or self._end_of_work()
            elif self._ready:
                index = _pop(self._ready)
                self._state[index * _STATE + _STARTED] = now
                budget -= self._begin(index)
                budget -= _STARTING_COST
            else:
                break
            busy = True
        return busy

    def _end_of_work(self) -> int:
        self._work.popleft()
        return 0

    def next_deadline(self) -> int | None:
        """Return when :meth:`advance` has something to do without any arrival (ns), or ``None``."""
        if not self.running:
            return None
        if self._work or self._ready or self._error is not None:
            return self._now
        if not self._left and not self._open:
            return self._now
        timers = self._timers
        return min(timers[0][0], self._deadline) if timers else self._deadline

    def _begin(self, index: int) -> int:
        kind = self._program.rows[index * ROW + KIND]
        if (kind == WRITE and self._late_writes) or (kind == COPY and self._late_copies):
            return self._begin_later(index)
        return self._begin_now(index)

    def _begin_now(self, index: int) -> int:
        kind = self._program.rows[index * ROW + KIND]
        if kind == COPY:
            return self._begin_copy(index)
        if kind == RECEIVE:
            return self._begin_receive(index)
        if kind == REDUCE:
            return self._begin_reduce(index)
        if kind == WRITE:
            return self._begin_write(index)
        if kind == COMPUTE:
            return self._begin_compute(index)
        if kind == BARRIER:
            return self._begin_barrier(index)
        return self._begin_apply(index)

    def _complete(self, index: i64) -> None:
        state, rows, followers = self._state, self._program.rows, self._program.followers
        state[index * _STATE + _ENDED] = self._now
        self._left -= 1
        place = rows[index * ROW + FOLLOWERS]
        end = rows[index * ROW + ROW + FOLLOWERS]
        while place < end:
            later = followers[place]
            left = state[later * _STATE + _WAITING] - 1
            state[later * _STATE + _WAITING] = left
            if not left:
                _push(self._ready, int(later))
            place += 1

    def _under_way(self) -> list[int]:
        state = self._state
        return [
            one
            for one in range(self._program.count)
            if state[one * _STATE + _STARTED] >= 0 > state[one * _STATE + _ENDED]
        ]

    def has_sent_to(self, peers: Collection[int]) -> bool:
        """Return whether a write to one of ``peers`` is under way."""
        rows = self._program.rows
        return any(
            rows[one * ROW + KIND] == WRITE and int(rows[one * ROW + PEER]) in peers
            for one in self._under_way()
        )

    def unfinished(self) -> str:
        """One sentence about what the rank is waiting for."""
        if not self._left:
            return "no operation is left to do"
        some = "; ".join(self._described(index) for index in self._under_way()[:3])
        among = f", among them {some}" if some else ""
        return f"{self._left} of {self._program.count} operations are not done{among}"

    # Operations: what is begun is done at once, or in slices; octets of work done so far

    def _begin_later(self, index: int) -> int:
        """Begin a write or copy when the GPU's channels and the NIC have come to it."""
        program, gpu, nic = self._program, self._program.time_of(index), self._nic
        octets = int(program.rows[index * ROW + OCTETS])
        writes = program.rows[index * ROW + KIND] == WRITE
        when = self._now * PS
        if gpu is not None:
            when = max(when, self._channels_free) + gpu.octets_ps(octets)
            self._channels_free = when
            if not writes:
                when += gpu.copy_ns * PS
            else:
                nics_ns = 0 if nic is None else nic.one_way_ns(octets)
                when += max(0, gpu.write_ns - nics_ns) * PS
        if writes and nic is not None:
            if nic.staging_bps:
                when = self._staged(when, octets, nic)
            rung = max(when, self._nic_free)
            self._nic_free = rung + nic.occupied_ps(octets)
            when = rung + nic.before_wire_ps(octets)
            if self._misses(int(program.rows[index * ROW + PEER]), nic):
                when += nic.miss_ns * PS
        _push(self._timers, (-(-when // PS), ~index))
        return 0

    def _staged(self, when: int, octets: int, nic: NicTimes) -> int:
        """Return when (ps) a copy to or from host memory has ended that may begin at ``when``."""
        self._staging_free = max(when, self._staging_free) + nic.staged_ps(octets)
        self.octets_staged += octets
        return self._staging_free + nic.staging_ns * PS

    def _misses(self, peer: int, nic: NicTimes) -> bool:
        """Use a queue pair to ``peer``; return whether the NIC has dropped its context before."""
        turn = self._qp_turns.get(peer, 0)
        self._qp_turns[peer] = (turn + 1) % nic.qps_each
        qp = peer * nic.qps_each + turn
        cached = self._cached_qps
        if qp in cached:
            del cached[qp]
        cached[qp] = None  # behind all others
        if len(cached) > nic.cached_qps:
            oldest = next(iter(cached))
            del cached[oldest]
            self._dropped_qps.add(oldest)
        if qp not in self._dropped_qps:
            return False
        self._dropped_qps.discard(qp)
        return True

    def _begin_write(self, index: int) -> int:
        octets = int(self._program.rows[index * ROW + OCTETS])
        if octets > SLICE_OCTETS:
            self._work.append(self._write(index))
            return 0
        self._post(index, crc32c(self._region(index)))
        return octets

    def _write(self, index: int) -> Generator[int, None, None]:
        crc = yield from sliced_crc32c(self._region(index))
        self._post(index, crc)

    def _post(self, index: int, crc: int) -> None:
        rows, row = self._program.rows, index * ROW
        at = int(rows[row + AT])
        label = self._execution << TAG_BITS | int(rows[row + TAG])
        self.posts += 1
        self._transport.post(
            RmaWrite(
                peer=self._addresses[int(rows[row + PEER])],
                key=MEMORY_KEY,
                offset=int(rows[row + FAR]),
                payload=self._view[at : at + int(rows[row + OCTETS])],
                header_data=label ^ crc if self._narrow else label << 32 | crc,
                context=(self._number, index),
            )
        )

    def _region(self, index: int) -> npt.NDArray[np.uint8]:
        rows, row = self._program.rows, index * ROW
        at = int(rows[row + AT])
        return self._memory.octets[at : at + int(rows[row + OCTETS])]

    def _begin_copy(self, index: int) -> int:
        rows, row = self._program.rows, index * ROW
        octets, peer, nvlink = int(rows[row + OCTETS]), int(rows[row + PEER]), self._nvlink
        if nvlink is None:
            raise ValueError(f"rank {self._rank} copies to {peer} without a scale-up network")
        fan_out = fans(int(rows[row + NUMBER]))[1] if rows[row + NUMBER] else 1
        free, there = nvlink.occupy(self._now, octets, peer, fan_out)
        if octets > SLICE_OCTETS:
            self._work.append(self._copy(nvlink, index, free, there))
            return 0
        remote = self._far_views.get(peer)
        if remote is None:
            remote = self._far_views[peer] = self._scale_up_memories[peer].view()
        at, far = int(rows[row + AT]), int(rows[row + FAR])
        remote[far : far + octets] = self._view[at : at + octets]
        crc = crc32c(self._memory.octets[at : at + octets])  # cheaper once the copy has read them
        self._copied(nvlink, index, crc, free, there)
        return octets

    def _copy(
        self, nvlink: ScaleUpCopies, index: int, free: int, there: int
    ) -> Generator[int, None, None]:
        local, rows, row = self._region(index), self._program.rows, index * ROW
        at = int(rows[row + FAR])
        remote = self._scale_up_memories[int(rows[row + PEER])].octets[at : at + len(local)]
        crc = 0
        for part in slices(len(local)):
            np.copyto(remote[part], local[part])
            crc = crc32c(local[part], crc)  # cheaper once the copy has read them
            yield part.stop - part.start
        self._copied(nvlink, index, crc, free, there)

    def _copied(self, nvlink: ScaleUpCopies, index: int, crc: int, free: int, there: int) -> None:
        """Notify the peer of a copy, with which the egress is done at ``free``."""
        rows, row = self._program.rows, index * ROW
        peer, tag = int(rows[row + PEER]), int(rows[row + TAG])
        at, octets = int(rows[row + FAR]), int(rows[row + OCTETS])
        carried = octets
        if rows[row + NUMBER]:
            carried = -(-octets // fans(int(rows[row + NUMBER]))[0])
        notice = CopyNotice(self._rank, self._execution, tag, crc, at, octets, there, carried)
        try:
            nvlink.notify(peer, notice)
        except ConnectionError as gone:
            self.fail("scale-up", str(gone))
        _push(self._timers, (free, index))

    def _begin_receive(self, index: int) -> int:
        if not self.arrivals:
            return 0
        arrival = self.arrivals.pop(self._key(index), None)
        if arrival is not None:
            self._state[index * _STATE + _HEARD] = 1
            self._arrived(index, arrival)
        return 0

    def _key(self, index: int) -> tuple[int, int, int]:
        """Return what the data of a receive are found by in :attr:`arrivals`."""
        rows, row = self._program.rows, index * ROW
        return self._execution, int(rows[row + PEER]), int(rows[row + TAG])

    def _arrived(self, index: int, arrival: DataArrival) -> None:
        if arrival.at > self._now:  # scale-up data is there early; it counts from its time on
            self.arrivals[self._key(index)] = arrival
            _push(self._timers, (arrival.at, index))
            return
        rows, row = self._program.rows, index * ROW
        at, length = int(rows[row + AT]), int(rows[row + OCTETS])
        if arrival.offset != at or arrival.length != length:
            self.fail(
                "misplaced",
                f"{self._described(index)} got {arrival.length} octets at {arrival.offset}"
                f" instead of {length} at {at}",
            )
        elif arrival.crc is None:
            self._complete(index)
        elif length > SLICE_OCTETS or self._work:
            self._work.append(self._verify(index, arrival.crc))
        else:
            self._verified(index, crc32c(self._region(index)), arrival.crc)

    def _verify(self, index: int, sent: int) -> Generator[int, None, None]:
        region = self._region(index)
        if 0 < len(region) <= SLICE_OCTETS:
            crc = crc32c(region)
            yield len(region)
        else:
            crc = yield from sliced_crc32c(region)
        self._verified(index, crc, sent)

    def _verified(self, index: int, crc: int, sent: int) -> None:
        """Complete a Receive if the checksum of its data is what was ``sent``."""
        if crc == sent:
            self._complete(index)
        else:
            self.fail(
                "checksum",
                f"{self._described(index)}: the data's checksum is {crc:#010x},"
                f" the sender's {sent:#010x}",
            )

    def _described(self, index: int) -> str:
        return describe(index, self._program.operation(index))

    def _begin_reduce(self, index: int) -> int:
        octets = int(self._program.rows[index * ROW + OCTETS])
        if octets > SLICE_OCTETS:
            self._work.append(self._reduce(index))
            return 0
        self._program.function(index)(*self._summands(index))
        self._complete(index)
        return octets

    def _reduce(self, index: int) -> Generator[int, None, None]:
        into, source = self._summands(index)
        function = self._program.function(index)
        for part in slices(len(source), source.itemsize):
            function(into[part], source[part])
            yield (part.stop - part.start) * source.itemsize
        self._complete(index)

    def _summands(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements that a sum goes into, and those that are added."""
        rows, row = self._program.rows, index * ROW
        number = int(rows[row + NUMBER])
        every = self._elements.get(number)
        if every is None:
            dtype, memory = self._program.dtype(index), self._memory.octets
            every = memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype)
            self._elements[number] = every
        size = every.itemsize
        count = int(rows[row + OCTETS]) // size
        into, source = int(rows[row + AT]) // size, int(rows[row + FAR]) // size
        return every[into : into + count], every[source : source + count]

    def _begin_compute(self, index: int) -> int:
        lasts = int(self._program.rows[index * ROW + NUMBER])
        _push(self._timers, (self._now + lasts, index))
        return 0

    def _begin_apply(self, index: int) -> int:
        try:
            octets = self._program.calls[index].run(self._memory.octets)
        except GpuFunctionError as failure:
            self.fail("function", f"{self._described(index)}: {failure}")
            return 0
        return octets + self._begin_compute(index)

    def _begin_barrier(self, index: int) -> int:
        name = self._program.barrier(index)
        if name in self._at_barrier:
            self.fail("schedule", f"barrier {name!r} is reached twice at the same time")
            return 0
        self._at_barrier[name] = index
        self._barriers_reached.append(name)
        return 0

    def _expire(self, index: int) -> None:
        """A time of an operation has come, such as that of a Compute, or of a Copy's egress."""
        if index < 0:
            begun = ~index
            if begun == self._program.count:
                self._ready, self._launching = self._launching, []
            else:
                self._begin_now(begun)
        elif self._program.rows[index * ROW + KIND] == RECEIVE:
            self._begin_receive(index)
        else:
            self._complete(index)

    # Events

    def feed(self, completions: Sequence[Completion], now: int) -> None:
        """Take the transport's completions."""
        self._now = now
        for completion in completions:
            if completion.kind == "write":
                self._written(completion)
            else:
                self._remote_write(completion, now)

    def _written(self, completion: Completion) -> None:
        context = completion.context
        if not isinstance(context, tuple) or not self.running or context[0] != self._number:
            return
        index: int = context[1]
        if completion.error is not None:
            what = self._described(index)
            self.fail("transport", f"{what} ended with {completion.error}")
        elif self._error is None:
            if self._completion_ns:
                _push(self._timers, (self._now + self._completion_ns, index))
            else:
                self._complete(index)

    def _remote_write(self, completion: Completion, now: int) -> None:
        peer = self._rank_of.get(completion.peer)
        if completion.error is not None:
            self.fail("transport", f"a write from {completion.peer} ended with {completion.error}")
            return
        if peer is None or completion.header_data is None or completion.offset is None:
            self.stale_arrivals += 1
            return
        known = now + self._completion_ns
        nic = self._nic
        if nic is not None and nic.staging_bps:
            known = -(-self._staged(known * PS, completion.length, nic) // PS)
        if self._narrow:
            arrival = DataArrival(None, completion.offset, completion.length, known)
            unread = (peer, completion.header_data, arrival)
            if self.running:
                self._work.append(self._identify(*unread))
            else:
                self._unread.append(unread)
            return
        label = completion.header_data >> 32
        arrival = DataArrival(
            completion.header_data & 0xFFFF_FFFF, completion.offset, completion.length, known
        )
        self._accept(label >> TAG_BITS, peer, label & _TAG_MASK, arrival)

    def _identify(
        self, peer: int, header_data: int, arrival: DataArrival
    ) -> Generator[int, None, None]:
        """Find out by the checksum of what arrived which write it was."""
        data = self._memory.octets[arrival.offset : arrival.offset + arrival.length]
        crc = yield from sliced_crc32c(data)
        label = header_data ^ crc
        execution, tag = label >> TAG_BITS, label & _TAG_MASK
        known = execution == self._execution or self._is_stale(execution)
        if known and self._program.receive_of(peer, tag) >= 0:
            self._accept(execution, peer, tag, arrival)
        else:
            self.fail(
                "checksum",
                f"{arrival.length} octets at {arrival.offset} from rank {peer}: their checksum is"
                f" {crc:#010x}, and with the sender's immediate, {header_data:#010x}, names no"
                " write that is waited for",
            )

    def notice(self, notices: Sequence[CopyNotice]) -> None:
        """Take scale-up notices of the server's other GPUs."""
        for one in notices:
            arrival = DataArrival(one.crc, one.offset, one.length, one.deliver_at)
            self._accept(one.execution, one.sender, one.tag, arrival)

    def _accept(self, execution: int, peer: int, tag: int, arrival: DataArrival) -> None:
        if self._is_stale(execution) or (execution == self._execution and not self.running):
            self.stale_arrivals += 1
            return
        index: i64 = -1
        if execution == self._execution:
            index = self._program.receive_of(peer, tag)
        state, row = self._state, index * _STATE
        if index >= 0 and state[row + _STARTED] >= 0 and not state[row + _HEARD]:
            state[row + _HEARD] = 1
            self._arrived(int(index), arrival)
        elif (execution, peer, tag) in self.arrivals:
            self.fail("misplaced", f"tag {tag} from rank {peer} came twice in one execution")
        else:
            self.arrivals[execution, peer, tag] = arrival

    # Barriers

    def barriers_reached(self) -> list[str]:
        """Return the barriers reached since the last call, which the runner is to learn."""
        reached, self._barriers_reached = self._barriers_reached, []
        return reached

    def pass_barrier(self, execution: int, name: str, now: int) -> None:
        """All ranks are at barrier ``name``."""
        index = self._at_barrier.pop(name, None) if execution == self._number else None
        if index is not None and self.running and self._error is None:
            self._now = now
            self._complete(index)
