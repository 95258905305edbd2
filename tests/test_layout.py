"""Folders of tests: they mirror the source, and what tests share lies in the harness."""

from __future__ import annotations

import pytest

from tests import CHECKOUT
from tests.harness.spread_tests import SPREAD


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
    paths = [path for path in (CHECKOUT / "tests").rglob("*.py") if path.name in SPREAD]
    assert {path.name for path in paths} == SPREAD
    assert [path.name for path in paths if 'scope="' in path.read_text()] == []
