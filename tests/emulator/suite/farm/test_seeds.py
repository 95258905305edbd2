"""Folders of seeds: taken over by the same command alone, and by one call at a time."""

from pathlib import Path

import pytest

from emulator.errors import UserError
from emulator.suite.farm.seeds import SeedFolders
from emulator.suite.trials import TrialEnd

WORDS: dict[int, tuple[str, ...]] = {
    seed: ("run", "allreduce", "--seed", str(seed)) for seed in (1, 2, 3)
}


def killed(folder: Path) -> None:
    """Leave what a call leaves that was killed: seed 1 ended, 2 failed, 3 was at work."""
    call = SeedFolders("allreduce", folder, WORDS)
    call.run.write("result.json", {"errors": ["not ended yet"]})
    for seed in WORDS:
        call.of_seed(seed).mkdir(parents=True)
        (call.of_seed(seed) / "result.json").write_text("{}")
    call.record(1, TrialEnd(status=0, seconds=2.0, place="rank 1 on b"))
    call.record(2, TrialEnd(status=1, seconds=2.0, error="no"))
    call.close()


def test_the_same_command_keeps_the_seeds_that_ended_well(tmp_path: Path) -> None:
    killed(tmp_path)
    again = SeedFolders("allreduce", tmp_path, WORDS)
    assert again.kept() == {1: TrialEnd(status=0, seconds=2.0, place="rank 1 on b")}
    assert sorted(path.name for path in (tmp_path / "seeds").iterdir()) == ["1"]
    assert (again.of_seed(1) / "result.json").exists()
    assert not (tmp_path / "result.json").exists()
    again.close()


def test_a_folder_at_work_is_not_taken_over(tmp_path: Path) -> None:
    killed(tmp_path)
    again = SeedFolders("allreduce", tmp_path, WORDS)
    again.run.write("result.json", {"errors": ["not ended yet"]})
    with pytest.raises(UserError, match="another call works on"):
        SeedFolders("allreduce", tmp_path, WORDS)
    again.close()


def test_a_folder_behind_a_link_is_taken_over(tmp_path: Path) -> None:
    folder, link = tmp_path / "run", tmp_path / "link"
    killed(folder)
    link.symlink_to(folder)
    again = SeedFolders("allreduce", link, WORDS)
    assert list(again.kept()) == [1]
    again.close()


@pytest.mark.parametrize("errors", [["not ended yet"], []])
def test_another_command_and_a_run_that_ended_are_refused(
    errors: list[str], tmp_path: Path
) -> None:
    killed(tmp_path)
    words = WORDS
    if errors:
        words = {seed: (*given, "--pxn", "never") for seed, given in WORDS.items()}
    else:
        (tmp_path / "result.json").write_text('{"errors": []}')
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="is not empty"):
        SeedFolders("allreduce", tmp_path, words)
    assert sorted(tmp_path.rglob("*")) == before
