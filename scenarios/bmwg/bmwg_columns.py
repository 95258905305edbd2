"""The columns of the suites' tables, each with its unit and its observation point.

A column is defined once, so that a value of one point cannot stand in the column of another.
"""

from __future__ import annotations

from emulator.metrics import BOUNDARY, ENDPOINT, METRICS, MIXED, MODEL
from emulator.metrics import SWITCH as SWITCH_POINT
from emulator.suite.suite_model import Point, SuiteColumn


def _setting(key: str, heading: str, unit: str = "") -> SuiteColumn:
    return SuiteColumn(key, heading, unit, Point.INPUT)


def _endpoint(key: str, heading: str, unit: str = "") -> SuiteColumn:
    return SuiteColumn(key, heading, unit, Point.ENDPOINT)


def _switch(key: str, heading: str, unit: str = "") -> SuiteColumn:
    return SuiteColumn(key, heading, unit, Point.SWITCH)


#: The points of a suite's tables by those of metrics; sums over NICs and switches are the switch's.
_POINTS = {
    ENDPOINT: Point.ENDPOINT,
    BOUNDARY: Point.FABRIC,
    SWITCH_POINT: Point.SWITCH,
    MIXED: Point.SWITCH,
    MODEL: Point.DERIVED,
}


def _metric(key: str) -> SuiteColumn:
    """Return the column of a metric as the drafts name it; counts and shares have no unit."""
    one = METRICS[key]
    unit = one.unit if one.unit in ("us", "B", "GB/s") else ""
    return SuiteColumn(key, one.draft or one.heading, unit, _POINTS[one.observed_at])


TRANSPORT = _setting("transport", "transport")
SWITCH = _setting("switch", "switch")
SIZE = _setting("size_bytes", "size", "B")
MESSAGE = _setting("message", "message", "B")
PATHS = _setting("paths", "paths")
SENDERS = _setting("senders", "senders")
FLOWS = _setting("flows", "flows")
QPS = _setting("q", "Q")
DIRECTION = _setting("direction", "direction")
RANKS = _setting("ranks", "N")
ALGORITHM = _setting("algorithm", "algorithm (verified)")
TSS = _setting("tss", "TSS")
BALANCING = _setting("balancing", "load balancing")
GOODPUT = _metric("goodput_gbps")
GOODPUT_SHARE = _metric("goodput_share")
TIME = _metric("time_us")
LEAST, MOST = _endpoint("least", "least", "us"), _endpoint("most", "most", "us")
IDEAL = _metric("ideal_us")
EFFICIENCY = SuiteColumn("efficiency", "ideal / time", "", Point.DERIVED)
CV = SuiteColumn("cv", "CV", "%", Point.DERIVED)
P50 = _metric("message_p50_us")
P99 = _metric("message_p99_us")
P999 = _metric("message_p999_us")
SPREAD = SuiteColumn("spread_us", "P99 - P50", "us", Point.DERIVED)
VICTIM_P99 = _metric("victim_p99_us")
BUSBW = _metric("busbw_gbps")
JAIN = _metric("jain")
RESENT = _metric("retransmitted_packets")
TIMEOUTS = _metric("timeouts")
REORDERED = _metric("reordered_packets")
CONVERGED = _metric("converged_us")
RESTORED = _endpoint("restored_us", "goodput restored after", "us")
S_FABRIC = _metric("fabric_bytes")
MMR = _metric("links_max_mean")
LINKS_JAIN = _metric("links_jain")
DATA = _metric("data_packets")
MARKED = _metric("marked_packets")
TRIMMED = _metric("trimmed_packets")
DROPPED = _metric("dropped_packets")
LOST = _switch("lost_packets", "lost to the failure")
PAUSES = _metric("pauses")
PAUSED = _metric("paused_us")
QUEUE = _metric("max_queue_bytes")
STEADY_QUEUE = _metric("steady_queue_bytes")
DELTA = SuiteColumn("delta", "over RC", "", Point.DERIVED)
SLOWDOWN = SuiteColumn("slowdown", "slowdown", "", Point.DERIVED)
