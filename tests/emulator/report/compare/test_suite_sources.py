"""Suites are compared row by row: what differs, and whether the seeds' spread explains it."""

from pathlib import Path

from click.testing import CliRunner

from emulator.cli.reports import compare_verb
from emulator.errors import UserError
from emulator.report.compare.comparison import BEYOND, SAME, UNJUDGED, WITHIN, compare
from emulator.report.compare.sources import read_suite
from tests.harness.runs.written_suite import line, suite_data, write_suite

WIDE = (10.0, 11.0, 12.0)


def judgements(tmp_path: Path, *after: float) -> dict[str, str]:
    before = write_suite(tmp_path / "a", suite_data(line(2, "uet", *WIDE)))
    later = write_suite(tmp_path / "b", suite_data(line(2, "uet", *after), seed=9))
    found = compare(read_suite(before), read_suite(later))
    assert [one.name for one in found.inputs] == ["seed"]
    return {one.key: one.judgement for one in found.values}


def test_a_change_is_judged_by_the_spread_of_the_seeds(tmp_path: Path) -> None:
    assert judgements(tmp_path / "1", 11.5, 12.5, 13.5)["time_us"] == WITHIN
    assert judgements(tmp_path / "2", 20.0, 21.0, 22.0)["time_us"] == BEYOND
    assert judgements(tmp_path / "3", 20.0)["time_us"] == UNJUDGED
    assert judgements(tmp_path / "4", *WIDE)["goodput_gbps"] == SAME


def test_rows_have_the_names_of_their_tests_and_settings(tmp_path: Path) -> None:
    source = read_suite(write_suite(tmp_path / "a"))
    assert [one.label for one in source.places.values()][:2] == [
        "6.4 UET congestion control: senders 2, transport uet",
        "6.4 UET congestion control: senders 2, transport rocev2:classic",
    ]
    place = next(iter(source.places.values()))
    assert place.points["goodput_gbps"] == "fabric boundary"


def test_equal_digests_are_said(tmp_path: Path) -> None:
    one, other = (read_suite(write_suite(tmp_path / name)) for name in "ab")
    assert compare(one, other).same_packets
    data = suite_data()
    data["tests"][0]["trials"][0]["digest"] = "another"
    assert not compare(one, read_suite(write_suite(tmp_path / "c", data))).same_packets


def test_a_condition_holds_for_suites_too(tmp_path: Path) -> None:
    before = write_suite(tmp_path / "a", suite_data(line(2, "uet", *WIDE)))
    later = write_suite(tmp_path / "b", suite_data(line(2, "uet", 20.0)))
    words = [str(before), str(later), "--fail-if", "time>10%"]
    assert CliRunner().invoke(compare_verb.command, words).exit_code == 3
    words[-1] = "time>90%"
    assert CliRunner().invoke(compare_verb.command, words).exit_code == 0


def test_a_suite_is_not_compared_with_a_run(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "a")
    log = tmp_path / "log.json"
    log.write_text('{"inspector_output_format_version": 1}')
    words = [str(suite), str(suite / "trials" / "aa11")]
    done = CliRunner().invoke(compare_verb.command, words, standalone_mode=False)
    assert isinstance(done.exception, UserError)
