"""Figures of the runs in virtual time that a cluster's scenario began beside its networks.

Such a run has a fabric of its own, so samples of the cluster's backend do not have its traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from emulator.dataplane.switch.telemetry import FILE
from emulator.report.cluster.cluster_record import ClusterRecord
from emulator.report.run.figures import vega_lite
from emulator.report.run.figures.figure import Figure
from emulator.report.run.figures.vega_lite import encoding, tooltip
from emulator.report.run.port_series import PortSeries, read_series

POINT = "all switch ports of the run's fabric, in virtual time"
HEIGHT = 130
#: Steps of a curve.
STEPS = 120
BITS_PER_US_TO_GBPS = 1e-3


def virtual_run_figures(record: ClusterRecord) -> Iterator[Figure]:
    """Yield a figure for each run whose folder is in that of ``record``."""
    for file in sorted(record.path.glob(f"*/{FILE}")):
        run = file.parent.name
        name, title = f"virtual-{run}", f"{run[:1].upper()}{run[1:]}: load over virtual time"
        series = read_series(file)
        if isinstance(series, str):
            yield Figure.none(name, title, POINT, series)
            continue
        yield Figure(
            name=name,
            title=title,
            point=POINT,
            note=(
                f"Gb/s, summed over the ports, by the run's own clock.  It ran beside the networks "
                f"above, on a fabric of its own; its folder is {run}/."
            ),
            records=list(_rates(series)),
            spec=_spec(),
        )


def _rates(series: Mapping[str, PortSeries]) -> Iterator[Mapping[str, Any]]:
    """Yield the rate of all ports together in equal steps of time."""
    edges = np.linspace(0.0, max(float(one.t_us[-1]) for one in series.values()), STEPS + 1)
    octets = np.sum([one.growth("tx_bytes", edges) for one in series.values()], axis=0)
    step_us = edges[1] - edges[0]
    if step_us <= 0:
        return
    for at_us, sent in zip(edges[1:], octets, strict=True):
        yield {
            "t_us": round(float(at_us), 3),
            "gbps": float(8 * sent / step_us * BITS_PER_US_TO_GBPS),
        }


def _spec() -> vega_lite.Json:
    layer = {
        "mark": {"type": "area", "interpolate": "step-before", "opacity": 0.7},
        "encoding": {
            "x": encoding("t_us", "Q", "virtual time (us)"),
            "y": encoding("gbps", "Q", "Gb/s"),
            "tooltip": tooltip(("t_us", "at (us)"), ("gbps", "Gb/s")),
        },
    }
    return vega_lite.figure([layer], by_row=False, height=HEIGHT)
