"""The executor: order, matching, verification and failure, with an in-memory transport."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.sim.endpoint.nic.nic_profile import NicTimes
from emulator.sim.endpoint.operations.executor import NARROW, WIDE, Executor
from emulator.sim.endpoint.operations.gpu_memory import GpuMemory, Layout, memory_path
from emulator.sim.endpoint.operations.gpu_time import GpuTime
from emulator.sim.endpoint.operations.nvlink import CopyNotice, ScaleUpLink
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Barrier,
    Compute,
    Copy,
    Operation,
    Receive,
    Reduce,
    Region,
    Schedule,
    Write,
)
from emulator.sim.endpoint.operations.schedule_program import ScheduleProgram
from emulator.sim.event_queue import EventQueue, Source
from emulator.sim.scale_up_copies import ScaleUpCopies
from uet.transport import Completion, Frame, ReceiveRequest, Request
from uet.transport import WriteRequest as RmaWrite

BUFFERS = {"a": 1 << 20, "b": 1 << 20}
LAYOUT = Layout(BUFFERS)
ADDRESSES = {0: "10.0.1.2", 1: "10.0.1.3"}
LATENCY = 1000


class DirectTransport:
    """Places a write in the peer's memory ``LATENCY`` ns after it was posted."""

    def __init__(self, address: str, network: dict[str, DirectTransport]) -> None:
        self.address, self.network = address, network
        self.memory: memoryview = memoryview(b"")
        self.done: list[Completion] = []
        self.posted: list[RmaWrite] = []
        self.write_error: str | None = None
        self.corrupt = False
        network[address] = self

    def register(
        self, memory: memoryview, *, key: int, writable: bool = True, readable: bool = True
    ) -> None:
        self.memory = memory

    def post(self, request: Request) -> None:
        assert isinstance(request, RmaWrite)
        self.posted.append(request)

    def post_receive(self, receive: ReceiveRequest) -> None:
        raise NotImplementedError

    def deliver(self) -> None:
        for request in self.posted:
            peer = self.network[request.peer]
            length = len(request.payload)
            if self.write_error is None:
                peer.memory[request.offset : request.offset + length] = request.payload
                if self.corrupt:
                    peer.memory[request.offset] ^= 1
                peer.done.append(
                    Completion(
                        kind="remote_write",
                        peer=self.address,
                        length=length,
                        header_data=request.header_data,
                        key=request.key,
                        offset=request.offset,
                    )
                )
            self.done.append(
                Completion(
                    kind="write",
                    peer=request.peer,
                    length=length,
                    context=request.context,
                    error=self.write_error,
                )
            )
        self.posted.clear()

    def completions(self) -> list[Completion]:
        done, self.done = self.done, []
        return done

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        raise NotImplementedError

    def transmit(self, now: int, limit: int) -> list[Frame]:
        raise NotImplementedError

    def use_ports(self, working: Sequence[int]) -> None:
        raise NotImplementedError

    def next_deadline(self) -> int | None:
        return None

    def counters(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        return True


class TwoRanks:
    """Two executors that share a server; time goes on only when all of them wait."""

    def __init__(self, header_bits: int, nic: NicTimes | None = None) -> None:
        lab = f"test-{secrets.token_hex(4)}"
        network: dict[str, DirectTransport] = {}
        self.now = 0
        self.header_bits = header_bits
        self.memories = {
            rank: GpuMemory.create(memory_path(lab, f"g{rank}"), 4 << 20) for rank in ADDRESSES
        }
        link = ScaleUpLink(rate_bps=8_000_000_000, latency_ns=700)
        self.heard: dict[int, list[CopyNotice]] = {rank: [] for rank in ADDRESSES}
        self.nvlinks = {
            rank: ScaleUpCopies(
                rank,
                link,
                EventQueue(),
                Source(1),
                send=lambda peer, when, order, notice: self.nvlinks[peer].arrive(notice),
                hear=heard.append,
            )
            for rank, heard in self.heard.items()
        }
        self.transports = {
            rank: DirectTransport(address, network) for rank, address in ADDRESSES.items()
        }
        self.executors: dict[int, Executor] = {}
        for rank, transport in self.transports.items():
            transport.register(self.memories[rank].view(), key=1)
            self.executors[rank] = Executor(
                rank,
                f"g{rank}",
                transport,
                self.memories[rank],
                {1 - rank: ADDRESSES[1 - rank]},
                nvlink=self.nvlinks[rank],
                scale_up_memories={1 - rank: self.memories[1 - rank]},
                header_bits=header_bits,
                nic=nic,
            )

    def close(self) -> None:
        for memory in self.memories.values():
            memory.unlink()

    def load(self, *operations: Sequence[Operation], gpu_time: GpuTime | None = None) -> None:
        for rank, executor in self.executors.items():
            schedule = Schedule(
                rank=rank,
                buffers=BUFFERS,
                operations=tuple(operations[rank]),
                gpu_time=gpu_time,
            )
            layouts = {0: LAYOUT, 1: LAYOUT}
            executor.load(
                ScheduleProgram(schedule, layouts, fabric={1 - rank}, scale_up={1 - rank})
            )

    def run(self, execution: int = 1, budget_ns: int = 10_000_000) -> list[RankResult]:
        for executor in self.executors.values():
            executor.start(execution, self.now, self.now + budget_ns)
        results: dict[int, RankResult] = {}
        for _ in range(100_000):
            if len(results) == 2:
                return [results[0], results[1]]
            if not self._turn(results):
                self._wait()
        raise AssertionError("the executors go round in circles")

    def settle(self) -> dict[int, RankResult]:
        """Go on until nothing happens by itself any more; return results of what has ended."""
        results: dict[int, RankResult] = {}
        while self._turn(results) or any(one.posted for one in self.transports.values()):
            if not self._turn(results) and any(one.posted for one in self.transports.values()):
                self._wait()
        return results

    def _turn(self, results: dict[int, RankResult]) -> bool:
        busy = False
        for rank, executor in self.executors.items():
            done = self.transports[rank].completions()
            executor.feed(done, self.now)
            notices, self.heard[rank][:] = list(self.heard[rank]), []
            executor.notice(notices)
            busy |= executor.advance(self.now) or bool(done) or bool(notices)
            for name in executor.barriers_reached():
                self.at_barrier = getattr(self, "at_barrier", 0) + 1
                if self.at_barrier == 2:
                    for one in self.executors.values():
                        one.pass_barrier(1, name, self.now)
                    self.at_barrier = 0
                    busy = True
            if executor.finished:
                results[rank] = executor.take_result()
        return busy

    def _wait(self) -> None:
        if any(transport.posted for transport in self.transports.values()):
            self.now += LATENCY
            for transport in self.transports.values():
                transport.deliver()
        else:
            deadlines = [executor.next_deadline() for executor in self.executors.values()]
            self.now = max(self.now, min(when for when in deadlines if when is not None))


@pytest.fixture(params=[WIDE, NARROW], ids=["64 bits", "32 bits"])
def ranks(request: pytest.FixtureRequest) -> Iterator[TwoRanks]:
    ranks = TwoRanks(request.param)
    yield ranks
    ranks.close()


def region(buffer: str = "a", length: int = 1 << 20, offset: int = 0) -> Region:
    return Region(buffer, offset, length)


def fill(ranks: TwoRanks, rank: int = 0, buffer: str = "a") -> np.ndarray:
    data = np.frombuffer(os.urandom(1 << 20), dtype=np.uint8)
    ranks.memories[rank].array(buffer, np.uint8)[:] = data
    return data


def write(tag: int = 0, **changes: Any) -> Write:
    fields = {"peer": 1, "tag": tag, "local": region("a"), "remote": region("b"), **changes}
    return Write(**fields)


def receive(tag: int = 0, **changes: Any) -> Receive:
    return Receive(**{"peer": 0, "tag": tag, "into": region("b"), **changes})


def apply(**changes: Any) -> Apply:
    fields = {
        "function": "tests.harness.runs.gpu_arithmetic:increased",
        "inputs": (region("a", 8),),
        "outputs": (region("b", 8),),
        "arguments": (3,),
    } | changes
    return Apply(**fields)


def test_write_reaches_the_receive_of_its_tag(ranks: TwoRanks) -> None:
    ranks.load([write(7)], [receive(7)])
    data = fill(ranks)
    sender, receiver = ranks.run()
    assert np.array_equal(ranks.memories[1].array("b", np.uint8), data)
    assert (sender.error, receiver.error) == (None, None)
    assert receiver.operation_end[0] == LATENCY
    assert receiver.end_ns == LATENCY


def test_data_may_come_before_its_receive_is_ready(ranks: TwoRanks) -> None:
    ranks.load([write()], [Compute(duration_ns=50_000), receive(after=(0,))])
    _, receiver = ranks.run()
    assert list(receiver.operation_start) == [0, 50_000]
    assert list(receiver.operation_end) == [50_000, 50_000]


def test_operations_wait_for_all_before_them(ranks: TwoRanks) -> None:
    operations = [
        Compute(duration_ns=300),
        Compute(duration_ns=200),
        Compute(duration_ns=50, after=(0, 1)),
        Compute(duration_ns=10, after=(2, 2)),
    ]
    ranks.load(operations, [])
    first, second = ranks.run()
    assert list(first.operation_start) == [0, 0, 300, 350]
    assert list(first.operation_end) == [300, 200, 350, 360]
    assert first.end_ns == 360
    assert second.end_ns == second.start_ns


def test_ready_operations_start_in_the_order_of_the_list(ranks: TwoRanks) -> None:
    step = 1 << 10
    operations = [
        write(n, local=region("a", step, n * step), remote=region("b", step, n * step))
        for n in range(5)
    ]
    ranks.load(operations, [receive(n, into=region("b", step, n * step)) for n in range(5)])
    for executor in ranks.executors.values():
        executor.start(1, 0, 10**9)
    ranks.executors[0].advance(0)
    posted = ranks.transports[0].posted
    offsets = [request.offset - posted[0].offset for request in posted]
    assert offsets == [n * step for n in range(5)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_reduce_is_numpy_addition(ranks: TwoRanks, dtype: str) -> None:
    ranks.load([Reduce(source=region("a"), into=region("b"), dtype=dtype)], [])
    a, b = (ranks.memories[0].array(name, dtype) for name in ("a", "b"))
    a[:] = np.arange(len(a)) % 1000
    b[:] = 1
    expected = a + b
    ranks.run()
    assert np.array_equal(b, expected)


def test_an_apply_reads_what_is_in_memory_when_it_starts(ranks: TwoRanks) -> None:
    """Its outputs are there at once; what waits for it starts when its time is over."""
    increase = apply(outputs=(region("b", 8, 8),), duration_ns=400, after=(0,))
    here = region("a", 8)
    ranks.load(
        [write(local=here, remote=here)],
        [receive(into=here), increase, Compute(duration_ns=1, after=(1,))],
    )
    ranks.memories[0].array("a", np.int64)[0] = 39
    ranks.memories[1].array("a", np.int64)[0] = 1000
    _, second = ranks.run()
    assert second.error is None
    assert ranks.memories[1].array("b", np.int64)[1] == 42
    assert list(second.operation_start) == [0, LATENCY, LATENCY + 400]
    assert list(second.operation_end) == [LATENCY, LATENCY + 400, LATENCY + 401]


def test_an_apply_that_raises_ends_the_execution(ranks: TwoRanks) -> None:
    ranks.load([apply(inputs=(region("a", 7),))], [])  # no whole int64
    first, _ = ranks.run()
    assert first.error == "function"
    assert "operation 0 (Apply tests.harness.runs.gpu_arithmetic:increased): ValueError" in (
        first.detail
    )


def test_an_apply_cannot_write_its_inputs(ranks: TwoRanks) -> None:
    ranks.load([apply(function="tests.harness.runs.gpu_arithmetic:overwriting")], [])
    first, _ = ranks.run()
    assert first.error == "function"
    assert "read-only" in first.detail


def test_long_work_is_done_in_slices(ranks: TwoRanks) -> None:
    ranks.load([Reduce(source=region("a"), into=region("b"))], [])
    executor = ranks.executors[0]
    executor.start(1, 0, 10**9)
    turns = 0
    while not executor.finished:
        assert executor.advance(0)
        turns += 1
    assert turns > 2


def test_copy_takes_its_time_and_its_latency(ranks: TwoRanks) -> None:
    copy = Copy(peer=1, tag=3, local=region("a"), remote=region("b"))
    half = region("a", 1000)
    second = Copy(peer=1, tag=4, local=half, remote=half)
    ranks.load([copy, second], [receive(3), receive(4, into=half)])
    data = fill(ranks)
    sender, receiver = ranks.run()
    octets = 1 << 20  # at one octet a nanosecond
    assert list(sender.operation_end) == [octets, octets + 1000]
    assert list(receiver.operation_end) == [octets + 700, octets + 1700]
    assert np.array_equal(ranks.memories[1].array("b", np.uint8), data)


def test_barrier_waits_for_everyone(ranks: TwoRanks) -> None:
    ranks.load(
        [Compute(duration_ns=900), Barrier(name="x", after=(0,))],
        [Barrier(name="x"), Compute(duration_ns=5, after=(0,))],
    )
    first, second = ranks.run()
    assert first.operation_end[1] == 900
    assert list(second.operation_end) == [900, 905]


def test_corrupted_data_is_a_checksum_error(ranks: TwoRanks) -> None:
    ranks.load([write()], [receive()])
    fill(ranks)
    ranks.transports[0].corrupt = True
    sender, receiver = ranks.run()
    assert receiver.error == "checksum"
    if ranks.header_bits == NARROW:
        assert "1048576 octets at 1048576 from rank 0: their checksum is 0x" in receiver.detail
    else:
        assert "operation 0 (Receive from rank 0 with tag 0)" in receiver.detail
    assert sender.error is None


def test_an_immediate_that_comes_before_the_start_waits(tmp_path: Path) -> None:
    """Ranks start at one time by clocks of their own: a peer's write may be there first."""
    ranks = TwoRanks(NARROW)
    ranks.load([write()], [receive()])
    fill(ranks)
    sender, receiver = ranks.executors.values()
    sender.start(1, 0, 10**9)
    while sender.advance(0):
        pass
    ranks.transports[0].deliver()
    receiver.feed(ranks.transports[1].completions(), 5)
    receiver.start(1, 10, 10**9)
    while receiver.advance(10):
        pass
    assert receiver.finished
    assert receiver.take_result().error is None
    ranks.close()


def test_data_in_the_wrong_place_is_an_error(ranks: TwoRanks) -> None:
    ranks.load([write(remote=region("a"))], [receive()])
    assert ranks.run()[1].error == "misplaced"


def test_transport_error_is_the_ranks_error(ranks: TwoRanks) -> None:
    ranks.load([write()], [])
    ranks.transports[0].write_error = "UNREACHABLE"
    result = ranks.run()[0]
    assert result.error == "transport"
    assert "UNREACHABLE" in result.detail
    assert result.operation_end[0] == -1


def test_a_rank_with_nothing_left_says_so(ranks: TwoRanks) -> None:
    ranks.load([], [])
    ranks.executors[0].start(1, 0, 10**9)
    assert ranks.executors[0].unfinished() == "no operation is left to do"


def test_data_that_never_comes_ends_at_the_deadline(ranks: TwoRanks) -> None:
    ranks.load([], [receive(9)])
    result = ranks.run(budget_ns=5000)[1]
    assert result.error == "deadline"
    assert "Receive from rank 0 with tag 9" in result.detail
    assert result.end_ns == 5000


def test_executions_follow_each_other_even_when_a_peer_is_ahead(ranks: TwoRanks) -> None:
    ranks.load([write()], [receive()])
    for execution in range(1, 600):  # the number travels in eight bits
        data = fill(ranks) if execution % 100 == 1 else None
        assert [result.error for result in ranks.run(execution)] == [None, None]
        if data is not None:
            assert np.array_equal(ranks.memories[1].array("b", np.uint8), data)
    ahead = ranks.executors[0]
    ahead.start(600, ranks.now, ranks.now + 10**9)
    while not ranks.transports[0].posted:
        ahead.advance(ranks.now)
    ranks.transports[0].deliver()
    behind = ranks.executors[1]
    behind.feed(ranks.transports[1].completions(), ranks.now)
    behind.start(600, ranks.now, ranks.now + 10**9)
    while not behind.finished:
        behind.advance(ranks.now)
    assert behind.take_result().error is None


def test_arrivals_of_a_past_execution_are_ignored(ranks: TwoRanks) -> None:
    ranks.load([write()], [receive()])
    late = ranks.executors[0]
    late.start(1, 0, 10**9)
    while not ranks.transports[0].posted:
        late.advance(0)
    receiver = ranks.executors[1]
    receiver.start(2, 0, 10**9)
    ranks.transports[0].deliver()
    receiver.feed(ranks.transports[1].completions(), 5)
    for _ in range(20):
        receiver.advance(5)
    assert not receiver.finished
    assert receiver.stale_arrivals == 1


@pytest.mark.parametrize(
    ("operation", "complaint"),
    [
        (write(local=region("a", 5)), "differ in length"),
        (write(peer=4), "no fabric address"),
        (write(tag=1 << 24), "24 bits"),
        (write(local=region("c")), "no buffer 'c'"),
        (write(remote=region("b", 1 << 20, 1)), "lie outside"),
        (Copy(peer=9, tag=0, local=region("a"), remote=region("a")), "same scale-up network"),
        (Compute(duration_ns=1, after=(0,)), "not an earlier one"),
        (Compute(duration_ns=-1), "negative"),
        (apply(duration_ns=-1), "negative"),
        (apply(inputs=(region("c", 8),)), "there is no buffer 'c'"),
        (apply(outputs=(region("a", 9, (1 << 20) - 8),)), "lie outside buffer 'a'"),
        (apply(function="no.such.module:f"), "cannot be imported"),
        (apply(function="numpy:add"), "no function of GPUs"),
        (Reduce(source=region("a", 6), into=region("b", 6)), "whole float32"),
    ],
)
def test_bad_schedule_is_named_before_it_runs(
    ranks: TwoRanks, operation: Operation, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        ranks.load([operation], [])
    assert str(refusal.value).startswith("rank 0: operation 0 (")


def test_tag_used_twice_is_refused(ranks: TwoRanks) -> None:
    with pytest.raises(ValueError, match="used twice"):
        ranks.load([write(1), write(1)], [])


#: A NIC whose times can be told apart: 100 + 20 before the wire, 3 behind it, 1 us a message.
NIC = NicTimes(100, 8, 20, 3, 1_000_000, 8 * 10**12, 2, 7)


@pytest.fixture(params=[WIDE, NARROW], ids=["64 bits", "32 bits"])
def with_nics(request: pytest.FixtureRequest) -> Iterator[TwoRanks]:
    ranks = TwoRanks(request.param, NIC)
    yield ranks
    ranks.close()


def test_a_nic_takes_time_before_the_wire_and_behind_it(with_nics: TwoRanks) -> None:
    with_nics.load([write()], [receive()])
    data = fill(with_nics)
    sender, receiver = with_nics.run()
    assert np.array_equal(with_nics.memories[1].array("b", np.uint8), data)
    there = 100 + 20 + LATENCY + 3
    assert list(receiver.operation_end) == list(sender.operation_end) == [there]


def test_data_in_the_work_request_are_not_fetched(with_nics: TwoRanks) -> None:
    with_nics.load(
        [write(local=region("a", 8), remote=region("b", 8))], [receive(into=region("b", 8))]
    )
    _, receiver = with_nics.run()
    assert list(receiver.operation_end) == [100 + LATENCY + 3]


def test_a_nic_begins_so_many_messages_a_second(with_nics: TwoRanks) -> None:
    here, there = ([region(name, 8, n * 8) for n in range(3)] for name in "ab")
    with_nics.load(
        [write(n, local=here[n], remote=there[n]) for n in range(3)],
        [receive(n, into=there[n]) for n in range(3)],
    )
    assert posted_at(with_nics) == [100, 1_100, 2_100]


def test_copies_to_and_from_host_memory_share_the_way_there() -> None:
    """An octet takes 1 ns, and each copy 7 ns more; the NIC as above."""
    ranks = TwoRanks(WIDE, replace(NIC, staging_bps=8 * 10**9, staging_ns=7))
    size = 1_000
    out, into = region("a", size), region("b", size)
    ranks.load([write(local=out, remote=into)], [receive(into=into)])
    _, receiver = ranks.run()
    assert list(receiver.operation_end) == [(size + 7) + 120 + LATENCY + 3 + (size + 7)]
    ranks.load(
        [write(local=out, remote=into), write(1, local=out, remote=region("b", size, size))],
        [receive(into=into), receive(1, into=region("b", size, size))],
    )
    _, receiver = ranks.run()
    ends = receiver.operation_end - receiver.start_ns
    assert list(ends) == [(size + 7) + 120 + LATENCY + 3 + size * n + 7 for n in (1, 2)]
    assert [executor.octets_staged for executor in ranks.executors.values()] == [3 * size] * 2
    ranks.close()


@pytest.mark.parametrize(("qps_each", "last"), [(2, [3_100, 4_100]), (3, [3_107, 4_107])])
def test_a_queue_pair_that_the_nic_has_dropped_is_fetched(qps_each: int, last: list[int]) -> None:
    """Writes take queue pairs in turn, of which the NIC has two: each first use is free."""
    ranks = TwoRanks(WIDE, replace(NIC, qps_each=qps_each))
    here, there = ([region(name, 8, n * 8) for n in range(5)] for name in "ab")
    ranks.load(
        [write(n, local=here[n], remote=there[n]) for n in range(5)],
        [receive(n, into=there[n]) for n in range(5)],
    )
    assert posted_at(ranks) == [100, 1_100, 2_100, *last]
    ranks.close()


def posted_at(ranks: TwoRanks) -> list[int]:
    """Return when (ns) each write of rank 0 comes to its transport."""
    executor, posted = ranks.executors[0], ranks.transports[0].posted
    executor.start(1, 0, 10**9)
    times: list[int] = []
    while (now := executor.next_deadline()) is not None and now < 10**9:
        executor.advance(now)
        times += [now] * (len(posted) - len(times))
    return times


def test_a_library_takes_time_for_its_launch_and_for_each_step(ranks: TwoRanks) -> None:
    """The channels take 1 ns for an octet, one operation behind the other."""
    gpu = GpuTime(launch_ns=5_000, copy_ns=40, write_ns=600, rate_bps=8 * 10**9)
    here = [region("a", 64, n * 64) for n in range(2)]
    there = [region("b", 64, n * 64) for n in range(2)]
    copies = [Copy(peer=1, tag=n, local=here[n], remote=there[n]) for n in range(2)]
    ranks.load(copies, [receive(n, into=there[n]) for n in range(2)], gpu_time=gpu)
    sender, receiver = ranks.run()
    assert (sender.start_ns, list(sender.operation_start)) == (0, [5_000] * 2)
    copied = [5_000 + (n + 1) * 64 + 40 + 64 for n in range(2)]
    assert list(sender.operation_end) == copied
    assert list(receiver.operation_end) == [end + 700 for end in copied]
    writes = [write(n, local=here[n], remote=there[n]) for n in range(2)]
    ranks.load(writes, [], gpu_time=gpu)
    assert posted_at(ranks) == [5_000 + (n + 1) * 64 + 600 for n in range(2)]


def test_what_nics_take_of_a_step_is_no_time_beside_it(with_nics: TwoRanks) -> None:
    gpu = GpuTime(launch_ns=0, copy_ns=0, write_ns=600, rate_bps=8 * 10**12)
    with_nics.load([write()], [receive()], gpu_time=gpu)
    _, receiver = with_nics.run()
    moved = -(-(1 << 20) // 1000)
    assert list(receiver.operation_end) == [moved + 600 + LATENCY]


def test_a_rank_without_operations_has_no_launch(ranks: TwoRanks) -> None:
    gpu = GpuTime(launch_ns=5_000, copy_ns=0, write_ns=0, rate_bps=8 * 10**12)
    ranks.load([Compute(duration_ns=1)], [], gpu_time=gpu)
    first, second = ranks.run()
    assert (first.end_ns, second.end_ns) == (5_001, 0)


def test_operations_that_are_added_take_the_time_of_their_own_schedule(ranks: TwoRanks) -> None:
    ranks.load([], [])
    executor, posted = ranks.executors[0], ranks.transports[0].posted
    executor.start(1, 0, 10**9, is_open=True)
    for tag, write_ns in enumerate((600, None, 100)):
        gpu = (
            None
            if write_ns is None
            else GpuTime(launch_ns=0, copy_ns=0, write_ns=write_ns, rate_bps=8 * 10**12)
        )
        sent = write(tag, local=region("a", 64), remote=region("b", 64, tag * 64))
        schedule = Schedule(rank=0, buffers=BUFFERS, operations=(sent,), gpu_time=gpu)
        executor.add(ScheduleProgram(schedule, {1: LAYOUT}, fabric={1}), 0)
    times: list[int] = []
    while len(posted) < 3:
        executor.advance(now := executor.next_deadline() or 0)
        times += [now] * (len(posted) - len(times))
    assert times == [0, 101, 601]


def test_an_open_execution_takes_operations_until_it_is_to_finish(ranks: TwoRanks) -> None:
    ranks.load([], [])
    data = fill(ranks)
    for executor in ranks.executors.values():
        executor.start(1, 0, 10_000_000, is_open=True)
    half = 1 << 19

    def add(sent: Sequence[Operation], received: Sequence[Operation]) -> None:
        for rank, operations in enumerate((sent, received)):
            schedule = Schedule(rank=rank, buffers=BUFFERS, operations=tuple(operations))
            layouts = {0: LAYOUT, 1: LAYOUT}
            program = ScheduleProgram(schedule, layouts, fabric={1 - rank})
            ranks.executors[rank].add(program, ranks.now)

    for first in (0, 2):  # the second pair finds the first one over
        sums = Reduce(source=region("b", 4), into=region("a", 4), dtype="float32", after=(0,))
        for tag, offset in ((first, 0), (first + 1, half)):  # one behind the other, not over yet
            part = region("a", half, offset), region("b", half, offset)
            add([write(tag, local=part[0], remote=part[1])], [receive(tag, into=part[1]), sums])
        ranks.memories[1].array("a", np.float32)[0] = 1
        assert not ranks.settle()
        assert np.array_equal(ranks.memories[1].array("b", np.uint8), data)
    for executor in ranks.executors.values():
        executor.finish(ranks.now)
    results = ranks.settle()
    assert [results[rank].error for rank in (0, 1)] == [None, None]
    assert results[0].end_ns == ranks.now
    assert len(results[0].operation_end) == 0
