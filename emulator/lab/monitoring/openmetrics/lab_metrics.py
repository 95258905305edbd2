"""Metrics of a lab: ports of switches one by one, and every direction of a link in its tier.

The number of series is bounded.  Ports of GPUs and NICs stand in their tiers only, and the ports of
switches, too, where there are more than :data:`MOST_PORTS`: which of them are busiest changes, and
every change would be a new series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from emulator.lab.live.rates import Activity, by_tier
from emulator.lab.live.sampler import LabSample
from emulator.lab.monitoring.lab_watch import Watched
from emulator.lab.monitoring.openmetrics.families import Samples, counter, gauge, info, single

#: Ports of switches that are exported one by one.
MOST_PORTS = 256
#: The reason of a drop below the ASIC, in a queue of the kernel.
OVERFLOW = "overflow"
PORT, TIER = ("port", "tier"), ("tier",)


@dataclass(frozen=True, slots=True)
class _Value:
    """A number of one direction of a link, exported for ports and summed over tiers."""

    name: str
    text: str
    of: Callable[[Activity, LabSample], float | None]
    summed: bool = True


def _per_second(count: int | None, picture: LabSample) -> float | None:
    if count is None:
        return None
    return count * 1e6 / picture.interval_us if picture.interval_us else 0.0


_GAUGES = (
    _Value(
        "transmit_bytes_per_fabric_second",
        "Octets on the wire that left in the last interval.",
        lambda one, _: one.rate_bps / 8,
    ),
    _Value(
        "utilization_ratio",
        "Share of the link's rate that was used in the last interval.",
        lambda one, _: one.utilisation,
        summed=False,
    ),
    _Value("queue_bytes", "Octets that wait in the data queue.", lambda one, _: one.queue_bytes),
    _Value(
        "queue_peak_bytes",
        "The deepest that the data queue was in the last interval, or since a row began.",
        lambda one, _: one.deepest_bytes,
        summed=False,
    ),
    _Value(
        "queue_limit_bytes",
        "Depth of the data queue from which packets are dropped.",
        lambda one, picture: picture.limits[one.direction.port].limit_bytes,
        summed=False,
    ),
    _Value(
        "control_queue_bytes",
        "Octets that wait in the queues of control and trimmed packets.",
        lambda one, _: one.control_queue_bytes,
    ),
    _Value(
        "ecn_marked_packets_per_fabric_second",
        "Packets that the switch marked CE in the last interval.",
        lambda one, picture: _per_second(one.marked, picture),
    ),
    _Value(
        "trimmed_packets_per_fabric_second",
        "Packets that the switch trimmed in the last interval.",
        lambda one, picture: _per_second(one.trimmed, picture),
    ),
    _Value(
        "dropped_packets_per_fabric_second",
        "Packets that were dropped in the last interval, for whatever reason.",
        lambda one, picture: _per_second(one.dropped, picture),
    ),
)
_COUNTERS = (
    _Value("ecn_marked_packets", "Packets marked CE since counting began.",
           lambda one, _: one.total_marked),
    _Value("trimmed_packets", "Packets trimmed since counting began.",
           lambda one, _: one.total_trimmed),
)  # fmt: skip
_PAUSES = (
    ("pfc_pauses", "Pauses by PFC that the port obeyed.", lambda one: one.pauses),
    ("pfc_paused_fabric_seconds", "Fabric time in which PFC stopped the port.",
     lambda one: one.paused_ns / 1e9),
    ("pfc_pause_frames_sent", "PAUSE frames that the port sent to stop its peer.",
     lambda one: one.xoff_sent),
)  # fmt: skip


def lab_metrics(watched: Watched) -> Iterator[Metric]:
    """Yield the families of a lab; rates once its first interval is over."""
    record = watched.record
    yield info(
        "lab",
        "The lab whose fabric is watched.",
        {
            "lab": record.lab,
            "topology": record.topology_spec,
            "switch": record.switch or "none",
            "clock": record.clock,
        },
    )
    yield gauge("lab_running", "1 while the lab runs; 0 once it has gone, and all values are its "
                "last.", (), single(0 if watched.ended else 1))  # fmt: skip
    yield gauge("sample_timestamp_seconds", "When the ports were read last, since 1970.", (),
                single(watched.at_s))  # fmt: skip
    yield gauge("dilation_ratio", "Seconds of the machine for one fabric second; none where the "
                "clock is virtual.", (),
                single(record.dilation if record.clock == "host" else None))  # fmt: skip
    picture = watched.picture
    if picture is None:
        return
    yield gauge("lab_uptime_fabric_seconds", "Fabric time since the start of the lab.", (),
                single(picture.up_us / 1e6))  # fmt: skip
    yield gauge("sample_interval_fabric_seconds", "Fabric time of the last interval, over which "
                "rates are taken.", (), single(picture.interval_us / 1e6))  # fmt: skip
    yield from _ports(watched, picture)
    yield from _tiers(watched, picture)


def exported_ports(watched: Watched, picture: LabSample) -> list[Activity]:
    """Return the directions that are exported one by one: those of switches, if not too many."""
    switches = {node.name for node in watched.topology.switches}
    found = [one for one in picture.activities if one.direction.port.partition(":")[0] in switches]
    return found if len(found) <= MOST_PORTS else []


def _ports(watched: Watched, picture: LabSample) -> Iterator[Metric]:
    ports = exported_ports(watched, picture)
    yield gauge("exported_ports", "Link directions that are exported one by one.", (),
                single(len(ports)))  # fmt: skip
    yield gauge("aggregated_ports", "Link directions that are exported in their tiers only.", (),
                single(len(picture.activities) - len(ports)))  # fmt: skip

    def samples(value: _Value) -> Samples:
        return [(_port(one), value.of(one, picture)) for one in ports]

    for value in _GAUGES:
        yield gauge(f"port_{value.name}", value.text, PORT, samples(value))
    for value in _COUNTERS:
        yield counter(f"port_{value.name}", value.text, PORT, samples(value))
    yield counter("port_transmit_bytes", "Octets on the wire that left since counting began.", PORT,
                  [(_port(one), _sent(watched, one)) for one in ports])  # fmt: skip
    yield counter("port_dropped_packets", "Packets dropped since counting began.", PORT,
                  [(_port(one), one.total_dropped) for one in ports])  # fmt: skip
    for name, text, of in _PAUSES:
        yield counter(f"port_{name}", text, PORT, [
            (_port(one), of(watched.pauses[one.direction.port]))
            for one in ports if one.direction.port in watched.pauses
        ])  # fmt: skip


def _tiers(watched: Watched, picture: LabSample) -> Iterator[Metric]:
    members: dict[str, list[Activity]] = {}
    for one in picture.activities:
        members.setdefault(one.direction.tier, []).append(one)
    groups = by_tier(picture.activities)

    def each(of: Callable[[str], float | None]) -> Samples:
        return [((tier,), of(tier)) for tier in groups]

    def total(value: _Value) -> Callable[[str], float | None]:
        return lambda tier: _sum([value.of(one, picture) for one in members[tier]])

    yield gauge("tier_links", "Link directions of the tier.", TIER,
                each(lambda tier: groups[tier].links))  # fmt: skip
    yield gauge("tier_utilization_mean_ratio", "Mean utilization of the tier's links.", TIER,
                each(lambda tier: groups[tier].mean))  # fmt: skip
    yield gauge("tier_utilization_max_ratio", "Utilization of the tier's busiest link.", TIER,
                each(lambda tier: groups[tier].max))  # fmt: skip
    yield gauge("tier_queue_deepest_bytes", "The deepest data queue of the tier.", TIER,
                each(lambda tier: groups[tier].deepest_bytes))  # fmt: skip
    for value in _GAUGES:
        if value.summed:
            yield gauge(f"tier_{value.name}", f"{value.text} All links of the tier.", TIER,
                        each(total(value)))  # fmt: skip
    for value in _COUNTERS:
        yield counter(f"tier_{value.name}", f"{value.text} All links of the tier.", TIER,
                      each(total(value)))  # fmt: skip
    yield counter("tier_transmit_bytes", "Octets on the wire that left since counting began.", TIER,
                  each(lambda tier: sum(_sent(watched, one) for one in members[tier]))
                  )  # fmt: skip
    yield counter("tier_dropped_packets", "Packets dropped since counting began, by reason.",
                  (*TIER, "reason"), _drops(watched, members))  # fmt: skip
    for name, text, of in _PAUSES:
        yield counter(f"tier_{name}", f"{text} All ports of the tier.", TIER, [
            ((tier,), sum(of(watched.pauses[one.direction.port])
                          for one in found if one.direction.port in watched.pauses))
            for tier, found in members.items() if watched.pauses
        ])  # fmt: skip


def _drops(watched: Watched, members: Mapping[str, Sequence[Activity]]) -> Samples:
    for tier, found in members.items():
        reasons: Counter[str] = Counter({OVERFLOW: 0})
        for one in found:
            port = one.direction.port
            reasons.update(watched.sample.drops.get(port, {}))
            reasons[OVERFLOW] += watched.sample.readings[port].overflowed
        for reason, count in reasons.items():
            yield (tier, reason), count


def _port(one: Activity) -> tuple[str, str]:
    return one.direction.port, one.direction.tier


def _sent(watched: Watched, one: Activity) -> int:
    return watched.sample.readings[one.direction.port].sent_bytes


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
