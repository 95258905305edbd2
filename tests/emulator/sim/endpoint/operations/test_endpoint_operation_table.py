"""Operations in columns are the operations that were put there."""

import pickle
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.sim.endpoint.operations.gpu_memory import Layout
from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, Names, OperationTable
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
from emulator.sim.endpoint.peer_addresses import PeerAddresses, RankAddresses

number = st.integers(0, 2**40)
regions = st.builds(Region, st.sampled_from(["a", "b", "c"]), number, number)
ranks = st.integers(0, 2**20)
tags = st.integers(0, 2**24 - 1)
after = st.lists(st.integers(0, 9), max_size=3).map(tuple)
operations = st.one_of(
    *(
        st.builds(kind, after=after, peer=ranks, tag=tags, local=regions, remote=regions)
        for kind in (Write, Copy)
    ),
    st.builds(Receive, after=after, peer=ranks, tag=tags, into=regions),
    st.builds(Reduce, after=after, source=regions, into=regions, dtype=st.sampled_from("fd")),
    st.builds(Compute, after=after, duration_ns=number),
    st.builds(
        Apply,
        after=after,
        function=st.sampled_from(["m:f", "m:g"]),
        inputs=st.lists(regions, max_size=3).map(tuple),
        outputs=st.lists(regions, max_size=2).map(tuple),
        arguments=st.lists(st.integers(0, 9), max_size=2).map(tuple),
        duration_ns=number,
    ),
    st.builds(Barrier, after=after, name=st.sampled_from(["x", "y"])),
)


@given(st.lists(operations, max_size=12))
def test_a_table_gives_back_what_it_was_made_of(given_ones: list[Operation]) -> None:
    table = OperationTable.of(given_ones)
    assert list(table) == given_ones
    assert [table[index] for index in range(len(given_ones))] == given_ones
    assert table[1:3] == tuple(given_ones[1:3])
    assert pickle.loads(pickle.dumps(table)) == given_ones
    sends = {one.peer for one in given_ones if isinstance(one, Write | Copy)}
    assert table.peers(WRITE, COPY) == sorted(sends)


@given(st.lists(st.lists(operations, max_size=5), min_size=1, max_size=4))
def test_tables_are_joined_in_order(parts: list[list[Operation]]) -> None:
    names = Names()
    tables = [OperationTable.of(part, names) for part in parts]
    assert list(OperationTable.joined(tables, names)) == [one for part in parts for one in part]


def test_a_million_operations_take_less_than_fifty_octets_each() -> None:
    """Where objects took a kilobyte."""
    piece = Region("a", 0, 64)
    one = OperationTable.of([Receive(peer=1, tag=0, into=piece), Compute(duration_ns=1)])
    table = OperationTable.joined([one] * 500_000, Names())
    octets = sum(column.nbytes for column in table.columns.values())
    assert (octets + table.begin.nbytes + table.after.nbytes) / len(table) < 50


@pytest.mark.parametrize("gap", [1, 3])
def test_receives_are_found_by_peer_and_tag(gap: int) -> None:
    into = Region("a", 0, 8)
    awaited = [(peer, 5 + gap * tag) for tag in range(4) for peer in (1, 2)]
    schedule = Schedule(
        rank=0,
        buffers={"a": 8},
        operations=tuple(Receive(peer=peer, tag=tag, into=into) for peer, tag in awaited),
    )
    program = ScheduleProgram(schedule, {0: Layout({"a": 8})})
    found = {
        (peer, tag): program.receive_of(peer, tag)
        for peer in range(4)
        for tag in range(5 + 4 * gap)
    }
    assert {key: index for key, index in found.items() if index >= 0} == {
        key: index for index, key in enumerate(awaited)
    }


class _Unread(PeerAddresses):
    """Peers that nobody goes through: at each of many ranks that would be the square of them."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a schedule went through all peers")


def test_a_schedule_is_checked_without_a_copy_of_all_peers() -> None:
    piece, peers = Region("a", 0, 8), _Unread(RankAddresses(["10.0.1.2", "10.0.1.3"]), 0)
    layouts = {peer: Layout({"a": 8}) for peer in range(3)}

    def program(peer: int) -> ScheduleProgram:
        write = Write(peer=peer, tag=0, local=piece, remote=piece)
        schedule = Schedule(rank=0, buffers={"a": 8}, operations=(write,))
        return ScheduleProgram(schedule, layouts, fabric=peers)

    assert program(1).operations.columns["peer"].tolist() == [1]
    for unreachable in (0, 2):
        with pytest.raises(ValueError, match=f"rank {unreachable} has no fabric address"):
            program(unreachable)
