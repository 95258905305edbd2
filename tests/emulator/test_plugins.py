"""A user's files add things by name, as a user would have it: the whole command, once for each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator import plugins
from emulator.errors import UserError
from tests import CHECKOUT

EXAMPLES = Path(__file__).parents[1] / "examples"
MINE = EXAMPLES / "mine.py"
#: One sender and little to send: what the run shows is that it runs.
SMALL = ("--param", "senders=2", "--param", "size=64KiB", "--fabric", "model")


def uetemu(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from emulator.cli.main import main; main()", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
    )


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a refusal writes."""
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    return line


def test_a_congestion_control_runs_with_its_parameters(tmp_path: Path) -> None:
    results = []
    for gain in (1, 8):
        out = tmp_path / str(gain)
        transport = f"uet:cc=mine,mine.gain={gain},mine.cut=0.25"
        done = uetemu(
            *("run", "incast", "--plugin", MINE, "--transport", transport, "--output", out),
            *("--param", "senders=4", "--param", "size=256KiB", "--fabric", "model"),
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads((out / "result.json").read_text()))
    assert results[0]["transport"].startswith("uet:cc=mine")
    assert results[0]["digest"] != results[1]["digest"]


def test_help_explains_it() -> None:
    shown = uetemu("run", "--plugin", MINE, "--help").stdout
    assert "both|rccc|mine " in shown
    assert "mine: additive increase, and a cut at a mark" in shown
    assert "  mine.gain=1.0  " in shown
    assert "full packets by which a window grows in an RTT\n" in shown


def test_it_stands_in_a_sweep(tmp_path: Path) -> None:
    cc = ("--param", "cc=mine,nscc", "--param", "profiles=shallow", "--param", "trims=on")
    done = uetemu(
        *("run", "ccsweep", "--plugin", MINE.name, *cc, *SMALL, "--output", tmp_path / "run"),
        cwd=EXAMPLES,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "run" / "result.json").read_text())["rows"]
    assert [row["cc"] for row in rows] == ["mine", "nscc"]


def test_a_scenario_of_the_same_file_uses_it(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(MINE.read_text() + "\nfrom scenarios.incast import *\n")
    done = uetemu(
        *("run", own, "--transport", "uet:cc=mine", *SMALL, "--output", tmp_path / "run"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["scenario"] == "own"


def test_a_way_of_spraying_runs_with_its_parameters(tmp_path: Path) -> None:
    digests = []
    for more in ("", ",best.tried=4"):
        out = tmp_path / f"run{len(digests)}"
        done = uetemu(
            *("run", "permutation", "--plugin", EXAMPLES / "best.py", "--output", out),
            *("--transport", f"uet:spray=best{more}", "--fabric", "model"),
            *("--topology", "rail_clos:hosts=4,gpus_per_host=2", "--param", "sizes=64KiB"),
        )
        assert done.returncode == 0, done.stderr
        digests.append(json.loads((out / "result.json").read_text())["digest"])
    assert digests[0] != digests[1]


@pytest.mark.parametrize("words", [("allreduce", "--param", "algorithm=star"), ("exchange",)])
def test_a_collective_and_an_algorithm_are_right(tmp_path: Path, words: Sequence[str]) -> None:
    done = uetemu(
        *("run", *words, "--plugin", EXAMPLES / "star.py", "--sizes", "4KiB", "--fabric", "model"),
        *("--topology", "rail_clos:hosts=2,gpus_per_host=2", "--output", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "run" / "result.json").read_text())["rows"]
    assert row["wrong"] == 0


@pytest.fixture
def one_spine(tmp_path: Path) -> Path:
    """The design of the manual in a file of its own."""
    (source,) = re.findall(
        r"```python\n(.*?)```", (CHECKOUT / "topologies" / "README.md").read_text(), flags=re.DOTALL
    )
    (tmp_path / "one_spine.py").write_text(source)
    return tmp_path / "one_spine.py"


def test_a_topology_is_drawn_and_run_on(one_spine: Path, tmp_path: Path) -> None:
    drawn = uetemu("graph", "--plugin", one_spine, "one_spine:leaves=3", "--format", "json")
    assert len(json.loads(drawn.stdout)["links"]) == 9
    assert (
        "one_spine: Leaves under one spine" in uetemu("graph", f"--plugin={one_spine}", "-h").stdout
    )
    done = uetemu(
        *("run", "incast", "--plugin", one_spine, "--topology", "one_spine:hosts=3"),
        *(*SMALL, "--output", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr


def test_the_list_has_what_files_bring(one_spine: Path) -> None:
    shown = uetemu("list", "--plugin", one_spine, "--plugin", EXAMPLES / "star.py").stdout
    assert re.search(r"^  one_spine +Leaves under one spine", shown, flags=re.MULTILINE)
    assert re.search(r"^  exchange +each GPU sends its buffer", shown, flags=re.MULTILINE)


def line_of(text: str, words: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if words in line)


@pytest.mark.parametrize(
    ("there", "instead", "at", "refusal"),
    [
        ('name="mine"', 'name="nscc"', "CONTROLS.register(", "there already is a congestion "),
        ('name="mine"', 'name="a b"', "CONTROLS.register(", "'a b' is no name of a congestion "),
        (', help="part of the window that a mark leaves"', "", "    cut: float", "help"),
        ("help=", 'help="" and ', "    gain: float", "gain of the congestion control mine has no "),
        ('meaning="additive increase, and a cut at a mark"', 'meaning=""', "CONTROLS.", "meaning"),
        ("adaptive=True", "adaptive=1 / 0", "adaptive=", "ZeroDivisionError: division by zero"),
        ("adaptive=True", "adaptive=True,,", "adaptive=", "invalid syntax"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, there: str, instead: str, at: str, refusal: str
) -> None:
    text = MINE.read_text().replace(there, instead, 1)
    own = tmp_path / "own.py"
    own.write_text(text)
    with pytest.raises(UserError) as refused:
        plugins.load(own)
    assert str(refused.value).startswith(f"{own}, line {line_of(text, at)}: ")
    assert refusal in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = uetemu("run", "incast", "--plugin", tmp_path / "none.py")
    assert sentence(done) == f"uetemu: {tmp_path}/none.py cannot be read: No such file or directory"


def test_the_command_says_one_sentence(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("none = 1 / 0\n")
    line = sentence(uetemu("run", "incast", "--plugin", own))
    assert line == f"uetemu: {own}, line 1: import failed: ZeroDivisionError: division by zero"


def test_a_parameter_that_the_control_has_not() -> None:
    done = uetemu(
        "run", "incast", "--plugin", MINE, "--transport", "uet:cc=mine,mine.gian=2", *SMALL
    )
    assert "mine has no parameter 'gian'; it has" in sentence(done)
