"""Labs and runs for tests: random names, and proof that nothing is left of them."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane import cleanup
from emulator.dataplane.lab import Lab
from emulator.pytest_plugin.labs import LABS
from emulator.pytest_plugin.runs import FolderCheck, RunFactory, RunProcess
from tests.harness.runs.forked_command import ForkedRun
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

    ``topology`` is a specification or a :class:`Topology`; the rest are ``FabricSettings``.  Its
    switches have the kernel's plain queues, unless ``switch`` has others.
    """

    def build(topology: str | Topology = SMALL, **settings: Any) -> Lab:
        return uetemu_lab(topology, **{"switch": None} | settings)

    return build


@pytest.fixture
def uetemu_run(uetemu_run: RunFactory) -> RunFactory:
    """``uetemu_run(scenario, *options, params=...)`` runs it in a fork of the test's process."""
    uetemu_run.process = ForkedRun
    return uetemu_run


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., RunProcess]]:
    """``start``, in a process of its own: to be killed, or read while it runs."""
    runs = RunFactory(tmp_path / "spawned", checks=[held])

    def begin(*options: str, scenario: str = "allreduce") -> RunProcess:
        return runs.start(scenario, *options)

    yield begin
    runs.end()


@pytest.fixture(scope="session")
def uetemu_run_factory(uetemu_run_factory: RunFactory) -> RunFactory:
    """``uetemu_run`` for fixtures of modules and sessions."""
    uetemu_run_factory.process = ForkedRun
    return uetemu_run_factory


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
