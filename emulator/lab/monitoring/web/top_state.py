"""The state of a lab as the page of ``uetemu top --web`` reads it: one JSON object for a look.

``links`` are rows of :data:`LINK_COLUMNS`.  Beyond :data:`MOST_LINKS` of them the busiest stay, by
each of the ways to sort; ``links_left_out`` has the number of the others.
"""

from __future__ import annotations

from typing import Any

from emulator.lab.live.rates import Activity, Group, Sort, busiest, by_rail, by_tier
from emulator.lab.live.sampler import LabSample
from emulator.lab.monitoring.lab_watch import Watched
from emulator.lab.monitoring.run_progress import RunProgress
from emulator.lab.monitoring.web.top_drawing import TopDrawing

MOST_LINKS = 512
MOST_RAILS = 64
#: Of each way to sort, beyond that.
EACH = 64
LINK_COLUMNS = (
    "port",
    "to",
    "gbps",
    "utilisation",
    "queue_bytes",
    "peak_bytes",
    "limit_bytes",
    "kmin_bytes",
    "kmax_bytes",
    "marked",
    "trimmed",
    "dropped",
    "total_marked",
    "total_trimmed",
    "total_dropped",
)


def state_of(watched: Watched, drawing: TopDrawing) -> dict[str, Any]:
    """Return the state; without ``links`` until the first interval is over."""
    record, seen = watched.record, watched.picture
    found: dict[str, Any] = {
        "lab": record.lab,
        "topology": record.topology_spec,
        "switch": record.switch or "none",
        "clock": record.clock,
        "dilation": record.dilation if record.clock == "host" else None,
        "at_s": watched.at_s,
        "ended": watched.ended,
        "ended_s": watched.ended_s,
        "run": None if watched.run is None else _run(watched.run),
    }
    if seen is None:
        return found
    links = _chosen(seen)
    return found | {
        "up_us": seen.up_us,
        "interval_us": seen.interval_us,
        "tiers": _tiers(seen),
        "rails": _rails(seen),
        "links": [_link(one, seen) for one in links],
        "links_left_out": len(seen.activities) - len(links),
        "lines": drawing.values(seen),
    }


def _chosen(seen: LabSample) -> list[Activity]:
    if len(seen.activities) <= MOST_LINKS:
        return list(seen.activities)
    ports = {one.direction.port for sort in Sort for one in busiest(seen.activities, sort)[:EACH]}
    return [one for one in seen.activities if one.direction.port in ports]


def _link(one: Activity, seen: LabSample) -> list[object]:
    limits = seen.limits[one.direction.port]
    return [
        one.direction.port,
        one.direction.to,
        round(one.rate_bps / 1e9, 3),
        round(one.utilisation, 4),
        one.queue_bytes,
        one.peak_bytes,
        limits.limit_bytes,
        limits.kmin_bytes,
        limits.kmax_bytes,
        one.marked,
        one.trimmed,
        one.dropped,
        one.total_marked,
        one.total_trimmed,
        one.total_dropped,
    ]


def _tiers(seen: LabSample) -> list[dict[str, object]]:
    groups = by_tier(seen.activities)
    return [{"tier": name, **_group(groups[name])} for name in seen.tiers if name in groups]


def _group(group: Group) -> dict[str, object]:
    return {
        "links": group.links,
        "mean": round(group.mean, 4),
        "max": round(group.max, 4),
        "max_mean": None if group.max_mean is None else round(group.max_mean, 3),
        "deepest_bytes": group.deepest_bytes,
        "marked": group.marked,
        "trimmed": group.trimmed,
        "dropped": group.dropped,
    }


def _rails(seen: LabSample) -> list[dict[str, object]]:
    """Return mean and largest utilisation of each rail, in the order of the tiers."""
    rails = by_rail(seen.activities)
    return [
        {
            "rail": rail,
            "tiers": {
                tier: [round(groups[tier].mean, 4), round(groups[tier].max, 4)]
                for tier in seen.tiers
                if tier in groups
            },
        }
        for rail, groups in list(rails.items())[:MOST_RAILS]
    ]


def _run(run: RunProgress) -> dict[str, object]:
    return {
        "scenario": run.scenario,
        "finished": run.finished,
        "errors": run.errors,
        "rows": [
            {
                "transport": name.transport,
                "collective": name.collective,
                "size_bytes": name.size_bytes,
                **{key: row.get(key) for key in ("time_us", "ideal_us", "busbw_gbps", "wrong")},
            }
            for name, row in reversed(list(run.latest.items()))
        ],
        "flows": list(run.flows),
    }
