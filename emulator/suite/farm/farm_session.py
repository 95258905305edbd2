"""The life of a farm around a verb: rank 0 has the farm, the others serve until it is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from emulator.dataplane.kernel.launcher import RankPlace
from emulator.errors import UserError
from emulator.run.interrupts import Interrupted, interruptible
from emulator.suite.farm.farm_worker import serve
from emulator.suite.farm.mpi_world import MpiWorld
from emulator.suite.farm.trial_farm import TrialFarm

#: How a command goes on whose ranks the launcher has ended.
GOES_ON = "; the same command with --output goes on"


@contextmanager
def farm_of(place: RankPlace, onward: str = "") -> Iterator[TrialFarm]:
    """Have the other ranks run trials during the block, at rank 0.

    If the launcher ends all ranks, UserError names the one that died, with ``onward`` behind it.
    """
    with interruptible(), TrialFarm(MpiWorld(place)) as farm:
        try:
            yield farm
        except Interrupted as stop:
            raise UserError(f"{farm.cause(stop)}{onward}") from None
        if farm.given_up:
            raise UserError(f"{'; '.join(farm.given_up.values())}; all trials were run elsewhere")


def serve_rank(place: RankPlace) -> None:
    """Run trials until rank 0 needs no more; at every other rank.

    Of several ranks on a machine where MPI cannot be used, the first one raises UserError.
    """
    try:
        world = MpiWorld(place)
    except UserError:
        if place.first_here:
            raise
        raise SystemExit(1) from None
    serve(world)
