"""Connection matrices of htsim (``.cm``): flows, and triggers by which flows start each other.

::

    Nodes 4
    Connections 2
    Triggers 1
    0->1 id 1 start 0 size 2000000 recv_done_trigger 1
    1->2 id 2 trigger 1 size 2000000
    trigger id 1 oneshot

Lines of one id with the word ``msg``, and a number of the message or none, are messages of one
flow, which its source hands over in their order.

Start times are ps, sizes octets.  A trigger fires where it is: what it starts must leave the node
at which the flow that fires it begins (``send_done_trigger``) or ends (``recv_done_trigger``).  A
``send_done_trigger`` of what the flow's destination sends on fires when the data are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scenarios.traces import trace_model
from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.trace_file import TraceFile

_HEADERS = ("Nodes", "Connections", "Triggers", "Failures")
_NUMBERS = ("id", "size", "trigger", "send_done_trigger", "recv_done_trigger", "prio")
_KINDS = ("oneshot", "multishot", "barrier")
#: Messages of a rank whose order a matrix is made of.
_MOST_WRITTEN = 20_000


@dataclass
class _Flow:
    line: int
    source: int
    destination: int
    start_ns: int | None
    numbers: dict[str, int]


@dataclass
class _Trigger:
    line: int
    kind: str
    count: int


@dataclass
class _Fired:
    """Flows that fire a trigger, each with the rank where it does, and flows that it starts."""

    by: list[tuple[int, int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


class _MatrixReader:
    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._headers: dict[str, int] = {}
        self._flows: list[_Flow] = []
        self._triggers: dict[int, _Trigger] = {}
        #: by id of a flow of several messages: its ends
        self._messages: dict[int, tuple[int, int]] = {}

    def read(self) -> trace_model.Trace:
        for number, text in enumerate(self._file.text.splitlines(), 1):
            words = text.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0] in _HEADERS:
                self._header(number, words)
            elif "->" in words[0]:
                self._flow(number, words)
            elif words[0] == "trigger":
                self._trigger(number, words)
            else:
                raise self._wrong(
                    number, f"{words[0][:40]!r} is neither a flow (0->1 ...) nor a trigger"
                )
        self._check_headers()
        return self._trace()

    def _header(self, line: int, words: Sequence[str]) -> None:
        if len(words) != 2:
            raise self._wrong(line, f"write {words[0]} and a number")
        if words[0] in self._headers:
            raise self._wrong(line, f"{words[0]} is given twice; keep one of them")
        self._headers[words[0]] = self._number(line, words[0], words[1])

    def _flow(self, line: int, words: Sequence[str]) -> None:
        source, _, destination = words[0].partition("->")
        start: int | None = None
        numbers: dict[str, int] = {}
        message = "msg" in words
        rest = iter(_without_messages(words[1:]))
        for word in rest:
            if word != "start" and word not in _NUMBERS:
                raise self._wrong(
                    line,
                    f"{word[:40]!r} is none of start, msg, {', '.join(_NUMBERS)}; take it out",
                )
            if word in numbers or (word == "start" and start is not None):
                raise self._wrong(line, f"{word} is given twice; keep one of them")
            text = next(rest, "")
            if word == "start":
                start = self._start(line, text)
            else:
                numbers[word] = self._number(line, word, text)
        if (start is None) == ("trigger" not in numbers):
            raise self._wrong(line, "a flow has either a start (ps) or a trigger; give one")
        if not numbers.get("size"):
            raise self._wrong(
                line, "without a size, or with size 0, the flow has no end; give its octets"
            )
        flow = _Flow(
            line,
            self._number(line, "source", source),
            self._number(line, "destination", destination),
            start,
            numbers,
        )
        ends = flow.source, flow.destination
        if message and self._messages.setdefault(numbers.get("id", 0), ends) != ends:
            raise self._wrong(line, "messages of one id have the same ends; give this flow its own")
        self._flows.append(flow)
        if len(self._flows) > trace_model.MOST_OPERATIONS // 2:
            raise self._wrong(
                line, f"more than {trace_model.MOST_OPERATIONS // 2} flows; cut the matrix"
            )

    def _trigger(self, line: int, words: Sequence[str]) -> None:
        kind, number, count = "", 0, 0
        rest = iter(words[1:])
        for word in rest:
            if word in _KINDS and not kind:
                kind = word
            elif word == "id":
                number = self._number(line, word, next(rest, ""))
            elif word == "count" or kind == "barrier":
                text = next(rest, "") if word == "count" else word
                count = self._number(line, "count", text)
            else:
                raise self._wrong(line, f"{word[:40]!r} is none of id, count, {', '.join(_KINDS)}")
        if not number or not kind:
            raise self._wrong(line, f"a trigger has an id above 0 and one of {', '.join(_KINDS)}")
        if number in self._triggers:
            raise self._wrong(line, f"trigger {number} is given twice; keep one of them")
        self._triggers[number] = _Trigger(line, kind, count)

    def _check_headers(self) -> None:
        found = {"Connections": len(self._flows), "Triggers": len(self._triggers)}
        if not 1 <= self._headers.get("Nodes", 0) <= trace_model.MOST_RANKS:
            raise self._wrong(
                1, f"Nodes is missing, or not from 1 to {trace_model.MOST_RANKS}; give it"
            )
        if self._headers.get("Failures"):
            raise self._wrong(
                1, "failures of links are those of htsim's fabric; take them out and use --fault"
            )
        for name, count in found.items():
            if self._headers.get(name, 0) != count:
                raise self._wrong(
                    1,
                    f"the header announces {self._headers.get(name, 0)} {name.lower()} and the "
                    f"file has {count}; correct the one that is wrong",
                )

    def _trace(self) -> trace_model.Trace:
        lists: list[list[trace_model.TraceOperation]] = [[] for _ in range(self._headers["Nodes"])]
        fired = self._fired()
        waits: dict[int, list[int]] = {}
        places: list[tuple[int, int]] = []
        for number, flow in enumerate(self._flows):
            for rank in (flow.source, flow.destination):
                if rank >= len(lists):
                    raise self._wrong(flow.line, f"there is no node {rank}: Nodes is {len(lists)}")
            if flow.start_ns:
                waits[number] = [len(lists[flow.source])]
                delay = trace_model.TraceCompute(
                    where=f"line {flow.line}", duration_ns=flow.start_ns, stream=None
                )
                lists[flow.source].append(delay)
            places.append((len(lists[flow.source]), len(lists[flow.destination])))
            octets = flow.numbers["size"]
            where, name = f"line {flow.line}", str(flow.numbers.get("id", ""))
            if flow.source == flow.destination:
                raise self._wrong(flow.line, "the flow goes to its own node; take it out")
            lists[flow.source].append(
                trace_model.TraceSend(where=where, name=name, peer=flow.destination, octets=octets)
            )
            lists[flow.destination].append(
                trace_model.TraceReceive(where=where, name=name, peer=flow.source, octets=octets)
            )
        for one in fired.values():
            for started in one.starts:
                source = self._flows[started].source
                before = [
                    places[number][0 if self._flows[number].source == source else 1]
                    for number, _ in one.by
                ]
                waits.setdefault(started, []).extend(before)
        for number, after in waits.items():
            source, at = self._flows[number].source, places[number][0]
            old = lists[source][at]
            assert isinstance(old, trace_model.TraceSend)
            lists[source][at] = trace_model.TraceSend(
                where=old.where, name=old.name, peer=old.peer, octets=old.octets, after=tuple(after)
            )
        return trace_model.Trace(self._file.stem, tuple(lists))

    def _fired(self) -> dict[int, _Fired]:
        """Return by trigger who fires it and what it starts, if that can happen on a fabric."""
        fired: dict[int, _Fired] = {}
        for number, flow in enumerate(self._flows):
            for name, rank in (
                ("send_done_trigger", flow.source),
                ("recv_done_trigger", flow.destination),
            ):
                if name in flow.numbers:
                    trigger = self._known(flow.line, flow.numbers[name])
                    fired.setdefault(trigger, _Fired()).by.append((number, rank))
            if "trigger" in flow.numbers:
                trigger = self._known(flow.line, flow.numbers["trigger"])
                fired.setdefault(trigger, _Fired()).starts.append(number)
        for trigger, one in fired.items():
            self._check_trigger(trigger, one)
        return fired

    def _check_trigger(self, number: int, one: _Fired) -> None:
        trigger = self._triggers[number]
        line, count = trigger.line, len(one.by)
        if not one.starts:
            return
        if trigger.kind == "barrier" and count != trigger.count:
            raise self._wrong(
                line,
                f"barrier {number} counts {trigger.count} and {count} flows fire it; make them "
                "equal",
            )
        if trigger.kind != "barrier" and count != 1:
            raise self._wrong(
                line,
                f"{count} flows fire trigger {number}; a {trigger.kind} of which one has to be "
                "first depends on the fabric: have one fire it, or make it a barrier",
            )
        if trigger.kind == "multishot" and len(one.starts) > 1:
            raise self._wrong(
                line,
                f"multishot {number} fires once and has {len(one.starts)} flows to start one by "
                "one; the others never start: make it a oneshot, or fire it once for each",
            )
        for flow in (self._flows[at] for at in one.starts):
            for at, rank in one.by:
                if flow.source not in (rank, self._flows[at].destination):
                    raise self._wrong(
                        flow.line,
                        f"trigger {number} starts it at node {flow.source} when the flow of line "
                        f"{self._flows[at].line} is over at node {rank}, and nothing carries that "
                        "across the fabric; fire it where the flow begins",
                    )

    def _known(self, line: int, trigger: int) -> int:
        if trigger not in self._triggers:
            raise self._wrong(line, f"there is no trigger with id {trigger}; add its line")
        return trigger

    def _start(self, line: int, text: str) -> int:
        whole, _, fraction = text.partition(".")
        if fraction.strip("0") or len(fraction) > 30:
            raise self._wrong(line, f"start {text[:40]!r} is not a whole number of ps; correct it")
        return -(-self._number(line, "start", whole) // 1000)

    def _number(self, line: int, name: str, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 20):
            raise self._wrong(line, f"{name} {text[:40]!r} is not a whole number; correct it")
        return int(text)

    def _wrong(self, line: int, stated: str) -> trace_model.TraceRefusal:
        return self._file.wrong(line, stated)


def _without_messages(words: Sequence[str]) -> list[str]:
    """Return ``words`` less each ``msg`` and the number behind it, if there is one."""
    return [
        word
        for before, word in zip(("", *words), words, strict=False)
        if word != "msg" and not (before == "msg" and word.isdecimal())
    ]


def _read(files: Sequence[TraceFile], options: ReadOptions) -> trace_model.Trace:
    return _MatrixReader(files[0]).read()


@dataclass
class _Before:
    """The ends of messages, and the time from the start, that an operation waits for."""

    messages: frozenset[int] = frozenset()
    start_ns: int = 0


class _MatrixWriter:
    """A matrix of messages; triggers carry what they wait for."""

    def __init__(self, trace: trace_model.Trace) -> None:
        self._trace = trace
        self._triggers: dict[tuple[int, frozenset[int]], int] = {}
        self._fires: dict[tuple[int, int], int] = {}

    def lines(self) -> Iterator[str]:
        before = [self._rank(rank) for rank in range(self._trace.ranks)]
        receives: dict[tuple[int, int, int], int] = {}
        flows: list[tuple[int, int, trace_model.TraceSend]] = []
        for rank, operations in enumerate(self._trace.operations):
            for index, one in enumerate(operations):
                if isinstance(one, trace_model.TraceReceive):
                    receives[one.peer, rank, one.tag] = index
                elif isinstance(one, trace_model.TraceSend):
                    flows.append((rank, index, one))
                    self._trigger(rank, index, before[rank].get(index, _Before()))
        yield f"Nodes {self._trace.ranks}"
        yield f"Connections {len(flows)}"
        yield f"Triggers {len(self._triggers)}"
        for number, (rank, index, one) in enumerate(flows, 1):
            own = before[rank].get(index, _Before())
            begins = f"start {own.start_ns * 1000}"
            if own.messages:
                begins = f"trigger {self._triggers[rank, own.messages]}"
            line = f"{rank}->{one.peer} id {number} {begins} size {one.octets}"
            sent = self._fires.get((rank, index))
            got = self._fires.get((one.peer, receives[rank, one.peer, one.tag]))
            line += "" if sent is None else f" send_done_trigger {sent}"
            yield line + ("" if got is None else f" recv_done_trigger {got}")
        for (_, messages), number in self._triggers.items():
            kind = "oneshot" if len(messages) == 1 else f"barrier count {len(messages)}"
            yield f"trigger id {number} {kind}"

    def _trigger(self, rank: int, index: int, own: _Before) -> None:
        if not own.messages or (rank, own.messages) in self._triggers:
            return
        number = self._triggers[rank, own.messages] = len(self._triggers) + 1
        for at in own.messages:
            if self._fires.setdefault((rank, at), number) != number:
                raise self._cannot(
                    rank, at, "two messages wait for it together with different others"
                )

    def _rank(self, rank: int) -> dict[int, _Before]:
        """Return for each operation of ``rank`` what it waits for, and no more than needed."""
        operations = self._trace.operations[rank]
        if len(operations) > _MOST_WRITTEN:
            raise trace_model.TraceRefusal(
                f"{self._trace.name}: rank {rank} has {len(operations)} operations, and a matrix "
                f"is made of {_MOST_WRITTEN} at most; write GOAL, or take a larger slice_bytes"
            )
        waits: dict[int, _Before] = {}
        ends: list[_Before] = []
        ancestors: list[int] = []
        free_ns = 0
        for index, one in enumerate(operations):
            reached, start_ns = 0, 0
            messages: set[int] = set()
            for earlier in one.after:
                reached |= ancestors[earlier]
                messages |= ends[earlier].messages
                start_ns = max(start_ns, ends[earlier].start_ns)
            covered = 0
            for message in messages:
                covered |= ancestors[message] & ~(1 << message)
            needed = frozenset(at for at in messages if not covered >> at & 1)
            if needed:
                start_ns = 0
            waits[index] = _Before(needed, start_ns)
            if isinstance(one, trace_model.TraceCompute):
                if one.duration_ns and needed:
                    raise self._cannot(rank, index, "it computes after a message")
                if one.duration_ns:
                    start_ns = free_ns = max(start_ns, free_ns) + one.duration_ns
                ends.append(_Before(needed, start_ns))
                ancestors.append(reached)
            else:
                ends.append(_Before(frozenset((index,))))
                ancestors.append(reached | 1 << index)
        return waits

    def _cannot(self, rank: int, index: int, stated: str) -> trace_model.TraceRefusal:
        where = trace_model.place(self._trace.operations[rank][index], rank)
        return trace_model.TraceRefusal(
            f"{self._trace.name}: {where}: {stated}, which a matrix of htsim cannot say; write "
            "GOAL, or take --param compute_scale=0"
        )


def _write(run: trace_model.TraceRun) -> Mapping[str, bytes]:
    return {"": "\n".join(_MatrixWriter(run.messages).lines()).encode() + b"\n"}


FORMATS.register(
    TraceFormat(
        name="htsim",
        meaning="connection matrix of htsim",
        suffixes=(".cm",),
        recognises=lambda head: b"Nodes" in head,
        begins="has 'Nodes'",
        read=_read,
        write=_write,
    )
)
