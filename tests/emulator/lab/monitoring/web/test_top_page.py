"""The state that the page reads: by hand, bounded, and without a first interval."""

import json
import re
import shutil

import pytest

from emulator.lab.monitoring.web.top_page import (
    COLOURED_BY,
    EACH,
    LINK_COLUMNS,
    MOST_LINKS,
    TopDrawing,
    TopPage,
    state_of,
)
from tests.harness.runs.watched_lab import watched_lab


def test_links_tiers_and_lines_by_hand() -> None:
    watched = watched_lab(sent={"rail0:down0": 250_000, "h0g0:eth0": 50_000})
    drawing = TopDrawing(watched.topology)
    state = state_of(watched, drawing)
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    links = {row[0]: dict(zip(LINK_COLUMNS, row, strict=True)) for row in state["links"]}
    down = links["rail0:down0"]
    assert (down["gbps"], down["utilisation"]) == (200.0, 0.5)
    assert (down["queue_bytes"], down["peak_bytes"], down["kmin_bytes"]) == (500, 900, 100)
    assert (down["marked"], down["trimmed"], down["dropped"]) == (1, 2, 3)
    assert links["h0g0:eth0"]["marked"] is None
    tier = next(one for one in state["tiers"] if one["tier"] == "rail to gpu")
    assert (tier["max"], tier["marked"], tier["dropped"]) == (0.5, 4, 12)
    assert state["rails"][0]["tiers"]["rail to gpu"][1] == 0.5
    assert set(state["lines"]) == set(COLOURED_BY)
    # of the cable of h0g0 the busier direction counts
    assert sorted(state["lines"]["utilisation"])[-1] == 0.5
    assert max(state["lines"]["queue"]) == 0.9
    assert set(state["lines"]["drops"]) == {1.0}  # all ports drop alike
    assert state["run"]["rows"][0]["busbw_gbps"] == 12.5
    assert state["run"]["flows"][0]["from"] == "h0g0"


def test_a_large_fabric_sends_its_busiest_links_only() -> None:
    watched = watched_lab("rail_clos:hosts=64,gpus_per_host=8", sent={"rail7:down60": 99_999})
    state = state_of(watched, TopDrawing(watched.topology))
    assert len(state["links"]) <= 5 * EACH < MOST_LINKS
    assert len(state["links"]) + state["links_left_out"] == 2 * len(watched.topology.links)
    assert "rail7:down60" in {row[0] for row in state["links"]}
    assert len(json.dumps(state)) < 100_000


def test_before_the_first_interval_there_are_no_numbers() -> None:
    watched = watched_lab(picture=None, run=None)
    state = state_of(watched, TopDrawing(watched.topology))
    assert "links" not in state
    assert state["run"] is None


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize(
    "spec", ["rail_clos", "torus", "dragonfly", "rail_clos:hosts=32,gpus_per_host=8"]
)
def test_each_line_of_the_drawing_can_be_coloured(spec: str) -> None:
    watched = watched_lab(spec)
    drawing = TopDrawing(watched.topology)
    assert watched.picture is not None
    values = drawing.values(watched.picture)["utilisation"]
    assert drawing.svg is not None
    named = {int(number) for number in re.findall(r'class="edge line-(\d+)"', drawing.svg)}
    assert named == set(range(len(values)))
    assert min(values) > 0  # each line stands for ports, and all of them send


def test_without_graphviz_there_is_no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    watched = watched_lab()
    page = TopPage("demo", watched.topology)
    assert b"Graphviz's program dot is not installed" in page.routes["/"]({}).body
