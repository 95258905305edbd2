"""``python -m emulator.compiled``: compile the hot modules, once for each version of the sources.

It needs a C compiler, Python's headers and mypy (``pip install .[compiled]``).  Without it
everything runs from the sources, and comes to the same results.
"""

from __future__ import annotations

import argparse
import sys

from emulator.compiled import builds
from emulator.errors import UserError


def main() -> int:
    """Compile the modules; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m emulator.compiled",
        description="Compile the modules that runs spend most of their time in.",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="exit status 0 if nothing is to do")
    group.add_argument("--remove", action="store_true", help="remove compiled modules instead")
    options = parser.parse_args()
    if options.check:
        return 0 if builds.current() else 1
    if options.remove:
        builds.remove()
        return 0
    try:
        from emulator.compiled import making

        build = making.make()
    except ModuleNotFoundError as error:
        return _failed(f"{error.name} is not installed; `pip install setuptools mypy` brings it")
    except UserError as error:
        return _failed(str(error))
    print(f"{len(build.modules)} modules are compiled in {build.folder}")  # noqa: T201
    return 0


def _failed(sentence: str) -> int:
    print(f"emulator.compiled: {sentence}; everything runs from the sources", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
