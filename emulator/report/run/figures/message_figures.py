"""Figures of messages: distribution of their times, goodput by flow, fairness."""

from __future__ import annotations

import re
from typing import Any

from emulator.report.observation_points import ENDPOINT
from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run_folder import NO_ROW, RunRecord, drawn_rows, labels

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
            _fairness(record),
        ]
    return [_latency(record), _flows(record), _fairness(record)]


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
    rows = record.rows
    names = labels(rows)
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


def _fairness(record: RunRecord) -> Figure:
    title = "Fairness of flows"
    if not record.rows:
        return Figure.none("fairness", title, ENDPOINT, NO_ROW)
    names = labels(record.rows)
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
