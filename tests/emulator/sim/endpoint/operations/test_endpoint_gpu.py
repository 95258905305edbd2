"""GPU memory: named buffers in a file with many mappings, or in one process alone."""

import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import UserError
from emulator.sim.endpoint.operations.gpu_memory import (
    DIRECTORY,
    GpuMemory,
    Layout,
    memory_path,
)
from emulator.sim.endpoint.operations.schedule import Region


@pytest.fixture
def path() -> Iterator[Path]:
    path = memory_path(f"test-{secrets.token_hex(4)}", "h0g0")
    yield path
    path.unlink(missing_ok=True)


def test_every_mapping_sees_the_same_data(path: Path) -> None:
    layout = Layout({"in": 4000, "out": 8000})
    ours = GpuMemory.create(path, 1 << 20)
    ours.lay_out(layout, reserve=True)
    theirs = GpuMemory.attach(path)
    theirs.lay_out(layout)
    ours.array("out")[:] = np.arange(2000)
    assert np.array_equal(theirs.array("out"), np.arange(2000, dtype=np.float32))
    assert not theirs.array("in").any()
    at = layout.locate(Region("out", 4, 4))
    assert bytes(theirs.view()[at : at + 4]) == np.float32(1).tobytes()


def test_private_memory_is_zero_keeps_its_contents_and_has_no_file(path: Path) -> None:
    memory = GpuMemory.private(path, 1 << 20)
    memory.lay_out(Layout({"in": 5000}), reserve=True)
    assert not memory.octets.any()
    memory.array("in")[:] = 1
    memory.lay_out(Layout({"in": 5000, "out": 8000}), reserve=True)
    assert memory.array("in").all()
    assert not memory.array("out").any()
    assert not path.exists()
    memory.unlink()


def test_renewed_memory_is_zero_wherever_it_is_laid_out(path: Path) -> None:
    memory = GpuMemory.private(path, 1 << 20)
    memory.lay_out(Layout({"in": 20_000}), reserve=True)
    memory.octets[:20_000] = 7
    memory.renew()
    memory.lay_out(Layout({"in": 5000}), reserve=True)
    assert not memory.array("in").any()
    memory.array("in")[:] = 1
    memory.lay_out(Layout({"in": 5000, "out": 10_000}), reserve=True)
    assert memory.array("in").all()
    assert not memory.array("out").any()


def test_a_memory_that_somebody_removed_is_named(path: Path) -> None:
    memory = GpuMemory.create(path, 1 << 20)
    path.unlink()
    with pytest.raises(UserError, match=f"{path} is gone"):
        memory.lay_out(Layout({"in": 4000}), reserve=True)


def test_unused_capacity_takes_no_memory(path: Path) -> None:
    GpuMemory.create(path, 1 << 40)
    assert path.stat().st_blocks == 0


def test_unlink_leaves_nothing(path: Path) -> None:
    memory = GpuMemory.create(path, 4096)
    kept = memory.octets[:10]
    memory.close()
    memory.unlink()
    memory.unlink()
    assert not path.exists()
    assert not kept.any()  # a view that is still in use stays valid


@pytest.mark.parametrize(
    "region",
    [Region("in", 0, 4001), Region("in", -1, 4), Region("in", 4000, 1), Region("no", 0, 1)],
)
def test_region_outside_its_buffer_is_refused(region: Region) -> None:
    with pytest.raises(ValueError, match="buffer"):
        Layout({"in": 4000}).locate(region)


def test_leftover_file_is_named(path: Path) -> None:
    path.touch()
    with pytest.raises(UserError, match="uetemu clean"):
        GpuMemory.create(path, 4096)


def test_layout_beyond_capacity_is_refused(path: Path) -> None:
    memory = GpuMemory.create(path, 8192)
    with pytest.raises(UserError, match="smaller messages"):
        memory.lay_out(Layout({"in": 8193}))


def test_more_than_the_machine_has_is_refused_before_the_run(path: Path) -> None:
    whole = 2 * shutil.disk_usage(DIRECTORY).total
    memory = GpuMemory.create(path, whole)
    with pytest.raises(UserError, match="no room"):
        memory.lay_out(Layout({"in": whole}), reserve=True)


@pytest.mark.parametrize("make", [GpuMemory.create, GpuMemory.private])
def test_more_than_a_process_can_map_is_refused_and_leaves_nothing(
    path: Path, make: Callable[[Path, int], GpuMemory]
) -> None:
    with pytest.raises(UserError, match="no room"):
        make(path, 1 << 47)
    assert not path.exists()
