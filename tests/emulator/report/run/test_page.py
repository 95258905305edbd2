"""The report of a run folder: what stands in it, from which file, and what no name can do."""

import csv
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from emulator.cli.reports import report_verb
from emulator.errors import UserError
from emulator.report.run.page import (
    BAD,
    FIGURES,
    GOOD,
    LIMITED,
    PAGE,
    html_of,
    sections_of,
    verdict_of,
    write_report,
)
from emulator.report.run.report_tables import command_of, row_table
from emulator.report.run_folder import RunRecord
from tests.harness.examples import examples
from tests.harness.runs.written_folder import SPEC, messages, ports, result, row, write_folder

OTHER_SCHEMA = b'{"schema": "uetemu.result/9"}'
HOSTILE = "</script><script>document.body.dataset.owned='1'</script><img src=x onerror=owned()>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "run", result(row(), row(time_us=20.0, size_bytes=131072)))


def specs_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page, re.S)
    assert found is not None
    content: dict[str, Any] = json.loads(found.group(1))
    return content


def markup_of(page: str) -> str:
    """The page without the texts of its scripts."""
    return re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", page, flags=re.DOTALL)


def test_a_report_needs_no_other_file_and_no_network(folder: Path) -> None:
    page = write_report(folder)
    assert page == folder / PAGE
    text = page.read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", markup_of(text))
    assert "default-src 'none'" in html.unescape(text)
    assert {"link-load", "queues", "congestion", "message-latency", "flows", "timeline"} <= set(
        specs_of(text)
    )


def test_a_report_repeats_to_the_octet(folder: Path) -> None:
    first = write_report(folder).read_text()
    assert write_report(folder).read_text() == first


def test_every_figure_has_its_data_beside_it(folder: Path) -> None:
    write_report(folder)
    names = {path.stem for path in (folder / FIGURES).iterdir()}
    for name in names:
        content = json.loads((folder / FIGURES / f"{name}.json").read_text())
        lines = (folder / FIGURES / f"{name}.csv").read_text().splitlines()
        assert content["observed_at"] in lines[0]
        if content["reason"] is None:
            records = list(csv.DictReader(lines[1:]))
            assert len(records) == len(content["data"]) > 0
        else:
            assert content["data"] == []
    drawn = specs_of((folder / PAGE).read_text())
    assert set(drawn) <= names
    for name, spec in drawn.items():
        data = json.loads((folder / FIGURES / f"{name}.json").read_text())["data"]
        assert spec["data"]["values"] == data


def test_load_and_counts_are_those_of_the_last_iteration(folder: Path) -> None:
    write_report(folder)
    loads = json.loads((folder / FIGURES / "link-load.json").read_text())["data"]
    first = [one for one in loads if one["row"] == 1]
    # 200,000 octets in each half of 10 us, over a link of 400 Gb/s
    assert {one["port"] for one in first} == {"rail0:down0"}
    assert first[0]["t_us"] == 0
    assert {one["load_percent"] for one in first} == {80.0}
    counts = json.loads((folder / FIGURES / "congestion.json").read_text())["data"]
    sums: dict[str, float] = {}
    for one in counts:
        if one["row"] == 1:
            sums[one["kind"]] = sums.get(one["kind"], 0) + one["packets"]
    assert sums == {"marked CE": pytest.approx(7), "dropped": pytest.approx(3)}


def test_faults_are_on_every_time_axis(folder: Path) -> None:
    write_report(folder)
    specs = specs_of((folder / PAGE).read_text())
    for name in ("link-load", "queues", "congestion"):
        marks = [layer["data"]["values"] for layer in specs[name]["layer"] if "data" in layer]
        assert [one["event"] for one in marks[0]] == ["t=4us link rail0:up0 down"] * 2


def test_losses_name_place_and_reason(folder: Path) -> None:
    write_report(folder)
    losses = json.loads((folder / FIGURES / "losses.json").read_text())["data"]
    assert [(one["port"], one["reason"], one["packets"]) for one in losses] == [
        ("rail0:down0", "tail", 3)
    ] * 2
    assert losses[0]["why"] == "the queue was at its limit"


def test_values_of_different_points_share_no_column(tmp_path: Path) -> None:
    rows = [row(), row(goodput_at="endpoint", goodput_gbps=46.0)]
    record = RunRecord.read(write_folder(tmp_path / "run", result(*rows)))
    table = row_table(record)
    point_of = [name for name, width in table.groups for _ in range(width)]
    goodput = [n for n, heading in enumerate(table.headings) if heading == "goodput (GB/s)"]
    assert sorted(point_of[n] for n in goodput) == ["endpoint", "fabric boundary"]
    for number, cells in enumerate(table.rows):
        point = rows[number]["goodput_at"]
        shown = {point_of[n]: cells[n] for n in goodput}
        assert shown.pop(point) == f"{rows[number]['goodput_gbps']:.2f}"
        assert list(shown.values()) == [""]


def test_the_command_leaves_the_folder_out(folder: Path) -> None:
    assert command_of(RunRecord.read(folder)) == "uetemu run incast --param size=64KiB"


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({}, GOOD, "9 went into namespaces, 6 came out, 3 were dropped"),
        ({"errors": ["rank 1 failed"]}, BAD, "rank 1 failed"),
        ({"fidelity": {"verdict": "host-limited", "reasons": ["late"]}}, LIMITED, "late"),
        ({"fidelity": {"verdict": "ok", "reasons": []}}, GOOD, "kept up"),
    ],
)
def test_the_verdict_comes_from_errors_and_fidelity(
    tmp_path: Path, changes: dict[str, Any], kind: str, words: str
) -> None:
    record = RunRecord.read(write_folder(tmp_path / "run", result(row(), **changes)))
    verdict = verdict_of(record)
    assert verdict.kind == kind
    assert words in verdict.sentence


def test_wrong_elements_are_the_verdict(tmp_path: Path) -> None:
    record = RunRecord.read(write_folder(tmp_path / "run", result(row(wrong=5))))
    assert verdict_of(record).kind == BAD
    assert verdict_of(record).sentence.startswith("5 elements")


def test_a_run_without_rows_says_so_once(tmp_path: Path) -> None:
    content = result(errors=["the run was interrupted"], unfinished={"delivered_messages": 3})
    record = RunRecord.read(write_folder(tmp_path / "run", content))
    page = html_of(record, sections_of(record))
    assert page.count("nothing was measured before the run ended") == 2  # rows, losses
    assert "the run was interrupted" in page
    assert "delivered_messages 3" in page
    assert '<script type="application/json"' not in page


@pytest.mark.parametrize(
    "name",
    [
        "events.jsonl",
        "fabric.json",
        "environment.json",
        "telemetry.csv",
        "line_telemetry.csv",
        "timeline.json",
    ],
)
@pytest.mark.parametrize("damage", [None, b"", b"{\x00[[[", b"[1, 2]", b"{}"])
def test_a_missing_or_damaged_file_becomes_a_reason(
    folder: Path, name: str, damage: bytes | None
) -> None:
    if damage is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(damage)
    page = write_report(folder).read_text()
    if name != "environment.json":
        assert "Nothing to draw:" in page
    assert "Exact" in page


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"{}", b"[]", OTHER_SCHEMA])
def test_a_folder_without_a_result_is_refused(folder: Path, damage: bytes) -> None:
    (folder / "result.json").write_bytes(damage)
    with pytest.raises(UserError, match="run"):
        write_report(folder)


def test_no_name_becomes_markup(tmp_path: Path) -> None:
    hostile = row(transport=HOSTILE, switch=HOSTILE, collective=HOSTILE, drops={HOSTILE: 2})
    content = result(hostile, hostile, warnings=[HOSTILE], scenario=HOSTILE, transport=HOSTILE)
    content["parameters"] = {HOSTILE: HOSTILE}
    content["endpoints"] = {HOSTILE: {HOSTILE: 3}}
    counted = ports(1)
    counted["ports"][HOSTILE] = {"tx_bytes": 5, "dropped_x": 2, "paused_ns": 1000}
    flow = {"from": HOSTILE, "to": HOSTILE, "bytes": 1, "messages": 1, "time_us": 1.0,
            "goodput_gbps": 1.0}  # fmt: skip
    events: list[dict[str, Any]] = [
        {"event": "fault", "said": HOSTILE, "at_us": 1.0},
        {"event": "row"},
        counted,
        messages(1, [10.0], flows=[flow]),
    ]
    folder = write_folder(tmp_path / "run", content, events)
    (folder / "environment.json").write_text(json.dumps({"command": ["uetemu", HOSTILE]}))
    text = write_report(folder).read_text()
    markup = markup_of(text)
    assert "<img" not in markup
    # the library, the page's own, the data
    assert len(re.findall(r"<script[^>]*></script>", markup)) == markup.count("<script") == 3
    assert "owned" in json.dumps(specs_of(text))  # the name is there, as text


def test_a_spreadsheet_takes_no_name_for_a_formula(folder: Path) -> None:
    events = [messages(1, [10.0], flows=[{"from": "=1+1", "to": "h0g0", "bytes": 1, "messages": 1,
                                         "time_us": 1.0, "goodput_gbps": 1.0}])]  # fmt: skip
    write_report(write_folder(folder, result(row()), events))
    assert "'=1+1 to h0g0" in (folder / FIGURES / "flows.csv").read_text()


def test_the_verb_reports_on_several_runs(tmp_path: Path, folder: Path) -> None:
    other = write_folder(tmp_path / "other", result(row()))
    done = CliRunner().invoke(report_verb.command, [str(folder), str(other)])
    assert done.exit_code == 0, done.output
    assert done.output.split() == [str(folder / PAGE), str(other / PAGE)]


def test_the_verb_goes_on_after_a_folder_that_is_none(tmp_path: Path, folder: Path) -> None:
    done = CliRunner().invoke(report_verb.command, [str(tmp_path), str(folder)])
    assert isinstance(done.exception, UserError)
    assert "1 of 2" in str(done.exception)
    assert (folder / PAGE).exists()


def test_one_output_is_for_one_run(tmp_path: Path, folder: Path) -> None:
    output = tmp_path / "out" / "mine.html"
    done = CliRunner().invoke(report_verb.command, [str(folder), "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "mine-figures" / "queues.csv").exists()
    assert not (folder / PAGE).exists()
    done = CliRunner().invoke(report_verb.command, [str(folder), str(folder), "-o", str(output)])
    assert isinstance(done.exception, UserError)


@pytest.mark.parametrize("key", ["seed", "seeds"])
def test_a_seed_that_is_no_number_is_told(tmp_path: Path, key: str) -> None:
    folder = write_folder(tmp_path / "run", result(row()))
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**content, key: None}))
    with pytest.raises(UserError, match="values of another kind"):
        RunRecord.read(folder)


STRANGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@examples(60)
@given(data=st.data())
def test_a_folder_of_strange_values_is_reported_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Nothing but a UserError comes of a run folder that another program has changed."""
    content = result(row(faults=[{"said": "x", "judged_us": 1.0, "restored_us": 2.0}]))
    events: list[dict[str, Any]] = [{"event": "fault", "at_us": 1.0}, {"event": "row"}]
    events += [ports(1), messages(1, [10.0])]
    timeline = {"traceEvents": [{"ph": "X", "ts": 1.0, "tid": 2, "pid": 1, "args": {}}]}
    places: list[Any] = [content, content["rows"][0], *events, timeline]
    places += [timeline["traceEvents"][0], events[3]["flows"][0], content["fidelity"]]
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        place[data.draw(st.sampled_from(sorted(place)))] = data.draw(STRANGE)
    content["topology"], topology = SPEC, content["topology"]
    folder = tmp_path_factory.mktemp("strange")
    rows = content["rows"]
    content["rows"] = []
    write_folder(folder, content, events)
    (folder / "result.json").write_text(json.dumps({**content, "rows": rows, "topology": topology}))
    (folder / "timeline.json").write_text(json.dumps(timeline))
    (folder / "fabric.json").unlink()  # drawings take a process each
    try:
        record = RunRecord.read(folder)
        text = html_of(record, sections_of(record))
    except UserError:
        return
    assert "</html>" in text
