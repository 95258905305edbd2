"""The shipped objects are those of the sources, and fit every size of fabric."""

import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from emulator.dataplane.settings import Clock
from emulator.dataplane.switch.bpf import switch_program
from emulator.dataplane.switch.bpf.switch_program import PLACEHOLDERS, Size

#: No two tables have the same number of entries: types of equal arrays are one.
SIZE = Size(ports=300, switches=40, prefixes=5000)
CLOCKS = get_args(Clock)


@pytest.mark.parametrize("clock", CLOCKS)
def test_the_shipped_object_is_of_these_sources(clock: Clock) -> None:
    assert switch_program.shipped(clock).exists(), (
        "call python -m emulator.dataplane.switch.bpf.ship"
    )


def test_no_other_is_shipped() -> None:
    assert len(list(switch_program.SHIPPED.iterdir())) == len(CLOCKS)


def linked(folder: Path, entries: dict[str, int], clock: Clock) -> bytes:
    """Compile the program with these numbers of entries, as for shipping."""
    with switch_program.compiled(entries, clock=clock, cache=folder / "cache") as made:
        target = folder / "linked.o"
        subprocess.run(["bpftool", "gen", "object", str(target), str(made)], check=True)
        return target.read_bytes()


@pytest.mark.skipif(
    not (shutil.which("clang") and shutil.which("bpftool")), reason="needs clang and bpftool"
)
@pytest.mark.parametrize("clock", CLOCKS)
def test_its_tables_have_the_size_that_clang_would_give_them(tmp_path: Path, clock: Clock) -> None:
    asked = linked(tmp_path, SIZE.entries(), clock)
    general = linked(tmp_path, dict(PLACEHOLDERS), clock)
    assert switch_program.sized(general, SIZE) == asked
    version = subprocess.run(["clang", "--version"], capture_output=True, text=True).stdout
    if "version 14." in version:  # that of Debian 12, which made what is shipped
        assert general == switch_program.shipped(clock).read_bytes()
