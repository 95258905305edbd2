"""Several transports on one fabric: what ``--transport uet,rocev2:qps=4`` asks for.

Every scenario then runs once for each of them, on the same fabric, with the same seed and so the
same workload; the switches are told the same, except for what a transport cannot do without or
cannot use, which each row's ``switch`` says.  All rows have the same measures, whatever the
scenario's own table shows:

``payload_bytes``
    octets that all GPUs together were to deliver in an iteration; it is the same for all.
``message_p50_us``, ``message_p99_us``, ``message_p999_us``
    from a message's start until its receiver has verified it (nearest rank).
``retransmitted_bytes``
    octets of the frames that were sent again, from the Ethernet header on, over all iterations.
``cnps``
    congestion notification packets that were sent; None where the transport has none.

and those of :mod:`emulator.run.traffic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from emulator.errors import UserError
from emulator.run import traffic
from emulator.run.metrics import percentile
from emulator.run.table import FABRIC_COLUMNS, NCCL_COLUMNS, TRAFFIC_COLUMNS, Column
from emulator.scenario import Outcome
from emulator.transports import TRANSPORTS
from topologies.model import Topology

#: The word for UET beside RoCEv2 as each of its advocates would set it up.
COMPARE = "compare"
COMPARED = ("uet", "rocev2:classic", "rocev2:nccl", "rocev2:adaptive")
#: Between a transport and the switch that it is run on.
ON = "@"
#: Names under which endpoints count these.
RESENT_OCTETS, CNPS = "tx_retransmitted_octets", "tx_cnps"

MEASURES = (
    Column("size_bytes", "size", "(B)", 9),
    Column("time_us", "time", "(us)", 8),
    Column("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    Column("busbw_gbps", "busbw", "(GB/s)", 7),
    Column("message_p50_us", "p50", "(us)", 8),
    Column("message_p99_us", "p99", "(us)", 8),
    Column("message_p999_us", "p99.9", "(us)", 8),
    Column("marked_packets", "marks", "", 7),
    Column("cnps", "CNPs", "", 6),
    Column("trimmed_packets", "trims", "", 6),
    Column("dropped_packets", "drops", "", 6),
    Column("retransmitted_bytes", "resent", "(KB)", 8, 1, divisor=1000),
    Column("timeouts", "RTOs", "", 5),
    Column("pauses", "pauses", "", 6),
    Column("paused_us", "paused", "(us)", 8, 1),
    Column("links_max_mean", "max/mean", "links", 8),
    Column("jain", "Jain", "", 6, 3),
    Column("reordered_packets", "reord", "", 6),
    Column("wrong", "#wrong", "", 6),
)


#: What other tables show and this one does not, or in its own place.
_ELSEWHERE = {column.key for column in (*NCCL_COLUMNS, *FABRIC_COLUMNS, *TRAFFIC_COLUMNS)}


def columns(own: Sequence[Column], transports: Sequence[str]) -> tuple[Column, ...]:
    """The table of a comparison of ``transports``.

    Of the scenario's ``own`` columns it has those that nobody else's table has: what tells its rows
    apart, and what it alone measures.
    """
    name = Column("transport", "transport", "", max(map(len, ("transport", *transports))))
    return (name, *(column for column in own if column.key not in _ELSEWHERE), *MEASURES)


@dataclass(frozen=True)
class Variant:
    """A transport of a run, and the switch that it names; None leaves either to the run."""

    transport: str | None = None
    switch: str | None = None

    @property
    def label(self) -> str | None:
        """As the user wrote it."""
        return self.transport if self.switch is None else f"{self.transport}{ON}{self.switch}"


def variants(wanted: str | None) -> list[Variant]:
    """The transports that ``wanted`` names, in its order.

    Commas part transports as they part parameters: what is the name of a transport, alone or
    before a colon or an ``@``, begins another one.  ``@`` stands before the switch that a
    transport is to be run on, and :data:`COMPARE` for :data:`COMPARED`.  :class:`UserError` if one
    is there twice, or ``@`` stands before nothing.
    """
    if wanted is None:
        return [Variant()]
    found: list[str] = []
    for part in _parts(wanted):
        name, colon, _ = part.partition(ON)[0].partition(":")
        begins = name in TRANSPORTS or (bool(colon) and "=" not in name)
        if begins or not found:
            found.append(part)
        else:
            last = found[-1].rpartition(ON)[2]
            found[-1] += f"{',' if ':' in last else ':'}{part}"
    for variant in found:
        if found.count(variant) > 1:
            raise UserError(
                f"--transport has {variant} twice; runs of one transport that differ only in "
                "chance are what --seeds N is for"
            )
    return [_variant(text) for text in found]


def _parts(wanted: str) -> Iterator[str]:
    for part in wanted.split(","):
        if part.strip() == COMPARE:
            yield from COMPARED
        else:
            yield part.strip()


def _variant(text: str) -> Variant:
    transport, on, switch = text.partition(ON)
    if on and (not switch or not transport or ON in switch):
        raise UserError(
            f"--transport {text!r}: one switch follows {ON}, as in uet{ON}deep or "
            f"rocev2:adaptive{ON}balance=least-loaded"
        )
    return Variant(transport, switch or None)


def measured(topology: Topology, outcome: Outcome) -> dict[str, object]:
    """The values described above."""
    iterations = outcome.iterations
    durations = [
        duration
        for iteration in iterations
        for duration in (iteration.end_ns - iteration.start_ns).tolist()
    ]
    p999 = percentile(durations, 0.999)
    measured = traffic.measured(topology, outcome)
    return measured | {
        "payload_bytes": int(iterations[0].length.sum()) if iterations else 0,
        "message_p999_us": None if p999 is None else p999 / 1000,
        "retransmitted_bytes": outcome.counters.get(RESENT_OCTETS, 0),
        "cnps": outcome.counters.get(CNPS),
        # Endpoints count what has happened; all of these here count this.
        "reordered_packets": measured["reordered_packets"] or 0,
    }


def summary(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """How long each transport took in proportion to the first one, a line for each other one."""
    by_transport: dict[str, list[float]] = {}
    for row in rows:
        time = row["time_us"]
        assert isinstance(time, float | int)
        by_transport.setdefault(str(row["transport"]), []).append(time)
    if len(by_transport) < 2:
        return []
    (first, base), *others = by_transport.items()
    lines = []
    for name, times in others:
        ratios = [time / other for time, other in zip(times, base, strict=False) if other]
        if ratios:
            listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(f"{name} takes {listed} times as long as {first}")
    return lines


def settings(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Which switches each transport ran on, if they differ."""
    used: dict[str, list[str]] = {}
    for row in rows:
        used.setdefault(str(row["transport"]), []).append(str(row["switch"]))
    if len({tuple(dict.fromkeys(switches)) for switches in used.values()}) < 2:
        return []
    return [
        f"{name} on {', '.join(dict.fromkeys(chain(switches)))}" for name, switches in used.items()
    ]
