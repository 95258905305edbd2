"""The way of a packet, step by step: waits, marks, trims, and where and why an attempt ended.

The telemetry has drops by port and time, the row's counters have them by port and reason.  A port
whose count rises right after the packet came in is where it went.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.code_points import LAB
from emulator.dataplane.switch.telemetry import FILE
from emulator.report.follow.capture import CaptureClock, PauseTimes
from emulator.report.follow.packet_view import CE, PacketKind
from emulator.report.follow.search import Followed, SendAttempt, Sighting
from emulator.report.run.figures.ports import REASONS
from emulator.report.run.port_series import PortSeries, read_series
from emulator.report.run_folder import RunRecord
from emulator.run_files import EPOCH_S
from topologies.ethernet import FRAMING_OCTETS
from topologies.model import CableEnd

_PART = "dropped_"
_CLASSES = LAB.classes()
#: The account's cause of all drops that counters of ports have by reason.
_COUNTED = "switch"
#: Times of the telemetry are rounded to the nanosecond.
_ROUNDING_US = 0.002


class DropCauses:
    """The causes of drops in the run of ``record``, which has a virtual clock."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    @cached_property
    def _series(self) -> Mapping[str, PortSeries]:
        found = read_series(self._record.path / FILE)
        return {} if isinstance(found, str) else found

    @cached_property
    def _times_us(self) -> Sequence[float]:
        """Return the times of all samples that found a change anywhere."""
        return sorted({float(at) for one in self._series.values() for at in one.t_us})

    def words(self, node: str, t_us: float, row: int, dscp: int) -> str:
        """Return why ``node`` dropped a packet that came in at ``t_us`` of the run's clock.

        It is a clause about the port, the class and the reason, or empty where no counter tells.
        """
        ports = list(self._risen(node, t_us))
        if not ports:
            return self._by_account(node)
        kind = TrafficClass(_CLASSES[dscp]).name.lower()
        places = " or ".join(f"{port}, class {kind}: {self._reasons(port, row)}" for port in ports)
        return f"dropped at {places}"

    def _risen(self, node: str, t_us: float) -> Sequence[str]:
        """Return the ports of ``node`` that count a drop in the sample after ``t_us``."""
        found = []
        at = bisect_left(self._times_us, t_us - _ROUNDING_US)
        sampled = self._times_us[at] if at < len(self._times_us) else None
        for port, series in self._series.items():
            if port.partition(":")[0] != node or "dropped" not in series.values:
                continue
            count = series.values["dropped"]
            place = int(series.t_us.searchsorted(t_us - _ROUNDING_US))
            if place == len(count) or series.t_us[place] != sampled:
                continue
            if count[place] > (count[place - 1] if place else 0):
                found.append(port)
        return found

    def _reasons(self, port: str, row: int) -> str:
        """Return the reasons that a port counted in a row; a single one is the packet's."""
        counted = self._record.ports[row].ports.get(port, {}) if row in self._record.ports else {}
        reasons = {
            name.removeprefix(_PART): count
            for name, count in counted.items()
            if name.startswith(_PART) and count
        }
        if len(reasons) == 1:
            (name,) = reasons
            return REASONS.get(name, name)
        if not reasons:
            return "its counter of drops rose then, and the row has no reason"
        listed = ", ".join(f"{name} ({count})" for name, count in reasons.items())
        return f"one of the reasons that it counted in this row, {listed}"

    def _by_account(self, node: str) -> str:
        """Return what the account has of drops in ``node`` itself, such as a lack of routes."""
        dropped = self._record.account.get("dropped")
        causes = [
            f"{cause.partition(': ')[2]} ({count})"
            for cause, count in (dropped.items() if isinstance(dropped, dict) else ())
            if cause.partition(": ")[0] == node and cause.partition(": ")[2] not in ("", _COUNTED)
        ]
        return f"the run's account has for {node}: {', '.join(causes)}" if causes else ""


DELIVERED, DROPPED, LOST, UNSEEN = "delivered", "dropped", "lost", "unseen"


@dataclass(frozen=True, kw_only=True)
class TrailStep:
    """A packet passes a port at ``t_us`` after the origin.

    ``wait_us`` is the time between its last octet into the switch and its first octet out, without
    the pipeline's latency.  ``wire_us`` is the time from the port before.
    """

    t_us: float
    end: CableEnd
    leaves: bool
    octets: int
    wait_us: float | None = None
    wire_us: float | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Journey:
    """One transmission: of the packet (``kind`` data), or of what answered it.

    ``is_attempt`` is false for answers.  ``number`` is the PSN that it carries, ``context`` the PDC
    or QP that it names.  ``fate`` is one of the words above, and ``ending`` a clause about it.
    """

    psn: int
    number: int
    context: int
    kind: PacketKind
    label: str
    words: str
    retransmission: bool
    steps: Sequence[TrailStep]
    fate: str
    ending: str
    is_attempt: bool
    cause: str = ""


class StepReader:
    """Makes journeys of trails, in the terms of one run.

    ``drops`` explain what ends in a switch, ``pauses`` what waits there.
    """

    def __init__(
        self,
        captured: frozenset[CableEnd],
        clock: CaptureClock,
        pauses: PauseTimes,
        drops: DropCauses,
        *,
        period: int,
        begun_ns: int,
    ) -> None:
        self._topology, self._captured = pauses.topology, captured
        self._clock, self._pauses, self._drops = clock, pauses, drops
        self._period = period
        self.origin_ns = clock.origin_ns(period, begun_ns)
        self._pipeline = clock.latency_us(period)

    def journeys(self, one: Followed, target: str) -> Iterator[Journey]:
        """Yield the attempts of a packet to the node ``target``, then each answer that was sent."""
        for number, attempt in enumerate(one.packet.attempts, 1):
            label = f"attempt {number}"
            yield self._journey(one.packet.psn, attempt, label, target)
        for answer in one.answers:
            for number, attempt in enumerate(answer.attempts):
                kind = attempt.first.seen.kind
                if kind is PacketKind.CNP and number:
                    break  # of packets that were marked later
                label = "response" if kind is PacketKind.DATA else kind.value
                yield self._journey(one.packet.psn, attempt, label, None)

    def _journey(self, psn: int, attempt: SendAttempt, label: str, target: str | None) -> Journey:
        seen = attempt.first.seen
        fate, ending = self._fate(attempt, target)
        return Journey(
            psn=psn,
            number=seen.psn,
            context=seen.flow.context,
            kind=seen.kind,
            label=label,
            words=seen.words,
            retransmission=seen.retransmission,
            steps=list(self._steps(attempt)),
            fate=fate,
            ending=ending,
            is_attempt=target is not None,
        )

    def _steps(self, attempt: SendAttempt) -> Iterator[TrailStep]:
        before: Sighting | None = None
        for one in attempt.sightings:
            wait = wire = None
            if before is not None and one.leaves and before.end.node == one.end.node:
                passed = self._clock.fabric_us(one.at_ns - before.at_ns)
                wait = passed - self._latency_us(one.end.node)
            elif before is not None:
                wire = self._clock.fabric_us(one.at_ns - before.at_ns)
            yield TrailStep(
                t_us=self._clock.fabric_us(one.at_ns - self.origin_ns),
                end=one.end,
                leaves=one.leaves,
                octets=one.length,
                wait_us=wait,
                wire_us=wire,
                changes=(*_changes(before, one), *self._stopped(before, one)),
            )
            before = one

    def _stopped(self, before: Sighting | None, one: Sighting) -> Iterator[str]:
        """Yield the PAUSE frames that stopped the port which a packet waited at."""
        if not one.leaves or not self._clock.virtual or one.end not in self._captured:
            return
        if before is None:
            yield from self._released(one)
            return
        if before.end.node != one.end.node:
            return
        for pause in self._pauses.during(one.end, before.at_ns, one.at_ns):
            yield (
                f"PFC of {self._far_end(one.end)} stopped priority {pause.priority} for "
                f"{self._clock.fabric_us(pause.stopped_ns):.3f} us of that"
            )

    def _released(self, one: Sighting) -> Iterator[str]:
        """Yield the PAUSE frames whose end let a packet leave its NIC.

        The stop was over less than a frame's time before it left.
        """
        rate_bps = self._topology.link_at(one.end).rate_bps
        frame_ns = -(-8 * 10**9 * (one.length + FRAMING_OCTETS) // rate_bps)
        for pause in self._pauses.released(one.end, one.at_ns - frame_ns, one.at_ns):
            yield (
                f"PFC of {self._far_end(one.end)} had stopped priority {pause.priority} for "
                f"{self._clock.fabric_us(pause.stopped_ns):.3f} us before"
            )

    def _latency_us(self, name: str) -> float:
        """Return the time that a frame takes through the node where nothing waits."""
        node = self._topology.by_name.get(name)
        is_switch = node is not None and node.is_switch
        return self._pipeline if is_switch else 0.0

    def _fate(self, attempt: SendAttempt, target: str | None) -> tuple[str, str]:
        last = attempt.last
        node = self._topology.by_name.get(last.end.node)
        if node is None:
            return UNSEEN, "the fabric has no such node any more"
        if last.leaves:
            far = self._far_end(last.end)
            if far is None or far not in self._captured:
                return UNSEEN, f"no port beyond {last.end} was captured"
            return LOST, f"it does not arrive at {far}: lost on the cable, or the capture ends"
        if not node.forwards:
            if target is not None and node.name != target:
                return UNSEEN, f"it arrives at {node.name}, which it is not for"
            return DELIVERED, f"it arrives at {node.name}"
        if {CableEnd(node.name, port.name) for port in node.ports} <= self._captured:
            why = self._dropped(attempt)
            rest = why or "dropped there, or the capture ends"
            return DROPPED, f"it does not leave {node.name}: {rest}"
        return UNSEEN, f"not all ports of {node.name} were captured"

    def _dropped(self, attempt: SendAttempt) -> str:
        """Return why a switch dropped what came in last; empty where the run does not show it."""
        last = attempt.last
        if not self._clock.virtual:
            return ""
        at_us = last.at_ns / 1000 - EPOCH_S * 1e6
        row = self._clock.iterations[self._period].row
        return self._drops.words(last.end.node, at_us, row, last.seen.dscp)

    def _far_end(self, end: CableEnd) -> CableEnd | None:
        try:
            return self._topology.far_end(end)
        except KeyError:
            return None


def _changes(before: Sighting | None, one: Sighting) -> Iterator[str]:
    """Yield what a switch changed on the packet since the sighting ``before``."""
    by = f"by {one.end}" if one.leaves else "on the way"
    if one.seen.ecn == CE and (before is None or before.seen.ecn != CE):
        yield "marked CE before" if before is None else f"marked CE {by}"
    if one.seen.trimmed and (before is None or not before.seen.trimmed):
        if before is None:
            yield "trimmed before"
        else:
            yield f"trimmed {by} from {before.length} octets"
