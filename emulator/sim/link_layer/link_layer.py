"""The link layer of a fabric's cables under the virtual clock: both ends of each.

::

    line from here --frame has left--> number, credits, errors --> cable --> LinkEnd there
                   <-- may go on ----- replay buffer, credits
    line to here   --unit arrives---> order, ACK or NACK, cells --> switch or NIC

Between two frames of its line an end sends, in this order: an ACK or NACK, updates of credits, and
frames that are to be replayed.  Each waits for the frame that is being sent, and takes its time on
the line.  A line that may not go on is kept busy (a full replay buffer), or its data queue is
stopped (no credits).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.dataplane.switch.cable_counters import LinkCounters
from emulator.dataplane.switch.cable_fitting import SET_OCTETS, LinkRules
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.virtual_state import DEPTH, PORT_WORDS
from emulator.sim.event_queue import NEVER, PS, EventHeap, EventQueue, Source
from emulator.sim.line import HIGH, LOW, MAC_CONTROL, Line
from emulator.sim.link_layer.credits import CellAccount, CreditSender
from emulator.sim.link_layer.replay import (
    ACK,
    CONSUMED,
    CREDITS,
    FRAME,
    NACK,
    QUIT,
    UNNUMBERED,
    LinkUnit,
    ReplayBuffer,
    RetryAnswer,
    RetryReceiver,
    StopClock,
)
from topologies.ethernet import FCS_OCTETS
from topologies.model import CableEnd, Topology


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Chances of a unit to have an error: of any, in bursts (Gilbert-Elliott), and by its bits."""

    loss: float = 0.0
    burst_begin: float = 0.0
    burst_end: float = 1.0
    burst_loss: float = 1.0
    bit_errors: float = 0.0

    @classmethod
    def of(cls, faults: Faults) -> ErrorRates:
        """The chances that ``faults`` name."""
        return cls(
            faults.loss,
            faults.burst_begin,
            faults.burst_end,
            faults.burst_loss,
            faults.bit_errors,
        )

    @property
    def any(self) -> bool:
        """Return whether a unit can come with an error."""
        return bool(self.loss or self.burst_begin or self.bit_errors)


class CableErrors:
    """The draws of the line called ``name``, for units in the order in which they leave."""

    __slots__ = ("_bad", "_name", "_random", "_seed", "rates")

    def __init__(self, name: str) -> None:
        self._name, self._seed = name, 0
        self.rates = ErrorRates()
        self.begin_row()

    def begin_row(self, seed: int | None = None) -> None:
        """Draw anew, by ``seed`` if there is another."""
        self._seed = self._seed if seed is None else seed
        self._bad = False
        self._random = random.Random(f"cable {self._seed} {self._name}")

    def strike(self, octets: int) -> bool:
        """Return whether the next unit, of ``octets`` with its check sequence, has an error."""
        rates = self.rates
        if not rates.any:
            return False
        draw = self._random.random
        if rates.burst_begin or self._bad:
            change = draw()
            self._bad = change >= rates.burst_end if self._bad else change < rates.burst_begin
            if self._bad and draw() < rates.burst_loss:
                return True
        return draw() < rates.loss + 8 * octets * rates.bit_errors


_UNARMED = NEVER


class LinkEnd:
    """The end ``line.end`` of a cable; ``coming`` is the line that arrives here.

    ``words`` and ``at`` are where the switch program counts what the port holds (a NIC's holds
    nothing).
    """

    def __init__(
        self,
        line: Line,
        coming: Line,
        events: EventQueue,
        source: Source,
        buffer: tuple[memoryview, int],
    ) -> None:
        self.line, self.coming = line, coming
        self._events, self._source, self._buffer = events, source, buffer
        #: takes what is behind the pipeline
        self.deliver: Callable[[bytes], None] = _nowhere
        self.counters = LinkCounters()
        self.errors = CableErrors(str(line.end))
        self.rules: LinkRules | None = None
        self.replays: ReplayBuffer | None = None
        self.credits: CreditSender | None = None
        self.cells: CellAccount | None = None
        self._receiver = RetryReceiver()
        self._staged = EventHeap()
        self._arrivals = events.heap
        self._before: Any = None
        self._era = 0
        #: frames that have come for the first time, and those that were taken or given up
        self._seen = self._settled = 0
        self._answer = RetryAnswer.NONE
        self._credits_due = self._consumed_due = self._quit_due = False
        self._resend_at = NEVER
        self._armed = _UNARMED
        self._stalled = False
        #: stops by a full replay buffer, and without credits
        self._full, self._uncredited = StopClock(), StopClock()
        self._missing_since: int | None = None

    # Settings

    def attach(self, far: LinkEnd, rules: LinkRules) -> None:
        """Work by ``rules`` between the line from here and ``far``; the line is empty."""
        line = self.line
        if self._before is None:
            self._before = line.lead_through(self._left, far.arrive, self._staged)
            self._arrivals = self._before[2]
        if rules == self.rules:
            return
        self.rules = rules
        llr, cbfc = rules.llr, rules.cbfc
        self.replays = None if llr is None else ReplayBuffer(llr)
        self.credits = None if cbfc is None else CreditSender(cbfc, rules.longest_bytes)
        self.cells = None if cbfc is None else CellAccount(*self._buffer, cbfc)
        self._begin()

    def detach(self) -> None:
        """Let the line work without a link layer again; it is empty."""
        if self._before is None:
            return
        self._begin()
        self.line.lead_through(*self._before)
        self._before = self.rules = self.replays = self.credits = self.cells = None

    @property
    def under_way(self) -> bool:
        """Return whether something waits for an answer, or is on the line beside frames."""
        replays = self.replays
        return self.line.busy or (replays is not None and replays.outstanding > 0)

    def begin_row(self) -> None:
        """Begin anew: no frame is under way."""
        self.errors.begin_row()
        self._begin()

    def reset(self) -> None:
        """Lose what is outstanding and on the cable: the carrier is gone."""
        if self._staged.size:
            self._launch(LOW, SET_OCTETS)
        for _ in range(self._seen - self._settled):
            self.coming.lose_flying()
        self._begin()

    def _begin(self) -> None:
        """Start a new era of the cable, with nothing numbered, owed or consumed."""
        self._release()
        self._full.end(self._events.now)
        self._era += 1
        self._seen = self._settled = 0
        self._receiver.reset()
        self._answer = RetryAnswer.NONE
        self._credits_due = self._consumed_due = self._quit_due = False
        self._missing_since = None
        self._resend_at = NEVER
        if self.replays is not None:
            self.replays.reset()
        if self.credits is not None:
            self.credits.reset()
            self._gate(self.credits)
        if self.cells is not None:
            self.cells.reset()

    # The line from here

    def _left(self, item: tuple[int, int, int]) -> None:
        """A frame has left its queue, and goes onto the cable."""
        line = self.line
        queue, octets, _ = item
        if self._staged.size:
            self._launch(queue, octets)
        line.busy = False
        if line.leaves is not None:
            line.leaves.left(*item)
        self._proceed()

    def _launch(self, queue: int, octets: int) -> None:
        """Number the frame that has left, take its credits, and let it arrive."""
        when, order, act, frame = self._staged.pop()
        now, replays, credits = self._events.now, self.replays, self.credits
        number, cells = UNNUMBERED, 0
        if credits is not None and queue == LOW:
            cells = credits.rules.cells_of(octets)
            credits.consume(cells)
            if self._resend_at == NEVER:
                self._resend_at = now + credits.rules.timer_ns * PS
        if replays is not None and not replays.failed:
            number = replays.keep(frame, octets, cells, now)
            if replays.held > self.counters.max_replay_bytes:
                self.counters.max_replay_bytes = replays.held
        errored = self.errors.strike(len(frame) + FCS_OCTETS)
        unit = LinkUnit(FRAME, number, self._era, errored, frame, True, cells)
        self._arrivals.push(when, order, act, unit)
        self._arm()

    def _proceed(self) -> None:
        """Begin with what is next on the idle line."""
        line = self.line
        if line.busy:
            return
        if not line.cut and self._send_own():
            return
        replays, rules = self.replays, self.rules
        if replays is not None and rules is not None and replays.full(rules.longest_bytes):
            line.busy = self._stalled = True
            self._full.begin(self._events.now)
            return
        self._full.end(self._events.now)
        if self.credits is not None:
            self._gate(self.credits)
        if line.queued:
            line.serve()
        if not line.busy and line.idle is not None:
            line.idle()

    def _release(self) -> None:
        """Let the line be idle again if a full replay buffer keeps it busy."""
        if self._stalled:
            self._stalled = self.line.busy = False

    def _gate(self, credits: CreditSender) -> None:
        """Stop the data queue without credits for the longest frame; let it go on with them."""
        line, stopped, now = self.line, credits.stopped, self._events.now
        if stopped is line.low_stopped:
            return
        line.low_stopped = stopped
        if stopped:
            self._uncredited.begin(now)
        else:
            self._uncredited.end(now)

    def _poke(self) -> None:
        """Look what is next, unless a unit is being sent."""
        self._release()
        self._proceed()

    def _send_own(self) -> bool:
        """Begin with an ordered set or a replay, if one is due."""
        due = self._set_due()
        if due is not None:
            kind, number = due
            errored = kind != QUIT and self.errors.strike(SET_OCTETS)
            unit = LinkUnit(kind, number, self._era, errored)
            self.line.occupy_with(SET_OCTETS, self._set_left, unit, self._arrivals)
            return True
        replays = self.replays
        frame = None if replays is None else replays.replay()
        if frame is None:
            return False
        number, content, octets, cells = frame
        self.counters.replayed_frames += 1
        self.counters.replayed_bytes += octets
        errored = self.errors.strike(len(content) + FCS_OCTETS)
        unit = LinkUnit(FRAME, number, self._era, errored, content, False, cells)
        self.line.occupy_with(octets, self._replay_left, unit, self._arrivals)
        return True

    def _set_due(self) -> tuple[int, int] | None:
        """Return kind and number of the ordered set that is due first; it is owed no longer."""
        counters, expected = self.counters, self._receiver.expected
        if self._quit_due:
            self._quit_due = False
            return QUIT, expected
        answer, self._answer = self._answer, RetryAnswer.NONE
        if answer is RetryAnswer.ACK:
            counters.acks_sent += 1
            return ACK, expected
        if answer is RetryAnswer.NACK:
            counters.nacks_sent += 1
            return NACK, expected
        if self._credits_due and self.cells is not None:
            self._credits_due = False
            counters.credit_updates_sent += 1
            return CREDITS, self.cells.receiver.freed
        if self._consumed_due and self.credits is not None:
            self._consumed_due = False
            # The count would name frames that are still to be replayed as lost.
            if self.replays is None or not self.replays.outstanding:
                counters.consumed_updates_sent += 1
                return CONSUMED, self.credits.consumed
        return None

    def _set_left(self, _: object) -> None:
        """Go on after an ordered set has left."""
        self.line.busy = False
        self._proceed()

    def _replay_left(self, _: object) -> None:
        """Go on after a replayed frame has left."""
        self.line.busy = False
        if self.replays is not None:
            self.replays.replayed(self._events.now)
            self._arm()
        self._proceed()

    # What comes over the cable

    def arrive(self, unit: LinkUnit) -> None:
        """Take ``unit``, which has come over the cable whole."""
        kind, counters = unit.kind, self.counters
        if unit.era != self._era:
            if unit.first:
                self.coming.lose_flying()
        elif kind == FRAME:
            self._take(unit)
        elif unit.errored:
            counters.errored_sets += 1
        elif kind == ACK:
            counters.acks_received += 1
            self._acknowledged(unit.number)
        elif kind == NACK:
            counters.nacks_received += 1
            self._refused(unit.number)
        elif kind == CREDITS:
            counters.credit_updates_received += 1
            self._credited(unit.number)
        elif kind == CONSUMED:
            counters.consumed_updates_received += 1
            self._repair(unit.number)
        else:
            self._give_up()

    def _take(self, unit: LinkUnit) -> None:
        self._seen += unit.first
        if unit.errored:
            self.counters.errored_frames += 1
        if unit.number == UNNUMBERED:
            if unit.errored:
                self.counters.lost_frames += 1
                self._settled += 1
                self.coming.lose_flying()
            else:
                self._pass_on(unit)
            return
        receiver = self._receiver
        if unit.errored:
            taken, answer = False, receiver.error()
        else:
            expected = receiver.expected
            taken, answer = receiver.take(unit.number)
            if not taken:
                if unit.number < expected:
                    self.counters.duplicates += 1
                else:
                    self.counters.out_of_sequence += 1
        if taken:
            self._note_recovery()
        elif self._missing_since is None and answer is RetryAnswer.NACK:
            self._missing_since = self._events.now
        if taken or answer is RetryAnswer.NACK or self._answer is RetryAnswer.NONE:
            self._answer = answer
        if taken:
            self._pass_on(unit)
        if answer is not RetryAnswer.NONE:
            self._poke()

    def _note_recovery(self) -> None:
        """The expected frame has come; count how long it was missed, if it was."""
        if self._missing_since is None:
            return
        took = (self._events.now - self._missing_since) // PS
        self._missing_since = None
        counters = self.counters
        counters.recovered_frames += 1
        counters.recovery_ns += took
        counters.longest_recovery_ns = max(counters.longest_recovery_ns, took)

    def _pass_on(self, unit: LinkUnit) -> None:
        """Give a frame to whoever is behind the cable."""
        self._settled += 1
        cells = self.cells
        if cells is not None and unit.cells:
            cells.receive(unit.frame, unit.cells)
            if cells.held_bytes > self.counters.max_held_bytes:
                self.counters.max_held_bytes = cells.held_bytes
        self.coming.accept(unit.frame)

    def _acknowledged(self, expected: int) -> None:
        replays = self.replays
        if replays is not None and replays.acknowledge(expected, self._events.now):
            self._arm()
            if self._stalled:
                self._poke()

    def _refused(self, expected: int) -> None:
        replays = self.replays
        if replays is None:
            return
        if replays.refuse(expected, self._events.now):
            self.counters.replays += 1
        self._after_replay(replays)

    def _after_replay(self, replays: ReplayBuffer) -> None:
        """Go on after a replay was begun, or given up."""
        if replays.failed:
            self.counters.link_failures += 1
            replays.reset()
            replays.failed = self._quit_due = True
        self._arm()
        self._poke()

    def _give_up(self) -> None:
        """Count what the sender no longer retries as lost, and take frames without numbers."""
        for _ in range(self._seen - self._settled):
            self.counters.lost_frames += 1
            self.coming.lose_flying()
        self._settled = self._seen
        self._missing_since = None

    # Credits

    def guard(self, frame: bytes) -> None:
        """Give ``frame`` to the switch or NIC here, and free its cells if that holds nothing."""
        cells = self.cells
        if cells is None:
            self.deliver(frame)
            return
        before = cells.octets
        self.deliver(frame)
        if cells.settle(frame, before):
            self._freed()

    def give_back(self, octets: int) -> None:
        """A frame that came in here has left the switch, or was lost where it waited to."""
        if self.cells is not None and self.cells.give_back(octets):
            self._freed()

    def _freed(self) -> None:
        self._credits_due = True
        self._poke()

    def _credited(self, freed: int) -> None:
        credits = self.credits
        if credits is None:
            return
        credits.update(freed)
        if not credits.outstanding:
            self._resend_at = NEVER
        if self.line.low_stopped and not credits.stopped:
            self._gate(credits)
            self._poke()

    def _repair(self, consumed: int) -> None:
        if self.cells is not None:
            self.counters.repaired_cells += self.cells.receiver.repair(consumed)
            self._freed()

    # Time

    def _arm(self) -> None:
        """See to it that :meth:`_wake` is called at the next deadline."""
        when = self._resend_at
        if self.replays is not None and self.replays.deadline < when:
            when = self.replays.deadline
        if when < self._armed:
            self._armed = when
            self._events.at(when, self._source.next(), self._wake, when)

    def _wake(self, when: int) -> None:
        if when != self._armed:  # an earlier one has come since
            return
        self._armed = _UNARMED
        now, replays, credits = self._events.now, self.replays, self.credits
        if credits is not None and self._resend_at <= now:
            self._resend_at = now + credits.rules.timer_ns * PS
            self._consumed_due = True
            self._poke()
        if replays is not None and replays.deadline <= now:
            self.counters.replay_timer_expiries += 1
            if replays.expire():
                self.counters.replays += 1
            self._after_replay(replays)
        self._arm()

    def settle(self) -> LinkCounters:
        """Return everything that was counted, with what has passed of a stop that goes on."""
        counters, full, uncredited = self.counters, self._full, self._uncredited
        for clock in (full, uncredited):
            clock.settle(self._events.now)
        counters.buffer_full_stalls, counters.buffer_full_ns = full.stops, full.duration_ns
        counters.credit_stalls = uncredited.stops
        counters.credit_stalled_ns = uncredited.duration_ns
        return counters

    def restart(self) -> None:
        """Begin a span of which the largest and longest shall be known."""
        counters, cells = self.counters, self.cells
        counters.longest_recovery_ns = 0
        counters.max_replay_bytes = 0 if self.replays is None else self.replays.held
        counters.max_held_bytes = 0 if cells is None else cells.held_bytes


def _nowhere(frame: bytes) -> None:
    """Nobody takes frames yet."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Rules of a cable, and the errors of what leaves one end of it."""

    rules: LinkRules | None
    errors: ErrorRates


def link_settings(asic: FabricAsic) -> dict[CableEnd, LinkSettings]:
    """Return the present settings of both ends of all cables at switches of ``asic``."""
    return {end: link_settings_of(asic, end) for end in asic.pauses.cables}


def link_settings_of(asic: FabricAsic, end: CableEnd) -> LinkSettings:
    """The settings of port ``end``."""
    rules = asic.fitted.link(asic.pauses.cables[end])
    return LinkSettings(rules, ErrorRates.of(asic.faults_from(str(end))))


class LinkLayer:
    """The ends of ``lines`` at cables of ``asic``'s switches; ``owns`` names this worker's nodes.

    Sources of events are numbered from ``first_source`` on.
    """

    def __init__(
        self,
        asic: FabricAsic,
        topology: Topology,
        lines: Mapping[CableEnd, Line],
        events: EventQueue,
        first_source: int,
        owns: Callable[[str], bool],
    ) -> None:
        state = asic.state
        self._asic, self._far_end, self._lines, self._owns = asic, topology.far_end, lines, owns
        self._depths = state.ports
        self.ends: dict[CableEnd, LinkEnd] = {}
        self._by_index: dict[int, LinkEnd] = {}
        for number, end in enumerate(asic.pauses.cables):
            if end not in lines:
                continue
            port = asic.ports.get(str(end))
            buffer = state.lossless_buffer(None if port is None else port.index)
            made = LinkEnd(
                lines[end],
                lines[topology.far_end(end)],
                events,
                Source(first_source + number),
                buffer,
            )
            self.ends[end] = made
            if port is not None:
                self._by_index[port.index] = made

    def configure(self, settings: Mapping[CableEnd, LinkSettings]) -> None:
        """Have all cables work by ``settings``; none has a frame on it."""
        for end, one in self.ends.items():
            own = settings[end]
            one.errors.rates = own.errors
            if own.rules is None:
                one.detach()
            else:
                one.attach(self.ends[self._far_end(end)], own.rules)

    def apply_fault(self, end: CableEnd, settings: LinkSettings) -> None:
        """Let what leaves ``end`` from now on have the errors of ``settings``."""
        if end in self.ends:
            self.ends[end].errors.rates = settings.errors

    def begin_row(self, seed: int | None = None) -> None:
        """Begin anew on empty cables, and draw errors anew, by ``seed`` if there is another."""
        for one in self.ends.values():
            if seed is not None:
                one.errors.begin_row(seed)
            one.begin_row()

    def reset(self, ends: Collection[CableEnd]) -> None:
        """Lose what is on the cables of ``ends``, whose carrier is gone."""
        for end in ends:
            if end in self.ends:
                self.ends[end].reset()

    def guarded(self, end: CableEnd, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Takes what arrives at ``end`` for ``take``; frees its cells where nothing holds it."""
        one = self.ends.get(end)
        if one is None:
            return take
        one.deliver = take
        return one.guard

    def guard(self, ends: Collection[CableEnd]) -> None:
        """Stand before whoever takes what arrives at ``ends`` now."""
        for end in sorted(ends):
            line = self._lines[self._far_end(end)]
            line.far = self.guarded(end, line.far)

    def credited(self, end: CableEnd) -> bool:
        """Return whether what comes in at the switch of port ``end`` takes cells."""
        one = self.ends.get(end)
        return one is not None and one.cells is not None

    def leaves(self, end: CableEnd) -> Callable[[int, int, int], None]:
        """Return a function that takes a frame's octets off its queue, and frees its cells.

        The cells are those of the port by which the frame came in.
        """
        depths, by_index = self._depths, self._by_index
        port = self._asic.ports[str(end)]
        at, pool = port.index * PORT_WORDS + DEPTH - HIGH, self._asic.state.pool(port.switch)

        def left(queue: int, octets: int, origin: int) -> None:
            if queue == MAC_CONTROL:
                return
            if pool is not None and queue != LOW:
                pool.leave_queue(depths[at + queue], octets)
            depths[at + queue] -= octets
            if queue == LOW and origin:
                by_index[origin].give_back(octets)

        return left

    def under_way(self, end: CableEnd) -> bool:
        """Return whether the link layer at ``end`` still waits for an answer."""
        one = self.ends.get(end)
        return one is not None and one.rules is not None and one.under_way

    def restart(self) -> None:
        """Measure the largest and longest anew; counts go on."""
        for one in self.ends.values():
            one.restart()

    def counters(self) -> dict[str, LinkCounters]:
        """Counters up to now of this worker's ports whose cable has a link layer."""
        return {
            str(end): one.settle()
            for end, one in self.ends.items()
            if one.rules is not None and self._owns(end.node)
        }
