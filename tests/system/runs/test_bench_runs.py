"""``uetemu bench``: tests of the drafts over real fabrics."""

import json
from pathlib import Path

import pytest

from tests.harness.runs.processes import forked, without_progress

pytestmark = pytest.mark.root


def bench(*words: str) -> tuple[int | None, str, str]:
    process = forked("bench", "training", *words)
    out, errors = process.communicate(timeout=240)
    return process.returncode, out, errors


def test_a_test_has_its_table_and_a_second_call_runs_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "suite")
    words = ("--tests", "8.2", "--seeds", "1", "--transport", "uet", "--output", folder)
    status, out, errors = bench(*words)
    assert status == 0, errors
    assert "## 8.2 DLB and flowlets" in out
    assert "Observed at: " in out
    data = json.loads((tmp_path / "suite" / "suite.json").read_text())
    (test,) = data["tests"]
    trials = len(test["trials"])
    assert data["accounting"] == {
        "attempted": trials,
        "included": trials,
        "excluded": {},
        "again": {},
    }
    times = [trial["seconds"] for trial in test["trials"]]
    digests = [trial["digest"] for trial in test["trials"]]
    assert len(set(digests)) > 2
    status, _, errors = bench(*words)
    assert status == 0, errors
    (again,) = json.loads((tmp_path / "suite" / "suite.json").read_text())["tests"]
    assert [trial["seconds"] for trial in again["trials"]] == times


@pytest.mark.nightly
def test_a_bottleneck_trims_or_drops(tmp_path: Path) -> None:
    words = ("--tests", "6.5", "--seeds", "1", "--transport", "uet")
    status, _, errors = bench(*words, "--output", str(tmp_path / "suite"))
    assert status == 0, errors
    (test,) = json.loads((tmp_path / "suite" / "suite.json").read_text())["tests"]
    (with_trimming, without), *_ = (
        table["rows"] for table in test["tables"] if table["title"].startswith("(b)")
    )
    assert with_trimming["trimmed_packets"] > 0 == with_trimming["dropped_packets"]
    assert without["dropped_packets"] > 0 == without["trimmed_packets"]


@pytest.mark.nightly
def test_the_inference_suite_has_a_report_over_both_transports(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    process = forked(
        *("bench", "inference", "--tests", "10.1", "--seeds", "1", "--output", str(folder)),
        *("--transport", "uet,rocev2:adaptive", "--report"),
    )
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    (test,) = json.loads((folder / "suite.json").read_text())["tests"]
    rows = test["tables"][0]["rows"]
    assert {row["transport"] for row in rows} == {"uet", "rocev2:adaptive"}
    for row in rows:
        parts = row["prefill_us"] + row["transfer_us"] + row["decode_init_us"]
        assert row["ttft_us"] == pytest.approx(parts)
    assert 'id="test-10.1"' in (folder / "report.html").read_text()


def test_a_fabric_that_is_too_small_excludes_the_trial_with_its_sentence(tmp_path: Path) -> None:
    status, out, errors = bench(
        *("--tests", "7.1", "--seeds", "1", "--output", str(tmp_path / "suite")),
        *("--fabric", "rail_clos:hosts=2,gpus_per_host=1,spines=1"),
    )
    assert status == 1
    assert "no trial has a result; the first one ended with: an incast of 2 senders needs" in errors
    assert "Excluded: 10 trials (an incast of 2 senders needs as many GPUs" in out
    assert "10 trials were attempted, 0 are included; 1 reasons exclude 10" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--tests", "99.9"), "has no test '99.9'"),
        (("--tests", ","), "names no test"),
        (("--fabric", "nowhere"), "nowhere"),
        (("--transport", "carrier-pigeon"), "carrier-pigeon"),
    ],
)
def test_wrong_words_are_one_sentence(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    status, _, errors = bench(*words, "--output", str(tmp_path / "suite"))
    assert status == 1
    assert sentence in errors
    assert without_progress(errors).count("\n") == 1
    assert not (tmp_path / "suite").exists()
