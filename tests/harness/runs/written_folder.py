"""A run folder written by hand, small enough to know every number in it."""

import json
import struct
from pathlib import Path
from typing import Any

from emulator.dataplane.capture.pcapng import (
    ENHANCED_PACKET,
    FLAGS,
    INBOUND,
    OUTBOUND,
    block,
    interface,
    options,
    section,
)
from emulator.dataplane.switch.telemetry import COLUMNS
from emulator.run_files import SCHEMA
from emulator.sim.line_telemetry import COLUMNS as LINE_COLUMNS
from topologies import catalogue
from topologies.exports.mermaid import as_data

SPEC = "rail_clos:hosts=2,gpus_per_host=1,spines=1,uplinks_per_spine=1"
EPOCH_NS = 946_684_800 * 10**9
#: An iteration of the second row begins here (us on the run's clock).
BEGAN_US = 100.0


def row(**changes: Any) -> dict[str, Any]:
    """Return a row of two iterations of 10 us."""
    facts: dict[str, Any] = {
        "transport": "uet", "switch": "shallow", "seed": 1, "collective": "incast",
        "size_bytes": 65536, "time_us": 10.0, "ideal_us": 8.0, "efficiency": 0.8,
        "algbw_gbps": None, "busbw_gbps": None, "wrong": 0, "iterations": 2,
        "goodput_gbps": 45.0, "goodput_at": "fabric boundary", "goodput_share": 0.9,
        "message_p50_us": 4.0, "message_p99_us": 9.0, "jain": 0.99,
        "dropped_packets": 3, "trimmed_packets": 0, "marked_packets": 7, "drops": {"tail": 3},
        "retransmitted_packets": 3, "timeouts": 0, "began_us": [50.0, BEGAN_US],
        "max_queue_bytes": 9000, "max_queue_port": "rail0:down0",
        "fidelity": {"verdict": "exact", "reasons": []}, "digest": "d1",
    }  # fmt: skip
    return {**facts, **changes}


def result(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "schema": SCHEMA, "scenario": "incast", "topology": SPEC, "transport": "uet",
        "switch": "shallow", "ranks": 2, "seed": 1, "seeds": 1, "dilation": 1.0, "homing": None,
        "parameters": {"senders": [1]}, "units": {}, "rows": list(rows), "summary": [],
        "endpoints": {"h0g0": {"transport.rx_messages": 4}}, "ports": {}, "digest": "ab" * 32,
        "fidelity": {
            "verdict": "exact", "reasons": [],
            "account": {"injected": 9, "delivered": 6, "dropped": {"tail": 3}},
        },
        "unfinished": None, "errors": [], "warnings": [],
    }  # fmt: skip
    return {**content, **changes}


def messages(number: int, times_us: list[float], **changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "event": "messages", "row": number, "times_us": times_us, "count": 4,
        "latency_us": [[0.0, 2.0], [0.5, 4.0], [1.0, 9.0]],
        "flows": [
            {"from": "h1g0", "to": "h0g0", "bytes": 131072, "messages": 4, "time_us": 9.5,
             "goodput_gbps": 6.9},
        ],
        "flows_left_out": 0,
    }  # fmt: skip
    return {**content, **changes}


def ports(number: int) -> dict[str, Any]:
    return {
        "event": "ports", "row": number, "span_us": 20.0,
        "observes": ["traffic", "switch", "pauses"],
        "ports": {
            "rail0:down0": {"tx_packets": 40, "tx_bytes": 131072, "marked": 7, "dropped": 3,
                            "dropped_tail": 3},
            "h1g0:eth0": {"tx_packets": 43, "tx_bytes": 140000, "paused_ns": 2500},
            "rail0:down1": {"xoff_sent": 2},
        },
    }  # fmt: skip


def telemetry() -> str:
    lines = [",".join(COLUMNS)]
    for t_us, queue, sent, marked, dropped in (
        (0.0, 0, 0, 0, 0),
        (BEGAN_US, 0, 200_000, 0, 0),
        (BEGAN_US + 5, 9000, 400_000, 7, 1),
        (BEGAN_US + 10, 0, 600_000, 7, 3),
    ):
        lines.append(f"{t_us:.3f},rail0:down0,{queue},{queue},0,{sent},0,{marked},0,{dropped},0,0")
        lines.append(f"{t_us:.3f},rail0:up0,0,0,0,0,0,0,0,0,0,0")
    return "\n".join(lines) + "\n"


def line_telemetry() -> str:
    """The NIC sends at half of 400 Gb/s in the first 5 us, and is paused for 2 us of the rest."""
    lines = [",".join(LINE_COLUMNS)]
    for t_us, sent, paused in ((0.0, 0, 0), (BEGAN_US, 0, 0), (BEGAN_US + 5, 125_000, 0)):
        lines.append(f"{t_us:.3f},h1g0:eth0,{sent},{paused}")
    lines.append(f"{BEGAN_US + 10:.3f},h1g0:eth0,125000,2000")
    return "\n".join(lines) + "\n"


def capture(frames: list[tuple[float, int, bytes]]) -> bytes:
    """Return a pcapng file of two ports; a frame is its time (us), port number and octets."""
    content = section("uetemu") + interface("h1g0:eth0") + interface("rail0:down0")
    for time_us, port, octets in frames:
        at = EPOCH_NS + round(time_us * 1000)
        head = struct.pack("<IIIII", port, at >> 32, at & 0xFFFFFFFF, len(octets), len(octets))
        content += block(ENHANCED_PACKET, head + octets + bytes(-len(octets) % 4))
    return content


def directed_capture(ports: list[str], frames: list[tuple[float, str, bytes, int]]) -> bytes:
    """Return a pcapng file; a frame is its time (us), place, octets and length.

    The place is ``port out``, ``port in`` or ``port ?``, the length that on the wire.
    """
    content = section("uetemu") + b"".join(interface(port) for port in ports)
    for time_us, place, octets, length in frames:
        port, way = place.split()
        at = EPOCH_NS + round(time_us * 1000)
        number = ports.index(port)
        head = struct.pack("<IIIII", number, at >> 32, at & 0xFFFFFFFF, len(octets), length)
        flags = {"out": OUTBOUND, "in": INBOUND}.get(way)
        known = [] if flags is None else [(FLAGS, flags.to_bytes(4, "little"))]
        tail = bytes(-len(octets) % 4) + options(*known)
        content += block(ENHANCED_PACKET, head + octets + tail)
    return content


def write_folder(
    place: Path, content: dict[str, Any], events: list[dict[str, Any]] | None = None
) -> Path:
    """Write a folder with ``content`` as its result; ``events`` of two rows by default."""
    place.mkdir(parents=True, exist_ok=True)
    if events is None:
        events = []
        for number, one in enumerate(content["rows"], 1):
            times = [one["time_us"]] * 2
            fault = {"event": "fault", "said": "t=4us link rail0:up0 down", "at_us": 4.0}
            events += [fault, {"event": "row", **one}, ports(number), messages(number, times)]
    (place / "result.json").write_text(json.dumps(content))
    (place / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    fabric = as_data(catalogue.load(content["topology"]))
    (place / "fabric.json").write_text(json.dumps(fabric))
    command = ["/bin/uetemu", "run", "incast", "--output", "x", "--param", "size=64KiB"]
    environment = {"command": command, "packages": {"uetemu": "0.1.0"}, "python": "3.11.2"}
    (place / "environment.json").write_text(json.dumps(environment))
    (place / "telemetry.csv").write_text(telemetry())
    (place / "line_telemetry.csv").write_text(line_telemetry())
    slices = [
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "h1g0"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 7, "args": {"name": "NIC out"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 8, "args": {"name": "NIC out 2"}},
        {"ph": "X", "name": "to h0g0", "cat": "NIC", "pid": 2, "tid": 7, "ts": 0.0, "dur": 3.0,
         "args": {"bytes": 16384}},
        {"ph": "X", "name": "to h0g0", "cat": "NIC", "pid": 2, "tid": 8, "ts": 1.0, "dur": 3.0},
    ]  # fmt: skip
    (place / "timeline.json").write_text(json.dumps({"traceEvents": slices}))
    return place
