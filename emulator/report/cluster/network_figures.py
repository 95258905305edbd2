"""Figures of a cluster's networks over time: what each carried and dropped, with the events."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emulator.report.cluster.cluster_record import ClusterRecord
from emulator.report.run.figures import vega_lite
from emulator.report.run.figures.figure import Figure
from emulator.report.run.figures.vega_lite import encoding, tooltip
from topologies.model import NETWORKS

POINT = "all ports of the network, sampled by the machine's time"
HEIGHT = 130
BITS_PER_GBIT = 1e9


def network_figures(record: ClusterRecord) -> Iterator[Figure]:
    """Yield a figure for each network, in the order of the project's lists."""
    known = {sample["network"] for sample in record.samples}
    for network in (name for name in NETWORKS if name in known):
        rows = list(_rates(record, network))
        title = f"{network[:1].upper()}{network[1:]}: load over time"
        if len(rows) < 2:
            yield Figure.none(network, title, POINT, "the run was over before two samples")
            continue
        yield Figure(
            name=network,
            title=title,
            point=POINT,
            note=(
                f"Gb/s of the network's own time, summed over its ports: a second of it is "
                f"{record.dilation(network):g} of the machine's.  Dashed lines are the events "
                "that are listed below."
            ),
            records=rows,
            spec=_spec(record.result.get("events", ())),
        )


def _rates(record: ClusterRecord, network: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rate between each two samples of ``network``."""
    samples = [one for one in record.samples if one["network"] == network]
    dilation = record.dilation(network)
    for first, second in itertools.pairwise(samples):
        span_s = second["at_s"] - first["at_s"]
        if span_s > 0:
            bits = 8 * (second["octets"] - first["octets"])
            yield {
                "at_s": round(second["at_s"], 3),
                "gbps": bits / span_s * dilation / BITS_PER_GBIT,
                "drops": second["drops"] - first["drops"],
            }


def _spec(events: Sequence[Mapping[str, Any]]) -> vega_lite.Json:
    time = encoding("at_s", "Q", "machine's time since the run began (s)")
    layers: list[vega_lite.Json] = [
        {
            "mark": {"type": "area", "interpolate": "step-before", "opacity": 0.7},
            "encoding": {
                "x": time,
                "y": encoding("gbps", "Q", "Gb/s"),
                "tooltip": tooltip(("at_s", "at (s)"), ("gbps", "Gb/s"), ("drops", "drops")),
            },
        }
    ]
    if events:
        layers.append(
            {
                "data": {"values": [dict(event) for event in events]},
                "mark": {"type": "rule", "strokeDash": [5, 3], "size": 1.5},
                "encoding": {
                    "x": {"field": "at_s", "type": "quantitative"},
                    "tooltip": tooltip(("text", "event"), ("at_s", "at (s)")),
                },
            }
        )
    return vega_lite.figure(layers, by_row=False, height=HEIGHT)
