"""Where each value of a row is observed, and what a reader sees of it.

Values that were observed at different points never share a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ENDPOINT = "endpoint"
BOUNDARY = "fabric boundary"
SWITCH = "switch"
CLUSTER = "cluster"
MODEL = "computed"
INPUT = "input"

#: The meanings of the points, for the report's reader.
MEANINGS: Mapping[str, str] = {
    ENDPOINT: "at the GPUs: schedules, transports and NICs count and time what they do",
    BOUNDARY: "at the cables of NICs: switch ports towards receivers; frame times at both ends",
    SWITCH: "at the ports of all switches",
    MODEL: "computed from the topology and the schedules; nothing was observed",
    INPUT: "what the run was told",
    CLUSTER: "timed on a cluster's hosts by another tool, launch of kernels included",
}


#: Values that are names.
_NAMES = ("max_queue_port", "last_flow", "last_flow_waited_for")


@dataclass(frozen=True)
class RowValue:
    """A value of a row: its key, heading, unit and observation point.

    ``better`` is 1 where more is better, -1 where less is, 0 where neither.
    """

    key: str
    heading: str
    unit: str
    point: str
    better: int = 0
    scale: float = 1
    decimals: int = 2

    @property
    def numeric(self) -> bool:
        """Whether the value is a number that was measured or computed."""
        return self.point != INPUT and self.key not in _NAMES

    def shown(self, row: Mapping[str, Any]) -> str:
        return text(row.get(self.key), self.scale, self.decimals)


VALUES = (
    RowValue("transport", "transport", "", INPUT),
    RowValue("switch", "switch", "", INPUT),
    RowValue("seed", "seed", "", INPUT),
    RowValue("collective", "pattern", "", INPUT),
    RowValue("algorithm", "algorithm", "", INPUT),
    RowValue("size_bytes", "size", "B", INPUT),
    RowValue("iterations", "iterations", "", INPUT),
    RowValue("held_writes", "held by in_flight", "writes", INPUT),
    RowValue("ideal_us", "ideal", "us", MODEL),
    RowValue("time_us", "time", "us", ENDPOINT, -1),
    RowValue("efficiency", "of ideal", "%", ENDPOINT, 1, 100, 1),
    RowValue("algbw_gbps", "algbw", "GB/s", ENDPOINT, 1),
    RowValue("busbw_gbps", "busbw", "GB/s", ENDPOINT, 1),
    RowValue("wrong", "#wrong", "", ENDPOINT, -1),
    RowValue("message_p50_us", "message p50", "us", ENDPOINT, -1),
    RowValue("message_p99_us", "message p99", "us", ENDPOINT, -1),
    RowValue("message_p999_us", "message p99.9", "us", ENDPOINT, -1),
    RowValue("victim_p50_us", "victim p50", "us", ENDPOINT, -1),
    RowValue("victim_p99_us", "victim p99", "us", ENDPOINT, -1),
    RowValue("jain", "Jain", "", ENDPOINT, 1, 1, 3),
    RowValue("data_packets", "data", "packets", ENDPOINT),
    RowValue("retransmitted_packets", "resent", "packets", ENDPOINT, -1),
    RowValue("timeouts", "RTOs", "", ENDPOINT, -1),
    RowValue("rto_wait_us", "waited for timers", "us", ENDPOINT, -1),
    RowValue("last_flow", "last flow", "", ENDPOINT),
    RowValue("last_flow_us", "it ended", "us", ENDPOINT, -1),
    RowValue("last_flow_alone_us", "alone for", "us", ENDPOINT, -1),
    RowValue("last_flow_share", "at a rate", "% of NIC", ENDPOINT, 1, 100, 1),
    RowValue("last_flow_waited_for", "held back by", "", ENDPOINT),
    RowValue("cnps", "CNPs", "", ENDPOINT),
    RowValue("reordered_packets", "reordered", "packets", ENDPOINT),
    RowValue("paused_nics_us", "NICs paused", "us", ENDPOINT, -1),
    RowValue("credit_stalled_nics_us", "NICs without credits", "us", ENDPOINT, -1),
    RowValue("slowdown", "slowdown", "times", ENDPOINT, -1),
    RowValue("goodput_gbps", "goodput", "GB/s", BOUNDARY, 1),
    RowValue("goodput_share", "goodput", "% of links", BOUNDARY, 1, 100, 1),
    RowValue("marked_packets", "marks", "packets", SWITCH),
    RowValue("trimmed_packets", "trims", "packets", SWITCH, -1),
    RowValue("dropped_packets", "drops", "packets", SWITCH, -1),
    RowValue("frames_lost", "frames lost", "", SWITCH, -1),
    RowValue("max_queue_bytes", "deepest queue", "B", SWITCH, -1),
    RowValue("max_queue_port", "at", "", SWITCH),
    RowValue("lossless_held_bytes", "lossless buffer", "B held", SWITCH, -1),
    RowValue("lossless_buffer_bytes", "lossless buffer", "B kept", SWITCH),
    RowValue("steady_queue_bytes", "steady queue", "B", SWITCH, -1, 1, 0),
    RowValue("links_max_mean", "uplinks max/mean", "", SWITCH, -1),
)
#: Observed by switches and NICs together, and so in no column: shown by port instead.
MIXED = (
    *("pauses", "paused_us", "replays", "replayed_packets", "replay_timeouts"),
    *("link_recovery_us", "link_recovery_max_us", "link_lost_packets"),
    *("replay_full_us", "credit_stalled_us"),
)
BY_KEY: Mapping[str, RowValue] = {value.key: value for value in VALUES}


def value_of(key: str, row: Mapping[str, Any]) -> RowValue | None:
    """Return the value of a key in this row; goodput moves to the point that the row names."""
    value = BY_KEY.get(key)
    if value is not None and key.startswith("goodput") and row.get("goodput_at") == ENDPOINT:
        return RowValue(
            key, value.heading, value.unit, ENDPOINT, value.better, value.scale, value.decimals
        )
    return value


def text(value: object, scale: float = 1, decimals: int = 2) -> str:
    """Return a value as a cell of a table shows it."""
    if value is None:
        return "n/a"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) and scale == 1:
        return str(value)
    return f"{value * scale:.{decimals}f}"
