"""The plugin in sessions of its own: marks, options, root, and what a failure shows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.pytest_plugin import pytest_hooks
from tests import CHECKOUT

#: pytest's own fixtures for sessions of plugins.
pytest_plugins = ("pytester",)

PLUGIN = "emulator.pytest_plugin.pytest_hooks"
#: Stands for ``uetemu run`` where a test of the plugin needs no fabric.
PRETENDED = """
import json, pytest
from pathlib import Path
from emulator.pytest_plugin import runs
from emulator.dataplane import cleanup

@pytest.fixture(autouse=True)
def pretended(monkeypatch):
    script = Path(__file__).parent / "pretended.py"
    monkeypatch.setattr(runs, "UETEMU", (runs.sys.executable, str(script)))
    monkeypatch.setattr(cleanup, "require_root", lambda purpose: None)
"""
#: Writes the result that a test has put beside it, and ends with its status.
SCRIPT = """
import json, pathlib, sys
words = sys.argv[1:]
if words[0] == "run":
    given = json.loads((pathlib.Path(__file__).parent / "result.json").read_text())
    folder = pathlib.Path(words[words.index("--output") + 1])
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(given))
    print("the table of", *words[1:words.index("--name")])
    sys.exit(given.get("status", 0))
"""


@pytest.fixture
def repository(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A repository of a user whose runs are pretended: one row in 10 us, nothing dropped."""
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest(PRETENDED)
    (pytester.path / "pretended.py").write_text(SCRIPT)
    named = {"transport": "uet", "switch": "shallow", "seed": 1}
    row = {"collective": "incast", "time_us": 10.0, "efficiency": 0.8, "dropped_packets": 0}
    result = {"schema": "uetemu.result/1", "scenario": "incast", "topology": "rail_clos", **named}
    result |= {"digest": None, "rows": [named | row], "errors": [], "fidelity": {}}
    (pytester.path / "result.json").write_text(json.dumps(result))
    return pytester


def session(repository: pytest.Pytester, *options: str) -> pytest.RunResult:
    return repository.runpytest_inprocess("-p", PLUGIN, "--strict-markers", *options)


def test_marks_choose_topology_and_transport_and_several_repeat_the_test(
    repository: pytest.Pytester,
) -> None:
    repository.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.uetemu_topology("pod.yaml")

        @pytest.mark.uetemu_transport("uet", "rocev2:nccl")
        def test_run(uetemu_run, uetemu_transport):
            run = uetemu_run("incast", "--seed", "3", params={"senders": 4})
            assert "--topology pod.yaml --transport " + uetemu_transport in run.output
            assert run.output.endswith("--seed 3 --param senders=4\\n")
            run.assert_bounds("time<=10", "drops==0")

        @pytest.mark.uetemu_topology("rail_clos", "dragonfly")
        def test_topology(uetemu_topology): ...

        def test_unmarked(uetemu_transport): assert uetemu_transport is None
        """
    )
    done = session(repository, "-v")
    done.assert_outcomes(passed=5)
    done.stdout.fnmatch_lines(
        ["*test_run[[]uet[]] PASSED*", "*test_topology[[]dragonfly[]] PASSED*"]
    )


def test_a_profile_is_found_beside_the_test_or_in_the_root(repository: pytest.Pytester) -> None:
    (repository.path / "near").mkdir()
    (repository.path / "near" / "own.yaml").touch()
    (repository.path / "far.yaml").touch()
    (repository.path / "near" / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.uetemu_topology('own.yaml', 'far.yaml', 'shipped.yaml')\n"
        "def test_it(uetemu_topology): print('at', uetemu_topology)\n"
    )
    done = session(repository, "-rP")
    done.stdout.fnmatch_lines([f"at {repository.path}/near/own.yaml"])
    done.stdout.fnmatch_lines([f"at {repository.path}/far.yaml"])
    done.stdout.fnmatch_lines(["at shipped.yaml"])


def test_a_mark_without_a_text_is_refused(repository: pytest.Pytester) -> None:
    repository.makepyfile(
        """
        import pytest
        @pytest.mark.uetemu_topology()
        def test_it(uetemu_run): ...
        """
    )
    done = session(repository)
    done.stdout.fnmatch_lines(["*the mark uetemu_topology takes a text or several, such as*"])
    assert done.ret != 0


def test_a_failure_shows_the_table_and_keeps_the_run(repository: pytest.Pytester) -> None:
    repository.makepyfile(
        """
        def test_bound(uetemu_run):
            uetemu_run("incast").assert_bounds("efficiency>=90%", "jain>0")

        def test_plain(uetemu_run):
            assert uetemu_run("incast").rows == []

        def test_good(uetemu_run):
            uetemu_run("incast").assert_bounds("efficiency>=80%")
        """
    )
    done = session(repository, "--uetemu-artifacts", "kept")
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(
        [
            "E*efficiency>=90%: efficiency is 0.8 in row 1: *",
            "E*jain>0: jain was not measured in row 1: *",
            "E*the table of incast",
            f"E*# Run folder           : {repository.path}/kept/*test_bound/t-*",
            "*- uetemu run incast -*",
            "the table of incast",
        ]
    )
    kept = {path.parents[1].name for path in (repository.path / "kept").glob("*/t-*/report.html")}
    assert {name.rpartition("-")[2] for name in kept} == {"test_bound", "test_plain"}
    assert len(list((repository.path / "kept").iterdir())) == 2


def test_a_run_that_fails_fails_its_test_unless_the_test_looks_itself(
    repository: pytest.Pytester,
) -> None:
    result = json.loads((repository.path / "result.json").read_text()) | {"status": 1}
    (repository.path / "result.json").write_text(json.dumps(result))
    repository.makepyfile(
        """
        def test_fails(uetemu_run): uetemu_run("incast")
        def test_looks(uetemu_run): assert uetemu_run("incast", check=False).status == 1
        """
    )
    done = session(repository)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["E*the run ended with status 1"])


def test_a_comparison_fails_with_what_changed(repository: pytest.Pytester) -> None:
    baseline = repository.path / "baseline"
    baseline.mkdir()
    result = json.loads((repository.path / "result.json").read_text())
    result["rows"][0]["time_us"] = 8.0
    (baseline / "result.json").write_text(json.dumps(result))
    repository.makepyfile(
        """
        def test_worse(uetemu_run):
            uetemu_run("incast").assert_against("baseline/result.json", fail_if="time>10%")

        def test_good(uetemu_run):
            run = uetemu_run("incast")
            run.assert_against("baseline", fail_if=["time>30%", "drops!=0"])
            run.assert_against(uetemu_run("incast"), fail_if="time!=0")

        def test_unknown(uetemu_run):
            uetemu_run("incast").assert_against("baseline", fail_if="speed<0")
        """
    )
    done = session(repository)
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(
        [
            "E*--fail-if time>10%: time (us) changed by +25.00 % at incast*",
            "E*# uetemu compare baseline/result.json *",
            "E*UserError: --fail-if 'speed<0': speed is no value of a row*",
        ]
    )


def test_own_checks_hold_for_every_run(repository: pytest.Pytester) -> None:
    repository.makepyfile(
        """
        import pytest

        def house_rule(folder): assert not (folder / "result.json").exists(), "a house rule"

        @pytest.fixture(scope="session")
        def uetemu_checks(): return [house_rule]

        def test_it(uetemu_run): uetemu_run("incast")

        @pytest.fixture(scope="module")
        def shared(uetemu_run_factory): return uetemu_run_factory("incast")

        def test_shared(shared): ...
        """
    )
    done = session(repository)
    done.assert_outcomes(failed=1, errors=1)
    done.stdout.fnmatch_lines(["E*a house rule*"])


@pytest.mark.parametrize("answer", ["fail", "skip"])
def test_without_root_a_test_fails_or_is_skipped_by_name(
    repository: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    repository.makeconftest("")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    repository.makepyfile("def test_it(uetemu_lab): ...")
    done = session(
        repository, "-rs", *(() if answer == "fail" else ("--uetemu-without-root=skip",))
    )
    if answer == "fail":
        done.assert_outcomes(errors=1)
        done.stdout.fnmatch_lines(["only root can build a fabric: run as root; *skips*"])
    else:
        done.assert_outcomes(skipped=1)
        done.stdout.fnmatch_lines(["SKIPPED*only root can build a fabric: run as root"])


def test_a_session_without_fabrics_loads_nothing_of_the_emulator(tmp_path: Path) -> None:
    heavy = ("emulator", "uet", "topologies", "numpy", "scapy")
    code = f"import sys, {PLUGIN}; print(*(n for n in sys.modules if n.split('.')[0] in {heavy}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    finder = {f"emulator.compiled{name}" for name in ("", ".builds", ".finder")}
    finder.add("emulator.installed_packages")
    assert {*done.stdout.split()} == {"emulator", *finder, "emulator.pytest_plugin", PLUGIN}


def test_the_package_has_the_entry_point() -> None:
    assert pytest_hooks.__name__ == PLUGIN
    lines = [line.strip() for line in (CHECKOUT / "setup.cfg").read_text().splitlines()]
    assert lines[lines.index("pytest11 =") + 1] == f"{PLUGIN} = {PLUGIN}"
