"""The page of ``uetemu top --web`` in a real browser: live, ended, without its server, hostile."""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from emulator.lab.monitoring.local_server import LocalServer
from emulator.lab.monitoring.web.top_page import TopPage
from tests.harness.runs.browser import needs_chromium
from tests.harness.runs.live_page import LivePage
from tests.harness.runs.watched_lab import watched_lab, watched_run

pytestmark = needs_chromium

ANYWHERE = ("127.0.0.1", 0)
DRAWN = "document.body?.dataset.updates > 0"
STATUS = "document.getElementById('status').innerText"
BUSY = {"rail0:down0": 490_000}
HOSTILE = "<img src=x onerror=\"document.body.dataset.owned='yes'\"></script><script>owned()"


def first(table: str) -> str:
    """The cells of the first row of a table, in JavaScript."""
    return f"[...document.querySelector('#{table} tbody tr').cells].map(c => c.innerText).join('|')"


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_it_is_drawn_live(tmp_path: Path, width: int, dark: bool) -> None:
    watched = watched_lab(sent=BUSY)
    page = TopPage("demo", watched.topology)
    page.show(watched)
    with (
        LocalServer(ANYWHERE, page.routes) as server,
        LivePage(server.url, tmp_path, width=width, dark=dark) as browser,
    ):
        browser.until(DRAWN)
        assert browser.value(STATUS).startswith("live, ")
        assert "interval 10 us" in browser.value(STATUS)
        assert browser.value("document.documentElement.scrollWidth") <= width  # fits the screen
        assert browser.value(first("links")).startswith("rail0:down0|")
        assert "98.0" in browser.value(first("links"))
        coloured = "document.querySelectorAll('#drawing .step-5').length"
        assert browser.value(coloured) == 1
        assert browser.value("document.querySelectorAll('#rows tbody tr').length") == 1
        colour = "getComputedStyle(document.querySelector('#drawing .step-5 path')).stroke"
        light = browser.value(colour)
        assert light == ("rgb(255, 240, 196)" if dark else "rgb(95, 15, 30)")
        # another look, and another choice of the reader
        updates = int(browser.value("document.body.dataset.updates"))
        page.show(watched_lab(sent={"rail1:down1": 490_000}))
        browser.until(f"document.body.dataset.updates > {updates}")
        assert browser.value(first("links")).startswith("rail1:down1|")
        browser.value("{const one = document.getElementById('colour'); one.value = 'queue';"
                      "one.dispatchEvent(new Event('change'))}")  # fmt: skip
        assert browser.value(coloured) > 1
        page.show(watched, last=True)


def test_it_says_that_the_lab_has_ended(tmp_path: Path) -> None:
    watched = watched_lab(ended="lab demo has been taken down", ended_s=1.8e9 + 5)
    page = TopPage("demo", watched.topology)
    page.show(watched, last=True)
    with (
        ExitStack() as stack,
        LivePage(stack.enter_context(LocalServer(ANYWHERE, page.routes)).url, tmp_path) as browser,
    ):
        browser.until(DRAWN)
        stack.close()
        said = browser.value(STATUS)
        assert re.fullmatch(
            r"ended at [\d:]{8}: lab demo has been taken down; "
            r"these are its last values, of [\d:]{8}",
            said,
        )
        assert browser.value(first("links"))  # the last values stay
        browser.until(DRAWN)
        assert browser.value(STATUS) == said  # also without a server


def test_it_says_that_the_server_has_gone(tmp_path: Path) -> None:
    watched = watched_lab()
    page = TopPage("demo", watched.topology)
    page.show(watched)
    with (
        ExitStack() as stack,
        LivePage(stack.enter_context(LocalServer(ANYWHERE, page.routes)).url, tmp_path) as browser,
    ):
        browser.until(DRAWN)
        assert browser.value(STATUS).startswith("live, ")
        page.show(watched, last=True)
        stack.close()
        said = browser.until(f"{STATUS}.startsWith('the server') && {STATUS}")
        assert re.fullmatch(
            r"the server does not answer since [\d:]{8}; these values are of [\d:]{8}", said
        )


def test_hostile_names_become_text(tmp_path: Path) -> None:
    run = watched_run(transport=HOSTILE, collective=HOSTILE, flow=HOSTILE)
    watched = watched_lab(run=run, ended=HOSTILE, ended_s=1.8e9)
    page = TopPage(HOSTILE, watched.topology)
    page.show(watched, last=True)
    with LocalServer(ANYWHERE, page.routes) as server, LivePage(server.url, tmp_path) as browser:
        browser.until(DRAWN)
        assert browser.value("document.body.dataset.owned") is None
        assert browser.value("document.querySelectorAll('img').length") == 0
        assert browser.value("document.querySelectorAll('script').length") == 2  # config and ours
        assert HOSTILE in browser.value(first("flows"))
        assert HOSTILE in browser.value(STATUS)
        # not even a script that was put in would run
        browser.value("{const one = document.createElement('script');"
                      "one.textContent = \"document.body.dataset.owned = 'yes'\";"
                      "document.body.append(one)}")  # fmt: skip
        assert browser.value("document.body.dataset.owned") is None


def test_nothing_is_asked_of_other_servers() -> None:
    watched = watched_lab()
    answer = TopPage("demo", watched.topology).routes["/"]({})
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    body = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
    assert "http:" not in body
    assert "https:" not in body
