"""The page that Prometheus reads: all metrics of what is watched, written once for each interval.

A scrape gets a page that is there already, so that no client, however often it asks, makes the
emulator read its switches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client import exposition as text
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from emulator.lab.monitoring.lab_watch import Watched
from emulator.lab.monitoring.local_server import HttpAnswer
from emulator.lab.monitoring.openmetrics.families import gauge, single
from emulator.lab.monitoring.openmetrics.lab_metrics import lab_metrics
from emulator.lab.monitoring.openmetrics.run_metrics import run_metrics

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
        self._pages = (openmetrics.generate_latest(registry), text.generate_latest(registry))

    def answer(self, headers: Mapping[str, str]) -> HttpAnswer:
        """Return the page in the form that the request accepts."""
        newer, older = self._pages
        if OPENMETRICS_TYPE in headers.get("accept", ""):
            return HttpAnswer(kind=openmetrics.CONTENT_TYPE_LATEST, body=newer)
        return HttpAnswer(kind=text.CONTENT_TYPE_PLAIN_0_0_4, body=older)


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
