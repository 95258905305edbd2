"""What the user's faults did to a trial, told beside an undisturbed iteration of it.

``faults``
    for each moment of the timeline: what was said, when it came on average (``at_us`` after the
    start, None if every iteration had ended before), which GPUs were cut off from then on, and
    ``goodput``, in words and as ``restored_us``, the time until it was restored (below).
``undisturbed_us``, ``slowdown``
    completion time of an iteration of the same seed without the faults, and how many times as long
    the disturbed ones took.
``lost_packets``
    packets lost to the faults, by reason: ``link_down`` (a port without carrier was to send
    them), ``in_queue`` (they waited at a port when its cable was pulled), ``no_route`` (a switch
    had no way left for them), ``black_hole``, ``loss``, ``corrupted``.  Not among them is what
    nobody counts: what a NIC was given to send while its own cable was dead, and what a bridge had
    for a dead port of its own.
``undisturbed_retransmitted_packets``
    what the undisturbed iteration sent again, to hold ``retransmitted_packets`` against.
``cut_off_gpus``
    those that some moment cut off from most of the others (:mod:`emulator.faults.reach`).

When goodput is restored is defined in :mod:`emulator.run.restoration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from emulator.endpoint.schedule import Schedule, Write
from emulator.endpoint.spawn import AgentError
from emulator.fabric.carrier import STATIC
from emulator.faults.condition import SOUND, Condition
from emulator.faults.grammar import Moment
from emulator.faults.reach import cut_off, reached
from emulator.run import restoration
from emulator.run.cuts import Change, share_left
from emulator.run.fault_timeline import Applied
from emulator.run.ideal import WireCost, ideal_ns
from emulator.run.port_record import PortRecord
from emulator.scenario import Outcome
from topologies.model import Topology


def changes_of(moments: Sequence[Moment], topology: Topology) -> list[Change]:
    """What ``moments`` do to the rates of the links."""
    found = []
    before = SOUND
    for moment in moments:
        for link in topology.links:
            share = share_left(moment.condition.of(link))
            if share != share_left(before.of(link)):
                found += [Change(moment.at_ns, end, share) for end in link.ends]
        before = moment.condition
    return found


#: Errors of a rank whose data came otherwise than it was sent.
_CORRUPTED = frozenset({"checksum", "misplaced"})


@dataclass(frozen=True)
class Expectation:
    """What ``moments`` leave possible for one trial.

    ``ideal_ns`` is the bound with them, None if the trial cannot end; ``allowed`` the share of
    goodput (0..1) that the links leave from each moment on; ``cut_off`` the GPUs cut off then.
    ``severed`` are the pairs of GPUs that are to send to each other and cannot from the last
    moment on.  ``static``: nobody tells switches far away of a dead cable.  ``gpus`` are those of
    all ranks.
    """

    moments: Sequence[Moment]
    ideal_ns: float | None
    allowed: Sequence[float]
    cut_off: Sequence[Sequence[str]]
    severed: Sequence[tuple[str, str]]
    static: bool
    gpus: Sequence[str]

    @classmethod
    def of(
        cls,
        moments: Sequence[Moment],
        topology: Topology,
        schedules: Sequence[Schedule],
        wire: WireCost,
        others: Sequence[Change] = (),
    ) -> Expectation:
        """``others`` are changes that the scenario itself makes."""

        def bound(changes: Sequence[Change]) -> float:
            try:
                return ideal_ns(topology, schedules, wire, [*changes, *others])
            except ValueError:  # the schedules are known to be sound: some traffic has no way
                return math.inf

        whole = bound(())
        shares: dict[Condition, float] = {}  # a flap has a thousand moments and two conditions
        lost: dict[Condition, list[str]] = {}
        for condition in {moment.condition for moment in moments}:
            least = bound(changes_of([Moment(0, "", condition)], topology))
            shares[condition] = whole / least if least else 1.0
            lost[condition] = cut_off(topology, condition.impassable)
        ideal = bound(changes_of(moments, topology))
        last = moments[-1].condition if moments else SOUND
        return cls(
            moments=moments,
            ideal_ns=None if math.isinf(ideal) else ideal,
            allowed=[shares[moment.condition] for moment in moments],
            cut_off=[lost[moment.condition] for moment in moments],
            severed=_severed(topology, schedules, last),
            static=topology.profile.control_plane == STATIC,
            gpus=[gpu.name for gpu in topology.gpus],
        )

    @property
    def ever_cut_off(self) -> list[str]:
        return list(dict.fromkeys(gpu for gpus in self.cut_off for gpu in gpus))

    def sentence(self, error: AgentError) -> str:
        """``error``, with what the faults have to do with it."""
        if self.severed:
            return f"{self._forlorn()}, and the job cannot end without: {error}"
        if gone := self.ever_cut_off:
            return f"{error}; the faults cut off {', '.join(gone)} for a time"
        struck = [faults for moment in self.moments for faults in moment.condition.faults.values()]
        named = {result.error for result in error.results}
        if any(faults.corruption for faults in struck) and named & _CORRUPTED:
            return (
                f"{error}; corrupt inverts bits inside a switch, where no frame check sees it: "
                "--transport uet:crc=on has receivers drop such packets"
            )
        down = [one for moment in self.moments for one in moment.condition.down]
        if down and self.static:
            return (
                f"{error}; routes are static, so while {down[0]} was down, switches far from it "
                "went on sending there"
            )
        return str(error)

    def _forlorn(self) -> str:
        """Who is cut off for good, and by what."""
        gone = list(self.cut_off[-1]) or sorted({gpu for pair in self.severed for gpu in pair})
        cause = next(
            (
                moment
                for moment, gpus in zip(self.moments, self.cut_off, strict=True)
                if set(gone) <= set(gpus)
            ),
            self.moments[-1],
        )
        ranks = ", ".join(str(self.gpus.index(name)) for name in gone)
        who, verb = ("rank", "is") if len(gone) == 1 else ("ranks", "are")
        return f"{who} {ranks} ({', '.join(gone)}) {verb} cut off for good by {cause.text!r}"


def _severed(
    topology: Topology, schedules: Sequence[Schedule], condition: Condition
) -> list[tuple[str, str]]:
    if not condition.impassable:
        return []
    names = [gpu.name for gpu in topology.gpus]
    reach = reached(topology, condition.impassable)
    pairs = {
        (schedule.rank, operation.peer)
        for schedule in schedules
        for operation in schedule.operations
        if isinstance(operation, Write)
    }
    return sorted((names[a], names[b]) for a, b in pairs if names[b] not in reach[names[a]])


# ------------------------------------------------------------------ what came out


def told(
    expected: Expectation,
    topology: Topology,
    disturbed: Outcome,
    undisturbed: Outcome,
    applied: Sequence[Sequence[Applied]],
    *,
    lost: Mapping[str, int],
    retransmitted: str,
    base_rtt_ns: int,
) -> dict[str, object]:
    """The values described above, for the row of the trial.

    ``applied`` has the moments that came, by iteration; ``lost`` what switches do not count.
    """
    reference = restoration.deliveries(topology, undisturbed, base_rtt_ns)
    curves = restoration.deliveries(topology, disturbed, base_rtt_ns)
    rows = [
        {
            "said": moment.text,
            "cut_off_gpus": list(expected.cut_off[place]),
            **_came([events[place].at_ns for events in applied if place < len(events)]),
            **restoration.told(
                [
                    restoration.restored(
                        curve,
                        reference[0],
                        base_rtt_ns=base_rtt_ns,
                        fault_ns=events[place].at_ns,
                        until_ns=events[place + 1].at_ns if place + 1 < len(events) else None,
                        allowed=expected.allowed[place],
                    )
                    for curve, events in zip(curves, applied, strict=False)
                    if reference and place < len(events)
                ]
            ),
        }
        for place, moment in enumerate(expected.moments)
    ]
    return {
        "faults": rows,
        "undisturbed_us": undisturbed.mean_ns / 1000,
        "slowdown": disturbed.mean_ns / undisturbed.mean_ns,
        "lost_packets": lost_packets(expected, disturbed.ports, lost),
        "undisturbed_retransmitted_packets": undisturbed.counters.get(retransmitted, 0),
        "cut_off_gpus": expected.ever_cut_off,
    }


def _came(times_ns: Sequence[int]) -> dict[str, object]:
    return {
        "at_us": fmean(times_ns) / 1000 if times_ns else None,
        "iterations": len(times_ns),
    }


def lost_packets(
    expected: Expectation, ports: Mapping[str, PortRecord], others: Mapping[str, int]
) -> dict[str, int]:
    """Packets that faults took, by reason; ``others`` are those that ports do not count."""
    black = {
        str(end)
        for moment in expected.moments
        for link, faults in moment.condition.faults.items()
        if faults.black_hole
        for end in link.ends
    }
    found: dict[str, int] = {}
    for name, port in ports.items():
        drops = port.drops
        swallowed = "black_hole" if name in black else "link_down"
        corrupted = (
            sum(row.corrupted for row in port.asic.classes.values()) if port.asic is not None else 0
        )
        for reason, count in (
            (swallowed, drops.get("black_hole", 0)),
            ("loss", drops.get("loss", 0) + drops.get("burst", 0)),
            ("corrupted", corrupted),
        ):
            found[reason] = found.get(reason, 0) + count
    return {reason: count for reason, count in {**found, **others}.items() if count}


# ------------------------------------------------------------------ as a person reads it


def footer(row: Mapping[str, object]) -> list[str]:
    """What the table says below about a row that was disturbed."""
    faults = row.get("faults")
    if not isinstance(faults, Sequence) or not faults:
        return []
    lines = [f"{row['collective']} {row['size_bytes']} B: {_summary(row)}"]
    lines += [f"  {_moment(fault)}" for fault in faults]
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


def _moment(fault: Mapping[str, object]) -> str:
    if fault["at_us"] is None:
        return f"{fault['said']}: never came, as the iteration had ended"
    gone, goodput = fault["cut_off_gpus"], f"goodput {fault['goodput']}"
    if fault["restored_us"]:
        goodput += f" after {fault['restored_us']:.2f} us"
    assert isinstance(gone, Sequence)
    return f"{fault['said']}: {goodput}" + (f"; cuts off {', '.join(gone)}" if gone else "")
