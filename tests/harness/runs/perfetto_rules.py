"""The tables that Perfetto makes of a trace in Chrome's JSON, by the rules of its importer.

Perfetto's trace processor is a program that its Python package downloads when it is first used,
from no package registry, so that tests cannot have it.  These are the rules of its sources instead
(``src/trace_processor/importers``: ``json``, ``slice_tracker``, ``flow_tracker``): times become ns,
events are sorted by time and of one time the longest slice first, a slice lies in the slice that is
open on its thread or it is dropped, flows join the slices that they are bound to, counters belong
to processes, and names of threads to thread ids.  Errors of Perfetto are troubles.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Slice:
    """A slice on the thread ``tid``; times are ns."""

    name: str
    category: str
    pid: int
    tid: int
    begin: int
    duration: int

    @property
    def end(self) -> int:
        """Return when it ends (ns)."""
        return self.begin + self.duration


@dataclass
class Imported:
    """The tables that the importer fills."""

    slices: list[Slice] = field(default_factory=list)
    flows: list[tuple[Slice, Slice]] = field(default_factory=list)
    counters: dict[tuple[int, str], list[tuple[int, float]]] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    def track(self, one: Slice) -> str:
        """Return the process and thread of a slice by their names."""
        return f"{self.processes[one.pid]} {self.threads[one.tid]}"


def imported(trace: Mapping[str, Any]) -> Imported:
    """Import ``trace`` as Perfetto does."""
    found = Imported()
    stacks: dict[int, list[Slice]] = {}
    flows: dict[int, Slice] = {}
    owners: dict[int, int] = {}
    for event in _sorted(trace["traceEvents"]):
        pid, tid = event["pid"], event.get("tid", event["pid"])
        if event["ph"] == "M":
            _metadata(found, event)
            continue
        if event["ts"] < 0:
            found.troubles.append(f"a negative time: {event}")
            continue
        if event["ph"] == "C":
            for unit, value in event["args"].items():
                name = f"{event['name']} {unit}"
                found.counters.setdefault((pid, name), []).append((_ns(event["ts"]), float(value)))
            continue
        assert event["ph"] == "X", event
        if pid == 0 or tid == 0:
            found.troubles.append(f"it is in the idle process or thread: {event}")
        if owners.setdefault(tid, pid) != pid:
            found.troubles.append(f"two processes have the thread id {tid}")
        begin = _ns(event["ts"])
        one = Slice(event["name"], event["cat"], pid, tid, begin, _ns(event["dur"]))
        stack = stacks.setdefault(tid, [])
        if not _fits(stack, one):
            found.troubles.append(f"it overlaps another slice of its thread: {event}")
            continue
        stack.append(one)
        found.slices.append(one)
        if "bind_id" in event:
            _flow(found, flows, one, event)
    return found


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _sorted(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    def key(event: Mapping[str, Any]) -> tuple[int, int]:
        return _ns(event.get("ts", -1)), -_ns(event.get("dur", 0))

    return sorted(events, key=key)


def _metadata(found: Imported, event: Mapping[str, Any]) -> None:
    if event["name"] == "process_name":
        found.processes[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
        if event["tid"] in found.threads:
            found.troubles.append(f"thread id {event['tid']} has two names")
        found.threads[event["tid"]] = event["args"]["name"]


def _fits(stack: list[Slice], one: Slice) -> bool:
    """Close what has ended before ``one``, and return whether it lies in what is left open."""
    while stack:
        top = stack[-1]
        instants = top.duration == 0 and one.duration == 0
        if top.end < one.begin or (top.end == one.begin and not instants):
            stack.pop()
            continue
        break
    return not any(top.end < one.end for top in stack)


def _flow(found: Imported, flows: dict[int, Slice], one: Slice, event: Mapping[str, Any]) -> None:
    number = int(event["bind_id"], 16)
    if event.get("flow_out"):
        if number in flows:
            found.troubles.append(f"flow {number} begins twice")
        flows[number] = one
    elif event.get("flow_in"):
        if number not in flows:
            found.troubles.append(f"flow {number} ends before it begins")
            return
        found.flows.append((flows[number], one))
