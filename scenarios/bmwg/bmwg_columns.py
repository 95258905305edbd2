"""The columns of the suites' tables, each with its unit and its observation point.

A column is defined once, so that a value of one point cannot stand in the column of another.
"""

from __future__ import annotations

from emulator.suite.suite_model import Point, SuiteColumn


def _setting(key: str, heading: str, unit: str = "") -> SuiteColumn:
    return SuiteColumn(key, heading, unit, Point.INPUT)


def _endpoint(key: str, heading: str, unit: str = "") -> SuiteColumn:
    return SuiteColumn(key, heading, unit, Point.ENDPOINT)


def _switch(key: str, heading: str, unit: str = "") -> SuiteColumn:
    return SuiteColumn(key, heading, unit, Point.SWITCH)


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
GOODPUT = SuiteColumn("goodput_gbps", "goodput", "GB/s", Point.FABRIC)
GOODPUT_SHARE = SuiteColumn("goodput_share", "share of NICs", "", Point.FABRIC)
TIME = _endpoint("time_us", "time", "us")
LEAST, MOST = _endpoint("least", "least", "us"), _endpoint("most", "most", "us")
IDEAL = SuiteColumn("ideal_us", "ideal", "us", Point.DERIVED)
EFFICIENCY = SuiteColumn("efficiency", "ideal / time", "", Point.DERIVED)
CV = SuiteColumn("cv", "CV", "%", Point.DERIVED)
P50 = _endpoint("message_p50_us", "message P50", "us")
P99 = _endpoint("message_p99_us", "message P99", "us")
P999 = _endpoint("message_p999_us", "message P99.9", "us")
SPREAD = SuiteColumn("spread_us", "P99 - P50", "us", Point.DERIVED)
VICTIM_P50 = _endpoint("victim_p50_us", "victim P50", "us")
VICTIM_P99 = _endpoint("victim_p99_us", "victim P99", "us")
BUSBW = _endpoint("busbw_gbps", "busbw", "GB/s")
JAIN = _endpoint("jain", "JFI of flows")
RESENT = _endpoint("retransmitted_packets", "retransmitted")
TIMEOUTS = _endpoint("timeouts", "timeouts")
REORDERED = _endpoint("reordered_packets", "out of order")
CONVERGED = _endpoint("converged_us", "fair after", "us")
RESTORED = _endpoint("restored_us", "goodput restored after", "us")
S_FABRIC = _endpoint("fabric_bytes", "S_fabric", "B")
MMR = _switch("links_max_mean", "MMR")
LINKS_JAIN = _switch("links_jain", "JFI of links")
DATA = _endpoint("data_packets", "data packets")
MARKED = _switch("marked_packets", "marked")
TRIMMED = _switch("trimmed_packets", "trimmed")
DROPPED = _switch("dropped_packets", "dropped")
LOST = _switch("lost_packets", "lost to the failure")
PAUSES = _switch("pauses", "PAUSE frames")
PAUSED = _switch("paused_us", "paused", "us")
QUEUE = _switch("max_queue_bytes", "deepest queue", "B")
STEADY_QUEUE = _switch("steady_queue_bytes", "mean queue", "B")
DELTA = SuiteColumn("delta", "over RC", "", Point.DERIVED)
SLOWDOWN = SuiteColumn("slowdown", "slowdown", "", Point.DERIVED)
