"""The vocabulary of the report's Vega-Lite specifications, and the script that draws them.

A reader zooms the time axis with shift and the wheel, moves it with shift and drag, and gets the
numbers of a mark by pointing at it.  The variable ``row`` holds the row that the reader chose.
Text is in the colour of the page around it, so that light and dark need no second drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

Json = dict[str, Any]

#: Okabe and Ito's colours (2008) without black and yellow; blue and purple are lighter than theirs,
#: since lines stand on dark pages too.
PALETTE = ("#3d8fd1", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6fd1", "#7a7a7a")
HEIGHT = 260

CONFIG: Json = {
    "background": None,
    "view": {"stroke": None},
    "font": "system-ui, sans-serif",
    "range": {"category": list(PALETTE)},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.13,
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "titleFontWeight": "normal",
        "labelLimit": {"expr": "containerSize()[0] < 600 ? 105 : 330"},
    },
    "axisX": {"tickCount": {"expr": "ceil(width / 80)"}},
    "legend": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "orient": "bottom",
        "columns": {"expr": "containerSize()[0] < 600 ? 1 : 3"},
        "labelLimit": 300,
        "symbolLimit": 40,
    },
    "text": {"color": "currentColor"},
    "rule": {"color": "currentColor"},
}


@cache
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from the installed library."""
    import vl_convert  # 60 MB, and only who writes a page needs it

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def encoding(name: str, kind: str, title: str | None, **more: object) -> Json:
    """Return a field's encoding: ``kind`` is Q (a quantity), N (a name) or O (ordered)."""
    kinds = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
    return {"field": name, "type": kinds[kind], "title": title, **more}


def tooltip(*fields: tuple[str, str]) -> list[Json]:
    """Return what pointing at a mark shows: fields with their names for people."""
    return [{"field": name, "title": title} for name, title in fields]


def time_axis(title: str, **more: object) -> Json:
    """Return the axis ``t_us`` over the iteration, whose length ``spans`` holds."""
    scale = {"domain": [0, {"expr": "spans[row]"}], "nice": False}
    return encoding("t_us", "Q", title, scale=scale, **more)


def time_figure(
    layers: Sequence[Json], spans: Mapping[int, float], *, height: object = HEIGHT
) -> Json:
    """Return the specification of ``layers`` over the time of an iteration.

    ``spans`` are the lengths of the rows' iterations (us).
    """
    spec = figure(layers, by_row=True, height=height)
    lengths = [spans.get(row, 1.0) for row in range(max(spans, default=0) + 1)]
    spec["params"].append({"name": "spans", "value": lengths})
    return spec


def figure(
    layers: Sequence[Json], *, by_row: bool, height: object = HEIGHT, **more: object
) -> Json:
    """Return the specification of ``layers``; data are put in where it is drawn."""
    spec: Json = {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "params": [{"name": "row", "value": 0}],
        "layer": list(layers),
        **more,
    }
    if by_row:
        spec["transform"] = [{"filter": "datum.row == row"}, *spec.get("transform", ())]
    return spec


def zoom() -> Json:
    """Zooming and moving of the horizontal axis; it goes into one layer."""
    return {
        "name": "zoom",
        "select": {
            "type": "interval",
            "encodings": ["x"],
            "zoom": "wheel![event.shiftKey]",
            "translate": "[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!",
        },
        "bind": "scales",
    }


def fault_layers(faults: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Dashed lines for faults on a time axis whose field is ``t_us``."""
    if not faults:
        return []
    return [
        {
            "data": {"values": list(faults)},
            "transform": [{"filter": "datum.row == row"}],
            "encoding": {
                "x": {"field": "t_us", "type": "quantitative"},
                "tooltip": tooltip(("event", "event"), ("t_us", "at (us)")),
            },
            "layer": [
                {"mark": {"type": "rule", "strokeDash": [5, 3], "size": 1.5, "clip": True}},
                {
                    "mark": {
                        "type": "text",
                        "align": "left",
                        "dx": 4,
                        "fontSize": 10,
                        "clip": True,
                    },
                    "encoding": {"text": {"field": "event"}, "y": {"value": 7}},
                },
            ],
        }
    ]
