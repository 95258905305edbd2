"""The report of a comparison: who is faster, each transport's switch, a group for each place."""

import json
from pathlib import Path

from click.testing import CliRunner

from emulator.cli.run_verb import command


def test_a_comparison_is_told_and_drawn_by_place_and_transport(tmp_path: Path) -> None:
    words = ["incast", "--param", "senders=1,2", "--param", "size=64KiB", "--param", "warmups=0"]
    more = ["--transport", "uet,rocev2", "--fabric", "model", "--capture", "none", "--report"]
    output = tmp_path / "run"
    run = CliRunner().invoke(command, [*words, *more, "--output", str(output)])
    assert run.exception is None, run.output
    page = (output / "report.html").read_text()
    assert "<dt>uet</dt><dd>on shallow</dd>" in page
    assert "<dt>rocev2</dt><dd>on lossless:" in page
    assert "<li>senders=2: " in page
    records = json.loads((output / "report-figures" / "ideal.json").read_text())["data"]
    assert [(one["place"], one["transport"]) for one in records] == [
        ("senders 1", "uet"), ("senders 2", "uet"), ("senders 1", "rocev2"), ("senders 2", "rocev2")
    ]  # fmt: skip
    for one in records:
        assert one["seeds"] == 3
        assert one["ideal_us"] <= one["least_us"] <= one["time_us"] <= one["most_us"]
