"""Train experts, one at each rank: a router says which tokens go to which, and how many do."""

import argparse
import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd as exchange
from torch.nn import functional


class Experts(nn.Module):
    """A router, which all ranks share, and this rank's expert."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, dist.get_world_size(), bias=False)
        torch.manual_seed(1 + dist.get_rank())
        self.expert = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.sent: list[int] = []

    def forward(self, tokens: Tensor) -> Tensor:
        weight, chosen = self.router(tokens).softmax(1).max(1)
        order = chosen.argsort(stable=True)
        counts = chosen.bincount(minlength=dist.get_world_size())
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts)
        self.sent, received = counts.tolist(), coming.tolist()
        group = dist.group.WORLD
        there = exchange(tokens[order], received, self.sent, group)
        back = exchange(self.expert(there), self.sent, received, group)
        return tokens + weight[:, None] * torch.empty_like(tokens).index_copy(0, order, back)


def digest(tensors: list[Tensor]) -> str:
    """Return what tells these tensors from others."""
    octets = b"".join(one.detach().numpy().tobytes() for one in tensors)
    return hashlib.sha256(octets).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, size in {"width": 16, "tokens": 64, "steps": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    given = parser.parse_args()
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = Experts(given.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = torch.Generator().manual_seed(dist.get_rank())
    for step in range(given.steps):
        tokens = torch.randn(given.tokens, given.width, generator=drawn)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(tokens), tokens.roll(1, 1))
        loss.backward()
        dist.all_reduce(model.router.weight.grad, op=dist.ReduceOp.AVG)
        gradients = digest([one.grad for one in model.parameters() if one.grad is not None])
        optimizer.step()
        line = f"step {step} loss {loss.item():.9g} gradients {gradients} sent {model.sent}"
        print(line, flush=True)  # noqa: T201
    print(f"parameters {digest(list(model.parameters()))}")  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
