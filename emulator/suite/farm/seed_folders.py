"""The run folder of a run whose seeds ranks run: a call goes on where an earlier one was killed.

::

    RUN/                   has a lock as long as a call works on it
    RUN/seeds.json         the words of all seeds' runs: another command is refused
    RUN/seeds/7/           the run folder of seed 7, whole
    RUN/seeds/7/trial.json its words and its end, written last: the seed is not run again
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from emulator.dataplane.kernel.locked_folders import lock_of
from emulator.errors import UserError
from emulator.run.environment import version_of
from emulator.run.results import RunFolder
from emulator.suite.trials import TrialEnd, read_record, write_record

SEEDS = "seeds"
COMMAND = "seeds.json"


class SeedFolders:
    """The folder of a call, ``run``, and in it those of its seeds, each with the words of its run.

    A folder that an earlier call of the same command left unfinished is taken over: all that is
    not a seed that ended well is removed.  Any other folder must be new or empty, else UserError.
    """

    def __init__(
        self, scenario: str, output: Path | None, words: Mapping[int, Sequence[str]]
    ) -> None:
        self._words = words
        if output is not None and self._is_unfinished(output):
            self._lock = _locked(output)
            self._clear(output)
            self.run = RunFolder(output)
        else:
            self.run = RunFolder.create(scenario, output)
            self._lock = _locked(self.run.path)
        self.run.write(COMMAND, self._command)

    def of_seed(self, seed: int) -> Path:
        """Return the run folder of a seed."""
        return self.run.path / SEEDS / str(seed)

    def kept(self) -> dict[int, TrialEnd]:
        """Return the ends of the seeds that need not run."""
        return self._ended_well(self.run.path / SEEDS)

    def _ended_well(self, seeds: Path) -> dict[int, TrialEnd]:
        ends = {seed: _end(seeds / str(seed), words) for seed, words in self._words.items()}
        return {seed: end for seed, end in ends.items() if end is not None}

    def record(self, seed: int, end: TrialEnd) -> None:
        """Note how a seed's run ended, once its folder is whole."""
        write_record(self.of_seed(seed), self._words[seed], end)

    def close(self) -> None:
        """Close the run folder, and let another call have it."""
        self.run.close()
        os.close(self._lock)

    def _is_unfinished(self, output: Path) -> bool:
        """Return whether a call of this command left ``output`` without coming to its end."""
        try:
            command = json.loads((output / COMMAND).read_text())
            errors = json.loads((output / "result.json").read_text())["errors"]
        except (OSError, ValueError, TypeError, KeyError):
            return False
        return bool(errors) and command == self._command

    @property
    def _command(self) -> dict[str, object]:
        words = {str(seed): list(words) for seed, words in self._words.items()}
        return {"version": version_of("uetemu"), "seeds": words}

    def _clear(self, output: Path) -> None:
        seeds = output / SEEDS
        kept = {seeds, *(seeds / str(seed) for seed in self._ended_well(seeds))}
        for path in (*output.iterdir(), *seeds.glob("*")):
            if path in kept:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _locked(folder: Path) -> int:
    try:
        return lock_of(folder.resolve())
    except BlockingIOError:
        raise UserError(
            f"another call works on {folder}; wait for it, or choose another --output"
        ) from None


def _end(folder: Path, words: Sequence[str]) -> TrialEnd | None:
    """Return the recorded end of a run that ended well; None: there is none."""
    record = read_record(folder, words)
    if record is None or record.get("status") != 0:
        return None
    return TrialEnd(
        status=0, seconds=record["seconds"], place=record.get("place"), again=record.get("again")
    )
