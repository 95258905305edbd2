"""Scripts that would start processes of their own."""

from pathlib import Path

import pytest

from tests.emulator.torch_backend.scripts import NEEDS_TORCH, printed, result, torchrun

pytestmark = NEEDS_TORCH

SPAWNS = """
import os, threading
if os.fork() == 0:
    raise SystemExit  # ends this process alone
print("status", os.wait()[1])
def part(number, factor):
    tensor = torch.full((2,), factor * rank)
    thread = threading.Thread(target=dist.all_reduce, args=[tensor])
    thread.start()
    thread.join()
    dist.monitored_barrier()
    print(number == rank, tensor.tolist())
    dist.destroy_process_group()
torch.multiprocessing.spawn(part, args=(2.0,), nprocs=size)
dist.init_process_group("gloo", rank=rank, world_size=size)
dist.barrier()
"""


def test_a_script_that_spawns_its_ranks_has_those_that_are_there(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, SPAWNS)
    assert ended.returncode == 0, ended.stderr
    for rank in range(4):
        assert printed(tmp_path, rank) == ["status 0", "True [12.0, 12.0]"]
    (row,) = result(tmp_path)["rows"]
    kinds = {one["site"]: one["kind"] for one in row["call_sites"]}
    assert kinds["train.py:17"] == kinds["train.py:22"] == "barrier"


def test_as_many_are_spawned_as_there_are_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import multiprocessing

    from emulator.torch_backend.launching import places
    from emulator.torch_backend.spawning import part_of_spawned

    for name in ("spawn", "start_processes"):
        monkeypatch.setattr(multiprocessing, name, None)  # as it was, behind the test
    part_of_spawned(places([0, 0, 1, 1])[3])
    called: list[int] = []
    multiprocessing.spawn(called.append, nprocs=4)
    multiprocessing.spawn(called.append, nprocs=2)
    assert called == [3, 1]
    with pytest.raises(RuntimeError, match="spawns 3 processes, and uetemu has started 4 ranks"):
        multiprocessing.spawn(called.append, nprocs=3)
