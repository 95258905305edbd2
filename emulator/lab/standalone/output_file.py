"""Files that the endpoint leaves; what is wrong with them is one sentence."""

from __future__ import annotations

import io
from pathlib import Path

from emulator.errors import UserError


class OutputFile:
    """A file opened for writing; a ``new`` one must not exist, unless it is a pipe or a device.

    ``buffer`` is how many octets may wait in memory.  Every method may raise :class:`UserError`.
    """

    def __init__(self, path: Path, *, buffer: int, new: bool = False) -> None:
        self._path = path
        special = path.exists() and not path.is_file()
        try:
            self._raw = io.FileIO(path, "x" if new and not special else "w")
        except FileExistsError:
            raise UserError(f"{path} is there already; choose another file") from None
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another file") from None
        self._file = io.BufferedWriter(self._raw, buffer)

    def write(self, octets: bytes) -> None:
        try:
            self._file.write(octets)
        except OSError as error:
            raise self._failed(error) from None

    def flush(self) -> None:
        """Bring the file up to date."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> UserError:
        # What the file did not take is lost, and must not be tried again at each later end.
        self._raw.close()
        return UserError(f"cannot write {self._path}: {error.strerror}; make room")

    def close(self) -> None:
        """The file is complete."""
        if not self._file.closed:
            self.flush()
            self._file.close()


def make_folder(path: Path) -> None:
    """Make the folder that data is saved in; :class:`UserError` if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {path}: {error.strerror}; choose another"
        ) from None
