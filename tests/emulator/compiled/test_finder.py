"""Compiled modules run where a build fits the sources; else these do, and a sentence says why."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.compiled.builds import LIBRARY, SUFFIX
from tests import CHECKOUT

#: A tree with one hot module, one that it needs, and one that it does not.
FILES = {
    "emulator/__init__.py": (CHECKOUT / "emulator/__init__.py").read_text(),
    "emulator/compiled/hot_modules.py": 'HOT = ("uet/hot.py",)\n',
    "uet/__init__.py": (CHECKOUT / "uet/__init__.py").read_text(),
    "uet/hot.py": "from uet.needed import ONE\n\ndef two() -> int:\n    return ONE + ONE\n",
    "uet/needed.py": "ONE = 1\n",
    "uet/other.py": "",
}
COPIED = (
    "emulator/errors.py",
    *(
        f"emulator/compiled/{name}.py"
        for name in (
            "__init__",
            "__main__",
            "builds",
            "finder",
            "making",
        )
    ),
)
PROGRAM = """
import uet.hot
from emulator.compiled.finder import engine
print(uet.hot.two(), uet.hot.__file__)
print(engine())
"""


def python(tree: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "UETEMU_PURE"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment | {"PYTHONPATH": str(tree)} | more,
        capture_output=True,
        text=True,
        check=False,
    )


def running(tree: Path, **more: str) -> tuple[str, str]:
    """Return the suffix of the module's file, and what is said of it."""
    done = python(tree, "-c", PROGRAM, **more)
    assert done.returncode == 0, done.stderr
    result, sentence = done.stdout.splitlines()
    value, file = result.split(" ", 1)
    assert value == "2"
    assert file.startswith(str(tree))
    return ("compiled" if file.endswith(SUFFIX) else "source"), sentence


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree whose hot module is compiled."""
    tree = tmp_path_factory.mktemp("compiled") / "tree"
    for name, text in FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in COPIED:
        shutil.copy(CHECKOUT / name, tree / name)
    assert running(tree) == (
        "source",
        "sources: nothing is compiled; `python -m emulator.compiled` makes runs faster",
    )
    assert python(tree, "-m", "emulator.compiled", "--check").returncode == 1
    nowhere = python(tree, "-m", "emulator.compiled", PATH="")
    assert nowhere.returncode == 1
    assert "there is no C compiler" in nowhere.stderr.splitlines()[-1]
    assert not any((tree / "emulator/compiled/build").iterdir())
    done = python(tree, "-m", "emulator.compiled")
    assert done.returncode == 0, done.stderr
    return tree


@pytest.fixture
def tree(built: Path, tmp_path: Path) -> Path:
    """A copy of that tree, with younger files, for one test."""
    return shutil.copytree(built, tmp_path / "tree", copy_function=shutil.copyfile)


def build_of(tree: Path) -> Path:
    (folder,) = (tree / "emulator/compiled/build").iterdir()
    return folder


def test_a_build_of_the_sources_runs_wherever_they_lie(built: Path, tree: Path) -> None:
    for place in (built, tree):
        assert running(place) == ("compiled", "compiled: 1 modules")
        assert python(place, "-m", "emulator.compiled", "--check").returncode == 0


def test_a_module_that_is_not_needed_changes_nothing(tree: Path) -> None:
    (tree / "uet/other.py").write_text("THREE = 3\n")
    assert running(tree)[0] == "compiled"


@pytest.mark.parametrize("name", ["hot", "needed"])
def test_the_sources_run_when_one_of_them_has_changed(tree: Path, name: str) -> None:
    with (tree / f"uet/{name}.py").open("a") as source:
        source.write("# changed\n")
    ran, sentence = running(tree)
    assert ran == "source"
    assert sentence.startswith(
        f"sources: uet/{name}.py has changed since modules were compiled; `python"
    )
    assert python(tree, "-m", "emulator.compiled", "--check").returncode == 1


def test_the_sources_run_if_the_environment_says_so(tree: Path) -> None:
    assert running(tree, UETEMU_PURE="1") == ("source", "sources (UETEMU_PURE=1)")


@pytest.mark.parametrize("lacking", [f"{LIBRARY}{SUFFIX}", f"uet/hot{SUFFIX}"])
def test_a_build_that_is_not_whole_is_not_used(tree: Path, lacking: str) -> None:
    (build_of(tree) / lacking).unlink()
    ran, sentence = running(tree)
    assert ran == "source"
    assert "is not whole" in sentence


def test_a_build_that_cannot_be_loaded_is_not_used(tree: Path) -> None:
    (build_of(tree) / f"{LIBRARY}{SUFFIX}").write_bytes(b"\x7fELF")
    ran, sentence = running(tree)
    assert ran == "source"
    assert sentence.startswith("sources: compiled modules cannot be loaded (")


def test_a_build_for_another_python_is_not_used(tree: Path) -> None:
    folder = build_of(tree)
    folder.rename(folder.with_name(folder.name.replace("cpython-3", "cpython-4")))
    ran, sentence = running(tree)
    assert ran == "source"
    assert sentence.startswith("sources: modules are compiled for another Python; ")


def test_no_build_runs_for_another_checkout(built: Path, tmp_path: Path) -> None:
    """Where Python finds a package in another checkout than the build's."""
    other = tmp_path / "other"
    shutil.copytree(built / "uet", other / "uet")
    paths = os.pathsep.join(map(str, (other, built)))
    done = python(built.parent, "-c", PROGRAM, PYTHONPATH=paths)
    result, sentence = done.stdout.splitlines()
    assert result == f"2 {other}/uet/hot.py"
    assert sentence == f"sources: uet is not that of {built}, which has compiled modules"
