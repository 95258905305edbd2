"""Time of computing, of tensors that ranks share."""

from tests.emulator.torch_backend.scripts import NEEDS_TORCH

pytestmark = NEEDS_TORCH


def test_a_rank_computes_its_part_of_what_is_split() -> None:
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from emulator.torch_backend.flop_clock import FlopClock

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        whole = distribute_tensor(torch.ones(8, 16), mesh, [Replicate()])
        columns = distribute_tensor(torch.ones(16, 32), mesh, [Shard(1)])
        clock = FlopClock(0.001)  # a FLOP takes a nanosecond
        split = whole @ columns
        clock.__exit__(None, None, None)
    finally:
        dist.destroy_process_group()
    assert split.shape == (8, 32)
    assert clock.computed_ns() == 2 * 8 * 16 * 32 / 4
