"""OpenMetrics of a running lab and of the run in it: families, their samples, Prometheus' page.

Names follow Prometheus' conventions: base units (bytes, seconds, ratios), the unit at the end,
``_total`` for counters.  Time of the fabric is called ``fabric_seconds``, never ``seconds``: a
virtual clock runs at another speed than Prometheus' own.

The number of series is bounded.  Ports of GPUs and NICs stand in their tiers only, and the ports of
switches, too, where there are more than :data:`MOST_PORTS`: which of them are busiest changes, and
every change would be a new series.  Metrics of a run change when a row is finished: sums are over
the iterations that count, of all rows so far.

The page is written once for each interval.  A scrape gets a page that is there already, so that no
client, however often it asks, makes the emulator read its switches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client import exposition as prometheus_text
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.lab.live.rates import Activity, by_tier
from emulator.lab.live.sampler import LabSample
from emulator.lab.monitoring.lab_watch import RunProgress, Watched
from emulator.lab.monitoring.local_server import HttpAnswer

#: The values of the labels, and the value; None is not exported.
Samples = Iterable[tuple[Sequence[str], float | None]]
PREFIX = "uetemu_"


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Return a counter; its samples end in ``_total``."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def info(name: str, text: str, facts: dict[str, str]) -> Metric:
    """Return facts as the labels of one sample, which ends in ``_info``."""
    return InfoMetricFamily(PREFIX + name, text, value=facts)


def single(value: float | None) -> Samples:
    return [((), value)]


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
_PAUSES: tuple[tuple[str, str, Callable[[PauseCounters], float]], ...] = (
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
            "topology": record.settings.spec,
            "switch": record.switch or "none",
            "clock": record.settings.clock,
        },
    )
    yield gauge("lab_running", "1 while the lab runs; 0 once it has gone, and all values are its "
                "last.", (), single(0 if watched.ended else 1))  # fmt: skip
    yield gauge("sample_timestamp_seconds", "When the ports were read last, since 1970.", (),
                single(watched.at_s))  # fmt: skip
    settings = record.settings
    yield gauge("dilation_ratio", "Seconds of the machine for one fabric second; none where the "
                "clock is virtual.", (),
                single(None if settings.virtual else settings.dilation))  # fmt: skip
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


ROW_LABELS = ("transport", "switch", "collective", "size_bytes")
#: Counters of endpoints that are exported, beside those of drops, once they have counted anything.
EVENTS = (
    "rto_expirations",
    "losses_inferred",
    "rod_go_back",
    "implied_naks",
    "pdc_errors",
    "qp_errors",
    "tx_acks",
    "tx_nacks",
    "tx_naks",
    "tx_cnps",
    "rx_trimmed",
    "rx_reordered",
    "rx_out_of_order",
    "rx_duplicates",
    "rx_ecn_marked_packets",
)
_KINDS = {"first": "tx_data_packets", "retransmitted": "tx_retransmitted_packets"}
#: A value of a row: its key in ``result.json``, its factor, its metric, the help of that.
_VALUES = (
    ("busbw_gbps", 1e9, "bus_bandwidth_bytes_per_fabric_second",
     "Bus bandwidth as nccl-tests defines it."),
    ("algbw_gbps", 1e9, "algorithm_bandwidth_bytes_per_fabric_second",
     "Algorithm bandwidth as nccl-tests defines it."),
    ("time_us", 1e-6, "duration_fabric_seconds", "Mean time of the row's iterations."),
    ("ideal_us", 1e-6, "ideal_duration_fabric_seconds", "Lower bound of that time."),
    ("wrong", 1, "wrong_elements", "Elements that are not what they must be."),
)  # fmt: skip
_SUMS = (
    ("marked", "ecn_marked_packets", "Packets marked CE."),
    ("trimmed", "trimmed_packets", "Packets trimmed."),
    ("xoff_sent", "pfc_pause_frames_sent", "PAUSE frames sent."),
)


def run_metrics(run: RunProgress) -> Iterator[Metric]:
    yield info("run", "The run in the lab.", {"scenario": run.scenario, "folder": str(run.folder)})
    yield counter("run_rows", "Rows that are finished.", (), single(run.finished))
    yield gauge("run_ended", "1 once the run has written all its results.", (),
                single(0 if run.errors is None else 1))  # fmt: skip
    yield gauge("run_errors", "Errors of the run, once it has ended.", (), single(run.errors))
    for key, factor, name, text in _VALUES:
        yield gauge(f"row_{name}", f"{text} The latest row of its kind.", ROW_LABELS,
                    _rows(run, key, factor))  # fmt: skip
    for key, name, text in _SUMS:
        yield counter(f"run_{name}", f"{text} All ports and finished rows.", (),
                      single(run.ports.get(key, 0)))  # fmt: skip
    yield counter("run_pfc_paused_fabric_seconds", "Fabric time in which PFC stopped ports.", (),
                  single(run.ports.get("paused_ns", 0) / 1e9))  # fmt: skip
    yield counter("run_dropped_packets", "Packets that switches dropped in finished rows.",
                  ("reason",), _run_drops(run))  # fmt: skip
    yield counter("transport_data_packets", "Data packets sent: for the first time, or again.",
                  ("transport", "kind"), (
        ((transport, kind), counters.get(key, 0))
        for transport, counters in run.transports.items() for kind, key in _KINDS.items()
    ))  # fmt: skip
    yield counter("transport_events", "What endpoints counted, by the names of their counters.",
                  ("transport", "counter"), (
        ((transport, name), counters[name])
        for transport, counters in run.transports.items() for name in EVENTS if name in counters
    ))  # fmt: skip
    yield counter("transport_dropped_packets", "Packets that endpoints dropped, by reason.",
                  ("transport", "reason"), _endpoint_drops(run))  # fmt: skip


def _rows(run: RunProgress, key: str, factor: float) -> Samples:
    for name, row in run.latest.items():
        value = row.get(key)
        if isinstance(value, int | float):
            labels = (name.transport, name.switch, name.collective, str(name.size_bytes))
            yield labels, value * factor


def _run_drops(run: RunProgress) -> Samples:
    prefix = "dropped_"
    for key, count in run.ports.items():
        if key.startswith(prefix):
            yield (key.removeprefix(prefix),), count


def _endpoint_drops(run: RunProgress) -> Samples:
    prefix = "rx_drop_"
    for transport, counters in run.transports.items():
        for key, count in counters.items():
            if key.startswith(prefix):
                yield (transport, key.removeprefix(prefix)), count


PATH = "/metrics"
OPENMETRICS_TYPE = "application/openmetrics-text"


class MetricPage:
    """The metrics in OpenMetrics, and in Prometheus' older text for who does not ask for that."""

    def __init__(self) -> None:
        self.show(None)

    def show(self, watched: Watched | None) -> None:
        """Write the page anew; without anything watched it states that there is no lab."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once(watched))
        self._pages = (
            openmetrics.generate_latest(registry),
            prometheus_text.generate_latest(registry),
        )

    def answer(self, headers: Mapping[str, str]) -> HttpAnswer:
        """Return the page in the form that the request accepts."""
        newer, older = self._pages
        if OPENMETRICS_TYPE in headers.get("accept", ""):
            return HttpAnswer(kind=openmetrics.CONTENT_TYPE_LATEST, body=newer)
        return HttpAnswer(kind=prometheus_text.CONTENT_TYPE_PLAIN_0_0_4, body=older)


class _Once(Collector):
    def __init__(self, watched: Watched | None) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        if self._watched is None:
            yield gauge("lab_running", "0: no lab runs.", (), single(0))
            return
        yield from lab_metrics(self._watched)
        if self._watched.run is not None:
            yield from run_metrics(self._watched.run)
