"""A packet's story as a space-time ladder: nodes are columns, time runs down, lines are cables.

Vega-Lite draws it (vl-convert), so that its text can be searched and it zooms.  Time is drawn to
scale but for gaps: each is at least so high that its times can be read, and at most so high that
a retransmission timeout fits on the page.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from emulator.report.follow.packet_view import PacketKind
from emulator.report.follow.steps import DELIVERED, UNSEEN, Journey
from emulator.report.follow.story import PacketStory, heading
from emulator.report.run.figures.vega_lite import PALETTE
from topologies.exports.dot import scalable

Json = dict[str, Any]

#: Pixels between two columns, and of a gap in time: usual, least and most.
COLUMN, USUAL, LEAST, MOST = 240, 34, 17, 110
_KINDS = ("data", "retransmission", "trimmed", "ACK", "NACK", "response")
_FONT = "DejaVu Sans, Verdana, sans-serif"
_INK, _PALE = "#222222", "#9a9a9a"


def ladder_svg(story: PacketStory) -> str:
    """Return the drawing as SVG."""
    import vl_convert  # 60 MB, and only who draws needs it

    drawn: str = vl_convert.vegalite_to_svg(ladder_spec(story))
    return scalable(drawn)


def ladder_spec(story: PacketStory) -> Json:
    """Return the Vega-Lite specification of the drawing, its data included."""
    nodes = _columns(story)
    heights = _heights(story)
    bottom = max(heights.values()) + LEAST
    lines, waits, ends, texts = _marks(story, nodes, heights)
    width = COLUMN * max(1, len(nodes) - 1)
    x: Json = {
        "field": "x",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [-0.05, len(nodes) - 1 + 0.45], "nice": False, "zero": False},
    }
    y: Json = {
        "field": "y",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [bottom, -2 * LEAST], "nice": False, "zero": False},
    }
    kinds = [kind for kind in _KINDS if any(line["kind"] == kind for line in lines)]
    colour: Json = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": kinds, "range": [PALETTE[_KINDS.index(kind)] for kind in kinds]},
        "legend": {"orient": "bottom", "symbolType": "stroke", "symbolStrokeWidth": 2},
    }
    layers: list[Json] = [
        _layer(
            [{"x": place, "y": -LEAST, "y2": bottom} for place in nodes.values()],
            {"type": "rule", "color": _PALE},
            {"x": x, "y": y, "y2": {"field": "y2"}},
        ),
        _layer(
            [{"x": place, "y": -1.6 * LEAST, "text": name} for name, place in nodes.items()],
            {"type": "text", "fontWeight": "bold", "fontSize": 13},
            {"x": x, "y": y, "text": {"field": "text"}},
        ),
        _layer(
            [{"x": 0, "y": height, "text": f"{time:.3f} us"} for time, height in heights.items()],
            {"type": "text", "align": "right", "dx": -10, "fontSize": 11, "color": _INK},
            {"x": x, "y": y, "text": {"field": "text"}},
        ),
        _layer(
            waits,
            {"type": "rule", "strokeWidth": 7, "opacity": 0.45},
            {"x": x, "y": y, "y2": {"field": "y2"}, "color": colour},
        ),
        _layer(
            lines,
            {"type": "rule", "strokeWidth": 2},
            {"x": x, "x2": {"field": "x2"}, "y": y, "y2": {"field": "y2"}, "color": colour},
        ),
        _layer(
            ends,
            {"type": "point", "filled": True, "size": 55, "opacity": 1},
            {"x": x, "y": y, "shape": {"field": "shape", "scale": None}, "color": colour},
        ),
        _layer(
            texts,
            {"type": "text", "align": "left", "fontSize": 11, "stroke": "white", "strokeWidth": 4},
            {"x": x, "y": y, "text": {"field": "text"}},
        ),
        _layer(
            texts,
            {"type": "text", "align": "left", "fontSize": 11},
            {"x": x, "y": y, "text": {"field": "text"}},
        ),
    ]
    return {
        "title": {
            "text": heading(story),
            "subtitle": "Time runs down; gaps are drawn to scale between "
            f"{LEAST} and {MOST} pixels. Bars are waits in switches.",
            "anchor": "start",
            "frame": "bounds",
        },
        "width": width + COLUMN // 2,
        "height": round(bottom + 2 * LEAST),
        "padding": 16,
        "background": "white",
        "layer": layers,
        "config": {
            "view": {"stroke": None},
            "font": _FONT,
            "text": {"color": _INK},
            "title": {"fontSize": 13, "subtitleFontSize": 11, "subtitleColor": "#555555"},
        },
    }


def _layer(values: Sequence[Mapping[str, Any]], mark: Json, encoding: Json) -> Json:
    return {"data": {"values": list(values)}, "mark": mark, "encoding": encoding}


def _columns(story: PacketStory) -> dict[str, int]:
    """Return the place of each node: the source, the switches on the way, the destination."""
    seen = dict.fromkeys(step.end.node for journey in story.journeys for step in journey.steps)
    inner = [name for name in seen if name not in (story.source, story.destination)]
    return {name: place for place, name in enumerate([story.source, *inner, story.destination])}


def _heights(story: PacketStory) -> dict[float, float]:
    """Return the height (pixels) of each time."""
    times = sorted({step.t_us for journey in story.journeys for step in journey.steps})
    gaps = [after - before for before, after in pairwise(times)]
    scale = USUAL / statistics.median(gaps) if gaps else 1.0
    heights, height = {times[0]: 0.0}, 0.0
    for time, gap in zip(times[1:], gaps, strict=True):
        height += min(MOST, max(LEAST, gap * scale))
        heights[time] = height
    return heights


def _marks(
    story: PacketStory, nodes: Mapping[str, int], heights: Mapping[float, float]
) -> tuple[list[Json], list[Json], list[Json], list[Json]]:
    """Return lines between nodes, bars of waits, points at the ends, and words beside them."""
    lines: list[Json] = []
    waits: list[Json] = []
    ends: list[Json] = []
    texts: list[Json] = []
    several = len(story.psns) > 1
    for journey in story.journeys:
        trimmed = False
        for one, other in pairwise(journey.steps):
            trimmed = trimmed or any(text.startswith("trimmed") for text in one.changes)
            mark = {
                "x": nodes[one.end.node],
                "y": heights[one.t_us],
                "x2": nodes[other.end.node],
                "y2": heights[other.t_us],
                "kind": _kind(journey, trimmed=trimmed),
            }
            (waits if one.end.node == other.end.node else lines).append(mark)
            words = [f"waits {other.wait_us:.3f} us"] if other.wait_us else []
            words += [text.partition(" by ")[0] for text in other.changes]
            if words:
                middle = (heights[one.t_us] + heights[other.t_us]) / 2
                texts.append(
                    {"x": nodes[other.end.node] + 0.03, "y": middle, "text": ", ".join(words)}
                )
        first, last = journey.steps[0], journey.steps[-1]
        texts.append(
            {
                "x": nodes[first.end.node] + 0.03,
                "y": heights[first.t_us] - 7,
                "text": _beginning(journey, several=several),
            }
        )
        shape = {DELIVERED: "circle", UNSEEN: "diamond"}.get(journey.fate, "cross")
        kind = _kind(journey, trimmed=trimmed)
        ends.append(
            {"x": nodes[last.end.node], "y": heights[last.t_us], "shape": shape, "kind": kind}
        )
        if journey.fate != DELIVERED:
            texts.append(
                {
                    "x": nodes[last.end.node] + 0.05,
                    "y": heights[last.t_us] + 9,
                    "text": journey.ending,
                }
            )
    return lines, waits, ends, texts


def _beginning(journey: Journey, *, several: bool) -> str:
    """Return the words where a journey begins: which packet it is, and why it is sent."""
    which = f" ({journey.psn})" if several else ""
    if journey.kind is not PacketKind.DATA:
        return f"{journey.words}{which}"
    cause = f", {journey.cause}" if journey.cause else ""
    return f"{journey.label}{which}: {journey.words}{cause}"


def _kind(journey: Journey, *, trimmed: bool) -> str:
    if journey.kind is not PacketKind.DATA:
        return str(journey.kind.value)
    if not journey.is_attempt:
        return "response"
    if trimmed:
        return "trimmed"
    return "data" if journey.label == "attempt 1" else "retransmission"
