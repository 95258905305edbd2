"""Which code runs: compiled modules where a build fits the sources, and else the sources.

Both packages :func:`install` the finder before anything else of theirs is imported, so that never a
part of the modules is compiled.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location

from emulator.compiled.builds import LIBRARY, ROOT, Build, fitting

#: Set to 1, it has the sources run.
PURE = "UETEMU_PURE"
_REMEDY = "`python -m emulator.compiled` makes runs faster"


class CompiledFinder:
    """Finds the modules of a build, or none of them if it cannot be loaded."""

    def __init__(self, build: Build) -> None:
        self.problem: str | None = None
        self.count = len(build.modules)
        self._files = {name: build.file_of(name) for name in (LIBRARY, *build.modules)}
        self._packages = {name.partition(".")[0] for name in build.modules}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return where compiled module ``name`` is, as Python asks for it."""
        file = self._files.get(name)
        if file is None or self.problem is not None:
            return None
        if name != LIBRARY:
            if LIBRARY not in sys.modules and not self._loads():
                return None
            parent = ROOT.joinpath(*name.split(".")[:-1])
            if list(path or ()) != [str(parent)]:
                raise ImportError(
                    f"{name} is not in {parent}, as the modules that are compiled: put one "
                    f"checkout on PYTHONPATH, or set {PURE}=1"
                )
        return spec_from_file_location(name, file)

    def _loads(self) -> bool:
        """Load the library that all modules need; return whether they can be used."""
        for package in self._packages:
            found = find_spec(package)
            places = found and found.submodule_search_locations
            if list(places or ()) != [str(ROOT / package)]:
                self.problem = f"{package} is not that of {ROOT}, which has compiled modules"
                return False
        try:
            importlib.import_module(LIBRARY)
        except ImportError as error:
            self.problem = f"compiled modules cannot be loaded ({error}); {_REMEDY}"
            return False
        return True


_found: CompiledFinder | str | None = None


def install() -> None:
    """Have compiled modules imported from now on, if there are any that fit."""
    global _found
    if _found is not None:
        return
    if os.environ.get(PURE, "0") not in ("", "0"):
        _found = f" ({PURE}={os.environ[PURE]})"
        return
    build = fitting()
    if isinstance(build, str):
        _found = f": {build}; {_REMEDY}"
    else:
        _found = CompiledFinder(build)
        sys.meta_path.insert(0, _found)


def engine() -> str:
    """Say what runs: compiled modules, or the sources and why."""
    install()
    if not isinstance(_found, CompiledFinder):
        return f"sources{_found}"
    if _found.problem is not None:
        return f"sources: {_found.problem}"
    return f"compiled: {_found.count} modules"


def run_sources(why: str) -> None:
    """Have the sources run in this process, whatever is compiled, and in its forks.

    Nothing compiled may have been imported yet.
    """
    global _found
    install()
    assert LIBRARY not in sys.modules, "compiled modules run already"
    if isinstance(_found, CompiledFinder):
        sys.meta_path.remove(_found)
    _found = f" ({why})"
