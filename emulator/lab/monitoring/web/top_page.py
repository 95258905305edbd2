"""The page of ``uetemu top --web``: a live drawing of the fabric, and its stream of states.

One file without anything from elsewhere: it works offline.  Its content-security policy lets only
its own script run, and only its own server be asked; names in the state become text, never markup.

A state (a server-sent event) is one JSON object for a look.  ``links`` are rows of
:data:`LINK_COLUMNS`.  Beyond :data:`MOST_LINKS` of them the busiest stay, by each of the ways to
sort; ``links_left_out`` has the number of the others.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from markupsafe import Markup

from emulator.html_page import (
    DrawingError,
    drawn_by_graphviz,
    page_environment,
    policy_hash,
    source_of,
)
from emulator.lab.live.rates import Activity, Group, Sort, busiest, by_rail, by_tier
from emulator.lab.live.sampler import LabSample
from emulator.lab.monitoring.lab_watch import RunProgress, Watched
from emulator.lab.monitoring.local_server import HttpAnswer, Route
from topologies.exports.dot import source
from topologies.exports.heat import STEPS
from topologies.exports.picture import picture
from topologies.model import Topology

#: What lines can be coloured by, as shares of all that there is: of a link, of a queue's limit.
_SHARES: Mapping[str, Callable[[Activity, LabSample], float]] = {
    "utilisation": lambda one, _: one.utilisation,
    "queue": lambda one, seen: one.deepest_bytes / seen.limits[one.direction.port].limit_bytes,
}
#: The same of counts, which have no whole: shares of the largest count in the interval.
_COUNTS: Mapping[str, Callable[[Activity], int]] = {
    "marks": lambda one: one.marked or 0,
    "trims": lambda one: one.trimmed or 0,
    "drops": lambda one: one.dropped,
}
COLOURED_BY = (*_SHARES, *_COUNTS)


class TopDrawing:
    """The drawing of ``topology``; ``svg`` is None where Graphviz cannot draw it."""

    def __init__(self, topology: Topology) -> None:
        drawn = picture(topology)
        self._ports = [
            tuple(str(end) for link in line.links for end in link.ends) for line in drawn.lines
        ]
        self.svg: str | None = None
        with suppress(DrawingError):
            self.svg = drawn_by_graphviz(source(drawn, topology.name, numbered=True))

    def values(self, seen: LabSample) -> dict[str, list[float]]:
        """Return the share of each line, by what it is coloured by: of its busiest direction."""
        found = {}
        for name, share in _SHARES.items():
            found[name] = self._lines(
                {one.direction.port: share(one, seen) for one in seen.activities}
            )
        for name, count in _COUNTS.items():
            counts = {one.direction.port: count(one) for one in seen.activities}
            most = max(counts.values(), default=0) or 1
            found[name] = self._lines({port: each / most for port, each in counts.items()})
        return found

    def _lines(self, by_port: Mapping[str, float]) -> list[float]:
        return [
            round(max((by_port.get(port, 0.0) for port in ports), default=0.0), 4)
            for ports in self._ports
        ]


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
        "topology": record.settings.spec,
        "switch": record.switch or "none",
        "clock": record.settings.clock,
        "dilation": record.settings.dilation if record.settings.clock == "host" else None,
        "at_s": watched.at_s,
        "ended": watched.ended,
        "ended_s": watched.ended_s,
        "run": None if watched.run is None else _run_state(watched.run),
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


def _run_state(run: RunProgress) -> dict[str, object]:
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


#: A stream repeats its state so often when nothing is new (s): the page knows the server lives.
BEAT_S = 5.0


class TopPage:
    """The page of one lab, and its latest state for all readers."""

    def __init__(self, lab: str, topology: Topology) -> None:
        self._drawing = TopDrawing(topology)
        self._page, self._policy = _rendered(lab, self._drawing)
        self._state = b""
        self._number = 0
        self._ended = False
        self._news = threading.Condition()

    @property
    def routes(self) -> Mapping[str, Route]:
        return {"/": self._html, "/events": self._events}

    def show(self, watched: Watched, *, last: bool = False) -> None:
        """Publish a state; with the ``last`` one all streams end."""
        text = json.dumps(state_of(watched, self._drawing), separators=(",", ":"), allow_nan=False)
        with self._news:
            self._state = b"data: " + text.encode() + b"\n\n"
            self._number += 1
            self._ended = self._ended or last
            self._news.notify_all()

    def _html(self, _: Mapping[str, str]) -> HttpAnswer:
        headers = {"Content-Security-Policy": self._policy, "Referrer-Policy": "no-referrer"}
        return HttpAnswer(kind="text/html; charset=utf-8", body=self._page, headers=headers)

    def _events(self, _: Mapping[str, str]) -> HttpAnswer:
        return HttpAnswer(kind="text/event-stream", parts=self._states())

    def _states(self) -> Iterator[bytes]:
        sent, ended = 0, False
        while not ended:
            with self._news:
                if self._number == sent:
                    self._news.wait(BEAT_S)
                state, sent, ended = self._state, self._number, self._ended
            yield state


def _rendered(lab: str, drawing: TopDrawing) -> tuple[bytes, str]:
    """Return the page and its content-security policy."""
    environment = page_environment(__package__)
    script, style = source_of(__package__, "top.js"), source_of(__package__, "top.css")
    policy = (
        f"default-src 'none'; script-src {policy_hash(script)}; style-src {policy_hash(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    page = environment.get_template("top.html.j2").render(
        lab=lab,
        style=Markup(style),
        script=Markup(script),
        svg=None if drawing.svg is None else Markup(drawing.svg),
        coloured_by=COLOURED_BY,
        steps=STEPS,
        config={"columns": LINK_COLUMNS, "steps": STEPS},
    )
    return page.encode(), policy
