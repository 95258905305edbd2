"""Fidelity: whether the fabric limited the run, as it should, or the computer underneath did.

These things spoil an emulation without any error. Processes wake up too late or take long to
answer, or processors are busy all the time. Packets are lost or overtake each other where no
modelled queue is, and faults, pauses or samples are not on time.  Each is measured and held against
a threshold; if one is above it, the verdict is ``host-limited`` and names the reason. Every row has
a verdict of its own, and the run has one of all that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

#: Late wake-ups may add this much of a base round-trip time to a deadline ...
SLIP_P99 = 0.25
#: ... and once in a while this much (one hiccup delays a ring once, not at every hop).
SLIP_MAX = 4.0
#: All that an agent was late by at least half a microsecond may add up to this share of an
#: iteration: many hiccups that are harmless one by one cost as much as one that is not.
STALLED = 0.03
#: The agents' own computing may add up to this share of an iteration along its longest chain of
#: messages: at twice the dilation the same run would be faster by half of it.
OWN_TIME = 0.03
#: A fault may come this much of a base round-trip time late.
FAULT_LATE = 1.0
#: A pause (PFC) may be requested, or take effect, this much of a base round-trip time late.
PAUSE_LATE = 0.25
#: Busy share of all processors during the measured iterations; above it queues form for the CPU.
BUSY = 0.95


@dataclass(frozen=True)
class Slip:
    """The lateness of agents' wake-ups in ns of fabric time, and the number of wake-ups.

    ``stalled`` is the share (0..1) of the time that long ones among them took up.
    """

    wakeups: int
    p99_ns: float
    max_ns: float
    stalled: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The computer's performance during the measured iterations.

    ``busy`` is the share of processor time in use (0..1), without what runs at a lower priority.
    ``own_time`` is the share of an iteration that agents spent in computing along the longest chain
    of messages.
    """

    slip: Slip
    busy: float
    own_time: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence for a verdict: all that is held against a threshold.

    ``foreign_drops`` are packets lost outside the modelled queues, by place: at a switch with an
    ASIC these are the drops of the kernel's queues below the model. Drops of a lossless buffer
    whose headroom is what cable and rate require count, too. ``overtaken`` are packets that came
    out of order, by GPU, where every path keeps it. ``late_fault_ns`` is how late (fabric time) the
    latest fault of a trial was applied, ``late_pause_ns`` how late a pause was requested or took
    effect.
    """

    machine: Machine
    foreign_drops: Mapping[str, int] = field(default_factory=dict)
    overtaken: Mapping[str, int] = field(default_factory=dict)
    late_fault_ns: int = 0
    late_pause_ns: int = 0


@dataclass(frozen=True)
class Input:
    """One measured value and the threshold it is held against."""

    name: str
    value: float
    unit: str
    threshold: float
    tripped: bool
    meaning: str


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of evidence, with the sentence for a value above its limit.

    ``limit`` is in base round trips where ``unit`` is ns.  ``reason`` is given value and limit as
    the user shall read them; ``of_iterations``: as numbers of iterations, of which one may cost
    more than its own time.
    """

    name: str
    unit: str
    limit: float
    meaning: str
    value: Callable[[Evidence], float]
    reason: Callable[[Evidence, str, str], str]
    of_iterations: bool = False

    def held(self, evidence: Evidence, base_rtt_ns: int) -> Input:
        limit = self.limit * base_rtt_ns if self.unit == "ns" else self.limit
        value = self.value(evidence)
        return Input(self.name, value, self.unit, limit, value > limit, self.meaning)

    def sentence(self, evidence: Evidence, held: Input) -> str:
        if self.unit == "ns":
            shown = (f"{held.value:.0f} ns of fabric time", f"{held.threshold:.0f} ns")
        elif self.of_iterations:
            shown = (f"{held.value:.2f}", f"{held.threshold:.2f}")
        else:
            shown = (f"{100 * held.value:.0f} %", f"{100 * held.threshold:.0f} %")
        return self.reason(evidence, *shown)


def _by_place(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{place} {count}" for place, count in counts.items() if count)


_SLOWER = "raise --dilation"
_ALONE = f"{_SLOWER}, or leave the machine to the run"
KINDS = (
    _Kind(
        name="timer_slip_p99",
        unit="ns",
        limit=SLIP_P99,
        meaning="how late an agent wakes, in 99 of 100 cases at most, against the base round trip",
        value=lambda seen: seen.machine.slip.p99_ns,
        reason=lambda _, value, limit: (
            f"1 % of wake-ups were at least {value} late (limit {limit}); {_SLOWER}"
        ),
    ),
    _Kind(
        name="timer_slip_max",
        unit="ns",
        limit=SLIP_MAX,
        meaning="the latest wake-up of any agent",
        value=lambda seen: seen.machine.slip.max_ns,
        reason=lambda _, value, limit: (
            f"one wake-up was at least {value} late (limit {limit}); {_SLOWER}"
        ),
    ),
    _Kind(
        name="stalled",
        unit="",
        limit=STALLED,
        meaning="share of an iteration that an agent lost in wake-ups at least half a microsecond "
        "late",
        value=lambda seen: seen.machine.slip.stalled,
        of_iterations=True,
        reason=lambda _, value, limit: (
            f"late wake-ups cost an agent the time of {value} iterations for each one measured "
            f"(limit {limit}); {_ALONE}"
        ),
    ),
    _Kind(
        name="own_time",
        unit="",
        limit=OWN_TIME,
        meaning="share of an iteration that agents compute along its longest chain of messages",
        value=lambda seen: seen.machine.own_time,
        of_iterations=True,
        reason=lambda _, value, limit: (
            f"endpoints computed for the time of {value} iterations along the longest chain of "
            f"messages of each (limit {limit}); {_SLOWER}"
        ),
    ),
    _Kind(
        name="processors_busy",
        unit="",
        limit=BUSY,
        meaning="share of all processors' time in use while iterations were measured",
        value=lambda seen: seen.machine.busy,
        reason=lambda _, value, limit: (
            f"the processors were {value} busy (limit {limit}); {_ALONE}"
        ),
    ),
    _Kind(
        name="drops_outside_queues",
        unit="packets",
        limit=0,
        meaning="losses in sockets, interfaces and headroom, where the fabric loses nothing",
        value=lambda seen: sum(seen.foreign_drops.values()),
        reason=lambda seen, *_: (
            "packets were lost outside the modelled queues "
            f"({_by_place(seen.foreign_drops)}); {_SLOWER}"
        ),
    ),
    _Kind(
        name="overtaken",
        unit="packets",
        limit=0,
        meaning="packets that came out of order, where every path keeps it and nothing was lost",
        value=lambda seen: sum(seen.overtaken.values()),
        reason=lambda seen, *_: (
            "packets of one path overtook each other between processors "
            f"({_by_place(seen.overtaken)}); {_ALONE}"
        ),
    ),
    _Kind(
        name="fault_lateness",
        unit="ns",
        limit=FAULT_LATE,
        meaning="how late a fault of a trial was applied at worst, against the base round trip",
        value=lambda seen: seen.late_fault_ns,
        reason=lambda _, value, limit: (
            f"a fault was applied {value} late (limit {limit}); {_SLOWER}"
        ),
    ),
    _Kind(
        name="pause_lateness",
        unit="ns",
        limit=PAUSE_LATE,
        meaning="how late a pause was asked for or took effect at worst, against the base round "
        "trip",
        value=lambda seen: seen.late_pause_ns,
        reason=lambda _, value, limit: (
            f"a pause was asked for or took effect {value} late (limit {limit}); {_SLOWER}"
        ),
    ),
)


def judge(evidence: Evidence, *, base_rtt_ns: int) -> dict[str, object]:
    """Return the verdict with its inputs and reasons, as it stands in ``result.json``."""
    held = [(kind, kind.held(evidence, base_rtt_ns)) for kind in KINDS]
    reasons = [kind.sentence(evidence, one) for kind, one in held if one.tripped]
    return {
        "verdict": "host-limited" if reasons else "ok",
        "reasons": reasons,
        "base_rtt_ns": base_rtt_ns,
        "wakeups": evidence.machine.slip.wakeups,
        "drops": {place: count for place, count in evidence.foreign_drops.items() if count},
        "inputs": [asdict(one) for _, one in held],
    }
