"""The effect of the user's faults on a trial, beside an undisturbed iteration of it.

``faults``
    for each episode of the timeline, which is all that came at one instant, or a flap
    (:mod:`emulator.run.faults.expectation`): its clauses, when it came on average (``at_us`` after
    the start, None if every iteration had ended before), which GPUs were cut off from then on, and
    ``goodput``, in words and as ``restored_us``, the time until it was restored (below).  It is
    that of all pairs but those of ``goodput_without``, which had no way then: how many there are,
    and at most 16 of them, senders first.  A flap has so many ``steps``; ``at_us`` is the first of
    them, GPUs that any of them cut off count, and goodput is that from the last one on, which came
    at ``judged_us`` (None if every iteration had ended before).  ``scale_up``: it strikes only
    links of scale-up networks, of whose copies goodput tells nothing.  ``idle``: no cable that it
    strikes carried a frame, in these iterations or in the undisturbed one.
``undisturbed_us``, ``slowdown``
    completion time of an iteration of the same seed without the faults, and how many times as long
    the disturbed ones took.
``lost_packets``
    packets lost to the faults, with the host's clock those of routing protocols, too.  The reasons
    are ``link_down`` (a port without carrier was to send them), ``in_queue`` (they waited at a port
    when its cable was pulled), ``in_flight`` (they were on it; not known with the host's clock),
    ``no_route`` (a switch had no way left for them), ``gpu_dead`` (the NIC of a dead GPU dropped
    them), ``no_carrier`` (a NIC was to send them and no port of it had carrier: as in Linux no
    frame leaves), ``black_hole``, ``loss``, ``corrupted``; and ``dead_port``,
    where cables were pulled: what a bridge had for a port of its own without carrier.  Nobody
    counts these: they are the packets that NICs have sent and neither received nor any of the
    other counts has, nor those of drops in queues.  Of an iteration that failed they are not known.
``undisturbed_retransmitted_packets``
    what the undisturbed iteration sent again, to hold ``retransmitted_packets`` against.
``cut_off_gpus``
    those that some moment cut off from most of the others (:mod:`emulator.run.faults.reach`).
``cut_off_pairs``
    two GPUs that some moment cut off from each other and not from most of the others: how many such
    pairs there are (``count``), and at most 16 of them (``named``), first those between which the
    job sends.  ``faults`` has both by moment.

When goodput is restored is defined in :mod:`emulator.run.faults.restoration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean

from emulator.run.faults import restoration
from emulator.run.faults.condition import SOUND, Condition
from emulator.run.faults.expectation import FaultExpectation, episodes, some_pairs
from emulator.run.faults.fault_timeline import Applied
from emulator.run.faults.reach import Pair
from emulator.run.faults.restoration import Curve, Goodput, Verdict
from emulator.run.measures.port_record import PortRecord
from emulator.run.pxn import Pxn
from emulator.scenario import Outcome
from topologies.model import Link, Topology
from topologies.parts.scale_up import ScaleUpDomains

#: So many pairs of GPUs are named in ``result.json``.
NAMED_PAIRS = 16
#: Reasons for losses at NICs, of frames that none of them has counted as sent, or all have.
AT_NICS = ("gpu_dead", "no_carrier")


def reported(  # noqa: PLR0913  each is a field of what it makes
    expected: FaultExpectation,
    topology: Topology,
    disturbed: Outcome,
    undisturbed: Outcome,
    applied: Sequence[Sequence[Applied]],
    *,
    lost: Mapping[str, int],
    missing: int,
    retransmitted: str,
    base_rtt_ns: int,
    pxn: Pxn,
) -> dict[str, object]:
    """The values described above, for the row of the trial.

    ``applied`` has the moments that came, by iteration; ``lost`` what switches do not count;
    ``missing`` is how many frames NICs sent and none received; ``pxn`` whose writes were relayed.
    """

    @cache
    def curves(without: frozenset[Pair] | None) -> tuple[Sequence[Curve], Sequence[Curve]]:
        counts = None if without is None else _others(topology, pxn, without)
        return (
            restoration.deliveries(topology, undisturbed, base_rtt_ns, counts),
            restoration.deliveries(topology, disturbed, base_rtt_ns, counts),
        )

    def verdicts(place: int) -> Iterator[Verdict]:
        """Yield the goodput's verdict after a moment for each iteration that reached the moment."""
        if len(disturbed.executions) > 1:
            yield from ((Goodput.RESTARTED, 0) for events in applied if place < len(events))
            return
        if not expected.allowed[place]:
            yield from ((Goodput.CUT, 0) for events in applied if place < len(events))
            return
        cut = any(expected.lacking[: place + 1])  # some were, if they are not
        reference, found = curves(expected.lacking[place] if cut else None)
        if not reference and not cut:
            yield Goodput.UNSEEN, 0
        for curve, events in zip(found, applied, strict=False):
            if reference and place < len(events):
                yield restoration.restored(
                    curve,
                    reference[0],
                    base_rtt_ns=base_rtt_ns,
                    fault_ns=events[place].at_ns,
                    until_ns=events[place + 1].at_ns if place + 1 < len(events) else None,
                    allowed=expected.allowed[place],
                )

    def came(place: int) -> Sequence[int]:
        return [events[place].at_ns for events in applied if place < len(events)]

    rows = [
        {
            "said": one.stated,
            "steps": one.steps,
            "cut_off_gpus": expected.cut_off_by(one),
            "cut_off_pairs": reported_pairs(expected.cut_pairs_by(one)),
            "at_us": _mean_us(came(one.began)),
            "judged_us": _mean_us(came(one.judged)),
            "iterations": len(came(one.began)),
            **restoration.reported(list(verdicts(one.judged))),
            "scale_up": all(expected.moments[place].scale_up for place in one.places),
            "goodput_without": reported_pairs(sorted(expected.lacking[one.judged])),
            "idle": _idle(one.places, expected, topology, (undisturbed, disturbed)),
        }
        for one in episodes(expected.moments)
    ]
    return {
        "faults": rows,
        "undisturbed_us": undisturbed.mean_ns / 1000,
        "slowdown": disturbed.mean_ns / undisturbed.mean_ns,
        "lost_packets": lost_packets(
            disturbed.ports, {**lost, **_at_dead_ports(expected, disturbed, lost, missing)}
        ),
        "undisturbed_retransmitted_packets": undisturbed.counters.get(retransmitted, 0),
        "cut_off_gpus": expected.ever_cut_off,
        "cut_off_pairs": reported_pairs(expected.ever_cut_pairs),
    }


def _idle(
    places: Sequence[int],
    expected: FaultExpectation,
    topology: Topology,
    outcomes: Sequence[Outcome],
) -> bool:
    """Return whether what the moments at ``places`` strike has sent nothing."""
    struck: set[Link] = set()
    moments = expected.moments
    for place in places:
        before = moments[place - 1].condition if place else SOUND
        paced = list(_paced(before, moments[place].condition))
        if any(set(gpus) <= set(pair) for gpus in paced for pair in expected.copying):
            return False
        struck.update(_struck(before, moments[place].condition, topology))
    ends = {str(end) for link in struck for end in link.ends}
    carried = [
        port.kernel.tx_packets + port.dropped
        for outcome in outcomes
        for name, port in outcome.ports.items()
        if name in ends
    ]
    return not any(carried) and (bool(carried) or any(moments[place].scale_up for place in places))


def _paced(before: Condition, after: Condition) -> Iterator[tuple[str, ...]]:
    """Yield the GPUs, or pairs of them, whose scale-up links have another share left."""
    was, left = before.left_of_scale_up, after.left_of_scale_up
    yield from (gpus for gpus in {*was, *left} if was.get(gpus) != left.get(gpus))


def _struck(before: Condition, after: Condition, topology: Topology) -> Iterator[Link]:
    """Yield the cables of what differs between two conditions; those of a GPU that dies, too."""
    for element in {*before.down} ^ {*after.down}:
        yield from element.links
        for end in (end for link in element.links for end in link.ends):
            if not topology.node(end.node).is_switch:  # the flows of a NIC divide over its ports
                yield from (link for link, _, _ in topology.neighbours(end.node))
        for gpu in element.gpus if element.mortal else ():
            yield from (link for link, _, _ in topology.neighbours(gpu))
    for link in {*before.faults, *after.faults}:
        if before.faults.get(link) != after.faults.get(link):
            yield link


def _others(topology: Topology, pxn: Pxn, without: frozenset[Pair]) -> Callable[[int, int], bool]:
    """Return the messages that cross the fabric, without those between the pairs ``without``.

    Messages go by the ranks of their source and destination.
    """
    gpus, domains = topology.gpus, ScaleUpDomains(topology)

    def count(source: int, destination: int) -> bool:
        if domains.joins(gpus[source].name, gpus[destination].name):
            return False
        relay = pxn.relay(source, destination)
        sender = gpus[source if relay is None else relay]
        return (sender.name, gpus[destination].name) not in without

    return count


def reported_pairs(pairs: Sequence[Pair]) -> dict[str, object]:
    """``pairs`` as ``result.json`` has them."""
    return {"count": len(pairs), "named": [list(pair) for pair in pairs[:NAMED_PAIRS]]}


def _mean_us(times_ns: Sequence[int]) -> float | None:
    return fmean(times_ns) / 1000 if times_ns else None


def _at_dead_ports(
    expected: FaultExpectation, disturbed: Outcome, lost: Mapping[str, int], missing: int
) -> dict[str, int]:
    """Return what of the ``missing`` frames no counter has, if there were ports without carrier."""
    if not any(moment.condition.down for moment in expected.moments):
        return {}
    counted = sum(count for reason, count in lost.items() if reason not in AT_NICS)
    for port in disturbed.ports.values():
        counted += port.dropped
        if port.asic is None:
            counted += port.kernel.data.drops + port.kernel.control.drops
    return {"dead_port": max(0, missing - counted)}


def lost_packets(ports: Mapping[str, PortRecord], others: Mapping[str, int]) -> dict[str, int]:
    """Packets that faults took, by reason; ``others`` are those that ports do not count."""
    found: dict[str, int] = {}
    for port in ports.values():
        drops = port.drops
        corrupted = (
            sum(row.corrupted for row in port.asic.classes.values()) if port.asic is not None else 0
        )
        for reason, count in (
            ("link_down", drops.get("link_down", 0)),
            ("black_hole", drops.get("black_hole", 0)),
            ("loss", drops.get("loss", 0) + drops.get("burst", 0)),
            ("corrupted", corrupted),
        ):
            found[reason] = found.get(reason, 0) + count
    return {reason: count for reason, count in {**found, **others}.items() if count}


# ------------------------------------------------------------------ as a person reads it


def footer(row: Mapping[str, object], transport: str | None = None) -> list[str]:
    """Return the lines below the table about a disturbed row, of ``transport`` if given."""
    faults = row.get("faults")
    if not isinstance(faults, Sequence) or not faults:
        return []
    by = "" if transport is None else f"{transport}, "
    lines = [f"{by}{row['collective']} {row['size_bytes']} B: {_summary(row)}"]
    moved = row["slowdown"] != 1 and all(fault.get("idle") for fault in faults)
    lines += [f"  {_moment(fault, moved=moved)}" for fault in faults]
    return lines


def _summary(row: Mapping[str, object]) -> str:
    lost = row["lost_packets"]
    assert isinstance(lost, Mapping)
    reasons = ", ".join(f"{reason} {count}" for reason, count in lost.items())
    count = sum(lost.values())
    return (
        f"{row['slowdown']:.2f} times the undisturbed {row['undisturbed_us']:.2f} us; lost "
        f"{count} packet{'s' if count != 1 else ''}{f' ({reasons})' if reasons else ''}; sent "
        f"{row['retransmitted_packets']} again (undisturbed "
        f"{row['undisturbed_retransmitted_packets']})"
    )


def _moment(fault: Mapping[str, object], *, moved: bool) -> str:
    """Return what ``fault`` did; ``moved``: the time is another, and all faults are idle."""
    if fault["at_us"] is None:
        return f"{fault['said']}: never came, as the iteration had ended"
    if fault.get("idle"):
        instead = "strike a cable that flows take, or run permutation, which uses all uplinks"
        if fault.get("scale_up"):
            instead = "take a job that copies inside servers, such as alltoall"
        elif moved:
            instead = f"flows of others hash anew where it leaves an ECMP group; {instead}"
        return f"{fault['said']}: what it strikes carries nothing in this run; {instead}"
    if fault.get("scale_up"):
        return f"{fault['said']}: inside the server, where the fabric's goodput tells nothing"
    gone, whose = fault["cut_off_gpus"], ""
    unparted = (Goodput.CUT, Goodput.RESTARTED)
    if fault["goodput"] not in unparted and stated_pairs(fault.get("goodput_without")):
        whose = " of the others"
    goodput = f"goodput{whose} {fault['goodput']}"
    if fault["restored_us"]:
        goodput += f" after {fault['restored_us']:.2f} us"
    steps = fault.get("steps", 1)
    if steps != 1 and fault["judged_us"] is None:
        goodput = f"the iteration had ended before the last of {steps} steps"
    elif steps != 1:
        goodput = f"from the last of {steps} steps on, {goodput}"
    assert isinstance(gone, Sequence)
    lost = [*gone, *stated_pairs(fault["cut_off_pairs"])]
    return f"{fault['said']}: {goodput}" + (f"; cuts off {', '.join(lost)}" if lost else "")


def stated_pairs(reported: object) -> list[str]:
    """Return what :func:`pairs_reported` has, in words; nothing where there are none."""
    if not isinstance(reported, Mapping) or not reported["count"]:
        return []
    return [some_pairs([(a, b) for a, b in reported["named"]], reported["count"])]
