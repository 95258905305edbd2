"""Versions of installed packages, as ``importlib.metadata`` has them."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from emulator.installed_packages import may_have_entry_points, version_of, versions_of


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which packages are looked for first."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_versions_are_those_of_the_metadata(packages: Path) -> None:
    modern = packages / "Some_Thing-1.2.dist-info"
    modern.mkdir()
    (modern / "METADATA").write_text("Name: Some.Thing\nVersion: 1.2+local\n\nVersion: 9\n")
    (packages / "old-3.egg-info").write_text("Name: old\nVersion: 3\n")
    assert versions_of(["some-thing", "old", "numpy", "no-such"]) == {
        "some-thing": "1.2+local",
        "old": "3",
        "numpy": version("numpy"),
        "no-such": None,
    }


def test_the_first_folder_of_the_path_counts(packages: Path) -> None:
    folder = packages / "numpy-0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: numpy\nVersion: 0.1\n")
    assert version_of("numpy") == "0.1"


def test_entry_points_are_looked_for_in_all_packages(packages: Path) -> None:
    assert not may_have_entry_points("ours.things")
    folder = packages / "ours-1.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text("[ours.things]\none = ours\n")
    assert may_have_entry_points("ours.things")
