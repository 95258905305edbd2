"""Schedules tell who sends how much to whom over which network."""

from __future__ import annotations

from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.endpoint.operations.schedule import Copy, Operation, Receive, Region, Write
from emulator.workers.forked.expected_traffic import ExpectedTraffic


def write(peer: int, octets: int) -> Write:
    return Write(peer=peer, tag=octets, local=Region("x", 0, octets), remote=Region("y", 0, octets))


def table(*operations: Operation) -> OperationTable:
    return OperationTable.of(operations)


def test_writes_and_copies_are_added_by_pair() -> None:
    copied = Copy(peer=2, tag=9, local=Region("x", 0, 64), remote=Region("y", 0, 64))
    received = Receive(peer=0, tag=1, into=Region("y", 0, 4096))
    made = ExpectedTraffic.of(
        [table(write(1, 100), write(2, 30), write(1, 7), copied), table(received), table()]
    )
    rows = zip(made.sender, made.receiver, made.written, made.copied, strict=True)
    assert [tuple(map(int, row)) for row in rows] == [(0, 1, 107, 0), (0, 2, 30, 0), (0, 2, 0, 64)]
    both = ExpectedTraffic.joined([made, made])
    assert (int(both.written.sum()), int(both.copied.sum())) == (274, 128)
    assert len(ExpectedTraffic.joined([]).sender) == 0
