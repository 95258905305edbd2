"""Metrics of the run in a lab, from its finished rows: bus bandwidth, transports, sums of ports.

They change when a row is finished.  Sums are over the iterations that count, of all rows so far.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from emulator.lab.monitoring.openmetrics.families import Samples, counter, gauge, info, single
from emulator.lab.monitoring.run_progress import RunProgress

ROW = ("transport", "switch", "collective", "size_bytes")
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
    """Yield the families of a run."""
    yield info("run", "The run in the lab.", {"scenario": run.scenario, "folder": str(run.folder)})
    yield counter("run_rows", "Rows that are finished.", (), single(run.finished))
    yield gauge("run_ended", "1 once the run has written all its results.", (),
                single(0 if run.errors is None else 1))  # fmt: skip
    yield gauge("run_errors", "Errors of the run, once it has ended.", (), single(run.errors))
    for key, factor, name, text in _VALUES:
        yield gauge(f"row_{name}", f"{text} The latest row of its kind.", ROW,
                    _rows(run, key, factor))  # fmt: skip
    for key, name, text in _SUMS:
        yield counter(f"run_{name}", f"{text} All ports and finished rows.", (),
                      single(run.ports.get(key, 0)))  # fmt: skip
    yield counter("run_pfc_paused_fabric_seconds", "Fabric time in which PFC stopped ports.", (),
                  single(run.ports.get("paused_ns", 0) / 1e9))  # fmt: skip
    yield counter("run_dropped_packets", "Packets that switches dropped in finished rows.",
                  ("reason",), _drops(run))  # fmt: skip
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


def _drops(run: RunProgress) -> Samples:
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
