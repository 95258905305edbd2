"""The folders of tests are those of the source."""

from __future__ import annotations

import pytest

from tests import CHECKOUT


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
    # Soft-RoCE's cases and peer are copied into a virtual machine beside their test.
    assert shared == {"system/interop/soft_roce_cases.py", "system/interop/verbs_peer.py"}
