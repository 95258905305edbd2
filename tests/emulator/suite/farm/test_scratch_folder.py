"""Folders of ranks are removed when the rank was killed, and not as long as its trial runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from emulator.suite.farm import scratch_folder
from tests import CHECKOUT
from tests.harness.lab.traffic import within

#: Holds a folder and has a child that holds it as well, as a trial does.
RANK = """
import subprocess, sys
from pathlib import Path
from emulator.suite.farm import scratch_folder
scratch_folder.PLACE = Path(sys.argv[1])
with scratch_folder.scratch_folder() as (folder, lock):
    (folder / "file").touch()
    trial = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    subprocess.Popen(trial, pass_fds=[lock], stdin=sys.stdin)
    sys.stdin.read()
"""


def test_a_folder_lasts_as_long_as_its_rank_or_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_folder, "PLACE", tmp_path)
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, str(tmp_path)],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert rank.stdout is not None
    assert rank.stdin is not None
    rank.stdout.readline()
    (folder,) = tmp_path.iterdir()
    assert scratch_folder.remove_abandoned() == 0
    rank.kill()
    rank.wait()
    assert scratch_folder.remove_abandoned() == 0  # the trial still removes its fabric
    assert folder.exists()
    rank.stdin.close()
    rank.stdout.read()
    within(60, lambda: not folder.exists(), "the keeper of the rank has removed it")


def test_a_folder_without_any_process_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_folder, "PLACE", tmp_path)
    with scratch_folder.scratch_folder() as (held, _):
        (held.parent / f"{held.name}-left").mkdir()
        assert scratch_folder.remove_abandoned() == 1
        assert list(tmp_path.iterdir()) == [held]


def test_a_folder_is_gone_after_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_folder, "PLACE", tmp_path)
    with scratch_folder.scratch_folder() as (folder, _):
        (folder / "1").mkdir()
    assert list(tmp_path.iterdir()) == []
