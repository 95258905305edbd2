"""A program of its own for each test, under a lab name that nobody uses."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.switch_program import Size, SwitchProgram
from tests.harness.asic.port_bench import Bench


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asic-cache")


@pytest.fixture
def program_lab() -> Iterator[str]:
    name = f"t{secrets.token_hex(5)}"
    yield name
    asic_program.remove(name)


@pytest.fixture
def program(program_lab: str, cache: Path) -> Iterator[SwitchProgram]:
    with asic_program.load(program_lab, Size(ports=64), cache=cache) as loaded:
        yield loaded


@pytest.fixture
def bench(program: SwitchProgram) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(program, stack)
