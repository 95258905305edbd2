"""The messages between operations: each send with its receive, whichever processes have them.

A message is known to the process that has its sender and to the one that has its receiver.  It has
a number at each of them.  Between each two processes the messages stand in an order that both know,
in which the processes trade what they have of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from emulator.endpoint.operations.operation_table import COPY, RECEIVE, WRITE, Column
from emulator.endpoint.operations.schedule_program import TAG_BITS
from emulator.engine.ranks.gpu_owners import Alone, GpuOwners, RunProcesses

Numbers = npt.NDArray[np.integer]
_Scalar = TypeVar("_Scalar", bound=np.generic)

_RANK_BITS = 20
_NONE = np.zeros(0, np.int32)


class NumberedOperations(Protocol):
    """Operations of several ranks, by number."""

    kind: Column

    def __len__(self) -> int: ...

    def column(self, name: str) -> Column: ...

    def rank(self, numbers: Numbers) -> Numbers: ...

    def index(self, numbers: Numbers) -> Numbers: ...


@dataclass(frozen=True)
class _Sends:
    """Sends as columns, with the operation of each; -1 where another process has it.

    ``place`` is its index in the schedule of its rank.
    """

    source: Numbers
    destination: Numbers
    tag: Numbers
    length: Numbers
    writes: npt.NDArray[np.bool_]
    place: Numbers
    number: Numbers

    @classmethod
    def of(cls, operations: NumberedOperations, numbers: Numbers) -> _Sends:
        return cls(
            source=operations.rank(numbers),
            destination=operations.column("peer")[numbers],
            tag=operations.column("tag")[numbers],
            length=operations.column("near_octets")[numbers],
            writes=operations.kind[numbers] == WRITE,
            place=operations.index(numbers).astype(np.int32),
            number=numbers,
        )

    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        ends = self.source, self.destination, self.tag
        return *ends, self.length, self.writes, self.place, self.number

    def chosen(self, which: npt.NDArray[Any]) -> _Sends:
        source, destination, tag, length, writes, place, number = (
            column[which] for column in self.columns()
        )
        return _Sends(source, destination, tag, length, writes, place, number)

    def elsewhere(self) -> _Sends:
        """Return the sends as another process knows them."""
        return replace(self, number=np.full(len(self.number), -1, np.int32))

    @classmethod
    def joined(cls, parts: Sequence[_Sends]) -> _Sends:
        columns = zip(*(part.columns() for part in parts), strict=True)
        source, destination, tag, length, writes, place, number = map(np.concatenate, columns)
        return cls(source, destination, tag, length, writes, place, number)


@dataclass(frozen=True)
class Messages:
    """All messages that a process knows, in the order of receiving ranks and their receives.

    ``source`` and ``destination`` are ranks, ``length`` octets.  ``writes``: it crosses the fabric.
    ``send`` and ``receive`` are the numbers of its operations, or -1 where another process has
    them; ``send_place`` and ``receive_place`` are their indices in the schedules of these ranks.
    ``unmatched`` are receives, by number, for which nobody sends.  ``outgoing`` and ``incoming``
    are the messages to and from other processes, by process.
    """

    source: Numbers
    destination: Numbers
    length: Numbers
    writes: npt.NDArray[np.bool_]
    send: Numbers
    receive: Numbers
    send_place: Numbers
    receive_place: Numbers
    unmatched: Numbers
    outgoing: Sequence[Numbers]
    incoming: Sequence[Numbers]
    peers: RunProcesses

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, operations: NumberedOperations, owners: GpuOwners | None) -> Messages:
        """Match the sends and receives of ``operations``; all processes call it."""
        own = _Sends.of(operations, np.flatnonzero(np.isin(operations.kind, (WRITE, COPY))))
        leaving = _leaving(own, owners)
        peers: RunProcesses = Alone() if owners is None else owners.peers
        arriving: list[_Sends] = [
            part if process != peers.number else part.chosen(np.zeros(0, np.intp))
            for process, part in enumerate(
                peers.trade("sends", [own.chosen(which).elsewhere() for which in leaving])
            )
        ]
        sends = _Sends.joined([own, *arriving])
        receives = np.flatnonzero(operations.kind == RECEIVE)
        found = _matches(operations, sends, receives)
        received, match = receives[found >= 0], found[found >= 0]
        place = operations.index(received).astype(np.int32)

        # Senders get to know where what they send is received.
        places = np.full(len(sends.number), -1, np.int32)
        places[match] = place
        begins = len(own.number) + np.cumsum([0, *(len(one.number) for one in arriving)])
        answers = [places[first:end] for first, end in pairwise(begins)]
        there: list[Numbers] = peers.trade("receives", answers)

        out = [
            which[there[process] >= 0] if process != peers.number else which[:0]
            for process, which in enumerate(leaving)
        ]
        gone = own.chosen(np.concatenate([np.zeros(0, np.intp), *out]))
        gone_to = np.concatenate(
            [_NONE]
            + [
                one[one >= 0] if process != peers.number else one[:0]
                for process, one in enumerate(there)
            ]
        )
        known = _Sends.joined([sends.chosen(match), gone])
        receive = np.concatenate([received, np.full(len(gone_to), -1, received.dtype)])
        place = np.concatenate([place, gone_to])
        order = np.lexsort((place, known.destination)) if len(gone_to) else np.arange(len(place))
        known = known.chosen(order)
        number = np.empty(len(order), np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)

        message = np.full(len(sends.number), -1, np.int32)  # of each send that is known here
        message[match] = number[: len(match)]
        ends = len(match) + np.cumsum([0, *map(len, out)])
        return cls(
            source=known.source,
            destination=known.destination,
            length=known.length,
            writes=known.writes,
            send=known.number,
            receive=receive[order],
            send_place=known.place,
            receive_place=place[order],
            unmatched=receives[found < 0],
            outgoing=[number[first:end] for first, end in pairwise(ends)],
            incoming=[
                message[first:end][message[first:end] >= 0] for first, end in pairwise(begins)
            ],
            peers=peers,
        )

    def of_sends(self, operations: int) -> Numbers:
        """Return the message that each of ``operations`` sends, by number; -1: none."""
        return _by_operation(operations, self.send)

    def of_receives(self, operations: int) -> Numbers:
        """Return the message that each of ``operations`` receives, by number; -1: none."""
        return _by_operation(operations, self.receive)

    def trade(
        self,
        given: Sequence[Numbers],
        taken: Sequence[Numbers],
        values: npt.NDArray[_Scalar],
    ) -> None:
        """Send each process ``values`` of the messages ``given``; put in those of ``taken``."""
        if self.peers.count > 1:
            parts = self.peers.trade("messages", [values[which] for which in given])
            for process, (which, part) in enumerate(zip(taken, parts, strict=True)):
                if process != self.peers.number:
                    values[which] = part

    def tell_receivers(self, values: npt.NDArray[_Scalar]) -> None:
        """Have ``values`` of all messages, which their senders know, where they are received."""
        self.trade(self.outgoing, self.incoming, values)

    def by_receiver(self, messages: Numbers) -> list[Numbers]:
        """Return those of ``messages`` that other processes receive, by process."""
        if self.peers.count == 1:
            return [_NONE]
        wanted = np.zeros(len(self), bool)
        wanted[messages] = True
        return [which[wanted[which]] for which in self.outgoing]

    def announce(self, sent: Sequence[Numbers], state: object) -> tuple[list[Numbers], list[Any]]:
        """Tell each process which messages were ``sent`` to it, and all of them a ``state``.

        Returns which messages were sent to this one, by process, and all states.
        """
        if self.peers.count == 1:
            return [_NONE], [state]
        parcels = []
        for which, outgoing in zip(sent, self.outgoing, strict=True):
            there = np.zeros(len(self), bool)
            there[which] = True
            parcels.append((np.packbits(there[outgoing]), state))
        heard = self.peers.trade("sent messages", parcels)
        received = [
            incoming[np.unpackbits(bits, count=len(incoming)).astype(bool)]
            for incoming, (bits, _) in zip(self.incoming, heard, strict=True)
        ]
        received[self.peers.number] = _NONE
        return received, [one for _, one in heard]


def _leaving(sends: _Sends, owners: GpuOwners | None) -> list[npt.NDArray[np.intp]]:
    """Return which sends go to each other process, by process; none go nowhere."""
    if owners is None:
        return [np.zeros(0, np.intp)]
    owner = np.array(owners.owner, np.int32)
    known = (sends.destination >= 0) & (sends.destination < len(owner))
    process = np.full(len(known), owners.peers.number, np.int32)
    process[known] = owner[sends.destination[known]]
    return [
        np.flatnonzero(process == one) if one != owners.peers.number else np.zeros(0, np.intp)
        for one in range(owners.peers.count)
    ]


def _matches(operations: NumberedOperations, sends: _Sends, receives: Numbers) -> Numbers:
    """Return the place of each receive's send among ``sends``; -1: nobody sends."""
    peer, tag = operations.column("peer")[receives], operations.column("tag")[receives]
    sent = _key(sends.source, sends.destination, sends.tag)
    requested = _key(peer, operations.rank(receives), tag)
    order = np.argsort(sent, kind="stable")
    if not len(order):
        return np.full(len(receives), -1, np.int32)
    place = np.searchsorted(sent[order], requested, side="right") - 1
    match = (place >= 0) & (sent[order[place]] == requested)
    return np.where(match, order[place], -1)


def _key(source: Numbers, destination: Numbers, tag: Numbers) -> npt.NDArray[np.int64]:
    return (
        source.astype(np.int64) << (_RANK_BITS + TAG_BITS)
        | destination.astype(np.int64) << TAG_BITS
        | tag.astype(np.int64)
    )


def _by_operation(operations: int, numbers: Numbers) -> Numbers:
    found = np.full(operations, -1, np.int32)
    here = np.flatnonzero(numbers >= 0)
    found[numbers[here]] = here
    return found
