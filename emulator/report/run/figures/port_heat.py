"""Maps of ports and time: the stronger a cell, the larger the share of its bin of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.port_series import IterationWindow, PortSeries

#: Columns of a map, and ports of it at most: those that had most.
BINS, MOST_PORTS = 60, 32
#: A share of a cell below which it stays empty (per cent).
LEAST_PERCENT = 0.05
LAST = "The last iteration of the row; its start is 0."
ZOOM = "Shift and wheel zoom the time, shift and drag move it."
TIME = "time since the start of the iteration (us)"

Records = list[dict[str, Any]]
#: Row, and its samples by port, in its window.
Cut = dict[int, dict[str, PortSeries]]
Windows = dict[int, IterationWindow]


@dataclass(frozen=True, kw_only=True)
class PortHeat:
    """A map of the growth of ``column`` over what ``full`` allows in a us, by port.

    ``key`` and ``legend`` name the share in the data and beside the drawing.  ``colour`` is one
    hue: it reads on light and dark pages, and in print.  ``nothing`` is the reason where every cell
    is empty.  ``filters`` are Wireshark's that show the cause, by row.
    """

    name: str
    title: str
    point: str
    note: str
    column: str
    full: Mapping[str, float]
    key: str
    legend: str
    colour: str
    nothing: str
    filters: Mapping[int, str] = field(default_factory=dict)

    def none(self, reason: str) -> Figure:
        """Return the figure without a drawing, and the reason."""
        return Figure.none(self.name, self.title, self.point, reason)

    def figure(self, cut: Cut, windows: Windows, faults: Records) -> Figure:
        """Return the map of every row in ``cut``."""
        records: Records = []
        left_out = 0
        for row, ports in cut.items():
            found, more = self._records(row, ports, windows[row])
            records += found
            left_out = max(left_out, more)
        if not records:
            return self.none(self.nothing)
        more_words = (
            f" The {MOST_PORTS} ports with most; at most {left_out} more had less."
            if left_out > 0
            else ""
        )
        spans = spans_of(windows)
        layers = [self._layer(), *vl.fault_layers(faults)]
        return Figure(
            name=self.name,
            title=self.title,
            point=self.point,
            note=f"{LAST} {self.note}{more_words} {ZOOM}",
            records=records,
            spec=vl.time_figure(layers, spans, height={"step": 17}),
            filters=self.filters,
            by_row=True,
        )

    def _records(
        self, row: int, ports: Mapping[str, PortSeries], window: IterationWindow
    ) -> tuple[Records, int]:
        """Return the cells of a row, and how many ports had something and have none."""
        known = {port: one for port, one in ports.items() if port in self.full}
        edges = edges_of(known, window.begin_us)
        width = 0.0 if edges is None else float(edges[1] - edges[0])
        if edges is None or width <= 0:
            return [], 0
        grown = {
            port: series.growth(self.column, edges)
            for port, series in known.items()
            if len(series.t_us) > 1
        }
        order = sorted(grown, key=lambda port: (-float(grown[port].sum()), port))
        some = [port for port in order if grown[port].sum() > 0]
        records: Records = []
        for port in some[:MOST_PORTS]:
            share = grown[port] / (self.full[port] * width) * 100
            for number in np.flatnonzero(share > LEAST_PERCENT).tolist():
                records.append(
                    {
                        "row": row,
                        "port": port,
                        "t_us": round(float(edges[number] - window.begin_us), 4),
                        "until_us": round(float(edges[number + 1] - window.begin_us), 4),
                        self.key: round(float(share[number]), 2),
                    }
                )
        return records, len(some) - MOST_PORTS

    def _layer(self) -> vl.Json:
        order = {"op": "sum", "field": self.key, "order": "descending"}
        scale = {"domain": [0, 100], "range": [0.06, 1], "clamp": True}
        return {
            "mark": {"type": "rect", "color": self.colour, "clip": True},
            "params": [vl.zoom()],
            "encoding": {
                "x": vl.time_axis(TIME),
                "x2": {"field": "until_us"},
                "y": vl.encoding("port", "N", None, sort=order),
                "opacity": vl.encoding(self.key, "Q", self.legend, scale=scale),
                "tooltip": vl.tooltip(
                    ("port", "port"),
                    ("t_us", "from (us)"),
                    ("until_us", "until (us)"),
                    (self.key, self.legend),
                ),
            },
        }


def edges_of(ports: Mapping[str, PortSeries], begin: float) -> npt.NDArray[np.float64] | None:
    """Return edges of time bins, none of them shorter than two samples are apart."""
    series: Sequence[PortSeries] = [one for one in ports.values() if len(one.t_us)]
    if max((len(one.t_us) for one in series), default=0) < 2:
        return None
    end = max(float(one.t_us[-1]) for one in series)
    moments = np.unique(np.concatenate([one.t_us for one in series]))
    bins = min(BINS, max(1, len(moments) - 1))
    return np.linspace(begin, end, bins + 1)


def spans_of(windows: Windows) -> dict[int, float]:
    """Return the length of each row's iteration (us)."""
    return {row: one.end_us - one.begin_us for row, one in windows.items()}
