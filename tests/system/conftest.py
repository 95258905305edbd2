"""Labs and runs for tests: random names, and proof that nothing is left of them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from emulator import cleanup
from emulator.lab import Lab
from tests.harness.lab.kept_labs import LABS
from tests.harness.lab.lab_life import built
from tests.harness.runs.processes import Run, uetemu
from topologies import catalogue
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
def lab() -> Iterator[LabFactory]:
    """``lab(topology, dilation=...)`` builds a lab; all are removed, verifiably, after the test.

    ``topology`` is a specification or a :class:`Topology`; the rest is as for ``Lab.create``.
    """
    if os.geteuid() != 0:
        pytest.skip("builds namespaces: needs root")
    names: list[str] = []
    stack = ExitStack()

    def build(topology: str | Topology = SMALL, **settings: object) -> Lab:
        model = topology if isinstance(topology, Topology) else catalogue.load(topology)
        spec = topology if isinstance(topology, str) else topology.name
        name = f"t{secrets.token_hex(5)}"
        names.append(name)
        defaults: dict[str, object] = {"dilation": 1000, "seed": 1, "spec": spec}
        return stack.enter_context(built(name, model, **defaults | settings))

    with stack:
        yield build
    left = [name for name in names if name not in LABS.kept and cleanup.exists(name)]
    for name in left:
        cleanup.take_down(name, force=True)
    assert not left, f"something was left of {left}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """``start(*arguments, scenario=...)`` begins ``uetemu run``; what is left of it is removed."""
    runs: list[Run] = []

    def begin(*arguments: str, scenario: str = "allreduce") -> Run:
        runs.append(Run(tmp_path, *arguments, scenario=scenario))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
        if run.leftovers():
            uetemu("clean", run.lab).communicate()


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes beside the test never wait."""
    loop = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(2):
            process = stack.enter_context(subprocess.Popen(loop))
            stack.callback(process.kill)
        yield
