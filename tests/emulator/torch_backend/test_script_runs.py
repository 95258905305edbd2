"""Scripts whose torch.distributed is the fabric."""

import json
from pathlib import Path

import pytest

from tests.emulator.torch_backend.scripts import NEEDS_TORCH, printed, result, torchrun

pytestmark = NEEDS_TORCH

TRAINING = """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
parallel = DistributedDataParallel(model, bucket_cap_mb=0.001)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
drawn = torch.Generator().manual_seed(rank)
for step in range(3):
    inputs = torch.randn(8, 16, generator=drawn)
    loss = ((parallel(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, sum(one.double().sum() for one in model.parameters()).item())
"""


@pytest.mark.parametrize("transport", ["uet", pytest.param("rocev2", marks=pytest.mark.nightly)])
def test_replicas_of_a_data_parallel_training_agree_and_its_digest_comes_again(
    tmp_path: Path, transport: str
) -> None:
    digests = []
    for workers in ("1", "2"):
        folder = tmp_path / workers
        folder.mkdir()
        ended = torchrun(folder, TRAINING, "--transport", transport, "--workers", workers)
        assert ended.returncode == 0, ended.stderr
        losses = [printed(folder, rank) for rank in range(4)]
        assert losses[0] == losses[1] == losses[2] == losses[3]
        assert len(losses[0]) == 3
        found = result(folder)
        digests.append(found["digest"])
        (row,) = found["rows"]
        sites = {one["site"]: one for one in row["call_sites"]}
        assert {"train.py:11", "train.py:18"} <= set(sites)  # replicas are made equal, and stay so
        assert sites["train.py:18"]["kind"] == "allreduce"
        assert sites["train.py:18"]["calls"] >= 3
    assert digests[0] == digests[1]


HIDDEN = """
first, second = torch.ones(20000), torch.ones(20000)
works = [dist.all_reduce(first, async_op=True)]
works += [dist.all_reduce(second, async_op=True)]
for work in works:
    work.wait()
print('done')
"""


def test_transports_are_compared_with_what_computing_hides(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, HIDDEN, "--transport", "uet,rocev2:nccl", "--compute", "fixed:20us")
    assert ended.returncode == 0, ended.stderr
    rows = result(tmp_path)["rows"]
    assert [row["transport"] for row in rows] == ["uet", "rocev2:nccl"]
    for row in rows:
        sites = {one["site"]: one for one in row["call_sites"]}
        hidden, seen = sites["train.py:9"], sites["train.py:10"]
        assert hidden["exposed_us"] == 0  # over before the second is called
        assert 5 < hidden["overlapped_us"] < 20
        assert seen["overlapped_us"] == 0
        assert row["exposed"] == pytest.approx(seen["exposed_us"] / row["time_us"], rel=0.01)
    for folder in ("ranks", "ranks-2"):
        assert (tmp_path / "run" / folder / "3.stdout").read_text() == "done\n"
    assert ended.stdout.count("train.py:9") == 2  # a table of calls for each
    timeline = json.loads((tmp_path / "run" / "timeline.json").read_text())["traceEvents"]
    spans = {
        one["name"]: (one["ts"], one["ts"] + one["dur"])
        for one in timeline
        if one["ph"] == "X" and one["pid"] == 1
    }
    computed, exchanged = spans["script compute"], spans["allreduce train.py:9"]
    assert computed[0] <= exchanged[0] < exchanged[1] <= computed[1]  # the last computation


ORDER = """
import time
store = dist.distributed_c10d._get_default_store()
for _ in range(size - rank):
    torch.ones(512, 512) @ torch.ones(512, 512)
print(store.add("ticket", 1), store.add("ticket", 1))
for receive in (dist.isend, dist.irecv):
    try:
        receive(torch.ones(3), rank)
    except (dist.DistBackendError, ValueError) as refused:
        print(type(refused).__name__)
dist.barrier()
before = time.perf_counter_ns()
time.sleep(20e-6)
print(time.perf_counter_ns() - before)
dist.all_reduce(torch.ones(10))
print(time.monotonic_ns() - before)
"""


def test_the_store_is_asked_in_the_order_of_fabric_time_which_scripts_can_see(
    tmp_path: Path,
) -> None:
    ended = torchrun(tmp_path, ORDER, "--fake-clock")
    assert ended.returncode == 0, ended.stderr
    (row,) = result(tmp_path)["rows"]
    (call,) = (one for one in row["call_sites"] if one["kind"] == "allreduce")
    after = []
    for rank in range(4):
        tickets, send, receive, slept, passed = printed(tmp_path, rank)
        before = 2 * (3 - rank)  # the last rank computes least
        assert tickets == f"{before + 1} {before + 2}"
        assert send in ("ValueError", "DistBackendError")
        assert receive in ("ValueError", "DistBackendError")
        assert int(slept) == 20_000
        after.append(int(passed))
    assert sum(after) / 4 == pytest.approx(20_000 + call["exposed_us"] * 1000, abs=1)


GOES_ON = """
for _ in range(20):
    try:
        dist.all_reduce(torch.ones(100_000))
    except dist.DistBackendError as failure:
        print(failure)
print("over")
"""


@pytest.mark.nightly
def test_a_gpu_that_no_rank_has_may_die(tmp_path: Path) -> None:
    fault = ("--ranks", "2", "--fault", "t=5us gpu h1g0 dead")
    ended = torchrun(tmp_path, "dist.all_reduce(torch.ones(100_000))", *fault)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("lost", ["gpu h1g0 dead", "link h1g0:eth0 down"])
def test_ranks_that_wait_for_what_is_lost_have_an_error_and_can_go_on(
    tmp_path: Path, lost: str
) -> None:
    ended = torchrun(tmp_path, GOES_ON, "--fault", f"t=10us {lost}")
    assert ended.returncode == 1
    assert "RTO_RETRIES_EXHAUSTED" in printed(tmp_path, 0, "ranks-2")[0]
    for rank in (0, 1, 3):
        *failures, last = printed(tmp_path, rank, "ranks-2")
        assert last == "over"
        assert failures
    # Rank 1 writes to nobody that is lost.
    assert " at train.py:10 waits for rank " in printed(tmp_path, 1, "ranks-2")[-2]
    assert "; the faults cut off h1g0" in ended.stderr.splitlines()[-1]
