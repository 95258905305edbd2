"""The story of a packet that a user asks for: found, followed, and explained; as table and as data.

Why it was repeated is in the event logs of its source (``--event-log``).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.report.follow.capture import CaptureClock, CaptureStream, PauseTimes, RunPeriod
from emulator.report.follow.packet_view import RUDI, SIGNALS, UET, UUD, FlowKey, PacketKind
from emulator.report.follow.search import (
    Followed,
    FoundFlow,
    PacketWish,
    find_flows,
    follow,
    holds_secure,
    owners,
)
from emulator.report.follow.steps import (
    DELIVERED,
    UNSEEN,
    DropCauses,
    Journey,
    StepReader,
    TrailStep,
)
from emulator.report.run_folder import RunRecord
from emulator.run_files import CAPTURE, EPOCH_S, EVENT_LOGS
from topologies.model import Topology
from uet.wire.frame import OpenSecure

#: Characters of a line that is read, and events that are kept, at most.
_LONGEST_LINE, _MOST_EVENTS = 1 << 20, 256
_TRIGGERS = {
    "rto": "retransmission timeout",
    "nack": "NACK",
    "loss_inferred": "inferred loss",
    "go_back": "go-back-N",
    "renumbered": "a renumbered PDC",
}


@dataclass(frozen=True)
class RepeatCause:
    """The source repeated the packet at ``at_ns`` of the capture's clock, for this reason."""

    at_ns: int
    reason: str


def repeat_causes(folder: Path, node: str, flow: FlowKey, psn: int) -> list[RepeatCause] | None:
    """Return the retransmissions that ``node`` logged; None if it wrote no event log."""
    files = [
        path
        for path in sorted((folder / EVENT_LOGS).glob("*.sqlog"))
        if path.name.partition(".")[0] == node
    ]
    if not files:
        return None
    found: list[RepeatCause] = []
    for path in files:
        for event in _events(path, psn):
            data = event.get("data")
            time_ms = event.get("time")
            if (
                event.get("name") == "uet:packet_retransmitted"
                and isinstance(data, dict)
                and isinstance(time_ms, int | float)
                and (data.get("pdc"), data.get("psn")) == (flow.context, psn)
                and len(found) < _MOST_EVENTS
            ):
                trigger = str(data.get("trigger"))
                at_ns = EPOCH_S * 10**9 + round(time_ms * 1e6)
                found.append(RepeatCause(at_ns, _TRIGGERS.get(trigger, trigger)))
    return sorted(found, key=lambda one: one.at_ns)


def _events(path: Path, psn: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a log that name ``psn``; a damaged line is passed over."""
    mark = f'"psn":{psn}'
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(_LONGEST_LINE):
            if mark not in line:
                continue
            try:
                event = json.loads(line.lstrip("\x1e"))
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


#: Candidates that a refusal lists, at most.
_MOST_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class StoryChoice:
    """The packet that is asked for, and the iteration of a row (from 1; 0: any)."""

    wish: PacketWish
    row: int = 0
    iteration: int = 0


@dataclass(frozen=True, kw_only=True)
class PacketStory:
    """Journeys of one packet, or of the packets of a message, in the order of their departure."""

    flow: FlowKey
    source: str
    destination: str
    psns: Sequence[int]
    message: int | None
    iteration: RunPeriod
    journeys: Sequence[Journey]
    notes: Sequence[str]
    display_filter: str


def tell(folder: Path, choice: StoryChoice, open_secure: OpenSecure | None) -> PacketStory:
    """Return the story; UserError where there is no such packet, or more than one."""
    record = RunRecord.read(folder)
    topology = record.fabric
    stream, clock = CaptureStream(folder / CAPTURE, topology), CaptureClock(record)
    found = find_flows(stream, choice.wish, clock.period, open_secure)
    names = owners(topology)
    flow, period = _chosen(found, choice, clock, names)
    if flow is None:
        raise UserError(_nothing(stream, choice, found, clock, open_secure))
    end_ns = _end(found, flow, period, clock)
    pauses = PauseTimes(topology)
    followed = follow(stream, flow, pauses, end_ns, open_secure)
    source = names.get(flow.flow.source, flow.flow.source)
    target = names.get(flow.flow.destination, flow.flow.destination)
    reader = StepReader(
        stream.ports, clock, pauses, DropCauses(record), period=period, begun_ns=flow.begun_ns
    )
    journeys: list[Journey] = []
    notes = list(_notes(stream, followed, flow, topology, clock))
    others = {key: one for key, one in found.items() if key[1] != period}
    if others:
        notes.append(
            f"Such packets are also in {_periods(others, clock)}; --row and --iteration choose."
        )
    causes = _CauseReader(
        folder=folder, source=source, flow=flow.flow, clock=clock, origin_ns=reader.origin_ns
    )
    for one in followed:
        explained, note = causes.explained(list(reader.journeys(one, target)))
        journeys += explained
        notes += [] if note is None else [note]
    return PacketStory(
        flow=flow.flow,
        source=source,
        destination=target,
        psns=list(flow.psns),
        message=next((one for one in flow.psns.values() if one is not None), None),
        iteration=clock.iterations[period],
        journeys=journeys,
        notes=list(dict.fromkeys(notes)),
        display_filter=_filter(flow.flow, journeys, clock, flow.begun_ns, end_ns),
    )


def _end(
    found: Mapping[tuple[FlowKey, int], FoundFlow],
    flow: FoundFlow,
    period: int,
    clock: CaptureClock,
) -> float:
    """Return the time (ns) of the next iteration, or of the flow's next packet of that number."""
    later = [one.begun_ns for (key, at), one in found.items() if key == flow.flow and at > period]
    measured = [one.begun_ns for one in clock.iterations[period + 1 :] if one.row]
    return min([*later, *measured], default=math.inf)


def _chosen(
    found: dict[tuple[FlowKey, int], FoundFlow],
    choice: StoryChoice,
    clock: CaptureClock,
    names: Mapping[str, str],
) -> tuple[FoundFlow | None, int]:
    """Return the flow that fits in the last measured iteration that has one, and its period.

    Where no measured one has it, it is the last warm-up.
    """
    fitting = {
        key: one
        for key, one in found.items()
        if choice.row in (0, clock.iterations[key[1]].row)
        and choice.iteration in (0, clock.iterations[key[1]].number)
    }
    if not fitting:
        return None, 0
    last = max((period for _, period in fitting), key=lambda at: (clock.iterations[at].row > 0, at))
    candidates = {key: one for key, one in fitting.items() if key[1] == last}
    if len(candidates) > 1:
        raise UserError(_ambiguous(candidates, clock, names))
    return next(iter(candidates.values())), last


def _ambiguous(
    fitting: dict[tuple[FlowKey, int], FoundFlow], clock: CaptureClock, names: Mapping[str, str]
) -> str:
    lines = []
    for (flow, _), one in list(fitting.items())[:_MOST_LISTED]:
        lines.append(f"{_flow_words(flow, names)}, PSN {_few(one)}")
    where = clock.iterations[next(iter(fitting))[1]]
    more = len(fitting) - len(lines)
    rest = f"; and {more} more" if more > 0 else ""
    return (
        f"{len(fitting)} flows of {where} have such a packet: {'; '.join(lines)}{rest}: choose by "
        "--source, --flow, --pdc, --qp, --row or --iteration"
    )


def _few(one: FoundFlow) -> str:
    first, *others = one.psns
    return f"{first}" + (f" and {len(others) + one.more} more" if others else "")


def _flow_words(flow: FlowKey, names: Mapping[str, str]) -> str:
    ends = f"{names.get(flow.source, flow.source)}:{names.get(flow.destination, flow.destination)}"
    to = "" if flow.protocol == UET else "to "
    return f"{flow.protocol} {ends}, {to}{flow.words}"


def _periods(found: dict[tuple[FlowKey, int], FoundFlow], clock: CaptureClock) -> str:
    shown = list(dict.fromkeys(str(clock.iterations[period]) for _, period in found))
    more = len(shown) - _MOST_LISTED
    return "; ".join(shown[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _nothing(
    stream: CaptureStream,
    choice: StoryChoice,
    found: dict[tuple[FlowKey, int], FoundFlow],
    clock: CaptureClock,
    open_secure: OpenSecure | None,
) -> str:
    wish = choice.wish
    what = " and ".join(
        f"{name} {value}"
        for name, value in (("PSN", wish.psn), ("message ID", wish.message))
        if value is not None
    )
    if found:
        return f"the packet with {what} is in other iterations: {_periods(found, clock)}"
    if open_secure is None and holds_secure(stream):
        return (
            f"{stream.path} is encrypted (TSS) and there are no keys for it, so that no PSN shows; "
            "give them by --keys, or repeat the run with --snaplen full and keep its tss_keys.json"
        )
    hint = "RoCEv2 has no message ID; " if wish.psn is None else ""
    cut = f"{stream.cut}; " if stream.cut else ""
    return (
        f"no captured packet of data has {what} here; {cut}{hint}uetemu decode --brief "
        f"{stream.path} lists what there is, and --capture all of a repeated run sees every port"
    )


def _notes(
    stream: CaptureStream,
    followed: Sequence[Followed],
    flow: FoundFlow,
    topology: Topology,
    clock: CaptureClock,
) -> list[str]:
    """Return what a reader must know about the gaps of the story."""
    notes = [f"{stream.cut}."] if stream.cut else []
    everything = sum(len(node.ports) for node in topology.nodes)
    if len(stream.ports) < everything:
        notes.append(
            f"{len(stream.ports)} of {everything} ports were captured; repeat the run with "
            "--capture all to see every hop."
        )
    if not clock.virtual:
        notes.append(
            "Times are those of the host's clock divided by the run's dilation, from the first "
            "sighting on: they contain what the machine needed."
        )
    if flow.more:
        notes.append(f"{flow.more} more sightings of packets of this message were left out.")
    left_out = sum(one.packet.left_out for one in followed)
    if left_out:
        notes.append(f"{left_out} more sightings of this packet were left out.")
    for one in followed:
        kinds = {each.attempts[0].first.seen.kind for each in one.answers if each.attempts}
        acknowledged = flow.flow.context != UUD and one.packet.psn not in flow.signals
        if acknowledged and not kinds - {PacketKind.NACK, *SIGNALS}:
            notes.append(f"No acknowledgement of PSN {one.packet.psn} passed a captured port.")
    return notes


@dataclass(frozen=True, kw_only=True)
class _CauseReader:
    """Explains the repeats of packets of ``flow`` from the event logs of ``source``."""

    folder: Path
    source: str
    flow: FlowKey
    clock: CaptureClock
    origin_ns: int

    def explained(self, told: Sequence[Journey]) -> tuple[list[Journey], str | None]:
        """Return the journeys of a packet with the cause of each repeat, and a note if it lacks.

        Of many acknowledgements it is the first to arrive.  Refusals stay, and acknowledgements
        that were lost before.
        """
        journeys, settled = [], False
        sent = [one for one in told if one.is_attempt]
        logged = self._logged(sent)
        causes = logged if logged and self.clock.virtual else []
        for one in sorted(told, key=lambda each: each.steps[0].t_us):
            if one.is_attempt and one is not sent[0]:
                one = replace(one, cause=self._cause(one, causes))
            elif not one.is_attempt and one.kind not in {PacketKind.NACK, *SIGNALS}:
                if settled:
                    continue
                settled = one.fate in (DELIVERED, UNSEEN)
            journeys.append(one)
        if logged is None and self.flow.protocol == UET:
            return journeys, (
                f"Why it was repeated is in the event log of {self.source}: repeat the run with "
                f"--event-log {self.source}."
            )
        if logged and not self.clock.virtual:
            return journeys, (
                f"Why it was repeated is in the event log of {self.source}, whose times are not "
                "the capture's."
            )
        return journeys, None

    def _logged(self, sent: Sequence[Journey]) -> list[RepeatCause] | None:
        """Return why the source repeated a packet by its log; None where it wrote none."""
        if len(sent) < 2:
            return []
        return repeat_causes(self.folder, self.source, self.flow, sent[0].psn)

    def _cause(self, one: Journey, causes: Sequence[RepeatCause]) -> str:
        at = self.origin_ns + round(one.steps[0].t_us * 1000)
        before = bisect_right(causes, at, key=lambda cause: cause.at_ns)
        return f"repeated after {causes[before - 1].reason}" if before else ""


def _filter(
    flow: FlowKey, journeys: Sequence[Journey], clock: CaptureClock, flow_ns: int, end_ns: float
) -> str:
    """Return Wireshark's display filter for the frames of all journeys."""
    version = "ipv6" if ":" in flow.source else "ip"
    ends = f"{version}.addr == {flow.source} && {version}.addr == {flow.destination}"
    sent = _set(one.number for one in journeys if one.is_attempt)
    answers = [one for one in journeys if not one.is_attempt]
    if flow.context == RUDI:
        named = f"uet.pds.rudi.pkt_id in {sent}"
    elif flow.context == UUD:
        named = f"uet.ses.std.message_id in {sent}"
    elif flow.protocol == UET:
        named = f"(uet.pds.psn in {sent} && uet.pds.spdcid == {flow.context})"
        if answers:
            acked = _set(one.number for one in answers)
            named += f" || ((uet.pds.ack_psn in {acked} || uet.pds.nack.psn in {acked})"
            named += f" && uet.pds.dpdcid == {flow.context})"
    else:
        numbers = _set(one.number for one in journeys)
        pairs = _set(one.context for one in journeys)
        named = f"infiniband.bth.psn in {numbers} && infiniband.bth.destqp in {pairs}"
    return f"{ends} && ({named}){_window(clock, flow_ns, end_ns)}"


def _set(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, dict.fromkeys(numbers))) + "}"


def _window(clock: CaptureClock, begun_ns: int, end_ns: float) -> str:
    """Return the part of a filter that keeps other packets of the same number out."""
    if not clock.virtual:
        return ""
    text = f" && frame.time_epoch >= {_epoch(begun_ns)}"
    return text if end_ns == math.inf else f"{text} && frame.time_epoch < {_epoch(round(end_ns))}"


def _epoch(at_ns: int) -> str:
    return f"{at_ns // 10**9}.{at_ns % 10**9:09d}"


SCHEMA = "uetemu.follow/1"
#: Columns of the table.
COLUMNS = ("t (us)", "packet", "port", "", "octets", "wait (us)", "event")


def heading(story: PacketStory) -> str:
    """Return one line: which packet this is, and when its times begin."""
    flow = story.flow
    numbers = str(story.psns[0])
    number = {RUDI: "packet ID", UUD: "message ID"}.get(flow.context, "PSN")
    if len(story.psns) > 1:
        numbers += f" and {len(story.psns) - 1} more"
    message = f", message {story.message}" if story.message is not None else ""
    since = f"since {story.iteration} began" if story.iteration.row else "since the first sighting"
    return (
        f"{flow.protocol} {number} {numbers} from {story.source} to {story.destination}, "
        f"{flow.words}{message}; times {since}"
    )


def story_rows(story: PacketStory) -> Iterator[Sequence[str]]:
    """Yield the rows of the table under COLUMNS, in order of time."""
    several = len(story.psns) > 1
    steps = [
        (step.t_us, order, number, journey, step)
        for order, journey in enumerate(story.journeys)
        for number, step in enumerate(journey.steps)
    ]
    for _, _, number, journey, step in sorted(steps, key=lambda one: one[:3]):
        label = f"{journey.label} ({journey.psn})" if several else journey.label
        yield (
            f"{step.t_us:.3f}",
            label,
            str(step.end),
            "out" if step.leaves else "in",
            str(step.octets),
            "" if step.wait_us is None else f"{step.wait_us:.3f}",
            event_words(journey, number, step),
        )


def event_words(journey: Journey, number: int, step: TrailStep) -> str:
    """Return what happens at the ``number``-th step of a journey."""
    words = []
    if number == 0:
        words += [journey.words, *([journey.cause] if journey.cause else [])]
    if step.wire_us is not None:
        words.append(f"{step.wire_us:.3f} us on the wire")
    words += step.changes
    if number == len(journey.steps) - 1:
        words.append(journey.ending)
    return "; ".join(words)


def as_data(story: PacketStory) -> Mapping[str, Any]:
    """Return the story as an object of the schema ``uetemu.follow/1``."""
    return {
        "schema": SCHEMA,
        "protocol": story.flow.protocol,
        "source": story.source,
        "destination": story.destination,
        "pdc" if story.flow.protocol == UET else "qp": story.flow.context
        if story.flow.context >= 0
        else None,
        "psns": list(story.psns),
        "message_id": story.message,
        "row": story.iteration.row or None,
        "iteration": story.iteration.number or None,
        "journeys": [_journey(one) for one in story.journeys],
        "notes": list(story.notes),
        "display_filter": story.display_filter,
    }


def _journey(one: Journey) -> Mapping[str, Any]:
    return {
        "psn": one.psn,
        "kind": one.kind.value,
        "label": one.label,
        "packet": one.words,
        "retransmission": one.retransmission,
        "cause": one.cause or None,
        "fate": one.fate,
        "ending": one.ending,
        "steps": [
            {
                "t_us": round(step.t_us, 6),
                "port": str(step.end),
                "way": "out" if step.leaves else "in",
                "octets": step.octets,
                "wait_us": None if step.wait_us is None else round(step.wait_us, 6),
                "wire_us": None if step.wire_us is None else round(step.wire_us, 6),
                "changes": list(step.changes),
            }
            for step in one.steps
        ],
    }
