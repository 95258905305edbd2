"""Python files that add by name what uetemu has not: of users, or of installed packages.

Such a file enters what it brings into a registry (:mod:`topologies.registry`), or is a scenario
(:mod:`emulator.scenario`), or both.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from emulator.errors import UserError
from emulator.installed_packages import may_have_entry_points
from topologies.registry import RegistryError

#: The entry point by which an installed package has its plug-in loaded.
ENTRY_POINT = "uetemu.plugins"
#: A digest behind the name of a file: no other one is loaded.
_PINNED = re.compile(r"(.+)@([0-9a-f]{64})")


@dataclass(frozen=True)
class Plugin:
    """A file that was loaded: its ``path``, the ``sha256`` of what it held, and its module.

    A scenario that is ``named`` has the name of its file.  ``package`` is the installed one that
    the file is of, with its version, if it is of one.
    """

    path: Path
    sha256: str
    module: ModuleType
    named: bool = False
    package: str | None = None


_LOADED: list[Plugin] = []


def load(path: Path, *, named: bool = False) -> ModuleType:
    """Return the module of the file at ``path``, which is executed the first time.

    With ``named`` it is a scenario of that name, if it is one.  UserError, with file and line, for
    a file that is missing or raises, and for one that has not the digest behind an ``@``.
    """
    pinned = _PINNED.fullmatch(str(path))
    path = Path(pinned[1]) if pinned else path
    try:
        digest = _digest(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if pinned and digest != pinned[2]:
        raise UserError(
            f"{path} is not the file that the command was begun with: its SHA-256 is {digest}, not "
            f"{pinned[2]}; bring the same file here"
        )
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


@cache
def load_installed() -> None:
    """Load the plug-ins of installed packages; UserError, as for :func:`load`."""
    if not may_have_entry_points(ENTRY_POINT):
        return
    from importlib.metadata import entry_points  # few runs need it

    for entry in entry_points(group=ENTRY_POINT):
        name = entry.dist.name if entry.dist else entry.value
        module = import_guarded(
            f"{entry.module} of package {name}", partial(importlib.import_module, entry.module)
        )
        path = Path(str(module.__file__))
        package = f"{name} {entry.dist.version}" if entry.dist else name
        _LOADED.append(Plugin(path, _digest(path), module, package=package))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
    """Return name and SHA-256 of each file that was loaded, and its package, for records."""
    return [
        {
            "file": one.path.name,
            "sha256": one.sha256,
            **({"package": one.package} if one.package else {}),
        }
        for one in _LOADED
    ]


def words() -> list[str]:
    """Return the words by which another command loads the same files, and no others."""
    given = (one for one in _LOADED if one.named)
    return [word for one in given for word in ("--plugin", f"{one.path}@{one.sha256}")]


def sentence_on(error: BaseException) -> str | None:
    """Return the sentence on an exception that a plug-in's file has raised; None: on another one.

    It may have been raised in a worker, whose traceback is a note of it.
    """
    text = "".join(traceback.format_exception(error)) + str(getattr(error, "traceback", ""))
    found = [
        (match.start(), f"{one.module.__file__}, line {match[1]}")
        for one in _LOADED
        for match in re.finditer(rf'File "{re.escape(str(one.module.__file__))}", line (\d+)', text)
    ]
    if not found:
        return None
    said = " ".join(str(error).split()) or "no further text"
    return f"{max(found)[1]}: {type(error).__name__}: {said}"
