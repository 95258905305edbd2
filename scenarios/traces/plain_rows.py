"""A trace as rows of a plain list, which :mod:`scenarios.traces.formats.plain_list` reads again.

A collective is one row for all its members, and a message one for both its ends.  Computations of
several ranks that wait for the same rows are one row.  Rows stand in the order of their start
(:func:`scenarios.traces.replay.in_order`), so that each names rows before it only.

A row names for all its ranks what it waits for, and a name counts at those ranks that the named row
has.  Where that would let a rank wait for more than it does, each of its ranks first has a delay of
0 ns of its own, which the row names instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from scenarios.traces.formats.plain_list import FIELDS, MADE_UP, unnamed_group
from scenarios.traces.replay import Place, in_order
from scenarios.traces.trace_model import (
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceSend,
)

_BETWEEN_NAMES = re.compile(r"[\s,]+")


@dataclass(eq=False)
class _Row:
    """A row, and by rank the rows that it waits for there; ``group`` is None for no collective."""

    fields: dict[str, str]
    name: str = ""
    group: str | None = None
    needs: dict[int, set[_Row]] = field(default_factory=dict)

    @property
    def all_needs(self) -> set[_Row]:
        return set().union(*self.needs.values())

    @property
    def needs_one_by_one(self) -> bool:
        """Return whether a rank would wait for more than its own, if it waited for all of them."""
        every = self.all_needs
        return any({one for one in every if rank in one.needs} != needs
                   for rank, needs in self.needs.items())  # fmt: skip


def text_rows(trace: Trace) -> list[dict[str, str]]:
    """Return the rows of ``trace`` as they are written, each with the fields that it has."""
    listed = _with_delays(_Rows(trace).listed)
    numbers = {row: number for number, row in enumerate(listed)}
    afters: dict[_Row, list[_Row]] = {}
    last: dict[int, _Row] = {}
    named: set[_Row] = set()
    for row in listed:
        if any(needs != {last[rank]} if rank in last else needs
               for rank, needs in row.needs.items()):  # fmt: skip
            afters[row] = sorted(row.all_needs, key=numbers.__getitem__)
            named.update(afters[row])
        last.update(dict.fromkeys(row.needs, row))
    names = _names(listed, named)
    groups = _Groups(trace)
    found = []
    for row in listed:
        fields = {**row.fields, **groups.fields(row)}
        if row in names:
            fields["name"] = names[row]
        if row in afters:
            fields["after"] = " ".join(names[one] for one in afters[row]) or "-"
        found.append({key: fields[key] for key in FIELDS if key in fields})
    return found


class _Rows:
    """The rows of ``trace`` in their order."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._of: dict[Place, _Row] = {}
        self._computations: dict[tuple[object, ...], _Row] = {}
        self.listed: list[_Row] = []
        order = in_order(trace)
        send_of = {receive: send for send, receive in order.receive_of.items()}
        for at in order.starts:
            match self._operation(at):
                case TraceCompute() as one:
                    self._add_computation(at, one)
                case TraceCollective() as one:
                    self._add_collective(order.members[at], one)
                case TraceSend() as one:
                    self._add_message(at, order.receive_of[at], one)
                case TraceReceive() as one if at not in self._of:
                    sent = self._of[send_of[at]]
                    self._add(_delay({at[0]: self._needs(at) | {sent}}, one.name), [at])

    def _operation(self, at: Place) -> TraceOperation:
        return self._trace.operations[at[0]][at[1]]

    def _needs(self, at: Place) -> set[_Row]:
        return {self._of[at[0], earlier] for earlier in self._operation(at).after}

    def _add(self, row: _Row, places: Sequence[Place]) -> None:
        self.listed.append(row)
        self._of.update(dict.fromkeys(places, row))

    def _add_computation(self, at: Place, one: TraceCompute) -> None:
        needs = self._needs(at)
        key = one.duration_ns, one.stream, one.name, frozenset(needs)
        row = self._computations.get(key)
        if row is not None and at[0] not in row.needs:
            row.needs[at[0]] = needs
            self._of[at] = row
            return
        fields = {"operation": "delay", "duration": f"{one.duration_ns}ns"}
        if one.stream is not None:
            fields["operation"] = "compute"
            if one.stream:
                fields["stream"] = str(one.stream)
        row = self._computations[key] = _Row(fields, one.name, None, {at[0]: needs})
        self._add(row, [at])

    def _add_collective(self, members: Sequence[Place], one: TraceCollective) -> None:
        fields = {"operation": one.kind.value}
        splits = [self._splits(at) for at in members]
        if any(splits):
            texts = [" ".join(map(str, self._parts(at, len(members)))) for at in members]
            fields["splits"] = texts[0] if len(set(texts)) == 1 else "; ".join(texts)
        elif one.kind.value != "barrier":
            fields["size"] = str(one.octets)
        if one.root is not None:
            fields["root"] = str(one.root)
        needs = {at[0]: self._needs(at) for at in members}
        self._add(_Row(fields, one.name, one.group, needs), members)

    def _splits(self, at: Place) -> tuple[int, ...]:
        one = self._operation(at)
        assert isinstance(one, TraceCollective)
        return one.splits

    def _parts(self, at: Place, members: int) -> tuple[int, ...]:
        one = self._operation(at)
        assert isinstance(one, TraceCollective)
        return one.splits or (one.octets // members,) * members

    def _add_message(self, send: Place, receive: Place, one: TraceSend) -> None:
        fields = {
            "operation": "send",
            "size": str(one.octets),
            "ranks": f"{send[0]} {receive[0]}",
        }
        row = _Row(fields, one.name, None, {send[0]: self._needs(send), receive[0]: set()})
        places = [send]
        # What the receive waits for may start only behind the send: then it gets a row of its own.
        if all((receive[0], one) in self._of for one in self._operation(receive).after):
            row.needs[receive[0]] = self._needs(receive)
            places.append(receive)
        self._add(row, places)


def _delay(needs: dict[int, set[_Row]], name: str = "") -> _Row:
    return _Row({"operation": "delay", "duration": "0ns"}, name, None, needs)


def _with_delays(listed: Sequence[_Row]) -> list[_Row]:
    found = []
    for row in listed:
        if row.needs_one_by_one:
            for rank, needs in row.needs.items():
                if needs:
                    delay = _delay({rank: needs})
                    row.needs[rank] = {delay}
                    found.append(delay)
        found.append(row)
    return found


def _names(listed: Sequence[_Row], named: set[_Row]) -> dict[_Row, str]:
    """Return names, each once, of rows that have one and of those that others wait for."""
    found: dict[_Row, str] = {}
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for number, row in enumerate(listed):
        plain = _BETWEEN_NAMES.sub("_", row.name.strip()).strip("-")
        if not plain and row not in named:
            continue
        name = plain or f"row{number}"
        while name in taken:
            counts[plain] = counts.get(plain, 1) + 1
            name = f"{plain or 'row'}#{counts[plain]}"
        taken.add(name)
        found[row] = name
    return found


class _Groups:
    """The fields of rows that say their ranks: those of a group stand where it is named first."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names: dict[str, str] = {}

    def fields(self, row: _Row) -> dict[str, str]:
        if "ranks" in row.fields:
            return {}
        if row.group is None:
            return self._ranks(sorted(row.needs))
        ranks = self._trace.groups[row.group]
        if row.group == unnamed_group(ranks, self._trace.ranks):
            return self._ranks(ranks)
        known = self._names.get(row.group)
        if known is not None:
            return {"group": known}
        name = " ".join(row.group.split())
        if MADE_UP.fullmatch(name) or not name:
            name = f"group {name}"
        while name in self._names.values():
            name += "'"
        self._names[row.group] = name
        return {"group": name, **self._ranks(ranks)}

    def _ranks(self, ranks: Sequence[int]) -> dict[str, str]:
        if list(ranks) == list(range(self._trace.ranks)):
            return {}
        parts: list[list[int]] = []
        for rank in ranks:
            if parts and parts[-1][1] == rank - 1:
                parts[-1][1] = rank
            else:
                parts.append([rank, rank])
        return {"ranks": " ".join(str(low) if low == high else f"{low}-{high}"
                                  for low, high in parts)}  # fmt: skip
