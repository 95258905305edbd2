"""Was the run limited by the fabric, as it should be, or by the computer underneath?

These things spoil an emulation without any error: processes that wake up too late, processors that
are busy all the time, packets that are lost where no modelled queue is, and faults or samples that
are not on time. Each is measured and held against a threshold; if one is above it, the verdict is
``host-limited`` and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

#: Late wake-ups may add this much of a base round-trip time to a deadline ...
SLIP_P99 = 0.25
#: ... and once in a while this much (one hiccup delays a ring once, not at every hop).
SLIP_MAX = 4.0
#: All that an agent was late by at least half a microsecond may add up to this share of an
#: iteration: many hiccups that are harmless one by one cost as much as one that is not.
STALLED = 0.03
#: A fault may come this much of a base round-trip time late.
FAULT_LATE = 1.0
#: A pause (PFC) may take effect this much of a base round-trip time late.
PAUSE_LATE = 0.25
#: Busy share of all processors during the measured iterations; above it queues form for the CPU.
BUSY = 0.95


@dataclass(frozen=True)
class Input:
    """One measured value and the threshold it is held against."""

    name: str
    value: float
    unit: str
    threshold: float
    tripped: bool
    meaning: str


@dataclass(frozen=True)
class Slip:
    """How late agents woke, in ns of fabric time, and out of how many wake-ups.

    ``stalled`` is the share (0..1) of the time that long ones among them took up.
    """

    wakeups: int
    p99_ns: float
    max_ns: float
    stalled: float = 0.0


def judge(
    *,
    slip: Slip,
    base_rtt_ns: int,
    busy: float,
    foreign_drops: Mapping[str, int],
    late_fault_ns: int = 0,
    late_pause_ns: int = 0,
) -> dict[str, object]:
    """The verdict with its inputs and reasons, as it stands in ``result.json``.

    ``busy`` is the share of processor time in use during the measured iterations (0..1),
    ``foreign_drops`` the packets lost outside the modelled queues, by place: of a switch with an
    ASIC these are the drops of the kernel's queues below the model.  ``late_fault_ns`` is how late
    (fabric time) the latest fault of a trial was applied, ``late_pause_ns`` a pause (PFC).
    """
    lost = {place: count for place, count in foreign_drops.items() if count}
    inputs = [
        _held(
            "timer_slip_p99",
            slip.p99_ns,
            "ns",
            SLIP_P99 * base_rtt_ns,
            "how late an agent wakes, in 99 of 100 cases at most, against the base round trip",
        ),
        _held(
            "timer_slip_max",
            slip.max_ns,
            "ns",
            SLIP_MAX * base_rtt_ns,
            "the latest wake-up of any agent",
        ),
        _held(
            "stalled",
            slip.stalled,
            "",
            STALLED,
            "share of an iteration that an agent lost in wake-ups at least half a microsecond late",
        ),
        _held(
            "processors_busy",
            busy,
            "",
            BUSY,
            "share of all processors' time in use while iterations were measured",
        ),
        _held(
            "drops_outside_queues",
            sum(lost.values()),
            "packets",
            0,
            "losses in sockets and interfaces, where the fabric has no queue",
        ),
        _held(
            "fault_lateness",
            late_fault_ns,
            "ns",
            FAULT_LATE * base_rtt_ns,
            "how late a fault of a trial was applied at worst, against the base round trip",
        ),
        _held(
            "pause_lateness",
            late_pause_ns,
            "ns",
            PAUSE_LATE * base_rtt_ns,
            "how late a pause took effect at worst, against the base round trip",
        ),
    ]
    reasons = list(_reasons(inputs, lost, base_rtt_ns))
    return {
        "verdict": "host-limited" if reasons else "ok",
        "reasons": reasons,
        "base_rtt_ns": base_rtt_ns,
        "wakeups": slip.wakeups,
        "drops": lost,
        "inputs": [asdict(item) for item in inputs],
    }


def _held(name: str, value: float, unit: str, threshold: float, meaning: str) -> Input:
    return Input(name, value, unit, threshold, value > threshold, meaning)


def _reasons(inputs: Iterable[Input], lost: Mapping[str, int], base_rtt_ns: int) -> Iterable[str]:
    slower = "raise --dilation"
    for item in inputs:
        if not item.tripped:
            continue
        if item.name == "drops_outside_queues":
            places = ", ".join(f"{place} {count}" for place, count in lost.items())
            yield f"packets were lost outside the modelled queues ({places}); {slower}"
        elif item.name == "fault_lateness":
            yield (
                f"a fault was applied {item.value:.0f} ns of fabric time late (limit "
                f"{item.threshold:.0f} ns); {slower}"
            )
        elif item.name == "stalled":
            yield (
                f"an agent lost {100 * item.value:.0f} % of an iteration in late wake-ups (limit "
                f"{100 * item.threshold:.0f} %); {slower}, or leave the machine to the run"
            )
        elif item.name == "pause_lateness":
            yield (
                f"a pause took effect {item.value:.0f} ns of fabric time late (limit "
                f"{item.threshold:.0f} ns); {slower}"
            )
        elif item.name == "processors_busy":
            yield (
                f"the processors were {100 * item.value:.0f} % busy (limit "
                f"{100 * item.threshold:.0f} %); {slower}, or leave the machine to the run"
            )
        else:
            which = "1 % of wake-ups were" if item.name == "timer_slip_p99" else "one wake-up was"
            yield (
                f"{which} at least {item.value:.0f} ns of fabric time late (limit "
                f"{item.threshold:.0f} ns at a base round trip of {base_rtt_ns} ns); {slower}"
            )
