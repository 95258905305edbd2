"""Scripts whose torch.distributed is the fabric."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.torch_backend.scripts import printed, result, torchrun

pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'uetemu[torch]')")

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


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
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
