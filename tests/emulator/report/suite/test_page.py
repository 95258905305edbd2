"""The report of a suite: ten parts, every test by its number, and nothing that a name can do."""

import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.cli.reports import report_verb
from emulator.errors import UserError
from emulator.report.suite.folder import SuiteFolder
from emulator.report.suite.page import PARTS, write_suite_report
from emulator.report.suite.parts import POINTS
from emulator.report.suite.results import ORDER
from emulator.suite.suite_model import Point
from tests.emulator.report.run.test_page import HOSTILE, markup_of, specs_of
from tests.harness.runs.browser import needs_chromium, opened
from tests.harness.runs.written_suite import line, run_row, suite_data, write_suite


@pytest.fixture
def page(tmp_path: Path) -> str:
    return write_suite_report(write_suite(tmp_path / "suite")).read_text()


def text_of(page: str, identity: str) -> str:
    """Return the words of a section, without its markup."""
    place = page.index(f'id="{identity}"')
    return " ".join(re.sub(r"<[^>]+>", " ", page[place : page.index("</section>", place)]).split())


def test_it_has_the_ten_parts_in_order_and_names_both_documents(page: str) -> None:
    markup = markup_of(page)
    places = [markup.index(f"<h2>{title}</h2>") for title in PARTS.values()]
    assert len(places) == 10
    assert places == sorted(places)
    assert "draft-of-a-bench; its terms" in markup


def test_a_suite_on_a_model_says_so_and_has_the_command_for_it(tmp_path: Path) -> None:
    folder = write_suite(tmp_path / "suite", suite_data(nodes="model"))
    modelled = write_suite_report(folder).read_text()
    assert "no frame passes a kernel" in modelled
    assert "a network namespace of Linux, whose" not in modelled
    assert "--nodes model" in modelled


def test_every_test_is_found_by_its_number(page: str) -> None:
    markup = markup_of(page)
    for number in ("6.4", "10.2", "11.1"):
        assert f'href="#test-{number}"' in markup
        assert f'id="test-{number}"' in markup
    assert "No value: needs accelerators." in markup
    assert "it has not ended" in markup
    assert "1 of 3 tests have values." in markup
    assert "N = 2 and 4." in markup


def test_transports_stand_beside_each_other_with_their_spread(page: str) -> None:
    markup = markup_of(page)
    table = markup[markup.index('id="table-6.4-1-beside"') :]
    table = table[: table.index("</table>")]
    heads = re.findall(r'<button type="button">([^<]*)</button>', table)
    assert heads == ["senders", "uet", "rocev2:classic"]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table)
    assert cells == ["2", "11.0 [10.0 .. 12.0]", "14.0", "4", "20.0", "30.0"]


def test_columns_stand_under_their_observation_point(page: str) -> None:
    markup = markup_of(page)
    table = markup[markup.index('id="table-6.4-1"') :]
    points = re.findall(r'<th colspan="(\d)">([^<]*)</th>', table[: table.index("</table>")])
    assert points == [
        ("2", "settings"),
        ("1", "observed at: fabric boundary"),
        ("1", "observed at: endpoint"),
        ("1", "observed at: computed"),
    ]


def test_a_column_without_a_value_is_named_and_not_drawn(tmp_path: Path) -> None:
    rows = [line(2, "uet", 10.0, goodput_gbps=None), line(4, "uet", 20.0, goodput_gbps=None)]
    page = write_suite_report(write_suite(tmp_path / "suite", suite_data(*rows))).read_text()
    table = text_of(page, "table-6.4-1")
    assert "No row has a value of: goodput (GB/s), CV (%)." in table
    assert "observed at: fabric boundary" not in table


def test_every_observation_point_has_its_place_and_meaning() -> None:
    assert sorted(ORDER) == sorted(Point)
    assert {*POINTS} == {*Point} - {Point.INPUT}


def test_the_last_parts_have_their_facts(page: str) -> None:
    markup = markup_of(page)
    assert "no fabric" in text_of(markup, "table-anomalies")
    assert "6.4 UET congestion control 2 1 1 6" in text_of(markup, "table-accounting")
    assert "6.4 Incast 4 3 2 6.00 6.00 1" in text_of(markup, "table-repeatability")
    compared = text_of(markup, "table-comparability")
    assert "6.4 2 1 400 rail 2:1 allreduce 1.5 ring 1024 uet:tss=cluster active" in compared


def test_anomalies_name_loss_behind_a_lossless_switch(tmp_path: Path) -> None:
    rows = [run_row(dropped_packets=3, wrong=2, drops={"black_hole": 2, "tail": 1})]
    page = write_suite_report(write_suite(tmp_path / "suite", None, *rows)).read_text()
    anomalies = text_of(page, "table-anomalies")
    assert "dropped packets of uet:tss=cluster (black_hole: 2, tail: 1)" in anomalies
    assert "2 elements are wrong" in anomalies


def test_measured_and_derived_octets_that_differ_are_both_given(tmp_path: Path) -> None:
    rows = [
        run_row(fabric_bytes=10.0, fabric_bytes_derived=12),
        run_row(fabric_bytes=12845056.0, fabric_bytes_derived=12845056),
    ]
    page = write_suite_report(write_suite(tmp_path / "suite", None, *rows)).read_text()
    assert "6.4 2 1 10 and 12" in text_of(page, "table-fabric-octets")


def test_figures_have_their_data_beside_them(tmp_path: Path) -> None:
    folder = write_suite(tmp_path / "suite")
    page = write_suite_report(folder)
    (name,) = specs_of(page.read_text())
    with (folder / "report-figures" / f"{name}.csv").open() as stream:
        stream.readline()
        records = list(csv.DictReader(stream))
    assert [record["y"] for record in records] == ["11.0", "14.0", "20.0", "30.0"]
    assert (records[0]["least"], records[0]["most"]) == ("10.0", "12.0")
    data = json.loads((folder / "report-figures" / f"{name}.json").read_text())
    assert data["observed_at"] == "endpoint"


def test_without_run_folders_there_are_reasons(tmp_path: Path) -> None:
    folder = write_suite(tmp_path / "suite")
    for file in (folder / "trials" / "aa11").iterdir():
        file.unlink()
    page = write_suite_report(folder).read_text()
    assert page.count("the run folders of the trials are away") == 4


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"schema": "uetemu.suite/9"}', "another version"),
        ('{"schema": "uetemu.suite/1"}', "is damaged"),
        ('{"schema": "uetemu.suite/1", "tests": [{"number": "1"}]}', "is damaged"),
        ('{"schema": "uetemu.suite/1", "tests": {"a": 1}}', "is damaged"),
    ],
)
def test_a_damaged_suite_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "suite.json").write_text(content)
    done = CliRunner().invoke(report_verb.command, [str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, UserError)
    assert sentence in str(done.exception)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"key": "../../etc"},
        {"seconds": "long"},
    ],
)
def test_a_trial_cannot_name_a_file_elsewhere(tmp_path: Path, change: dict[str, str]) -> None:
    data = suite_data()
    data["tests"][0]["trials"][0].update(change)
    with pytest.raises(UserError, match="is damaged"):
        SuiteFolder.read(write_suite(tmp_path / "suite", data))


@needs_chromium
@pytest.mark.parametrize("width", [1400, 390])
def test_a_browser_draws_it_and_no_name_becomes_a_script(tmp_path: Path, width: int) -> None:
    rows = [line(2, HOSTILE, 10.0, 12.0), line(4, HOSTILE, 20.0), line(4, "uet", float("inf"))]
    page = write_suite_report(write_suite(tmp_path / "suite", suite_data(*rows)))
    document = opened(page, tmp_path / "profile", f"--window-size={width},900")
    assert 'data-drawn="1"' in document
    assert "could not be drawn" not in document
    assert "data-owned" not in document
    assert "<img" not in document
