"""Figures of rows and messages: time against ideal, bus bandwidth, timeline, latency and flows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from statistics import median
from typing import Any

from emulator.metrics import ENDPOINT, MODEL
from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run_folder import NO_ROW, RunRecord, drawn_rows
from emulator.result_rows import short_names
from topologies.units import format_size

#: Slices of the timeline that are drawn: what a page still bears.
MOST_SLICES = 3000
MOST_TRACKS = 60
#: What is drawn of the flows of a size.
FLOW_SHARES = ("mean", "p50", "p95", "p99", "max")
#: Tracks of a GPU that are drawn, by the names that ``timeline.json`` gives them.
TRACKS = ("steps", "compute", "NIC out", "NIC in", "NVLink out", "NVLink in", "barrier")


def result_figures(record: RunRecord) -> list[Figure]:
    """Return the figures of results, or for each of them why there is none."""
    return [_ideal(record), _busbw(record), timeline_figure(record)]


def _ideal(record: RunRecord) -> Figure:
    title, point = "Time against ideal", f"time: {ENDPOINT}; ideal: {MODEL}"
    if len({str(row.get("transport")) for row in record.rows}) > 1:
        return _transports(record, title, point)
    names = record.labels
    records: list[dict[str, Any]] = [
        {
            "row": number,
            "label": names[number - 1],
            "time_us": row["time_us"],
            "ideal_us": row.get("ideal_us"),
            "of_ideal_percent": 100 * row["efficiency"] if row.get("efficiency") else None,
        }
        for number, row in enumerate(record.rows, 1)
        if isinstance(row.get("time_us"), int | float)
    ]
    if not records:
        return Figure.none("ideal", title, point, NO_ROW)
    y = vl.encoding("label", "N", None, sort=None)
    told = vl.tooltip(
        ("label", "row"),
        ("time_us", "time (us)"),
        ("ideal_us", "ideal (us)"),
        ("of_ideal_percent", "of ideal (%)"),
    )
    bars = {
        "mark": {"type": "bar", "color": vl.PALETTE[0]},
        "encoding": {
            "x": vl.encoding("time_us", "Q", "time of an iteration (us)"),
            "y": y,
            "tooltip": told,
        },
    }
    ticks = {
        "mark": {"type": "tick", "thickness": 3, "color": "#d55e00", "size": 15},
        "encoding": {
            "x": vl.encoding("ideal_us", "Q", "time of an iteration (us)"),
            "y": y,
            "tooltip": told,
        },
    }
    return Figure(
        name="ideal",
        title=title,
        point=point,
        note="Bars are the mean over the iterations. The mark is the lower bound from the "
        "topology's rates and delays, which no transport can beat.",
        records=records,
        spec=vl.figure([bars, ticks], by_row=False, height={"step": 20}),
    )


def _transports(record: RunRecord, title: str, point: str) -> Figure:
    """Times of several transports, those of one place of the scenario together."""
    facts = [key for key in record.parting_facts if key != "seed"]
    sizes = len({row.get("size_bytes") for row in record.rows}) > 1
    taken: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    names = short_names([str(row.get("transport")) for row in record.rows])
    for row in record.rows:
        words = [f"{key} {row.get(key)}" for key in facts]
        if sizes and isinstance(row.get("size_bytes"), int):
            words.append(format_size(row["size_bytes"]))
        place = ", ".join(words) or str(row.get("collective"))
        if isinstance(row.get("time_us"), int | float):
            taken.setdefault((place, names[str(row["transport"])]), []).append(row)
    records: list[dict[str, Any]] = []
    for (place, transport), rows in taken.items():
        times = [row["time_us"] for row in rows]
        ideals = [row["ideal_us"] for row in rows if row.get("ideal_us")]
        records.append(
            {
                "place": place,
                "transport": transport,
                "seeds": len(rows),
                "time_us": median(times),
                "least_us": min(times),
                "most_us": max(times),
                "ideal_us": median(ideals) if ideals else None,
            }
        )
    if not records:
        return Figure.none("ideal", title, point, NO_ROW)
    axis = "time of an iteration (us)"
    shared = {
        "y": vl.encoding("place", "N", None, sort=None),
        "yOffset": {"field": "transport", "sort": None},
        "tooltip": vl.tooltip(
            ("place", "row"),
            ("transport", "transport"),
            ("time_us", "median (us)"),
            ("least_us", "least (us)"),
            ("most_us", "most (us)"),
            ("ideal_us", "ideal (us)"),
        ),
    }
    colour = vl.encoding("transport", "N", None, sort=None)
    bars = {
        "mark": {"type": "bar"},
        "encoding": {"x": vl.encoding("time_us", "Q", axis), "color": colour, **shared},
    }
    spread = {
        "mark": {"type": "rule", "strokeWidth": 2},
        "encoding": {
            "x": vl.encoding("least_us", "Q", axis),
            "x2": {"field": "most_us"},
            **shared,
        },
    }
    ticks = {
        "mark": {"type": "tick", "thickness": 2, "color": "currentColor", "size": 12},
        "encoding": {"x": vl.encoding("ideal_us", "Q", axis), **shared},
    }
    return Figure(
        name="ideal",
        title=title,
        point=point,
        note="Bars are medians over the seeds, lines reach from the least to the most. The upright "
        "mark is the transport's lower bound from the topology's rates and delays.",
        records=records,
        spec=vl.figure([bars, spread, ticks], by_row=False, height={"step": 14, "for": "offset"}),
    )


def _busbw(record: RunRecord) -> Figure:
    title, point = "Bus bandwidth by size", f"busbw: {ENDPOINT}; ideal: {MODEL}"
    if not record.rows:
        return Figure.none("busbw", title, point, NO_ROW)
    records: list[dict[str, Any]] = []
    for number, row in enumerate(record.rows, 1):
        busbw, time_us, ideal_us = (row.get(key) for key in ("busbw_gbps", "time_us", "ideal_us"))
        if busbw is None or not time_us or not ideal_us or not row.get("size_bytes"):
            continue
        told = (f"{row['transport']}", busbw), ("ideal", busbw * time_us / ideal_us)
        for series, value in told:
            records.append(
                {
                    "row": number,
                    "size_bytes": row["size_bytes"],
                    "size": format_size(row["size_bytes"]),
                    "series": series,
                    "busbw_gbps": value,
                }
            )
    if not records:
        reason = "bus bandwidth is defined for collectives, and this scenario is none"
        return Figure.none("busbw", title, point, reason)
    line = {
        "mark": {"type": "line", "point": {"size": 45}, "strokeWidth": 2},
        "encoding": {
            "x": vl.encoding("size", "O", "size", sort={"field": "size_bytes"}),
            "y": vl.encoding("busbw_gbps", "Q", "busbw (GB/s)"),
            "color": vl.encoding("series", "N", None, sort=None),
            "tooltip": vl.tooltip(
                ("series", "curve"), ("size_bytes", "size (B)"), ("busbw_gbps", "busbw (GB/s)")
            ),
        },
    }
    return Figure(
        name="busbw",
        title=title,
        point=point,
        note="As nccl-tests defines it. The ideal curve has the time of the lower bound.",
        records=records,
        spec=vl.figure([line], by_row=False),
    )


def timeline_figure(record: RunRecord) -> Figure:
    """One iteration of the largest size: what each GPU did when."""
    title = "Timeline of an iteration"
    if record.timeline is None:
        reason = record.missing.get("timeline.json", NO_ROW)
        return Figure.none("timeline", title, ENDPOINT, f"{reason}; a run writes it at its end")
    events = record.timeline.get("traceEvents")
    slices, left_out = _slices(events if isinstance(events, list) else [])
    if not slices:
        return Figure.none("timeline", title, ENDPOINT, "timeline.json has no operation of a GPU")
    faults = [
        {"row": 0, "t_us": event.get("ts"), "event": str(event.get("name"))}
        for event in events or ()
        if isinstance(event, dict)
        and event.get("cat") == "fault"
        and isinstance(event.get("ts"), int | float)
    ]
    bars: vl.Json = {
        "mark": {
            "type": "bar",
            "height": {"band": 0.8},
            "opacity": 0.5,
            "minBandSize": 1,
        },
        "params": [vl.zoom()],
        "encoding": {
            "x": vl.encoding("t_us", "Q", "time since the start of the iteration (us)"),
            "x2": {"field": "until_us"},
            "y": vl.encoding("track", "N", None, sort=None),
            "color": vl.encoding("kind", "N", None, sort=list(TRACKS)),
            "tooltip": vl.tooltip(
                ("track", "track"),
                ("name", "operation"),
                ("t_us", "from (us)"),
                ("until_us", "until (us)"),
                ("bytes", "octets"),
            ),
        },
    }
    points = {
        "transform": [{"filter": "datum.until_us == datum.t_us"}],
        "mark": {"type": "tick", "thickness": 2},
        "encoding": {name: bars["encoding"][name] for name in ("x", "y", "color", "tooltip")},
    }
    more = f" {left_out} later slices are left out." if left_out else ""
    layers = [bars, points, *vl.fault_layers(faults)]
    for layer in layers[2:]:
        del layer["transform"]
    return Figure(
        name="timeline",
        title=title,
        point=ENDPOINT,
        note="The iteration of the largest size that timeline.json has; Perfetto shows it whole. "
        "Operations of one kind that overlap are drawn over each other. Messages that arrive are "
        f"marks at the moment when the data were there.{more} "
        "Shift and wheel zoom the time, shift and drag move it.",
        records=slices,
        spec=vl.figure(layers, by_row=False, height={"step": 13}),
    )


def _slices(events: list[Any]) -> tuple[list[dict[str, Any]], int]:
    """Slices of GPUs as records, and how many are left out."""
    nodes: dict[str, str] = {}
    threads: dict[str, str] = {}
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "M":
            name = str(_details(event).get("name"))
            if event.get("name") == "process_name":
                nodes[str(event.get("pid"))] = name
            elif event.get("name") == "thread_name":
                threads[str(event.get("tid"))] = name
    found: list[dict[str, Any]] = []
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or event.get("cat") == "fault":
            continue
        track = threads.get(str(event.get("tid")), "")
        kind = next((one for one in TRACKS if track.startswith(one)), None)
        begin, length = event.get("ts"), event.get("dur", 0)
        if (
            kind is None
            or not isinstance(begin, int | float)
            or not isinstance(length, int | float)
        ):
            continue
        details = _details(event)
        found.append(
            {
                "track": f"{nodes.get(str(event.get('pid')), '?')} {kind}",
                "kind": kind,
                "name": str(event.get("name")),
                "t_us": begin,
                "until_us": round(begin + length, 4),
                "bytes": details.get("bytes"),
            }
        )
    places = {node: place for place, node in enumerate(nodes.values())}
    tracks: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        tracks.setdefault(one["track"], []).append(one)
    inside: list[dict[str, Any]] = []
    order = sorted(
        tracks,
        key=lambda name: (
            places.get(name.partition(" ")[0], len(places)),
            TRACKS.index(tracks[name][0]["kind"]),
        ),
    )
    for name in order[:MOST_TRACKS]:
        if inside and len(inside) + len(tracks[name]) > MOST_SLICES:
            break
        inside += tracks[name][:MOST_SLICES]
    return inside, len(found) - len(inside)


def _details(event: Mapping[str, Any]) -> Mapping[str, Any]:
    details = event.get("args")
    return details if isinstance(details, Mapping) else {}


#: Flows of a row that are drawn; the CSV beside the report has the same.
MOST_BARS = 48
#: Rows of one transport that share a figure, at most.
MOST_LINES = 8
OLDER = "events.jsonl does not tell of messages: it is missing, or of an older version"
HIGHLIGHT = {"condition": {"test": "datum.row == row", "value": 1}, "value": 0.45}


def message_figures(record: RunRecord) -> list[Figure]:
    """Return the figures of messages, or for each of them why there is none."""
    reason = None if record.messages else OLDER if record.rows else NO_ROW
    if reason is not None:
        return [
            Figure.none("message-latency", "Message latency", ENDPOINT, reason),
            Figure.none("flows", "Goodput by flow", ENDPOINT, reason),
            _slowdowns(record),
            _fairness(record),
        ]
    return [_latency(record), _flows(record), _slowdowns(record), _fairness(record)]


def _latency(record: RunRecord) -> Figure:
    places, names = _places(record)
    records: list[dict[str, Any]] = []
    for row in drawn_rows(len(record.rows)):
        event = record.messages.get(row, {})
        parts = {"all but victims": event}
        if event.get("victims"):
            parts["victims"] = event["victims"]
        for kind, part in parts.items():
            for share, time_us in part.get("latency_us", ()):
                records.append(
                    {
                        "row": row,
                        "place": places[row],
                        "label": names[row],
                        "messages_of": kind if len(parts) > 1 else "all",
                        "latency_us": time_us,
                        "share": share,
                        "messages": part.get("count"),
                    }
                )
    title = "Message latency (CDF)"
    if not records:
        return Figure.none("message-latency", title, ENDPOINT, "the rows sent no message")
    axes = {
        "x": vl.encoding(
            "latency_us",
            "Q",
            "time of a message (us), logarithmic",
            scale={"type": "log", "nice": False},
        ),
        "y": vl.encoding("share", "Q", "share of messages", scale={"domain": [0, 1]}),
        "color": vl.encoding("label", "N", None, sort=None),
    }
    victims = any(one["messages_of"] == "victims" for one in records)
    dashes = (
        {"strokeDash": vl.encoding("messages_of", "N", "messages of", legend={"orient": "top"})}
        if victims
        else {}
    )
    line = {
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        "params": [vl.zoom()],
        "encoding": {**axes, **dashes, "detail": {"field": "row"}, "opacity": HIGHLIGHT},
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 36, "opacity": 0},
        "encoding": {
            **axes,
            "tooltip": vl.tooltip(
                ("label", "row"),
                ("messages_of", "messages of"),
                ("share", "share"),
                ("latency_us", "at most (us)"),
                ("messages", "messages"),
            ),
        },
    }
    near = "datum.latency_us > 0 && datum.place == places[row]"
    spec = vl.figure([line, points], by_row=False, transform=[{"filter": near}])
    spec["params"].append({"name": "places", "value": places})
    return Figure(
        name="message-latency",
        title=title,
        point=ENDPOINT,
        note="From a message's start until its receiver has verified it, in all iterations that "
        "count. The chosen row stands out among those that it is compared with: the other "
        "transports' of a comparison, or the rows of a short table.",
        records=records,
        spec=spec,
    )


def _places(record: RunRecord) -> tuple[list[int], list[str]]:
    """For each row, from index 1: which rows it is drawn with, and its name among them."""
    rows, names = record.rows, record.labels
    if len({str(row.get("transport")) for row in rows}) > 1:
        without = [re.sub(r"^\d+: [^ ]+ ", "", name) for name in names]
        order = list(dict.fromkeys(without))
        return [0, *(order.index(one) for one in without)], ["", *names]
    if len(rows) <= MOST_LINES:
        return [0] * (len(rows) + 1), ["", *names]
    return list(range(len(rows) + 1)), ["", *names]


def _flows(record: RunRecord) -> Figure:
    records: list[dict[str, Any]] = []
    left_out = 0
    for row in drawn_rows(len(record.rows)):
        event = record.messages.get(row, {})
        flows = [*event.get("flows", ()), *(event.get("victims") or {}).get("flows", ())]
        left_out = max(left_out, len(flows) - MOST_BARS + event.get("flows_left_out", 0))
        for flow in flows[:MOST_BARS]:
            records.append(
                {
                    "row": row,
                    "flow": f"{flow['from']} to {flow['to']}",
                    "goodput_gbps": flow["goodput_gbps"],
                    "bytes": flow["bytes"],
                    "messages": flow["messages"],
                    "time_us": flow["time_us"],
                }
            )
    if not records:
        return Figure.none("flows", "Goodput by flow", ENDPOINT, "the rows sent no message")
    bars = {
        "mark": {"type": "bar", "color": vl.PALETTE[0]},
        "encoding": {
            "x": vl.encoding("goodput_gbps", "Q", "payload over the flow's own time (GB/s)"),
            "y": vl.encoding("flow", "N", None, sort="-x"),
            "tooltip": vl.tooltip(
                ("flow", "flow"),
                ("goodput_gbps", "goodput (GB/s)"),
                ("bytes", "payload (B)"),
                ("messages", "messages"),
                ("time_us", "first start to last end (us)"),
            ),
        },
    }
    more = (
        f" The {MOST_BARS} flows with the most octets; up to {left_out} more are left out."
        if left_out > 0
        else ""
    )
    return Figure(
        name="flows",
        title="Goodput by flow",
        point=ENDPOINT,
        note="Payload that a flow delivered, over the time from its first start to its last end; "
        "GPUs of one server may use the scale-up network."
        f"{more}",
        records=records,
        spec=vl.figure([bars], by_row=True, height={"step": 15}),
        by_row=True,
    )


def _slowdowns(record: RunRecord) -> Figure:
    title = "Slowdown and completion times of flows, by size"
    classes: dict[int | None, str] = {}
    records: list[dict[str, Any]] = []
    for row in drawn_rows(len(record.rows)):
        for one in record.rows[row - 1].get("fct_by_size") or ():
            bound = one["up_to_bytes"]
            size = "larger" if bound is None else format_size(bound)
            classes[bound] = size
            records += [
                {
                    "row": row,
                    "size": size,
                    "flows": one["flows"],
                    "share": share,
                    "slowdown": one[f"slowdown_{share}"],
                    "fct_us": one[f"fct_{share}_us"],
                }
                for share in FLOW_SHARES
            ]
    if not records:
        reason = "this scenario has no flows of their own; incast, permutation and poisson have"
        return Figure.none("slowdown", title, ENDPOINT, reason if record.rows else NO_ROW)
    order = [classes[one] for one in sorted(classes, key=lambda one: one or math.inf)]
    line = {
        "mark": {"type": "line", "point": {"size": 45}, "strokeWidth": 2},
        "encoding": {
            "x": vl.encoding("size", "O", "flows, at most", sort=order, axis={"labelAngle": 0}),
            "y": vl.encoding(
                "slowdown", "Q", "times as long as alone, logarithmic", scale={"type": "log"}
            ),
            "color": vl.encoding("share", "N", None, sort=list(FLOW_SHARES)),
            "tooltip": vl.tooltip(
                ("size", "size"),
                ("flows", "flows"),
                ("share", "of them"),
                ("slowdown", "slowdown"),
                ("fct_us", "completion time (us)"),
            ),
        },
    }
    return Figure(
        name="slowdown",
        title=title,
        point=ENDPOINT,
        note="How many times as long flows of a size took as each would alone, by rank among them.",
        records=records,
        spec=vl.figure([line], by_row=True),
        by_row=True,
    )


def _fairness(record: RunRecord) -> Figure:
    title = "Fairness of flows"
    if not record.rows:
        return Figure.none("fairness", title, ENDPOINT, NO_ROW)
    names = record.labels
    records = [
        {"row": number, "label": names[number - 1], "jain": row["jain"], "flows": row.get("flows")}
        for number, row in enumerate(record.rows, 1)
        if isinstance(row.get("jain"), int | float)
    ]
    if not records:
        return Figure.none(
            "fairness",
            title,
            ENDPOINT,
            "this scenario's messages wait for each other, so that an index over their rates would "
            "tell of the schedule; traffic scenarios such as incast and permutation have it",
        )
    bars = {
        "mark": {"type": "bar", "color": vl.PALETTE[0]},
        "encoding": {
            "x": vl.encoding("jain", "Q", "Jain's index: 1 is fair", scale={"domain": [0, 1]}),
            "y": vl.encoding("label", "N", None, sort=None),
            "opacity": HIGHLIGHT,
            "tooltip": vl.tooltip(("label", "row"), ("jain", "Jain"), ("flows", "flows")),
        },
    }
    return Figure(
        name="fairness",
        title=title,
        point=ENDPOINT,
        note="Jain's index of the flows' rates while all were under way, or over their lives.",
        records=records,
        spec=vl.figure([bars], by_row=False, height={"step": 17}),
    )
