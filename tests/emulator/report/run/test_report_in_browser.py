"""The report in a real browser: every figure is drawn, rows change, no name becomes a script."""

import re
from pathlib import Path
from typing import Any

import pytest

from emulator.report.run.page import write_report
from tests.emulator.report.run.test_page import HOSTILE, specs_of
from tests.harness.runs.browser import needs_chromium, opened
from tests.harness.runs.written_folder import messages, ports, result, row, write_folder

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose names try to become scripts, and whose first row has another port."""
    first = ports(1)
    first["ports"]["only-in-row-1"] = {"paused_ns": 900}
    flow = {"from": HOSTILE, "to": "h0g0", "bytes": 9, "messages": 1, "time_us": 1.0,
            "goodput_gbps": 1.0}  # fmt: skip
    events: list[dict[str, Any]] = []
    for number, counted in ((1, first), (2, ports(2))):
        events += [
            {"event": "fault", "said": HOSTILE, "at_us": 4.0},
            {"event": "row"},
            counted,
            messages(number, [10.0], flows=[flow]),
        ]
    shares = ("mean", "p50", "p95", "p99", "max")
    told = {f"slowdown_{one}": 1.5 for one in shares} | {f"fct_{one}_us": 9.0 for one in shares}
    sizes = [{"up_to_bytes": bound, "flows": 2, **told} for bound in (10_000, None)]
    content = result(
        row(), row(transport=HOSTILE, fct_by_size=sizes), warnings=[HOSTILE], transport=HOSTILE
    )
    place = tmp_path_factory.mktemp("report")
    return write_report(write_folder(place / "run", content, events))


@pytest.mark.parametrize("options", [["--window-size=1400,900"], ["--window-size=390,800"]])
def test_every_figure_is_drawn(page: Path, tmp_path: Path, options: list[str]) -> None:
    document = opened(page, tmp_path, *options)
    names = set(specs_of(page.read_text()))
    assert f'data-drawn="{len(names)}"' in document
    assert "could not be drawn" not in document
    for name in names:
        place = document.index(f'id="plot-{name}"')
        assert "<svg" in document[place : place + 600], name
    assert "data-owned" not in document
    assert "<img" not in document


def test_figures_show_the_chosen_row_and_its_numbers_as_text(page: Path, tmp_path: Path) -> None:
    document = opened(page, tmp_path)
    plot = document[document.index('id="plot-pauses"') :]
    plot = plot[: plot.index("</figure>")]
    assert ">h1g0:eth0<" in plot
    assert "only-in-row-1" not in plot  # of the first row, and the last one is chosen
    hidden = re.findall(r'<div class="drawing" data-row="(\d+)"( hidden="")?', document)
    assert hidden in ([("1", ' hidden=""'), ("2", "")], [])  # no drawing without Graphviz
