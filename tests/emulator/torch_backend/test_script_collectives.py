"""Collectives of scripts: tensors that come back are those that crossed the fabric."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.torch_backend.scripts import NEEDS_TORCH, SMALL, printed, result, torchrun

pytestmark = NEEDS_TORCH

#: What a rank has, what all have, and a comparison whose failures are printed at the end.
DATA = """
wrong = []

def of(rank, count, dtype=torch.float32, salt=0):
    drawn = torch.Generator().manual_seed(17 * rank + salt)
    if dtype.is_floating_point:
        return torch.randn(count, generator=drawn).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 7, (count,), generator=drawn).to(dtype)

def every(count, dtype=torch.float32, salt=0):
    return torch.stack([of(one, count, dtype, salt) for one in range(size)])

def check(name, got, wanted, within=0.0):
    near = torch.allclose(got.double(), wanted.double(), rtol=within, atol=within)
    if not (near if within else torch.equal(got, wanted)):
        wrong.append(name)
"""
END = """
print("wrong:", wrong)
dist.destroy_process_group()
"""

TYPES = """
for dtype, within in {
    torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-2, torch.bfloat16: 1e-1,
    torch.int8: 0, torch.int16: 0, torch.int32: 0, torch.int64: 0, torch.uint8: 0, torch.bool: 0,
}.items():
    tensor, all_ = of(rank, 1000, dtype), every(1000, dtype)
    dist.all_reduce(tensor)
    summed = all_.any(0) if dtype is torch.bool else all_.sum(0).to(dtype)
    check(f"sum of {dtype}", tensor, summed, within)
    tensor = of(rank, 1000, dtype)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    check(f"max of {dtype}", tensor, all_.double().max(0)[0].to(dtype))
    tensor = of(rank, 30, dtype)
    dist.broadcast(tensor, 2)
    check(f"broadcast of {dtype}", tensor, of(2, 30, dtype))
for operation, wanted in {
    "AVG": every(1001).mean(0), "PRODUCT": every(1001).prod(0), "MIN": every(1001).min(0)[0],
}.items():
    tensor = of(rank, 1001)
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation))
    check(operation, tensor, wanted, 1e-5)
"""
KINDS = """
tensor = of(rank, 50)
dist.reduce(tensor, 1)
if rank == 1:
    check("reduce", tensor, every(50).sum(0), 1e-5)
parts = [torch.empty(9) for _ in range(size)]
dist.all_gather(parts, of(rank, 9))
check("all_gather", torch.stack(parts), every(9))
whole = torch.empty(size * 10, 3)
dist.all_gather_into_tensor(whole, of(rank, 30).view(10, 3))
check("all_gather_into_tensor", whole.view(-1), every(30).view(-1))
part, summed = torch.empty(25), every(25 * size).sum(0)[25 * rank : 25 * rank + 25]
dist.reduce_scatter_tensor(part, of(rank, 25 * size))
check("reduce_scatter_tensor", part, summed, 1e-5)
dist.reduce_scatter(part, list(of(rank, 25 * size).chunk(size)), op=dist.ReduceOp.AVG)
check("reduce_scatter", part, summed / size, 1e-5)
whole = torch.empty(8 * size)
dist.all_to_all_single(whole, of(rank, 8 * size))
check("all_to_all_single", whole, every(8 * size)[:, 8 * rank : 8 * rank + 8].reshape(-1))
sent, received = [rank + to + 1 for to in range(size)], [by + rank + 1 for by in range(size)]
rows = torch.empty(sum(received), 2)
dist.all_to_all_single(rows, of(rank, 2 * sum(sent)).view(-1, 2), received, sent)
wanted = []
for by in range(size):
    splits = [by + to + 1 for to in range(size)]
    wanted.append(of(by, 2 * sum(splits)).view(-1, 2).split(splits)[rank])
check("all_to_all_single with splits", rows, torch.cat(wanted))
inputs = [torch.full((rank + to,), float(10 * rank + to)) for to in range(size)]
outputs = [torch.empty(by + rank) for by in range(size)]
dist.all_to_all(outputs, inputs)
check("all_to_all", torch.cat(outputs), torch.cat(
    [torch.full((by + rank,), float(10 * by + rank)) for by in range(size)]
))
parts = [torch.empty(7) for _ in range(size)] if rank == 3 else None
dist.gather(of(rank, 7), parts, 3)
if rank == 3:
    check("gather", torch.stack(parts), every(7))
tensor = torch.empty(9)
dist.scatter(tensor, list(every(9)) if rank == 0 else None, 0)
check("scatter", tensor, of(rank, 9))
if rank == 0:
    dist.send(of(0, 5000), 1)
if rank == 1:
    tensor = torch.empty(5000)
    assert dist.recv(tensor, 0) == 0
    check("send", tensor, of(0, 5000))
if rank == 0:
    senders = []
    for _ in range(1, size):
        tensor = torch.empty(100)
        senders.append(dist.recv(tensor))
        check("from any rank", tensor, of(senders[-1], 100))
    assert sorted(senders) == [1, 2, 3], senders
else:
    dist.send(of(rank, 100), 0)
tensor, after, before = torch.empty(333), (rank + 1) % size, (rank - 1) % size
for one in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, of(rank, 333), after), dist.P2POp(dist.irecv, tensor, before),
]):
    one.wait()
check("batch_isend_irecv", tensor, of(before, 333))
dist.barrier()
turned = of(rank, 100).view(10, 10).t()
dist.all_reduce(turned)
check("not contiguous", turned, every(100).sum(0).view(10, 10).t(), 1e-5)
nothing = torch.empty(0)
dist.all_reduce(nothing)
found = [None] * size
dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
assert found == [{"rank": one, "text": "x" * one} for one in range(size)], found
"""
OVERLAP = """
tensors = [of(rank, 100, salt=one) for one in range(4)]
works = [dist.all_reduce(one, async_op=True) for one in tensors]
future = works[1].get_future()
while not works[0].is_completed():
    pass
assert torch.equal(future.wait()[0], tensors[1])
works[2].wait()
works[3].wait()
for number, one in enumerate(tensors):
    check(f"call {number}", one, every(100, salt=number).sum(0), 1e-5)
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
tensor, first = of(rank, 40), rank // 2 * 2
dist.all_reduce(tensor, group=pairs[rank // 2])
check("of a pair", tensor, of(first, 40) + of(first + 1, 40), 1e-6)
alone = [dist.new_group([one]) for one in range(size)][rank]
tensor = of(rank, 10)
dist.all_reduce(tensor, group=alone)
check("alone", tensor, of(rank, 10))
with dist._coalescing_manager(async_ops=True) as together:
    both = [of(rank, 30), of(rank, 20)]
    for one in both:
        dist.all_reduce(one)
together.wait()
check("coalesced", both[1], every(20).sum(0), 1e-5)
for tensor, operation in (
    (torch.zeros(3), dist.ReduceOp.BAND), (torch.zeros(3).to(torch.complex32), dist.ReduceOp.MAX),
):
    try:
        dist.all_reduce(tensor, op=operation)
    except (dist.DistBackendError, ValueError) as refused:
        print(type(refused).__name__)
"""


@pytest.mark.parametrize("transport", ["uet", pytest.param("rocev2", marks=pytest.mark.nightly)])
def test_results_are_what_the_members_have_put_in(tmp_path: Path, transport: str) -> None:
    text = DATA + TYPES + KINDS + OVERLAP + END
    ended = torchrun(tmp_path, text, "--transport", transport)
    assert ended.returncode == 0, ended.stderr
    for rank in range(4):
        assert printed(tmp_path, rank)[-1] == "wrong: []"
    assert printed(tmp_path, 0)[0] == "DistBackendError"
    found = result(tmp_path)
    assert found["fidelity"]["verdict"] == "exact"
    assert found["rows"][0]["calls"] > 0


ORDER = """
tensor = of(rank, 4096)
dist.all_reduce(tensor)
np.save(f"{__file__}.{rank}.npy", tensor.numpy())
np.save(f"{__file__}.{rank}.own.npy", of(rank, 4096).numpy())
"""


def test_sums_are_made_in_the_order_of_the_ring(tmp_path: Path) -> None:
    import numpy as np

    topology = "rail_clos:hosts=4,gpus_per_host=1"
    ended = torchrun(tmp_path, DATA + ORDER + END, "--param", "allreduce=ring", topology=topology)
    assert ended.returncode == 0, ended.stderr
    own = [np.load(tmp_path / f"train.py.{rank}.own.npy") for rank in range(4)]
    found = [np.load(tmp_path / f"train.py.{rank}.npy") for rank in range(4)]
    # The block of ring position p begins at the member behind it, and ends at p itself.
    wanted = np.empty_like(own[0])
    for position, block in enumerate(np.split(np.arange(4096), 4)):
        total = own[(position + 1) % 4][block]
        for step in range(2, 5):
            total = own[(position + step) % 4][block] + total
        wanted[block] = total
    for one in found:
        assert np.array_equal(one, wanted)


CROSSED = """
tensor = of(0, 20_000)
if rank == 0:
    dist.send(tensor, 3)
elif rank == 3:
    tensor = torch.empty(20_000)
    dist.recv(tensor, 0)
    check("message", tensor, of(0, 20_000))
whole = torch.empty(8 * size)
dist.all_to_all_single(whole, of(rank, 8 * size))
check("all_to_all_single", whole, every(8 * size)[:, 8 * rank : 8 * rank + 8].reshape(-1))
"""


def test_other_gpus_send_on_what_has_no_way_of_its_own(tmp_path: Path) -> None:
    digests = []
    for workers in ("1", "2"):
        folder = tmp_path / workers
        folder.mkdir()
        topology = "rail_clos:hosts=2,gpus_per_host=2,spines=0"
        words = "--workers", workers
        ended = torchrun(folder, DATA + CROSSED + END, *words, topology=topology)
        assert ended.returncode == 0, ended.stderr
        assert [printed(folder, rank) for rank in range(4)] == [["wrong: []"]] * 4
        digests.append(result(folder)["digest"])
    assert digests[0] == digests[1]


@pytest.mark.nightly
def test_a_library_takes_as_long_as_in_a_run_of_the_collective(tmp_path: Path) -> None:
    text = "dist.all_reduce(torch.ones(1 << 18))\n"
    times: dict[str, list[float]] = {"script": [], "run": []}
    for library in ("none", "nccl"):
        folder = tmp_path / library
        folder.mkdir()
        ended = torchrun(folder, text, "--param", f"library={library}")
        assert ended.returncode == 0, ended.stderr
        times["script"].append(result(folder)["rows"][0]["call_sites"][0]["time_us"])
        options = ["--fabric", "model", "--topology", SMALL, "--output", str(folder / "again")]
        words = ["--sizes", "1MiB", "--param", "algorithm=auto", "--param", f"library={library}"]
        run = [sys.executable, "-c", "from emulator.cli.main import main; main()", "run"]
        command = [*run, "allreduce", *options, *words]
        again = subprocess.run(command, capture_output=True, check=False)
        assert again.returncode == 0, again.stderr
        (row,) = json.loads((folder / "again" / "result.json").read_text())["rows"]
        times["run"].append(row["time_us"])
    took = {what: with_library - none for what, (none, with_library) in times.items()}
    assert took["script"] == pytest.approx(took["run"], abs=0.01)
