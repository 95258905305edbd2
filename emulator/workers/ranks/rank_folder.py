"""The run folders of MPI ranks: the first one's is the user's, the others' go with their labs."""

from __future__ import annotations

import mmap
import shutil
from pathlib import Path

from emulator.errors import UserError
from emulator.sim.endpoint.operations.gpu_memory import memory_path
from emulator.workers.division import Processes

#: The name of the folder, which is none of a node.
SCRATCH = ".files"


class RankFolder:
    """The folder of a rank that is not the first: what all ranks know is written by that one.

    ``path`` lies with the memory of the GPUs of ``lab`` and is removed with it. So ``uetemu clean``
    finds it, whatever has become of this process.
    """

    def __init__(self, lab: str) -> None:
        self.path = memory_path(lab, SCRATCH)
        try:
            self.path.mkdir()
            # As with memory: whoever has it mapped is alive (emulator.dataplane.cleanup).
            held = self.path / "held"
            held.write_bytes(b"\0")
            with held.open("rb") as file:
                self._held = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        except OSError as error:
            raise UserError(
                f"cannot make {self.path} for a rank's files: {error.strerror}; make room there"
            ) from error

    def event(self, kind: str, **details: object) -> None:
        """Write nothing."""

    def write(self, name: str, content: object) -> Path:
        """Write nothing."""
        return self.path / name

    def close(self) -> None:
        """Remove the folder."""
        self._held.close()
        shutil.rmtree(self.path, ignore_errors=True)


def bring_logs(processes: Processes, folder: Path) -> None:
    """Bring the files of all processes' ``folder`` into that of the first; all call this."""
    kept = not processes.reports and folder.is_dir()
    own = {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if kept else {}
    brought: dict[str, bytes] = {}
    for files in processes.gather("event logs", own):
        brought |= files
    if not processes.reports:
        return
    for name, content in brought.items():
        try:
            (folder / name).write_bytes(content)
        except OSError as error:
            raise UserError(
                f"cannot write {folder / name}: {error.strerror}; make room there, or choose "
                "another place with --output"
            ) from error
