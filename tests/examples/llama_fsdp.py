"""A model like Llama 3's, whose parameters FSDP shards over all ranks: one step of training.

::

    uetemu torchrun --ranks 64 --fake --record step.csv tests/examples/llama_fsdp.py

With its defaults it has the 8.03e9 parameters of Llama 3.1 8B.  ``--replicas N`` keeps N copies of
the shards, on a mesh of replicas and shards.
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional


class Block(nn.Module):
    """Attention of grouped queries, and a gated feed-forward network."""

    def __init__(self, width: int, inner: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.size, bias=False)
        self.value = nn.Linear(width, key_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        batch, length, width = given.shape
        normed = self.before_attention(given)
        query, key, value = (
            part(normed).view(batch, length, -1, self.size).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        repeats = self.heads // self.key_heads
        attended = functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(repeats, 1),
            value.repeat_interleave(repeats, 1),
            is_causal=True,
        )
        hidden = given + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        normed = self.before_mlp(hidden)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Embedding, blocks, and logits of the vocabulary."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(given.vocabulary, given.width)
        self.blocks = nn.ModuleList(
            Block(given.width, given.inner, given.heads, given.key_heads)
            for _ in range(given.layers)
        )
        self.norm = nn.RMSNorm(given.width)
        self.logits = nn.Linear(given.width, given.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.logits(self.norm(hidden))


def main() -> None:
    parser = argparse.ArgumentParser()
    sizes = {
        "layers": 32,
        "width": 4096,
        "inner": 14336,
        "heads": 32,
        "key_heads": 8,
        "vocabulary": 128_256,
        "length": 4096,
        "replicas": 1,
    }
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    given = parser.parse_args()
    dist.init_process_group()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if given.replicas > 1:
        shape = given.replicas, dist.get_world_size() // given.replicas
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = Llama(given)
    print(f"{sum(one.numel() for one in model.parameters())} parameters")  # noqa: T201
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimiser = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, given.vocabulary, (1, given.length + 1))
    logits = model(tokens[:, :-1]).flatten(0, 1).float()
    loss = functional.cross_entropy(logits, tokens[:, 1:].flatten())
    loss.backward()
    optimiser.step()
    print(f"loss {loss.item()}")  # noqa: T201


if __name__ == "__main__":
    main()
