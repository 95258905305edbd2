"""``pip install .`` into a fresh environment, and modelled runs, as a user without any rights.

Neither Mininet nor ``tc`` nor FRR can be seen there: the environment has its own packages alone,
and the path nothing but its commands.  Root, if it runs the test, covers the daemons of FRR.
"""

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import CHECKOUT, DATA

pytestmark = pytest.mark.nightly
NOBODY = 65534
FRR = Path("/usr/lib/frr")
PYTHON = "/usr/bin/python3"
BUDGET_S = 500
HIDDEN = """
import importlib.util, shutil
assert importlib.util.find_spec("mininet") is None
assert not [name for name in ("tc", "ip", "mn", "vtysh", "clang") if shutil.which(name)]
"""


def unprivileged(folder: Path, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run ``words`` in ``folder`` as a user without rights, who does not see FRR."""
    if os.geteuid() == 0:
        cover = f"mount -t tmpfs tmpfs {FRR}; " if FRR.exists() else ""
        drop = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
        inner = shlex.join(["env", "-i", f"PATH={path}", f"HOME={folder}", *words])
        words = ("unshare", "--mount", "sh", "-ec", f"{cover}exec {drop} {inner}")
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=BUDGET_S, check=False
    )


@pytest.fixture(name="home", scope="module")
def home_of_nobody() -> Iterator[Path]:
    """A folder of that user's with the environment ``venv``.

    It is not among pytest's folders, which pip, as another user, may not list.
    """
    with tempfile.TemporaryDirectory(prefix="uetemu-installed-") as made:
        home = Path(made)
        without = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "*.egg-info", "runs")
        shutil.copytree(CHECKOUT, home / "tree", ignore=without)
        if os.geteuid() == 0:
            for each in (home, *home.rglob("*")):
                os.chown(each, NOBODY, NOBODY, follow_symlinks=False)
        pip = ("venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
        for words in ((PYTHON, "-m", "venv", "venv"), (*pip, "./tree")):
            done = unprivileged(home, *words, path="/usr/bin:/bin")
            assert done.returncode == 0, done.stderr
        shutil.rmtree(home / "tree")  # what is installed is all there is
        yield home


def installed(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``uetemu`` of the environment of ``home``."""
    commands = home / "venv" / "bin"
    return unprivileged(home, str(commands / "uetemu"), *words, path=path_of(home))


def path_of(home: Path) -> str:
    """Return the search path there."""
    return str(home / "venv" / "bin")


@pytest.mark.timeout(3 * BUDGET_S)
def test_one_command_runs_with_the_kernels_digest(home: Path) -> None:
    commands = home / "venv" / "bin"
    hidden = unprivileged(home, str(commands / "python"), "-c", HIDDEN, path=path_of(home))
    assert hidden.returncode == 0, hidden.stderr
    (listed,) = [
        run
        for run in tomllib.loads((DATA / "run_digests.toml").read_text())["run"]
        if run["name"] == "uet"
    ]
    words = ("run", *shlex.split(listed["command"]), "--fabric", "model", "--output", "run")
    done = installed(home, *words, "--check-digest", listed["digest"])
    assert done.returncode == 0, done.stderr
    assert json.loads((home / "run" / "result.json").read_text())["fabric"] == "model"


@pytest.mark.timeout(3 * BUDGET_S)
def test_one_command_runs_a_test_of_the_bench(home: Path) -> None:
    words = ("bench", "inference", "--tests", "10.1", "--seeds", "1", "--transport", "uet")
    done = installed(home, *words, "--nodes", "model", "--output", "suite", "--report")
    assert done.returncode == 0, done.stderr
    assert ", fabrics are a model;" in done.stdout
    suite = json.loads((home / "suite" / "suite.json").read_text())
    assert suite["nodes"] == "model"
    assert suite["accounting"]["excluded"] == {}
    assert suite["accounting"]["included"] > 0
    for result in (home / "suite" / "trials").glob("*/result.json"):
        assert json.loads(result.read_text())["fabric"] == "model"
    assert "no frame passes a kernel" in (home / "suite" / "report.html").read_text()


@pytest.mark.timeout(3 * BUDGET_S)
def test_what_takes_root_is_refused_with_the_way_out(home: Path) -> None:
    done = installed(home, "run", "allreduce", "--output", "kernel")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert not (home / "kernel").exists()
