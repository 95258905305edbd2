"""The page of ``uetemu top --web`` and its stream of states (server-sent events).

One file without anything from elsewhere: it works offline.  Its content-security policy lets only
its own script run, and only its own server be asked; names in the state become text, never markup.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping

from markupsafe import Markup

from emulator.html_page import page_environment, policy_hash, source_of
from emulator.lab.monitoring.lab_watch import Watched
from emulator.lab.monitoring.local_server import HttpAnswer, Route
from emulator.lab.monitoring.web.top_drawing import COLOURED_BY, TopDrawing
from emulator.lab.monitoring.web.top_state import LINK_COLUMNS, state_of
from topologies.exports.heat import STEPS
from topologies.model import Topology

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
        """Return the paths of the server."""
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
    script, style = source_of(environment, "top.js"), source_of(environment, "top.css")
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
