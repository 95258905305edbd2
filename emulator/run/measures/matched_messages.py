"""The messages between operations: each send with its receive, whichever processes have them.

A message is known to the process that has its sender and to the one that has its receiver.  It has
a number at each of them.  Between each two processes the messages stand in an order that both know,
in which the processes trade what they have of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.operation_table import RECEIVE, WRITE, Column
from emulator.sim.endpoint.operations.schedule_program import TAG_BITS
from emulator.workers.division import Division, Processes

Numbers = npt.NDArray[np.integer]
_Scalar = TypeVar("_Scalar", bound=np.generic)

_RANK_BITS = 20
_NONE = np.zeros(0, np.int32)


class NumberedOperations(Protocol):
    """Operations of several ranks, by number."""

    kind: Column
    sends: Numbers

    def __len__(self) -> int: ...

    def column(self, name: str) -> Column: ...

    def rank(self, numbers: Numbers) -> Numbers: ...

    def index(self, numbers: Numbers) -> Numbers: ...


@dataclass(frozen=True)
class _Sends:
    """Sends as columns: ranks, tag, octets, whether it is a write, and the fans of a copy."""

    source: Numbers
    destination: Numbers
    tag: Numbers
    length: Numbers
    writes: npt.NDArray[np.bool_]
    fans: Numbers

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, operations: NumberedOperations, numbers: Numbers) -> _Sends:
        return cls(
            source=operations.rank(numbers),
            destination=operations.column("peer")[numbers],
            tag=operations.column("tag")[numbers],
            length=operations.column("near_octets")[numbers],
            writes=operations.kind[numbers] == WRITE,
            fans=operations.column("number")[numbers],
        )

    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.source, self.destination, self.tag, self.length, self.writes, self.fans

    def chosen(self, which: npt.NDArray[Any]) -> _Sends:
        return _Sends(*(column[which] for column in self.columns()))

    def followed(self, parts: Sequence[_Sends]) -> _Sends:
        if not any(map(len, parts)):
            return self
        columns = zip(*(part.columns() for part in (self, *parts)), strict=True)
        return _Sends(*map(np.concatenate, columns))


@dataclass(frozen=True)
class FarEnds:
    """The ends that a process has of messages of this one: ``messages``, and their ``places``.

    A place is the index of the operation in the schedule of its rank.
    """

    messages: Numbers = field(default_factory=lambda: _NONE)
    places: Numbers = field(default_factory=lambda: _NONE)


@dataclass(frozen=True)
class Messages:
    """All messages that a process knows, in the order of receiving ranks and their receives.

    ``source`` and ``destination`` are ranks, ``length`` octets.  ``writes``: it crosses the fabric.
    ``fans`` are those of copies (:func:`~emulator.sim.endpoint.operations.operation_table.fans`).
    ``send`` and ``receive`` are the numbers of its operations, or -1 where another process has
    them.  ``unmatched`` are receives, by number, for which nobody sends.  ``outgoing`` are the
    receives that other processes have, and ``incoming`` the sends, by process.
    """

    source: Numbers
    destination: Numbers
    length: Numbers
    writes: npt.NDArray[np.bool_]
    fans: Numbers
    send: Numbers
    receive: Numbers
    unmatched: Numbers
    outgoing: Sequence[FarEnds]
    incoming: Sequence[FarEnds]
    processes: Processes

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, operations: NumberedOperations, division: Division) -> Messages:
        """Match the sends and receives of ``operations``; all processes call it."""
        processes = division.processes
        numbers = operations.sends
        own = _Sends.of(operations, numbers)
        leaving = _leaving(own, division)
        offered = [(own.chosen(which), operations.index(numbers[which])) for which in leaving]
        heard: list[tuple[_Sends, Numbers]] = processes.all_to_all("sends", offered)
        sends = own.followed([part for part, _ in heard])
        receives = np.flatnonzero(operations.kind == RECEIVE).astype(np.int32)
        found = _matches(operations, sends, receives)
        unmatched = receives[found < 0]
        receive, match = receives[found >= 0], found[found >= 0]
        message = np.full(len(sends), -1, np.int32)  # of each send that is known here
        message[match] = np.arange(len(match), dtype=np.int32)
        ends = np.cumsum([len(own), *(len(part) for part, _ in heard)])
        of_each = [message[first:end] for first, end in pairwise(ends)]
        arrived = [
            (which[which >= 0], places[which >= 0])
            for which, (_, places) in zip(of_each, heard, strict=True)
        ]

        # Senders get to know where what they send is received.
        answers: list[Numbers] = processes.all_to_all(
            "receives", [_where(operations, receive, which) for which in of_each]
        )
        gone = [which[places >= 0] for which, places in zip(leaving, answers, strict=True)]
        landed = [places[places >= 0] for places in answers]
        leaves = np.concatenate([np.zeros(0, np.intp), *gone])
        known = sends.chosen(np.concatenate([match, leaves]) if len(leaves) else match)
        here = np.flatnonzero(match < len(own))
        send = np.full(len(known), -1, np.int32)
        send[here] = numbers[match[here]]
        send[len(match) :] = numbers[leaves]
        receive = np.concatenate([receive, np.full(len(leaves), -1, np.int32)])
        order = np.arange(len(known), dtype=np.int32)
        if len(leaves):
            places = np.concatenate([operations.index(receive[: len(match)]), *landed])
            order = np.lexsort((places, known.destination)).astype(np.int32)
            known, send, receive = known.chosen(order), send[order], receive[order]
        number = np.empty(len(order), np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        bounds = pairwise(len(match) + np.cumsum([0, *map(len, gone)]))
        return cls(
            source=known.source,
            destination=known.destination,
            length=known.length,
            writes=known.writes,
            fans=known.fans,
            send=send,
            receive=receive,
            unmatched=unmatched,
            outgoing=[
                FarEnds(number[begin:end], places)
                for (begin, end), places in zip(bounds, landed, strict=True)
            ],
            incoming=[FarEnds(number[which], places) for which, places in arrived],
            processes=processes,
        )

    def send_places(self, operations: NumberedOperations) -> Numbers:
        """Return the index of each message's send in the schedule of its source."""
        return _all_places(operations, self.send, self.incoming)

    def receive_places(self, operations: NumberedOperations) -> Numbers:
        """Return the index of each message's receive in the schedule of its destination."""
        return _all_places(operations, self.receive, self.outgoing)

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
        if self.processes.count > 1:
            parts = self.processes.all_to_all("messages", [values[which] for which in given])
            for process, (which, part) in enumerate(zip(taken, parts, strict=True)):
                if process != self.processes.number:
                    values[which] = part

    def tell_receivers(self, values: npt.NDArray[_Scalar]) -> None:
        """Have ``values`` of all messages, which their senders know, where they are received."""
        out, into = ([one.messages for one in ends] for ends in (self.outgoing, self.incoming))
        self.trade(out, into, values)

    def announce(
        self, sent: Numbers, state: object
    ) -> tuple[list[Numbers], list[Numbers], list[Any]]:
        """Have processes know which messages were ``sent`` to them, and all of them a ``state``.

        Returns those sent to each process, those that each has sent to this one, and all states.
        """
        if self.processes.count == 1:
            return [_NONE], [_NONE], [state]
        gone = np.zeros(len(self), bool)
        gone[sent] = True
        flags = [gone[ends.messages] for ends in self.outgoing]
        heard = self.processes.all_to_all(
            "sent messages", [(np.packbits(one), state) for one in flags]
        )
        arrived = [
            ends.messages[np.unpackbits(bits, count=len(ends.messages)).astype(bool)]
            for ends, (bits, _) in zip(self.incoming, heard, strict=True)
        ]
        left = [ends.messages[one] for ends, one in zip(self.outgoing, flags, strict=True)]
        return left, arrived, [one for _, one in heard]


def _where(operations: NumberedOperations, receive: Numbers, message: Numbers) -> Numbers:
    """Return the index of the receive of each message in its schedule; -1: there is none."""
    found = np.full(len(message), -1, np.int32)
    some = message >= 0
    found[some] = operations.index(receive[message[some]])
    return found


def _all_places(
    operations: NumberedOperations, numbers: Numbers, elsewhere: Sequence[FarEnds]
) -> Numbers:
    found = np.empty(len(numbers), np.int32)
    here = np.flatnonzero(numbers >= 0)
    found[here] = operations.index(numbers[here])
    for ends in elsewhere:
        found[ends.messages] = ends.places
    return found


def _leaving(sends: _Sends, division: Division) -> list[npt.NDArray[np.intp]]:
    """Return which sends go to each other process, by process; none go nowhere."""
    if division.count == 1:
        return [np.zeros(0, np.intp)]
    owner = np.array(division.home, np.int32)
    known = (sends.destination >= 0) & (sends.destination < len(owner))
    process = np.full(len(known), division.number, np.int32)
    process[known] = owner[sends.destination[known]]
    return [
        np.flatnonzero(process == one) if one != division.number else np.zeros(0, np.intp)
        for one in range(division.count)
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
    found = order[place].astype(np.int32)
    found[(place < 0) | (sent[found] != requested)] = -1
    return found


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
