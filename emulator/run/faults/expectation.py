"""The limits that the user's faults set for a trial.

A job whose ranks are cut off from each other for good cannot end.  It has a shorter time limit, and
its error names the ranks and the fault.  Where nothing will happen any more a run ends at once.
Limits bound timers that never end.

Goodput can be judged between two moments only if there is time between them.  So clauses of the
same instant are one episode, and so are all steps of a flap, which has ended with the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from emulator.dataplane.kernel.fabric.cable_carrier import STATIC
from emulator.run.faults.condition import SOUND, Condition
from emulator.run.faults.grammar import Moment
from emulator.run.faults.reach import Cut, Pair, Reach
from emulator.run.measures.cuts import Change, share_left
from emulator.run.measures.ideal import ideal_ns
from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, OperationTable
from emulator.sim.endpoint.operations.schedule import Compute, Operation, Receive, Schedule, Write
from emulator.transports.wire_cost import WireCost
from emulator.workers.division import JobSchedules
from topologies.model import SHORTEST, Topology


@dataclass(frozen=True)
class Episode:
    """Clauses of the same instants, as the user wrote them: one, or ``steps`` of a flap.

    ``places`` are those of its moments in the timeline.  ``began`` is the one at which all of its
    clauses have come for the first time. From ``judged`` on, the last of any clause at its last
    instant, goodput is judged.
    """

    stated: str
    steps: int
    places: Sequence[int]
    began: int
    judged: int


def episodes(moments: Sequence[Moment]) -> list[Episode]:
    """The episodes of ``moments`` (in order of time), in the order in which they begin."""
    clauses: dict[str, list[int]] = {}
    for place, moment in enumerate(moments):
        clauses.setdefault(moment.clause, []).append(place)
    together: dict[tuple[int, ...], list[str]] = {}
    for clause, places in clauses.items():
        steps = tuple(dict.fromkeys(moments[place].at_ns for place in places))
        together.setdefault(steps, []).append(clause)
    last = {moment.at_ns: place for place, moment in enumerate(moments)}
    found = []
    for instants, stated in together.items():
        own = sorted(place for clause in stated for place in clauses[clause])
        found.append(
            Episode(
                stated="; ".join(stated),
                steps=len(instants),
                places=own,
                began=max(place for place in own if moments[place].at_ns == instants[0]),
                judged=last[instants[-1]],
            )
        )
    return found


T = TypeVar("T")
#: So many pairs of GPUs are named in a sentence.
STATED_PAIRS = 3
#: Errors of a rank whose data came otherwise than it was sent.
_CORRUPTED = frozenset({"checksum", "misplaced"})


def changes_of(moments: Sequence[Moment], topology: Topology) -> list[Change]:
    """Return what ``moments`` do to the rates of the links."""
    found = []
    before = SOUND
    for moment in moments:
        for link in topology.links:
            after, was = moment.condition.of(link), before.of(link)
            if after == was:
                continue
            for end, now, then in (
                (link.a, after, was),
                (link.b, after.seen_from_b(), was.seen_from_b()),
            ):
                if share_left(now) != share_left(then):
                    found.append(Change(moment.at_ns, end, share_left(now)))
        before = moment.condition
    return found


@dataclass(frozen=True)
class FaultExpectation:
    """The pairs and times that ``moments`` leave possible for one trial.

    ``ideal_ns`` is the bound with them, None if the trial cannot end; ``allowed`` the share of
    goodput (0..1) that the links leave from each moment on to those that still have a way;
    ``cut_off`` the GPUs cut off then, and ``cut_pairs`` the pairs of others.  ``lacking`` are the
    pairs (sender first) that the trial has send and that cannot then; ``severed`` those that cannot
    from the last moment on.  ``static``: switches far away get no notice of a dead cable.  ``gpus``
    are those of all ranks, and ``copying`` the pairs with copies over their scale-up networks.
    """

    moments: Sequence[Moment]
    ideal_ns: float | None
    allowed: Sequence[float]
    cut_off: Sequence[Sequence[str]]
    cut_pairs: Sequence[Sequence[Pair]]
    lacking: Sequence[frozenset[Pair]]
    static: bool
    gpus: Sequence[str]
    copying: frozenset[Pair]
    reach: Reach

    @classmethod
    def of(
        cls,
        moments: Sequence[Moment],
        topology: Topology,
        schedules: Sequence[Schedule],
        wire: WireCost,
        others: Sequence[Change] = (),
    ) -> FaultExpectation:
        """Return the limits; ``others`` are changes that the scenario itself makes.

        All processes of a division call it, with the schedules of their GPUs.
        """
        job = JobSchedules.of(schedules)

        def bound(changes: Sequence[Change], schedules: Sequence[Schedule] = job) -> float:
            try:
                return ideal_ns(topology, schedules, wire, [*changes, *others])
            except ValueError:  # the schedules are known to be sound: some traffic has no way
                return math.inf

        whole = bound(())
        gather = job.division.processes.gather
        parts = gather("senders", _senders(topology, schedules, WRITE))
        copies = gather("copying", _senders(topology, schedules, COPY))
        reach, needed = Reach(topology), frozenset[Pair]().union(*parts)
        shares: dict[Condition, float] = {}  # a flap has a thousand moments and two conditions
        cuts: dict[Condition, Cut] = {}
        lacking: dict[Condition, frozenset[Pair]] = {}
        # in their order, so that all processes do the same
        for condition in dict.fromkeys(moment.condition for moment in moments):
            lost = lacking[condition] = _lacking(reach, needed, condition)
            rest = job.changed(_without(topology, schedules, lost)) if lost else job
            usual = bound((), rest) if lost else whole
            least = bound(changes_of([Moment(0, "", condition)], topology), rest)
            shares[condition] = usual / least if least else 1.0
            if lost == needed:
                shares[condition] = 0.0
            cut = reach.cut(condition)
            cuts[condition] = replace(cut, pairs=_first(cut.pairs, needed))
        ideal = bound(changes_of(moments, topology))
        without = [lacking[moment.condition] for moment in moments]
        return cls(
            moments=moments,
            ideal_ns=None if math.isinf(ideal) or (without and without[-1]) else ideal,
            allowed=[shares[moment.condition] for moment in moments],
            cut_off=[list(cuts[moment.condition].gpus) for moment in moments],
            cut_pairs=[cuts[moment.condition].pairs for moment in moments],
            lacking=without,
            static=topology.profile.control_plane == STATIC,
            gpus=[gpu.name for gpu in topology.gpus],
            copying=frozenset[Pair]().union(*copies),
            reach=reach,
        )

    @property
    def severed(self) -> Sequence[Pair]:
        return sorted(self.lacking[-1]) if self.lacking else ()

    @property
    def ever_cut_off(self) -> list[str]:
        return _any(self.cut_off)

    @property
    def ever_cut_pairs(self) -> list[Pair]:
        return _any(self.cut_pairs)

    def cut_off_by(self, episode: Episode) -> list[str]:
        """The GPUs cut off from it on; of a flap, by any of its steps."""
        return _any([self.cut_off[place] for place in _telling(episode)])

    def cut_pairs_by(self, episode: Episode) -> list[Pair]:
        """The pairs of others, likewise."""
        return _any([self.cut_pairs[place] for place in _telling(episode)])

    def sentence(self, error: EndpointError) -> str:
        """``error``, with what the faults have to do with it: nothing, if a process has died."""
        if error.died:
            return str(error)
        if self.severed:
            return f"{self._forlorn()}, and the job cannot end without: {error}"
        if gone := self.ever_cut_off:
            return f"{error}; the faults cut off {', '.join(gone)} for a time"
        if apart := self._undirected(frozenset().union(*self.lacking)):
            return f"{error}; the faults cut off {some_pairs(apart)} for a time"
        faulted = [faults for moment in self.moments for faults in moment.condition.faults.values()]
        named = {result.error for result in error.results}
        if any(faults.corruption for faults in faulted) and named & _CORRUPTED:
            return (
                f"{error}; corrupt inverts bits inside a switch, where no frame check sees it: "
                "--transport uet:crc=on has receivers drop such packets"
            )
        down = [one for moment in self.moments for one in moment.condition.down if one.links]
        if down and self.static:
            return (
                f"{error}; routes are static, so while {down[0]} was down, switches far from it "
                "went on sending there"
            )
        first = next((moment for moment in self.moments if moment.condition.separates), None)
        if first is not None:
            return f"{error}; the first fault that nothing came through was {first.text!r}"
        return str(error)

    def _forlorn(self) -> str:
        """Return who is cut off for good, and by what."""
        gone = self.cut_off[-1]
        alone = [pair for pair in self.severed if not set(pair).isdisjoint(gone)]
        apart = self._undirected(pair for pair in self.severed if set(pair).isdisjoint(gone))
        stated = []
        if alone:
            ranks = ", ".join(str(self.gpus.index(name)) for name in gone)
            who, verb = ("rank", "is") if len(gone) == 1 else ("ranks", "are")
            causes = self._since(lambda place: set(gone) <= set(self.cut_off[place]))
            stated.append(f"{who} {ranks} ({', '.join(gone)}) {verb} cut off for good by {causes}")
        if apart:
            verb = "is" if len(apart) == 1 else "are"
            causes = " and ".join(self._causes(apart))
            stated.append(
                f"{some_pairs(apart)} {verb} cut off for good by {causes}{self._why(apart)}"
            )
        return ", and ".join(stated)

    def _undirected(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Each pair once, whoever sends, in rank order."""
        rank = {name: number for number, name in enumerate(self.gpus)}
        once = {(a, b) if rank[a] < rank[b] else (b, a) for a, b in pairs}
        return sorted(once, key=lambda pair: (rank[pair[0]], rank[pair[1]]))

    def _causes(self, pairs: Iterable[Pair]) -> list[str]:
        """Return the clauses that together cut off each of ``pairs`` for good."""
        last = self.moments[-1].condition
        found: dict[str, None] = {}
        for a, b in pairs:
            for cables in self.reach.causes(a, b, last):
                held = [cables <= moment.condition.impassable for moment in self.moments]
                found[self._since(held.__getitem__)] = None
        return list(found)

    def _why(self, pairs: Iterable[Pair]) -> str:
        """Why nobody finds ``pairs`` another way, if there is one."""
        rerouted = self.reach.rerouted() if self.static else None
        if rerouted is None:
            return ""
        left = rerouted.left(self.moments[-1].condition)
        if any(b not in left[a] for a, b in pairs):
            return ""
        shortest = self.reach.topology.profile.routing == SHORTEST
        with_it = "" if shortest else f"routing={SHORTEST} and "
        return f" (routes are static: {with_it}--control-plane ebgp would find another way)"

    def _since(self, holds: Callable[[int], bool]) -> str:
        """Return the moment, as the user wrote it, from which on something holds for good."""
        place = len(self.moments) - 1
        while place and holds(place - 1):
            place -= 1
        return repr(self.moments[place].text)


def _telling(episode: Episode) -> Sequence[int]:
    """Return the moments that decide whom an episode cuts off: all of a flap, else the last."""
    return episode.places if episode.steps > 1 else [episode.judged]


def _any(parts: Iterable[Sequence[T]]) -> list[T]:
    """Return what is in any of ``parts``, once.

    A flap has a thousand of them, and two different ones.
    """
    different = {id(part): part for part in parts}.values()
    return list(dict.fromkeys(one for part in different for one in part))


def _ways(pair: Pair) -> tuple[Pair, Pair]:
    return pair, (pair[1], pair[0])


def _senders(topology: Topology, schedules: Sequence[Schedule], kind: int) -> frozenset[Pair]:
    """The pairs of GPUs of which the first has operations of ``kind`` to the second."""
    names = [gpu.name for gpu in topology.gpus]
    return frozenset(
        (names[schedule.rank], names[peer])
        for schedule in schedules
        for peer in OperationTable.of(schedule.operations).peers(kind)
    )


def _lacking(reach: Reach, needed: Iterable[Pair], condition: Condition) -> frozenset[Pair]:
    """Return the pairs of ``needed`` that have no path there or back in ``condition``."""
    if not condition.separates:
        return frozenset()
    left = reach.left(condition)
    return frozenset((a, b) for a, b in needed if b not in left[a])


def _without(
    topology: Topology, schedules: Sequence[Schedule], lost: frozenset[Pair]
) -> list[Schedule]:
    """Return ``schedules`` without the messages between the pairs ``lost``.

    Nobody sends them, or waits for them.
    """
    names = [gpu.name for gpu in topology.gpus]

    def left(rank: int, operation: Operation) -> Operation:
        match operation:
            case Write(peer=peer) if (names[rank], names[peer]) in lost:
                return Compute(duration_ns=0, after=operation.after)
            case Receive(peer=peer) if (names[peer], names[rank]) in lost:
                return Compute(duration_ns=0, after=operation.after)
        return operation

    return [
        replace(schedule, operations=tuple(left(schedule.rank, one) for one in schedule.operations))
        for schedule in schedules
    ]


def _first(pairs: Sequence[Pair], needed: frozenset[Pair]) -> tuple[Pair, ...]:
    """``pairs`` with those first that are needed, this way or that."""
    return tuple(sorted(pairs, key=lambda pair: needed.isdisjoint(_ways(pair))))


def some_pairs(pairs: Sequence[Pair], count: int | None = None) -> str:
    """The first of ``pairs``, and how many there are: ``count``, where they are not all."""
    shown = ", ".join(f"{a} - {b}" for a, b in pairs[:STATED_PAIRS])
    total = len(pairs) if count is None else count
    if total == 1:
        return f"the pair {shown}"
    more = total - STATED_PAIRS
    return f"{total} pairs ({shown}{f' and {more} more' if more > 0 else ''})"


#: What an iteration may take, in ideal times, and fabric time (s) beyond that.
TIMEOUT_FACTOR = 20.0
BEYOND_S = 10.0


def time_limit_s(ideal_ns: float, faulted_ns: int = 0) -> float:
    """Fabric time (s) for an iteration with the bound ``ideal_ns`` and faults until then (ns)."""
    return BEYOND_S + (TIMEOUT_FACTOR * ideal_ns + faulted_ns) * 1e-9
