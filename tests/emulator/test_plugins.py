"""A user's files add things by name, as a user would have it: the whole command, once for each."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator import plugins
from emulator.errors import UserError
from emulator.pytest_plugin.runs import UETEMU, environment
from tests import CHECKOUT

EXAMPLES = Path(__file__).parents[1] / "examples"
MINE = EXAMPLES / "mine.py"
RESENT = EXAMPLES / "resent.py"
#: One sender and little to send: what the run shows is that it runs.
SMALL = ("--param", "senders=2", "--param", "size=64KiB", "--fabric", "model")


def uetemu(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``uetemu`` as a process: a fork would have the plug-ins that other tests have loaded."""
    return subprocess.run(
        [*UETEMU, *map(str, words)],
        env=environment(),
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


#: Two leaf switches with several ways between them, and one flow of each GPU.
BALANCED = (
    *("run", "permutation", "--plugin", EXAMPLES / "weighted.py", "--param", "sizes=64KiB"),
    *("--topology", "clos:hosts=4,gpus_per_host=1,segments=2"),
)


def test_a_load_balancing_runs_on_the_model(tmp_path: Path) -> None:
    digests = []
    for number, balance in enumerate(("weighted", "weighted", "packet")):
        out = tmp_path / str(number)
        switch = f"shallow:balance={balance}"
        workers = ("--workers", "2") if number == 1 else ()
        done = uetemu(*BALANCED, "--fabric", "model", "--switch", switch, *workers, "--output", out)
        assert done.returncode == 0, done.stderr
        digests.append(json.loads((out / "result.json").read_text())["digest"])
    assert digests[0] == digests[1] != digests[2]


def test_the_kernel_refuses_a_load_balancing_in_python() -> None:
    done = uetemu(*BALANCED, "--switch", "shallow:balance=weighted")
    assert "balance=weighted is in Python" in sentence(done)
    assert "--fabric model" in sentence(done)


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
    digests: list[str] = []
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
        *("run", *words, "--plugin", str(EXAMPLES / "star.py"), "--sizes", "4KiB"),
        *("--fabric", "model"),
        *("--topology", "rail_clos:hosts=2,gpus_per_host=2", "--output", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "run" / "result.json").read_text())["rows"]
    assert row["wrong"] == 0


def test_a_topology_is_drawn_and_run_on(tmp_path: Path) -> None:
    one_spine = EXAMPLES / "one_spine.py"
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


def test_the_list_has_what_files_bring() -> None:
    files = (EXAMPLES / "one_spine.py", EXAMPLES / "star.py", RESENT)
    shown = uetemu("list", *(f"--plugin={file}" for file in files)).stdout
    assert re.search(r"^  one_spine +Leaves under one spine", shown, flags=re.MULTILINE)
    assert re.search(r"^  resent_share +data packets", shown, flags=re.MULTILINE)
    assert re.search(r"^  exchange +each GPU sends its buffer", shown, flags=re.MULTILINE)


def test_a_metric_of_a_file_is_explained() -> None:
    for name in ("resent_share", "again"):
        shown = uetemu("explain", name, "--plugin", RESENT).stdout
        assert "data packets that were sent again, over all that were sent" in shown


def test_the_folder_names_the_file_and_is_read_without_it(tmp_path: Path) -> None:
    own, out = tmp_path / "own.py", tmp_path / "run"
    own.write_text(MINE.read_text() + RESENT.read_text())
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    words = ("run", "incast", "--transport", "uet:cc=mine", *SMALL, "--output", out)
    done = uetemu(*words, "--plugin", f"{own}@{digest}")
    assert done.returncode == 0, done.stderr
    heading = next(line for line in done.stdout.splitlines() if "senders" in line)
    assert heading.split()[-1] == "again"
    result = json.loads((out / "result.json").read_text())
    (row,) = result["rows"]
    sent = row["data_packets"] + row["retransmitted_packets"]
    assert row["resent_share"] == row["retransmitted_packets"] / sent
    assert [one["key"] for one in result["metrics"]] == ["resent_share"]
    facts = json.loads((out / "environment.json").read_text())["plugins"]
    assert facts == [{"file": "own.py", "sha256": digest}]
    own.unlink()
    assert uetemu("report", out).returncode == 0
    page = (out / "report.html").read_text()
    assert f"SHA-256 {digest}" in page
    assert "again (%)" in page
    facts[0]["sha256"] = 64 * "0"
    other = shutil.copytree(out, tmp_path / "other")
    made_on = json.loads((other / "environment.json").read_text()) | {"plugins": facts}
    (other / "environment.json").write_text(json.dumps(made_on))
    row["resent_share"] = 0.125
    (other / "result.json").write_text(json.dumps(result))
    compared = uetemu("compare", out, other, "--fail-if", "resent_share>0.1")
    assert compared.returncode == 3, compared.stderr
    assert "plug-in own.py" in compared.stdout
    assert re.search(r"again \(%\) .* 12.5 ", compared.stdout)


@pytest.mark.parametrize(
    ("there", "instead", "at", "refusal"),
    [
        ("again / sent", "again / 0", "again / 0", "ZeroDivisionError: division by zero"),
        ("again / sent if", "'none' if", "METRICS.register(", "metric resent_share is 'none'"),
    ],
)
def test_a_metric_that_fails_is_named(
    tmp_path: Path, there: str, instead: str, at: str, refusal: str
) -> None:
    text = RESENT.read_text().replace(there, instead)
    own, out = tmp_path / "own.py", tmp_path / "run"
    own.write_text(text)
    done = uetemu("run", "incast", "--plugin", own, *SMALL, "--output", out)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"uetemu: {own}, line {line_of(text, at)}: ")
    assert refusal in done.stderr


def test_another_file_is_refused(tmp_path: Path) -> None:
    done = uetemu("run", "incast", "--plugin", f"{MINE}@{64 * '0'}", *SMALL, cwd=tmp_path)
    assert f"{MINE} is not the file that the command was begun with" in sentence(done)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_raises_while_it_runs_is_named(tmp_path: Path, workers: int) -> None:
    text = MINE.read_text().replace("super().on_ack(", "self.nothing + super().on_ack(")
    own, out = tmp_path / "own.py", tmp_path / "run"
    own.write_text(text)
    done = uetemu(
        *("run", "incast", "--plugin", own, "--transport", "uet:cc=mine", *SMALL),
        *("--workers", str(workers), "--output", out),
    )
    raised = f"{own}, line {line_of(text, 'self.nothing')}: AttributeError: 'Mine' object has no"
    assert done.returncode == 1
    assert f"uetemu: {raised}" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((out / "result.json").read_text())["errors"][0].startswith(raised)


def test_an_installed_package_adds_to_every_command(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(MINE.read_text())
    facts = tmp_path / "ours-1.5.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.5\n")
    (facts / "entry_points.txt").write_text("[uetemu.plugins]\nours = ours\n")
    out = tmp_path / "run"
    done = subprocess.run(
        [*UETEMU, "run", "incast", "--transport", "uet:cc=mine", *SMALL, "--output", str(out)],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{CHECKOUT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (plugin,) = json.loads((out / "environment.json").read_text())["plugins"]
    assert (plugin["file"], plugin["package"]) == ("ours.py", "ours 1.5")


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
    check_refusal(tmp_path, MINE.read_text().replace(there, instead, 1), at, refusal)


@pytest.mark.parametrize(
    ("there", "instead", "at", "refusal"),
    [
        ('"resent_share"', '"jain"', "METRICS.register(", "there already is a metric 'jain' ("),
        ("=ENDPOINT", '="home"', "    Metric(", "observed at 'home'; take one of 'endpoint', "),
    ],
)
def test_a_metric_that_cannot_be_added(
    tmp_path: Path, there: str, instead: str, at: str, refusal: str
) -> None:
    check_refusal(tmp_path, RESENT.read_text().replace(there, instead), at, refusal)


def check_refusal(folder: Path, text: str, at: str, refusal: str) -> None:
    """A file of ``text`` is refused by a sentence that names the line with ``at``."""
    own = folder / "own.py"
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
