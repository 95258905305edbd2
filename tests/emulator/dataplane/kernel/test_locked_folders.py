"""A folder is its holder's until its lock is gone, and is removed after that."""

import os
import tempfile
from functools import partial
from pathlib import Path

import pytest

from emulator.dataplane.kernel.locked_folders import lock_of, locked_folder, remove_unlocked


def test_a_folder_stays_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    folder, lock = locked_folder(partial(tempfile.mkdtemp, dir=tmp_path))
    assert remove_unlocked(tmp_path.glob("*")) == 0
    os.close(lock)
    assert remove_unlocked(tmp_path.glob("*")) == 1
    assert not folder.exists()


def test_what_is_no_folder_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    assert remove_unlocked(tmp_path.glob("*")) == 0
    assert (tmp_path / "file").exists()


def test_a_folder_that_was_taken_before_it_was_locked_is_made_anew(tmp_path: Path) -> None:
    names = iter(("gone", "kept"))

    def make() -> str:
        name = next(names)
        if name == "kept":
            (tmp_path / name).mkdir()
        return str(tmp_path / name)

    folder, lock = locked_folder(make)
    os.close(lock)
    assert folder == tmp_path / "kept"


def test_a_folder_has_one_lock_and_no_link_to_it_has_another(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    lock = lock_of(tmp_path / "folder")
    with pytest.raises(BlockingIOError):
        lock_of(tmp_path / "folder")
    with pytest.raises(OSError, match="link"):
        lock_of(tmp_path / "link")
    os.close(lock)
    os.close(lock_of(tmp_path / "folder"))
