"""``torch.multiprocessing.spawn`` of a script whose ranks are there already.

A script that starts its own ranks calls it in each rank here: each carries out its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import multiprocessing

from emulator.torch_backend.launching import RankPlace


def part_of_spawned(place: RankPlace) -> None:
    """Have a ``spawn`` of as many processes as there are ranks run this rank's part in place."""

    def spawn(
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> None:
        numbers = {place.local_size: place.local, place.size: place.rank}
        if nprocs not in numbers or not join:
            more = "; --map-cuda has the CPU stand for CUDA, whose devices it counts" * (not nprocs)
            raise RuntimeError(
                f"the script spawns {nprocs} processes, and uetemu has started {place.size} ranks "
                f"already: spawn as many and join them, or leave spawn out{more}"
            )
        fn(numbers[nprocs], *args)

    module: Any = multiprocessing
    module.spawn = module.start_processes = spawn
