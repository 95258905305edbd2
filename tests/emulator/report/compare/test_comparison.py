"""Comparisons: what differed, whether it is more than the spread, and when a pipeline fails."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from emulator.cli.reports import compare_verb
from emulator.errors import UserError
from emulator.report.compare.comparison import (
    BEYOND,
    SAME,
    UNJUDGED,
    WITHIN,
    SourceComparison,
    ValueDifference,
    compare,
    parse_condition,
)
from emulator.report.compare.sources import read_source
from tests.harness.runs.cluster_logs import log_2_9, log_2_19
from tests.harness.runs.written_folder import messages, result, row, write_folder


def collective(seed: int = 1, time_us: float = 10.0, **changes: Any) -> dict[str, Any]:
    facts = {"collective": "all_reduce", "algbw_gbps": 60 / time_us, "busbw_gbps": 90 / time_us}
    return row(seed=seed, time_us=time_us, **facts, **changes)


def folder(place: Path, rows: list[dict[str, Any]], **changes: Any) -> Path:
    iterations = [[one["time_us"]] * 2 for one in rows]
    events = [messages(number, times) for number, times in enumerate(iterations, 1)]
    return write_folder(place, result(*rows, **changes), events)


def value(comparison: SourceComparison, key: str) -> ValueDifference:
    return next(one for one in comparison.values if one.key == key)


def beside(
    place: Path, base: list[dict[str, Any]], other: list[dict[str, Any]], **changes: Any
) -> SourceComparison:
    changes = {"digest": "cd" * 32, **changes}
    return compare(
        read_source(folder(place / "a", base)), read_source(folder(place / "b", other, **changes))
    )


def test_seeds_that_lie_apart_are_more_than_spread(tmp_path: Path) -> None:
    base = [collective(seed, time) for seed, time in ((1, 10.0), (2, 11.0), (3, 12.0))]
    far = [collective(seed, time) for seed, time in ((1, 13.0), (2, 14.0), (3, 15.0))]
    near = [collective(seed, time) for seed, time in ((1, 11.5), (2, 12.5), (3, 13.5))]
    judged = value(beside(tmp_path / "1", base, far, seeds=3), "time_us")
    assert judged.judgement == BEYOND
    assert judged.relative == pytest.approx(3 / 11)
    assert value(beside(tmp_path / "2", base, near, seeds=3), "time_us").judgement == WITHIN
    assert value(beside(tmp_path / "3", base, base, seeds=3), "time_us").judgement == SAME


def test_one_measurement_has_no_spread_however_often_it_repeats(tmp_path: Path) -> None:
    comparison = beside(tmp_path, [collective()], [collective(time_us=12.0)])
    assert value(comparison, "time_us").judgement == UNJUDGED
    assert value(comparison, "busbw_gbps").judgement == UNJUDGED
    assert any("--seeds 5" in note for note in comparison.notes)


def test_iterations_that_vary_are_a_spread(tmp_path: Path) -> None:
    for name, times in (("a", [9.0, 11.0]), ("b", [10.0, 13.0]), ("c", [15.0, 16.0])):
        middle = sum(times) / 2
        content = result(collective(time_us=middle), digest=None)
        write_folder(tmp_path / name, content, [messages(1, times)])
    a, b, c = (read_source(tmp_path / name) for name in "abc")
    assert value(compare(a, b), "busbw_gbps").judgement == WITHIN
    assert value(compare(a, c), "busbw_gbps").judgement == BEYOND


def test_an_option_that_changed_no_packet_is_named(tmp_path: Path) -> None:
    same = {"digest": "ab" * 32, "parameters": {"senders": [1], "order": "random"}}
    comparison = beside(tmp_path, [row()], [row()], **same)
    assert comparison.same_packets
    assert any(
        "parameter order changed no packet" in note and "ab" * 32 in note
        for note in comparison.notes
    )


def test_options_that_the_result_does_not_have_are_compared_by_the_command(tmp_path: Path) -> None:
    for name, options in (("a", []), ("b", ["--gap", "1us", "--workers=2", "--gap", "1ms"])):
        place = folder(tmp_path / name, [collective()])
        content = json.loads((place / "environment.json").read_text())
        content["command"] += options
        (place / "environment.json").write_text(json.dumps(content))
    compared = compare(read_source(tmp_path / "a"), read_source(tmp_path / "b"))
    assert {one.name: (one.base, one.other) for one in compared.inputs} == {
        "--gap": ("default", "1ms"),
        "--workers": ("default", "2"),
    }
    assert "--gap, --workers changed no packet and no time" in compared.notes[0]


def test_a_fault_of_every_row_is_one_input(tmp_path: Path) -> None:
    told = [{"said": "t=4us link rail0:up0 down"}, {"said": "t=9us link rail0:up0 up"}]
    broken = [collective(seed, faults=told) for seed in (1, 2)]
    compared = beside(tmp_path, [collective(seed) for seed in (1, 2)], broken)
    (change,) = [one for one in compared.inputs if one.name == "faults"]
    assert change.other == "t=4us link rail0:up0 down; t=9us link rail0:up0 up"


def test_inputs_that_only_a_run_has_do_not_hide_what_differs_from_a_cluster(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    log.write_text(log_2_19())
    run = folder(tmp_path / "run", [collective()])
    done = CliRunner().invoke(compare_verb.command, [str(log), str(run)])
    assert done.exit_code == 0, done.output
    assert "not told" not in done.output
    assert "inputs stand on one side only; --format json has them" in done.output
    data = json.loads(
        CliRunner().invoke(compare_verb.command, [str(log), str(run), "--format", "json"]).stdout
    )
    assert "topology" in {one["name"] for one in data["others"][0]["inputs"]}


def test_other_packets_of_the_same_options_are_told(tmp_path: Path) -> None:
    comparison = beside(tmp_path, [row()], [row(digest="d2")])
    assert not comparison.same_packets
    assert any("Nothing that was asked for differs" in note for note in comparison.notes)


def test_rows_are_matched_by_pattern_size_and_turn(tmp_path: Path) -> None:
    base = [row(transport="uet"), row(transport="rocev2"), row(size_bytes=1024)]
    other = [row(transport="uet"), row(transport="rocev2:nccl", time_us=5.0), row(size_bytes=4096)]
    comparison = beside(tmp_path, base, other)
    times = [one for one in comparison.values if one.key == "time_us"]
    assert [one.change for one in times] == [0, -5.0]
    assert len(comparison.only_base) == len(comparison.only_other) == 1


def test_a_cluster_s_log_has_its_own_observation_point(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    log.write_text(log_2_19())
    run = folder(tmp_path / "run", [collective(size_bytes=65536)])
    comparison = compare(read_source(log), read_source(run))
    assert {one.key for one in comparison.values} == {"time_us", "algbw_gbps", "busbw_gbps"}
    assert {(one.base_point, one.other_point) for one in comparison.values} == {
        ("cluster", "endpoint")
    }
    assert value(comparison, "time_us").base.values == [24.51]
    assert any("launch of kernels" in note for note in comparison.notes)


def test_a_log_that_does_not_name_its_test_needs_the_name(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    log.write_text(log_2_9())
    with pytest.raises(UserError, match="--collective"):
        read_source(log)
    assert {place[0] for place in read_source(log, "all_reduce").places} == {"allreduce"}


def test_an_inspector_s_file_is_read(tmp_path: Path) -> None:
    lines = []
    for number, time_us in ((1, 20), (2, 30)):
        lines.append(
            json.dumps(
                {
                    "header": {"id": "0xa", "rank": 0, "n_ranks": 4, "nnodes": 2},
                    "metadata": {
                        "inspector_output_format_version": "v4.0", "hostname": "n", "pid": 1,
                    },
                    "coll_perf": {
                        "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 65536,
                        "coll_exec_time_us": time_us,
                    },
                }
            )
        )  # fmt: skip
    file = tmp_path / "job.jsonl"
    file.write_text("\n".join(lines))
    run = folder(tmp_path / "run", [collective(size_bytes=65536)])
    time = value(compare(read_source(file), read_source(run)), "time_us")
    assert sorted(time.base.values) == [20, 30]
    busbw = value(compare(read_source(file), read_source(run)), "busbw_gbps")
    assert max(busbw.base.values) == pytest.approx(65536 / 20_000 * 1.5)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("busbw<-5%", True),
        ("busbw<-20%", False),
        ("busbw_gbps <= -10 %", True),
        ("time>1", True),
        ("time>1.2", False),
        ("drops>0", False),
    ],
)
def test_conditions(tmp_path: Path, text: str, holds: bool) -> None:
    other = collective(time_us=11.111, busbw_gbps=8.0) if False else collective(time_us=11.15)
    comparison = beside(tmp_path, [collective()], [other])
    assert bool(parse_condition(text).met([comparison])) is holds


@pytest.mark.parametrize(
    "text", ["", "busbw", "busbw<", "busbw=5", "speed<-5%", "busbw<-5%%", "a" * 1000, "time<1e999"]
)
def test_conditions_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--fail-if"):
        parse_condition(text)


@pytest.mark.parametrize("heading", ["of ideal", "of ideal (%)"])
def test_a_condition_on_a_heading_names_the_key(heading: str) -> None:
    with pytest.raises(UserError, match=r"is the heading of a column; write its key, efficiency$"):
        parse_condition(f"{heading}<0%")


def test_the_former_word_for_reused_endpoints_is_no_difference(tmp_path: Path) -> None:
    sources = []
    for word in ("kept", "reused", "fresh"):
        made = folder(tmp_path / word, [collective()])
        command = ["run", "allreduce", "--endpoints", word]
        (made / "environment.json").write_text(json.dumps({"command": command}))
        sources.append(read_source(made))
    kept, reused, fresh = sources
    assert not compare(kept, reused).inputs
    assert [one.name for one in compare(kept, fresh).inputs] == ["--endpoints"]


def test_a_condition_on_what_nobody_measured_is_refused(tmp_path: Path) -> None:
    comparison = beside(tmp_path, [row()], [row()])
    with pytest.raises(UserError, match="busbw_gbps in common"):
        parse_condition("busbw<-5%").met([comparison])


def test_something_from_nothing_meets_a_relative_condition(tmp_path: Path) -> None:
    comparison = beside(tmp_path, [row(dropped_packets=0)], [row(dropped_packets=4)])
    assert parse_condition("drops>5%").met([comparison])
    assert not parse_condition("drops<-5%").met([comparison])


def verb(*words: object) -> Result:
    return CliRunner().invoke(compare_verb.command, list(map(str, words)))


def test_the_verb_exits_with_a_status_of_its_own(tmp_path: Path) -> None:
    base = folder(tmp_path / "a", [collective()])
    slow = folder(tmp_path / "b", [collective(time_us=12.0)], digest="cd" * 32)
    assert verb(base, slow).exit_code == 0
    done = verb(base, slow, "--fail-if", "busbw<-5%", "--html", tmp_path / "c.html")
    assert done.exit_code == 3
    assert "busbw (GB/s) changed by -16.67 %" in done.output
    page = (tmp_path / "c.html").read_text()
    assert "changed by -16.67 %" in page
    assert "Values: endpoint" in page
    assert "Values: switch" in page
    found = verb(base, slow, "--format", "json", "--fail-if", "time>0").stdout
    content = json.loads(found)
    assert content["schema"] == "uetemu.comparison/1"
    assert len(content["failed"]) == 1
    times = [one for one in content["others"][0]["values"] if one["key"] == "time_us"]
    assert times[0]["change"] == 2.0


def test_the_verb_refuses_what_cannot_be_compared(tmp_path: Path) -> None:
    base = folder(tmp_path / "a", [collective()])
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("hello\n")
    for words in ([base], [base, tmp_path / "absent"], [base, nothing], [base, tmp_path]):
        assert isinstance(verb(*words).exception, UserError), words
