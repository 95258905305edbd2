"""Define what tests of trace formats share."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRefusal,
    TraceRun,
    TraceSend,
)


def ran(trace: Trace) -> TraceRun:
    """Return a run of ``trace`` for writers that need nothing of its messages."""
    return TraceRun(trace=trace, messages=trace, collectives=(), servers=(), origin_us=0)


def outcome(read: Callable[[], object]) -> str:
    """Return what a reader refuses, or nothing; any other exception is a defect of it."""
    try:
        read()
    except TraceRefusal as refused:
        return str(refused)
    return ""


@st.composite
def jobs(draw: st.DrawFn) -> Trace:
    """A job in which every rank goes through one list, as far as it takes part."""
    ranks = draw(st.integers(2, 8))
    lists: list[list[TraceOperation]] = [[] for _ in range(ranks)]
    groups: dict[str, tuple[int, ...]] = {}
    for number in range(draw(st.integers(1, 6))):
        group = tuple(draw(st.permutations(range(ranks)))[: draw(st.integers(1, ranks))])
        kind = draw(st.sampled_from(Collective))
        name = f"g{number}"
        groups[name] = group
        octets = draw(st.integers(0, 40)) * len(group)
        common = {"kind": kind, "octets": octets, "group": name}
        root = draw(st.sampled_from(group)) if kind.rooted else None
        differs = kind is Collective.ALL_TO_ALL and draw(st.booleans())
        for rank in group:
            after = (
                tuple(draw(st.sets(st.integers(0, len(lists[rank]) - 1)))) if lists[rank] else ()
            )
            if differs:
                part = st.sampled_from([0, 0, 4, 12, 13, 64])
                splits = tuple(draw(part) for _ in group)
                common |= {"octets": sum(splits), "splits": splits}
            lists[rank].append(
                TraceCollective(
                    where=f"line {number}", name=f"c{number}", after=after, root=root, **common
                )
            )
            if draw(st.booleans()):
                lists[rank].append(
                    TraceCompute(
                        where="line 2",
                        name=f"w{number}",
                        after=(len(lists[rank]) - 1,),
                        duration_ns=draw(st.sampled_from([0, 5])),
                        stream=draw(st.sampled_from([None, 0, 3])),
                    )
                )
        source, destination = draw(st.permutations(range(ranks)))[:2]
        size, tag = draw(st.integers(0, 99)), draw(st.integers(0, 2))
        one: dict[str, Any] = {"where": "line 1", "name": f"s{number}", "octets": size, "tag": tag}
        lists[source].append(TraceSend(peer=destination, **one))
        last = tuple(range(len(lists[destination])))[-1:] if draw(st.booleans()) else ()
        lists[destination].append(TraceReceive(peer=source, after=last, **one))
    return Trace("t", tuple(lists), groups)
