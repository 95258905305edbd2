"""Telemetry over the management network: ports of the backend, collected by Prometheus.

The head node serves what ``uetemu metrics`` reads of the backend's ports.  Prometheus on the
telemetry node scrapes it there each second of the wall clock, and keeps what it got in its folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from emulator.cluster.services.service_registry import (
    KINDS,
    NeededProgram,
    ServiceKind,
    ServicePlace,
)
from topologies.model import MANAGEMENT

METRICS_PORT = 9477  # as uetemu metrics has it by default
PROMETHEUS_PORT = 9090
HEAD, TELEMETRY = "head", "telemetry"


def _metrics(place: ServicePlace) -> Sequence[str]:
    listen = f"{place.address}:{METRICS_PORT}"
    uetemu = (sys.executable, "-c", "from emulator.cli.main import main; main()")
    return (*uetemu, "metrics", place.cluster, "--listen", listen)


def _prometheus(place: ServicePlace) -> Sequence[str]:
    heads = place.machines.named(HEAD)
    targets = [f"{place.machines.address(one, MANAGEMENT)}:{METRICS_PORT}" for one in heads]
    own = f"{place.address}:{PROMETHEUS_PORT}"
    jobs = {"uetemu": targets, "prometheus": [own]}
    configuration = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": at}]} for job, at in jobs.items()
        ],
    }
    file = place.directory / "prometheus.yml"
    file.write_text(json.dumps(configuration, indent=1))  # JSON is YAML
    return (
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={place.directory / 'data'}",
        f"--web.listen-address={own}",
    )


METRICS = KINDS.register(
    ServiceKind(
        name="metrics",
        meaning="ports of the backend as OpenMetrics (uetemu metrics)",
        network=MANAGEMENT,
        machines=lambda machines: machines.named(HEAD),
        command=_metrics,
        port=METRICS_PORT,
    )
)
PROMETHEUS = KINDS.register(
    ServiceKind(
        name="prometheus",
        meaning="Prometheus, which collects the metrics of the head node",
        network=MANAGEMENT,
        machines=lambda machines: machines.named(TELEMETRY),
        command=_prometheus,
        port=PROMETHEUS_PORT,
        programs=(NeededProgram(command="prometheus", package="prometheus", provisioned=False),),
    )
)
