"""Runs of several ranks, as mpirun starts them: here, or in namespaces that stand for machines."""

import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from emulator.dataplane.kernel import namespaces
from emulator.dataplane.lab_record import directory_of
from emulator.pytest_plugin.runs import BUDGET_S, RunProcess
from tests.harness.lab.traffic import within
from tests.harness.runs.processes import forked, processes_of
from tests.harness.runs.whole_run import held

#: Tests of other things run beside, on all processors: a rank is bound to none.
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
#: Enters the namespace of a machine, under its name, in place of ssh.
_AGENT = """#!/bin/sh
machine=$1; shift
exec nsenter --net=/run/netns/$machine unshare --uts \\
    sh -c 'hostname "$0" && eval "$@"' $machine "$@"
"""


def ranked(
    folder: Path, count: int, *options: str, scenario: str = "allreduce", **environment: str
) -> RunProcess:
    """A run of ``count`` ranks, which ``environment`` is for, too."""
    given = [word for name in environment for word in ("-x", f"{name}={environment[name]}")]
    launcher = [*MPIRUN, "-n", str(count), *given]
    return RunProcess(folder, scenario, *options, checks=[held], launcher=launcher)


def process_of(run: RunProcess, number: int) -> int:
    """The process of rank ``number``, once it is at work."""
    (rank,) = psutil.Process(guardian_of(run, number)).children()
    return rank.pid


def guardian_of(run: RunProcess, number: int) -> int:
    """The process that has started rank ``number``, once that is at work."""
    run.event("started")
    for child in psutil.Process(run.process.pid).children(recursive=True):
        variables = Path(f"/proc/{child.pid}/environ").read_text().split("\0")
        if f"OMPI_COMM_WORLD_RANK={number}" in variables:
            return child.pid
    raise AssertionError(f"there is no rank {number}")


def left_by(run: RunProcess, count: int) -> list[str]:
    """The labs of the ``count`` ranks of which anything is left."""
    labs = [run.lab, *(f"{run.lab}-r{number}" for number in range(1, count))]
    return [
        lab
        for lab in labs
        if namespaces.of_lab(lab)
        or directory_of(lab).exists()
        or any(Path("/dev/shm").glob(f"uetemu.{lab}.*"))
        or Path(f"/sys/fs/bpf/uetemu/{lab}").exists()
    ]


def assert_all_gone(run: RunProcess, count: int) -> None:
    """Wait until neither a process nor a lab of the ``count`` ranks is there, and no keeper."""
    within(BUDGET_S, lambda: not processes_of(run.lab), "all processes have ended")
    assert not left_by(run, count)


def cleaned(run: RunProcess, count: int) -> None:
    """Remove what is left by ``uetemu clean``, as its users do."""
    for lab in left_by(run, count):
        process = forked("clean", lab)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert not left_by(run, count)


@contextmanager
def machines(folder: Path) -> Iterator[Sequence[str]]:
    """Join two namespaces that stand for machines; yield mpirun's command for a rank on each."""
    agent = folder / "agent"
    agent.write_text(_AGENT)
    agent.chmod(0o755)
    with joined_machines() as addresses:
        names = list(addresses)
        passed = [word for name in ("PYTHONPATH", "PATH") for word in ("-x", name)]
        options = ["--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "tcp,self", *passed]
        yield [*inside(names[0]), *MPIRUN, "--host", ",".join(names), *options]


def inside(machine: str) -> list[str]:
    """Return the words that start a command on ``machine``, which then is the host's name."""
    entered = ["nsenter", f"--net=/run/netns/{machine}", "unshare", "--uts"]
    return [*entered, "sh", "-c", 'hostname "$0" && exec "$@"', machine]


@contextmanager
def joined_machines() -> Iterator[Mapping[str, str]]:
    """Join two network namespaces by a wire; yield their names, each with its address there."""
    names = [f"m{secrets.token_hex(3)}" for _ in range(2)]
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        first, second = names
        wire = ("wire", "type", "veth", "peer", "name", "wire")
        _ip("-n", first, "link", "add", *wire, "netns", second)
        for name, address in addresses.items():
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up")
        yield addresses
    finally:
        for name in names:
            if os.path.exists(f"/run/netns/{name}"):
                _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
