"""Labs and runs for tests: random names, and proof that nothing is left of them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from emulator.dataplane import cleanup
from emulator.dataplane.lab import Lab
from emulator.pytest_plugin.labs import LABS
from emulator.pytest_plugin.runs import FolderCheck
from tests.harness.runs.whole_run import held
from topologies.model import Topology

SMALL = "rail_clos:hosts=2,gpus_per_host=2"

LabFactory = Callable[..., Lab]


@pytest.fixture
def lab_name() -> Iterator[str]:
    """A name nobody uses.  Whatever exists under it after the test fails it, and is removed."""
    if os.geteuid() != 0:
        pytest.skip("builds namespaces: needs root")
    name = f"t{secrets.token_hex(5)}"
    LABS.up.append(name)
    yield name
    LABS.up.remove(name)
    if name not in LABS.kept and cleanup.exists(name):
        cleanup.take_down(name, force=True)
        pytest.fail(f"something of lab {name} was left")


@pytest.fixture
def lab(uetemu_lab: LabFactory) -> LabFactory:
    """``lab(topology, dilation=...)`` builds a lab; all are removed, verifiably, after the test.

    ``topology`` is a specification or a :class:`Topology`; the rest is as for ``Lab.create``.  Its
    switches have the kernel's plain queues, unless ``switch`` has others.
    """

    def build(topology: str | Topology = SMALL, **settings: object) -> Lab:
        return uetemu_lab(topology, **{"switch": None} | settings)

    return build


@pytest.fixture(scope="session")
def uetemu_checks() -> list[FolderCheck]:
    """Hold every run that ends well to what is true of all runs."""
    return [held]


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes beside the test never wait."""
    loop = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(2):
            process = stack.enter_context(subprocess.Popen(loop))
            stack.callback(process.kill)
        yield
