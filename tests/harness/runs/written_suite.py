"""Writes suite folders by hand: a few tests, with the run folders of their trials."""

import json
from pathlib import Path
from typing import Any

FABRIC = {
    "profile": {"control_plane": "static"},
    "servers": [{"name": "h0", "gpus": ["h0g0"]}, {"name": "h1", "gpus": ["h1g0"]}],
    "nodes": [
        {"name": "h0g0", "role": "gpu"},
        {"name": "h1g0", "role": "gpu"},
        {"name": "rail0", "role": "rail"},
    ],
    "links": [
        {"a": {"node": "h0g0"}, "b": {"node": "rail0"}, "rate_bps": 400_000_000_000},
        {"a": {"node": "h1g0"}, "b": {"node": "rail0"}, "rate_bps": 400_000_000_000},
    ],
    "capacity": {"oversubscription": {"rail": "2:1"}},
}
COLUMNS = [
    {"key": "senders", "heading": "senders", "unit": "", "point": "setting"},
    {"key": "transport", "heading": "transport", "unit": "", "point": "setting"},
    {"key": "time_us", "heading": "time", "unit": "us", "point": "endpoint"},
    {"key": "goodput_gbps", "heading": "goodput", "unit": "GB/s", "point": "fabric boundary"},
    {"key": "cv", "heading": "CV", "unit": "%", "point": "computed"},
]


def line(senders: int, transport: str, *times: float, **values: Any) -> dict[str, Any]:
    """Return a row of the table of test 6.4."""
    middle = sorted(times)[len(times) // 2]
    samples = {"samples": {"time_us": list(times)}} if len(times) > 1 else {}
    return {
        "senders": senders,
        "transport": transport,
        "time_us": middle,
        "goodput_gbps": 40.0,
        "cv": 6.0 if samples else None,
        **samples,
        **values,
    }


LINES = (
    line(2, "uet", 10.0, 11.0, 12.0),
    line(2, "rocev2:classic", 14.0),
    line(4, "uet", 20.0),
    line(4, "rocev2:classic", 30.0),
)


def suite_data(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what ``suite.json`` holds: 6.4 measured, 10.2 with a reason, 11.1 not ended."""
    one = suite_test(
        "6.4",
        "UET congestion control",
        deviations=["N = 2 and 4."],
        tables=[
            {
                "title": "Incast",
                "columns": COLUMNS,
                "rows": list(rows or LINES),
                "curves": [{"x": "senders", "y": "time_us", "series": ["transport"],
                            "measured": False}],
            }
        ],
        trials=[trial("aa11"), trial("bb22", excluded="no fabric")],
    )  # fmt: skip
    return {
        "schema": "uetemu.suite/1",
        "suite": "training",
        "scale": "small",
        "transports": ["uet", "rocev2:classic"],
        "fabric": None,
        "seed": 1,
        "seeds": 3,
        "document": "draft-of-a-bench",
        "terminology": "its terms",
        "machine": {"kernel": {"release": "6.18"}, "packages": {"uetemu": "0.1.0"}},
        "tests": [
            one,
            suite_test("10.2", "MLPerf", reason="needs accelerators"),
            suite_test("11.1", "Scale", ended=False),
        ],
        **more,
    }


def suite_test(number: str, title: str, **more: Any) -> dict[str, Any]:
    """Return a test without a table, but for what ``more`` says."""
    return {
        "number": number,
        "title": title,
        "objective": "an objective",
        "ended": True,
        "reason": None,
        "error": None,
        "deviations": [],
        "notes": [],
        "tables": [],
        "trials": [],
        **more,
    }


def trial(key: str, **more: Any) -> dict[str, Any]:
    """Return a trial that has run."""
    return {
        "key": key,
        "command": f"uetemu run incast --param key={key}",
        "seconds": 3.0,
        "digest": f"digest of {key}",
        "excluded": None,
        **more,
    }


def run_row(**more: Any) -> dict[str, Any]:
    """Return a row of a trial's ``result.json``."""
    return {
        "transport": "uet:tss=cluster",
        "switch": "lossless",
        "collective": "allreduce",
        "size_bytes": 1024,
        "time_us": 10.0,
        "busbw_gbps": 30.0,
        "algbw_gbps": 20.0,
        "iterations": 2,
        "algorithm": "ring",
        "dropped_packets": 0,
        **more,
    }


def write_suite(folder: Path, data: object | None = None, *rows: dict[str, Any]) -> Path:
    """Write a suite folder with one run folder, whose rows are ``rows``; return its path."""
    run = folder / "trials" / "aa11"
    run.mkdir(parents=True)
    (folder / "suite.json").write_text(json.dumps(suite_data() if data is None else data))
    result = {
        "topology": "rail_clos",
        "ranks": 2,
        "rows": list(rows or [run_row()]),
        "fidelity": {"verdict": "exact"},
        "warnings": [],
    }
    (run / "result.json").write_text(json.dumps(result))
    (run / "fabric.json").write_text(json.dumps(FABRIC))
    return folder
