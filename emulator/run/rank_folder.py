"""The run folders of MPI ranks: the first one's is the user's, the others' go with their labs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from emulator import lab_record
from emulator.engine.ranks.rank_exchange import Ranks
from emulator.errors import UserError

#: In a lab's state directory, for the files that a rank needs while it runs.
SCRATCH = "run"


class RankFolder:
    """The folder of a rank that is not the first: what all ranks know is written by that one.

    ``path`` is in the directory of the lab ``lab``, once there is one, and is removed with it.
    """

    def __init__(self, lab: str) -> None:
        self._lab = lab

    @property
    def path(self) -> Path:
        """The folder, made when it is needed for as long as the lab is there."""
        folder = lab_record.directory_of(self._lab) / SCRATCH
        with suppress(FileNotFoundError):
            folder.mkdir(exist_ok=True)
        return folder

    def event(self, kind: str, **details: object) -> None:
        """Write nothing."""

    def write(self, name: str, content: object) -> Path:
        """Write nothing."""
        return self.path / name

    def close(self) -> None:
        """Do nothing."""


def bring_logs(ranks: Ranks, folder: Path) -> None:
    """Bring the files of all ranks' ``folder`` into that of the first; all ranks call this."""
    kept = ranks.number != 0 and folder.is_dir()
    own = {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if kept else {}
    brought: dict[str, bytes] = {}
    for files in ranks.gather("event logs", own):
        brought |= files
    if ranks.number:
        return
    for name, content in brought.items():
        try:
            (folder / name).write_bytes(content)
        except OSError as error:
            raise UserError(
                f"cannot write {folder / name}: {error.strerror}; make room there, or choose "
                "another place with --output"
            ) from error
