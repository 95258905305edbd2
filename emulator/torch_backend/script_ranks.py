"""What a rank has before its script begins: the fabric as torch's backend and clock, or gloo."""

from __future__ import annotations

from collections.abc import Callable

from emulator.torch_backend.computing import Computing
from emulator.torch_backend.launching import Prepare, RankPlace


def on_fabric(computing: Computing, *, cuda_on_cpu: bool, fake_clock: bool) -> Prepare:
    """Return what prepares a rank, which computes as ``computing`` has it.

    ``fake_clock``: the script's clocks are those of the fabric.
    """

    def prepare(place: RankPlace) -> Callable[[str], None]:
        from emulator.torch_backend.process_group import install
        from emulator.torch_backend.rank_link import RankLink

        if cuda_on_cpu:
            from emulator.torch_backend.cuda_on_cpu import map_cuda

            map_cuda()
        link = RankLink(place.rank, place.size, place.channel)
        install(link)
        link.clock = computing.clock(place.rank)
        if fake_clock:
            from emulator.torch_backend.fabric_time import show_fabric_time

            show_fabric_time(link)
        return link.end

    return prepare


def on_gloo(*, cuda_on_cpu: bool) -> Prepare:
    """Return what prepares a rank without a fabric, where gloo stands for NCCL."""

    def prepare(place: RankPlace) -> None:
        from emulator.torch_backend.other_groups import have_gloo

        if cuda_on_cpu:
            from emulator.torch_backend.cuda_on_cpu import map_cuda

            map_cuda()
        have_gloo(place)

    return prepare
