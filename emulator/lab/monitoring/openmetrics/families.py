"""Families of metrics, each made in one call: a name, its help, its labels, its samples.

Names follow Prometheus' conventions: base units (bytes, seconds, ratios), the unit at the end,
``_total`` for counters.  Time of the fabric is called ``fabric_seconds``, never ``seconds``: a
virtual clock runs at another speed than Prometheus' own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

#: The values of the labels, and the value; None is not exported.
Samples = Iterable[tuple[Sequence[str], float | None]]
PREFIX = "uetemu_"


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Return a gauge: a value that goes up and down."""
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
    """Return the samples of a metric without labels."""
    return [((), value)]
