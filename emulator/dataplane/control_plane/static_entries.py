"""Zebra's entries of shared next hops, for kernels that take such entries only if they are static.

A GPU on an Ethernet segment is behind several tunnels: zebra writes it into the table of the tunnel
port with a group of next hops, as reachable and learned outside of the kernel.  Linux with the
correction of CVE-2026-98023 (6.1.190, Debian's 6.1.0-54) refuses that: an entry with a next hop is
static or not at all.  The kernel ages neither, so static entries serve zebra as well.  On such a
kernel, which :mod:`emulator.dataplane.doctor.probes` finds out, zebra is started with a library
that marks them; zebra 8.4 to 10.3 has no setting for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel.programs import compiler
from emulator.errors import UserError
from topologies.model import Topology
from topologies.stretch import segments_of

SOURCE = Path(__file__).with_suffix(".c")
CACHE = compiler.CACHE / "zebra"
FLAGS = ("-O2", "-shared", "-fPIC", "-Wall", "-Werror")
REMEDY = "run vagrant/provision.sh --with compiler; homing=bond does without"


def needed(topology: Topology) -> bool:
    """Return whether zebra needs the library in the switches of ``topology`` on this kernel."""
    return bool(segments_of(topology)) and not capabilities.has("fdb-nexthop-learned")


def require(topology: Topology) -> None:
    """Raise UserError if the library is needed and cannot be made."""
    if needed(topology) and shutil.which("clang") is None:
        raise UserError(
            "this kernel takes entries with a next hop only if they are static (CVE-2026-98023), "
            f"and there is no clang to make the library that marks zebra's: {REMEDY}"
        )


@contextmanager
def library(topology: Topology) -> Iterator[Path | None]:
    """Yield the library for zebra to start with, None where it needs none.

    Raises UserError with the compiler's first error, or the loader's.
    """
    if not needed(topology):
        yield None
        return
    with built() as path:
        _try(path)
        yield path


@contextmanager
def built(cache: Path = CACHE) -> Iterator[Path]:
    """Yield the library, from ``cache`` or made now."""
    with compiler.compiled(
        SOURCE,
        FLAGS,
        parts=[SOURCE],
        suffix=".so",
        cache=cache,
        subject="the library that marks zebra's entries static",
        remedy=REMEDY,
    ) as path:
        yield path.resolve()


def _try(library: Path) -> None:
    """Raise UserError if programs run here without ``library``: its loader only warns."""
    with_it = os.environ | {"LD_PRELOAD": str(library)}
    done = subprocess.run(["true"], env=with_it, capture_output=True, text=True)
    if done.stderr:
        raise UserError(
            f"zebra cannot be given {library} ({done.stderr.splitlines()[0]}): set UETEMU_CACHE "
            "to a directory whose file system lets programs run"
        )
