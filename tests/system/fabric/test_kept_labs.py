"""``pytest --uetemu-keep-lab`` and ``--uetemu-shell``, in a pytest of its own."""

import os
import pty
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.dataplane import cleanup
from emulator.dataplane.kernel import namespaces
from emulator.pytest_plugin.runs import UETEMU
from tests import CHECKOUT
from tests.harness.nightly import nightly_beyond

pytestmark = pytest.mark.root

PYTEST = (sys.executable, "-m", "pytest", "-rA", "-c", os.devnull, "--rootdir")


FAILS = """
    def test_it(lab):
        print("made", lab("rail_clos:hosts=2,gpus_per_host=1").name)
        assert False
"""
FAILS_IN_BLOCK = """
    from tests.harness.lab.endpoint_lab import small_lab

    def test_it():
        with small_lab() as made:
            print("made", made.name)
            assert False
"""
FAILS_WITH_NAME = """
    import subprocess
    from emulator.pytest_plugin.runs import UETEMU

    def test_it(lab_name):
        print("made", lab_name)
        up = ("up", "rail_clos:hosts=2,gpus_per_host=1", "--name", lab_name)
        subprocess.run([*UETEMU, *up], check=True)
        assert False
"""
PASSES = """
    import pytest
    from tests.harness.lab.endpoint_lab import small_lab

    def test_it(lab):
        print("made", lab("rail_clos:hosts=2,gpus_per_host=1").name)
        with pytest.raises(ZeroDivisionError), small_lab() as made:
            print("made", made.name)
            1 / 0
"""
SECOND_FAILS = """
    import pytest
    from tests.harness.lab.endpoint_lab import small_lab

    @pytest.fixture(scope="module")
    def shared():
        with small_lab() as made:
            yield made

    def test_before(shared):
        print("made", shared.name)

    def test_it(shared):
        assert False
"""


class Session:
    """A pytest with one file; ``labs`` are the names that its tests have printed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.labs: list[str] = []

    def run(self, source: str, *options: str, stdin: int = subprocess.DEVNULL) -> str:
        file = self._folder / "test_kept.py"
        file.write_text(textwrap.dedent(source))
        plugins = (
            "-p",
            "emulator.pytest_plugin.pytest_hooks",
            "-p",
            "emulator.pytest_plugin.plugin_fixtures",
            "-p",
            "tests.system.conftest",
            "-p",
            "no:cacheprovider",
        )
        done = subprocess.run(
            [*PYTEST, str(self._folder), *plugins, *options, str(file)],
            env=os.environ | {"PYTHONPATH": str(CHECKOUT), "SHELL": "/bin/sh"},
            stdin=stdin,
            capture_output=True,
            text=True,
            cwd=self._folder,
            timeout=120,
        )
        printed = done.stdout + done.stderr
        self.labs += dict.fromkeys(re.findall(r"^made (\S+)$", printed, re.M))
        assert self.labs, printed
        return printed

    def standing(self) -> list[str]:
        return [name for name in self.labs if cleanup.exists(name)]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    for name in made.standing():
        cleanup.take_down(name, force=True)


@pytest.mark.parametrize(
    "source", nightly_beyond(2, [FAILS_IN_BLOCK, SECOND_FAILS, FAILS, FAILS_WITH_NAME])
)
def test_lab_of_a_failed_test_is_kept_and_clean_removes_it(session: Session, source: str) -> None:
    printed = session.run(source, "--uetemu-keep-lab")
    (name,) = session.labs
    assert session.standing() == [name]
    assert f" lab {name} is kept " in printed
    for command in (f"uetemu exec {name}:h0g0 -- bash", f"uetemu clean {name}"):
        assert f"\n{command}\n" in printed
    nodes = len(namespaces.of_lab(name))
    done = subprocess.run([*UETEMU, "clean", name], capture_output=True, text=True, cwd=CHECKOUT)
    assert done.stdout.startswith(f"lab {name}: removed {nodes} namespaces"), done.stderr
    assert session.standing() == []


def test_lab_of_a_passed_test_is_removed(session: Session) -> None:
    printed = session.run(PASSES, "--uetemu-keep-lab")
    assert "1 passed" in printed
    assert len(session.labs) == 2
    assert session.standing() == []
    assert "is kept" not in printed


@pytest.mark.parametrize("source", nightly_beyond(1, [SECOND_FAILS, FAILS, FAILS_IN_BLOCK]))
def test_without_the_option_it_is_removed(session: Session, source: str) -> None:
    printed = session.run(source)
    assert "1 failed" in printed
    assert "error" not in printed.splitlines()[-1]
    assert session.standing() == []


def test_no_shell_without_a_terminal(session: Session) -> None:
    printed = session.run(FAILS, "--uetemu-shell")
    assert " no shell is opened " in printed
    assert "standard input is no terminal" in printed
    assert session.standing() == []


@pytest.mark.parametrize("source", nightly_beyond(1, [FAILS, FAILS_IN_BLOCK]))
def test_shell_is_in_the_lab(session: Session, source: str) -> None:
    ours, terminal = pty.openpty()
    try:
        os.write(
            ours, b"ls -l /proc/self/ns/net; ls /sys/class/net; echo answer=$((6 * 7))\nexit\n"
        )
        printed = session.run(source, "--uetemu-shell", stdin=terminal)
    finally:
        os.close(ours)
        os.close(terminal)
    (name,) = session.labs
    assert f"a shell in h0g0 of lab {name}" in printed
    assert "answer=42" in printed
    assert "no shell is opened" not in printed
    assert session.standing() == []
