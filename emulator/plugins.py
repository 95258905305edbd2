"""Python files of users, which add by name what uetemu has not: loaded once, and written down.

Such a file enters what it brings into a registry (:mod:`topologies.registry`), or is a scenario
(:mod:`emulator.scenario`), or both.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from emulator.errors import UserError
from topologies.registry import RegistryError


@dataclass(frozen=True)
class Plugin:
    """A file that was loaded: its ``path``, the ``sha256`` of what it held, and its module.

    A scenario that is ``named`` has the name of its file.
    """

    path: Path
    sha256: str
    module: ModuleType
    named: bool


_LOADED: list[Plugin] = []


def load(path: Path, *, named: bool = False) -> ModuleType:
    """Return the module of the file at ``path``, which is executed the first time.

    With ``named`` it is a scenario of that name, if it is one.

    UserError, with file and line, for a file that is missing or raises.
    """
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    for known in _LOADED:
        if (known.path.resolve(), known.sha256) == (path.resolve(), digest):
            return known.module
    # A module name of its own, so that a user's random.py does not replace the library's.
    name = f"uetemu_plugin_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"

    def execute() -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UserError(f"{path} is not a Python file; rename it to end in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their own module up
        spec.loader.exec_module(module)
        return module

    module = import_guarded(str(path), execute)
    _LOADED.append(Plugin(path, digest, module, named))
    return module


def import_guarded(origin: str, run: Callable[[], ModuleType]) -> ModuleType:
    """Return what ``run`` imports from ``origin``; whatever it raises becomes one sentence."""
    try:
        return run()
    except UserError:
        raise
    except RegistryError as error:
        raise UserError(str(error)) from error
    except SyntaxError as error:
        raise UserError(f"{error.filename or origin}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:  # whatever a user's file may raise
        raise UserError(trouble(origin, "import", error)) from error


def trouble(origin: str, what: str, error: BaseException) -> str:
    """One sentence with the line of the user's own file, where the mistake most likely is."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).name == Path(origin).name]
    place = f"{own[-1].filename}, line {own[-1].lineno}" if own else origin
    text = " ".join(str(error).split()) or "no further text"
    return f"{place}: {what} failed: {type(error).__name__}: {text}"


def loaded() -> Sequence[Plugin]:
    """Return the files that were loaded."""
    return _LOADED


def facts() -> list[dict[str, str]]:
    """Return the name and the SHA-256 of each file that was loaded, for the run's record."""
    return [{"file": one.path.name, "sha256": one.sha256} for one in _LOADED]
