"""Rules of the layout: folders of tests, names, lengths, imports and first lines of docstrings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness.spread_tests import SPREAD

FLOORS = ("scenarios", "emulator", "uet", "topologies")
LONGEST_FILE = 500
#: Modules that import inside a function: each says beside it what ``--help`` saves, or which
#: package is needed there alone.
LATE_IMPORTS = {
    "emulator/cli/endpoints/fep_options.py",
    "emulator/cli/endpoints/fep_verb.py",
    "emulator/lab.py",
}
#: Every scenario has a class of this name.
SHARED_NAMES = {"Parameters"}
#: Words with which a first line does not make sense alone.
DANGLING = re.compile(r"(Of|Those|It|As|The same|Who|What|Which|So|And|Whose|Also)\b")


@pytest.mark.parametrize("top", ["uet", "emulator", "topologies"])
def test_folders_of_tests_mirror_the_source(top: str) -> None:
    tests = CHECKOUT / "tests"
    folders = {path.parent.relative_to(tests) for path in (tests / top).rglob("test_*.py")}
    assert folders
    strangers = {str(folder) for folder in folders if not (CHECKOUT / folder).is_dir()}
    assert not strangers - {"uet/replay"}, "a folder of tests has no folder in the source"


def test_shared_code_of_tests_lies_in_the_harness() -> None:
    tests = CHECKOUT / "tests"
    mirrors = [*(tests / top for top in ("uet", "emulator", "topologies", "scenarios", "system"))]
    shared = {
        str(path.relative_to(tests))
        for mirror in mirrors
        for path in mirror.rglob("*.py")
        if not path.name.startswith(("test_", "conftest", "__init__"))
    }
    # Cases against other stacks, and Soft-RoCE's peer, run in a virtual machine beside their test.
    assert shared == {
        "system/interop/linux_nvme_cases.py",
        "system/interop/soft_roce_cases.py",
        "system/interop/verbs_peer.py",
    }


def test_files_whose_tests_workers_share_have_no_fixture_for_all_of_them() -> None:
    paths = [path for path in (CHECKOUT / "tests/system").rglob("*.py") if path.name in SPREAD]
    assert {path.name for path in paths} == SPREAD
    assert [path.name for path in paths if 'scope="' in path.read_text()] == []


@pytest.fixture(scope="module", name="source")
def parsed_source() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(CHECKOUT)): ast.parse(path.read_text())
        for floor in FLOORS
        for path in sorted((CHECKOUT / floor).rglob("*.py"))
    }


def test_modules_and_public_classes_have_names_of_their_own(source: dict[str, ast.Module]) -> None:
    files = Counter(Path(path).name for path in source if not path.endswith("__init__.py"))
    classes = Counter(
        node.name
        for tree in source.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in files.items() if count > 1} == set()
    assert {name for name, count in classes.items() if count > 1} <= SHARED_NAMES


def test_files_are_short() -> None:
    paths = [path for floor in FLOORS for path in (CHECKOUT / floor).rglob("*.py")]
    lengths = {str(path): len(path.read_text().splitlines()) for path in paths}
    assert len(lengths) > 500
    assert {path for path, length in lengths.items() if length > LONGEST_FILE} == set()


def test_imports_stand_at_the_top(source: dict[str, ast.Module]) -> None:
    late = {
        path
        for path, tree in source.items()
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test))
        for inner in ast.walk(outer)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    assert late == LATE_IMPORTS


def test_first_lines_make_sense_alone(source: dict[str, ast.Module]) -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    dangling = [
        f"{path}: {text}"
        for path, tree in source.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and DANGLING.match(text := ast.get_docstring(node) or "")
    ]
    assert dangling == []
