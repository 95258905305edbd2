"""Train a small GPT, whole replicas (ddp), sharded (fsdp), split by heads (tensor) or layers."""

import argparse
import hashlib
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Attention and MLP, each behind a norm; ``width`` / ``heads`` is the size of a head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, given: Tensor) -> Tensor:
        normed = self.before_attention(given)
        query, key, value = (
            part(normed).unflatten(2, (-1, self.size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = given + self.out(attended.transpose(1, 2).flatten(2))
        return hidden + self.down(functional.gelu(self.up(self.before_mlp(hidden))))


class Embedding(nn.Module):
    """Tokens and their positions."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return embedded


def gpt(given: argparse.Namespace) -> nn.Sequential:
    """Return the whole model."""
    return nn.Sequential(
        Embedding(given.vocabulary, given.length, given.width),
        *(Block(given.width, given.heads) for _ in range(given.layers)),
        nn.LayerNorm(given.width),
        nn.Linear(given.width, given.vocabulary, bias=False),
    )


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def digest(tensors: Iterable[Tensor | None]) -> str:
    """Return what tells these tensors from others, of shards the rank's own."""
    found = hashlib.sha256()
    for one in tensors:
        local = one.to_local() if isinstance(one, DTensor) else one
        if local is not None:
            found.update(local.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def split_by_heads(model: nn.Sequential) -> None:
    """Have each rank keep some heads of each block, and a part of its MLP."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    rows = dict.fromkeys(("out", "down"), RowwiseParallel())
    for block in model:
        if isinstance(block, Block):
            parallelize_module(block, mesh, {**columns, **rows})


def own_layers(model: nn.Sequential) -> nn.Sequential:
    """Return this rank's part of a pipeline's layers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return model[len(model) * rank // size : len(model) * (rank + 1) // size]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    kinds = ("ddp", "fsdp", "tensor", "pipeline")
    parser.add_argument("--parallel", choices=kinds, default="ddp")
    sizes = {
        "layers": 2,
        "width": 32,
        "heads": 4,
        "vocabulary": 64,
        "length": 16,
        "batch": 4,
        "steps": 2,
    }
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--bucket-mb", type=float, default=0.1)
    given = parser.parse_args(words)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = gpt(given)
    is_replica = given.parallel in ("ddp", "fsdp")
    run: nn.Module = model
    schedule = None
    if given.parallel == "ddp":
        run = DistributedDataParallel(model, bucket_cap_mb=given.bucket_mb)
    elif given.parallel == "fsdp":
        for block in model:
            fully_shard(block)
        fully_shard(model)
    elif given.parallel == "tensor":
        split_by_heads(model)
    else:
        run = own_layers(model)
        stage = PipelineStage(run, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=given.batch, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(run.parameters(), lr=1e-2)
    drawn = torch.Generator().manual_seed(dist.get_rank() if is_replica else 0)
    for step in range(given.steps):
        shape = given.batch, given.length + 1
        tokens = torch.randint(0, given.vocabulary, shape, generator=drawn)
        optimizer.zero_grad()
        if schedule is None:
            loss = loss_of(run(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()
        else:
            losses: list[Tensor] = []
            first = (tokens[:, :-1],) if dist.get_rank() == 0 else ()
            is_last = dist.get_rank() == dist.get_world_size() - 1
            schedule.step(*first, target=tokens[:, 1:] if is_last else None, losses=losses)
            loss = torch.stack(losses).mean() if losses else torch.zeros(())
        gradients = digest(one.grad for one in run.parameters())
        optimizer.step()
        print(f"step {step} loss {loss.item():.9g} gradients {gradients}", flush=True)  # noqa: T201
    print(f"parameters {digest(run.parameters())}")  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
