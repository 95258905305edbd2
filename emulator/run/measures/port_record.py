"""Counters and queue depths of the fabric's ports in the measured iterations of a trial.

Two observers count at each port of a switch: the kernel (frames on the veth, the queues of the HTB
below) and the model of the ASIC. The model counts classes, marks, trims, drops and the depth of its
queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

from emulator.arithmetic import jain, max_mean
from emulator.dataplane.kernel.port_counters import PortCounters, QueueCounters
from emulator.dataplane.switch import cable_counters
from emulator.dataplane.switch.bpf.layout import DropReason, Queue, TrafficClass
from emulator.dataplane.switch.cable_counters import LinkCounters, PauseCounters, link_change
from emulator.dataplane.switch.switch_counters import (
    NO_PACKETS,
    AsicCounters,
    ClassCounters,
    PoolUse,
    QueueDepth,
)
from topologies.analysis.capacity import HEIGHT
from topologies.model import Topology

#: A set of counters: a dataclass of numbers and of further ones.
Counts = TypeVar("Counts", PortCounters, QueueCounters, ClassCounters)


@dataclass(frozen=True, kw_only=True)
class PortRecord:
    """One port; ``asic`` is None for the port of a NIC, which no switch models.

    Its queues' ``max_bytes`` and ``bytes`` are not differences: the deepest that the queue was
    since the trial's measured iterations began, and the depth at their end.
    """

    kernel: PortCounters
    asic: AsicCounters | None = None
    #: None where the switches do not pause
    pause: PauseCounters | None = None
    #: None where cables have no link layer
    link: LinkCounters | None = None
    #: of a switch port's buffer, kept for lossless data; None where there is none
    reserved_bytes: int | None = None

    @property
    def bytes(self) -> int:
        """Octets that left through the port, from the Ethernet header on."""
        return self.kernel.tx_bytes

    @property
    def marked(self) -> int:
        return self._sum("marked")

    @property
    def trimmed(self) -> int:
        return self._sum("trimmed")

    @property
    def drops(self) -> Mapping[str, int]:
        """Packets that the switch dropped, by reason."""
        total: Counter[str] = Counter()
        for row in self.asic.classes.values() if self.asic else ():
            total.update({reason.name.lower(): count for reason, count in row.drops.items()})
        return total

    @property
    def dropped(self) -> int:
        return sum(self.drops.values())

    @property
    def frames_lost(self) -> int:
        """Frames that did not go on whole: dropped, trimmed, or taken by bit errors."""
        kernel = self.kernel.data.drops + self.kernel.control.drops
        errors = 0 if self.link is None else self.link.lost_frames
        return kernel + self.trimmed + self.dropped + errors

    @property
    def max_queue_bytes(self) -> int:
        """The deepest that the queue of data was, in octets on the wire."""
        return self.asic.queues[Queue.LOW].max_bytes if self.asic else 0

    def as_dict(self) -> dict[str, int]:
        """Return the port's counters for a run folder; counts of 0 are left out.

        Counters that the port does not have are left out, too.  ``dropped`` has its parts under
        ``dropped_`` and the reason.
        """
        found = {"tx_packets": self.kernel.tx_packets, "tx_bytes": self.kernel.tx_bytes}
        if self.asic is not None:
            found |= {"marked": self.marked, "trimmed": self.trimmed, "dropped": self.dropped}
            found |= {f"dropped_{reason}": count for reason, count in self.drops.items()}
        if self.pause is not None:
            found |= {"xoff_sent": self.pause.xoff_sent, "paused_ns": self.pause.paused_ns}
        if self.link is not None:
            found |= {
                "replays": self.link.replays,
                "credit_stalled_ns": self.link.credit_stalled_ns,
            }
        return {name: count for name, count in found.items() if count}

    def _sum(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.asic.classes.values()) if self.asic else 0


def changes(
    kernel: tuple[Mapping[str, PortCounters], Mapping[str, PortCounters]],
    asic: tuple[Mapping[str, AsicCounters], Mapping[str, AsicCounters]],
    pauses: tuple[Mapping[str, PauseCounters], Mapping[str, PauseCounters]] = ({}, {}),
    links: tuple[Mapping[str, LinkCounters], Mapping[str, LinkCounters]] = ({}, {}),
    reserved: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, PortRecord]:
    """Return what all ports counted between two readings (before, after), by ``node:port``.

    ``reserved`` are the octets that switch ports keep for lossless data.
    """
    return {
        name: PortRecord(
            kernel=_combined(port, kernel[0][name], -1),
            asic=_asic_change(asic[0].get(name), asic[1].get(name)),
            pause=cable_counters.change(pauses[0].get(name), pauses[1][name])
            if name in pauses[1]
            else None,
            link=link_change(links[0].get(name), links[1][name]) if name in links[1] else None,
            reserved_bytes=reserved.get(name),
        )
        for name, port in kernel[1].items()
    }


def total(earlier: AsicCounters | None, later: AsicCounters) -> AsicCounters:
    """Two spans of one port as one: counts add up, the deeper of two depths stays."""
    if earlier is None:
        return later
    return AsicCounters(
        _classes(later.classes, earlier.classes, 1),
        {queue: _deeper(depth, earlier.queues[queue]) for queue, depth in later.queues.items()},
        _fuller(later.pool, earlier.pool),
    )


def _fuller(pool: PoolUse | None, earlier: PoolUse | None) -> PoolUse | None:
    if pool is None or earlier is None:
        return pool or earlier
    return replace(
        pool,
        max_bytes=max(pool.max_bytes, earlier.max_bytes),
        headroom_max_bytes=max(pool.headroom_max_bytes, earlier.headroom_max_bytes),
    )


def _deeper(depth: QueueDepth, earlier: QueueDepth) -> QueueDepth:
    if not earlier.max_bytes and not any(earlier.histogram):
        return depth
    histogram = depth.histogram
    if earlier.bin_bytes == depth.bin_bytes:  # of other bins it would mean something else
        histogram = tuple(a + b for a, b in zip(histogram, earlier.histogram, strict=True))
    deepest = max(depth.max_bytes, earlier.max_bytes)
    return QueueDepth(depth.bytes, deepest, histogram, depth.bin_bytes)


def _asic_change(before: AsicCounters | None, after: AsicCounters | None) -> AsicCounters | None:
    if before is None or after is None:
        return after
    queues = {}
    for queue, depth in after.queues.items():
        earlier = before.queues[queue].histogram
        counts = depth.histogram
        if any(earlier):
            counts = tuple(a - b for a, b in zip(counts, earlier, strict=True))
        queues[queue] = QueueDepth(depth.bytes, depth.max_bytes, counts, depth.bin_bytes)
    return AsicCounters(_classes(after.classes, before.classes, -1), queues, after.pool)


def _classes(
    later: Mapping[TrafficClass, ClassCounters],
    earlier: Mapping[TrafficClass, ClassCounters],
    sign: int,
) -> dict[TrafficClass, ClassCounters]:
    return {
        kind: row if earlier[kind] is NO_PACKETS else _combined(row, earlier[kind], sign)
        for kind, row in later.items()
    }


_NAMES: Mapping[type, tuple[str, ...]] = {
    kind: tuple(item.name for item in fields(kind))
    for kind in (PortCounters, QueueCounters, ClassCounters)
}


def _combined(one: Counts, other: Counts, sign: int) -> Counts:
    values: dict[str, Any] = {}
    for name in _NAMES[type(one)]:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, QueueCounters):
            values[name] = _combined(a, b, sign)
        elif isinstance(a, dict):
            values[name] = {key: count + sign * b[key] for key, count in a.items()}
        elif name.startswith("backlog_"):
            values[name] = a  # a state, not a count
        else:
            values[name] = a + sign * b
    return type(one)(**values)


def failures(asic: Mapping[str, AsicCounters]) -> dict[str, int]:
    """Return by port the packets that the model lost for lack of memory, as no switch would."""
    return {
        f"{name} asic": sum(row.drops[DropReason.FAILURE] for row in port.classes.values())
        for name, port in asic.items()
    }


@dataclass(frozen=True)
class Balance:
    """The balance of loads over parallel links: the uplinks of the switches of one tier.

    ``max_mean`` is the worst switch's: its busiest uplink over the mean of its uplinks.  ``jain``
    is the least of the switches' Jain's indices.
    """

    tier: str
    max_mean: float
    jain: float


def balance(topology: Topology, ports: Mapping[str, PortRecord]) -> Balance | None:
    """The balance of the busiest tier whose switches have several uplinks.

    ``None`` if no such uplink carried data.  A switch counts if it sent at least a tenth of what
    the busiest of its tier did: acknowledgements alone are no load to be balanced.
    """
    tiers: dict[str, list[list[int]]] = {}
    for switch in topology.switches:
        height = HEIGHT[switch.role]
        loads = [
            ports[str(ours)].bytes
            for _, ours, theirs in topology.neighbours(switch.name)
            if HEIGHT[topology.node(theirs.node).role] > height
        ]
        if len(loads) > 1:
            tiers.setdefault(switch.role.value, []).append(loads)
    if not tiers:
        return None
    tier = max(tiers, key=lambda name: _octets(tiers[name]))
    most = max(sum(loads) for loads in tiers[tier])
    busy = [loads for loads in tiers[tier] if most and sum(loads) * 10 >= most]
    if not busy:
        return None
    return Balance(
        tier=tier,
        max_mean=max(max_mean(loads) or 1.0 for loads in busy),
        jain=min(jain(loads) or 1.0 for loads in busy),
    )


def _octets(switches: Iterable[Iterable[int]]) -> int:
    return sum(sum(loads) for loads in switches)
