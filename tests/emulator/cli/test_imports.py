"""A verb imports what it uses, so that it starts at once."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN_VERB = """
import sys
from emulator.cli.main import main
output = sys.stdout
sys.stdout = sys.stderr
try:
    main()
except SystemExit as end:
    print(end.code or 0, *sys.modules, file=output)
"""
#: Packages that take long to import.
LARGE = {"scapy", "numpy", "pyroute2", "jinja2", "ruamel", "cryptography", "vl_convert", "mpi4py"}


def imported_by(*words: str) -> set[str]:
    """Return the modules that ``uetemu WORDS`` has imported at its end."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN_VERB, *words], capture_output=True, text=True, check=True
    )
    status, *modules = ran.stdout.split()
    assert status == "0", ran.stderr
    return set(modules)


def within(modules: set[str], *packages: str) -> set[str]:
    """Return those of ``modules`` that are one of ``packages``, or in one."""
    return {
        name
        for name in modules
        if any(name == package or name.startswith(f"{package}.") for package in packages)
    }


def test_help_loads_no_verb() -> None:
    modules = imported_by("--help")
    assert not within(modules, *LARGE, "rich", "emulator.run", "emulator.sim", "uet")
    assert not {name for name in modules if name.endswith("_verb")}


@pytest.mark.parametrize("form", ["text", "dot"])
def test_graph_loads_no_run(form: str) -> None:
    modules = imported_by("graph", "rail_clos", "--format", form)
    unused = ("emulator.sim", "emulator.workers.worker", "emulator.transports", "emulator.cluster")
    assert not within(modules, *LARGE, *unused, "emulator.rocev2", "emulator.scenario", "uet.fep")


def test_help_of_run_loads_no_run() -> None:
    modules = imported_by("run", "--help")
    unused = ("rich", "uet.fep", "emulator.scenario", "emulator.workers", "emulator.rocev2.hca")
    assert not within(modules, *LARGE, *unused, "emulator.cluster", "emulator.report")


@pytest.mark.parametrize("end", ["initiator", "target"])
def test_help_of_an_endpoint_loads_no_large_package(end: str) -> None:
    modules = imported_by("fep", end, "--help")
    assert not within(modules, *LARGE, "emulator.rocev2", "emulator.run", "emulator.report")


def test_run_of_uet_loads_no_other_stack(tmp_path: Path) -> None:
    small = ("--fabric", "model", "--sizes", "1k", "--iterations", "1", "--workers", "1")
    transport = ("--transport", "uet:crc=on,cc=rccc")
    output = ("--output", str(tmp_path / "run"))
    modules = imported_by("run", "allreduce", *small, *transport, *output)
    others = ("rocev2", "cluster", "report", "suite", "lab")
    assert not within(modules, *LARGE - {"numpy"}, "numpy.ma", "rich")
    assert not within(modules, "psutil", "ml_dtypes", "multiprocessing")
    assert not within(modules, *(f"emulator.{room}" for room in others))
    assert "uet.fep" in modules
