"""``python -m emulator.compiled``: compile the hot modules beside their sources.

It needs a C compiler, Python's headers and mypy (``pip install .[compiled]``), and takes about a
minute.  Without it everything runs from the sources, and comes to the same results.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from tempfile import TemporaryDirectory

import click
from setuptools import setup
from setuptools.errors import BaseError

from emulator.compiled.hot_modules import (
    HOT,
    LIBRARY,
    RECORD,
    ROOT,
    compiled,
    digest_of,
    extension_of,
)
from emulator.errors import UserError

try:
    from mypyc.build import mypycify
except ImportError:  # what was compiled elsewhere can be removed without it
    mypycify = None


def remove() -> None:
    """Remove what a build has left; everything runs from the sources then."""
    shared = ROOT / f"{LIBRARY}__mypyc{EXTENSION_SUFFIXES[0]}"
    for path in (*map(extension_of, HOT), shared, RECORD):
        path.unlink(missing_ok=True)


def build() -> None:
    """Compile all of :data:`~emulator.compiled.hot_modules.HOT`.

    Raises UserError if the machine cannot.
    """
    if mypycify is None:
        raise UserError("mypy is not installed; `pip install .[compiled]` brings what compiles")
    remove()  # mypy reads the sources of what is imported
    with TemporaryDirectory() as work, contextlib.chdir(ROOT):
        options = ["--ignore-missing-imports", *HOT]
        # More than -O1 takes several times as long to compile.
        extensions = mypycify(
            options,
            opt_level="1",
            debug_level="0",
            multi_file=True,
            target_dir=work,
            group_name=LIBRARY,
        )
        jobs = f"--parallel={len(os.sched_getaffinity(0))}"
        arguments = ["--quiet", "build_ext", "--inplace", f"--build-temp={work}", jobs]
        try:
            setup(
                name=LIBRARY,
                packages=[],
                ext_modules=extensions,
                script_args=[*arguments, f"--build-lib={work}"],
            )
        except BaseError as failure:
            remove()
            raise UserError(f"the modules cannot be compiled: {failure}") from None
    RECORD.write_text(json.dumps({source: digest_of(source) for source in HOT}, indent=1) + "\n")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--remove", "without", is_flag=True, help="Remove compiled modules instead.")
def main(without: bool) -> None:
    """Compile the modules that runs spend most of their time in."""
    try:
        if without:
            remove()
        else:
            build()
        click.echo(f"{len(compiled())} of {len(HOT)} hot modules are compiled")
    except UserError as error:
        click.echo(f"emulator.compiled: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
