"""The life of a farm around a verb: rank 0 has the farm, the others serve until it is over.

Another rank than 0 runs one trial at a time in a folder of its own, and sends the files.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click

from emulator.dataplane.kernel.launcher import RankPlace
from emulator.errors import UserError
from emulator.suite.farm.messages import (
    PIECE_OCTETS,
    Alive,
    Dismissal,
    Done,
    Farewell,
    FarmTask,
    FilePiece,
    Welcome,
)
from emulator.suite.farm.mpi_world import MpiWorld
from emulator.suite.farm.rank_facts import facts_of
from emulator.suite.farm.scratch_folder import remove_abandoned, scratch_folder
from emulator.suite.farm.trial_farm import PAUSE_S, SILENCE_S, TrialFarm
from emulator.suite.trials import ParentDied, TrialCommands, TrialEnd
from emulator.workers.interrupts import Interrupted, interruptible

#: How a command goes on whose ranks the launcher has ended.
GOES_ON = "; the same command with --output goes on"
#: Seconds between two signs of life.
ALIVE_S = SILENCE_S / 12
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(world: MpiWorld) -> None:
    """Run trials for rank 0 until that sends this rank away, or the launcher does."""
    worker = _Worker(world)
    before = {number: signal.signal(number, worker.note) for number in _SIGNALS}
    try:
        worker.serve()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Worker:
    def __init__(self, world: MpiWorld) -> None:
        self._world = world
        self._signalled = False
        self._last_sent = 0.0

    def note(self, number: int, _: FrameType | None) -> None:
        """Note a signal, by which a launcher ends all ranks when one of them has died."""
        self._signalled = True

    def serve(self) -> None:
        greeting = facts_of(sys.argv[1:])
        with ExitStack() as stack:
            folder, lock = Path(), -1
            try:
                remove_abandoned()
                folder, lock = stack.enter_context(scratch_folder())
            except OSError as error:
                greeting = replace(greeting, trouble=f"it cannot make a folder: {error}")
            self._world.send(0, greeting)
            if isinstance(self._next(lambda: False), Welcome):
                self._work(folder, TrialCommands(1, (lock,)))

    def _work(self, folder: Path, commands: TrialCommands) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="trial") as pool:
            while True:
                message = self._next(lambda: False)
                if not isinstance(message, FarmTask):
                    break
                place = folder / message.name
                trial = pool.submit(commands.run, message.words, place)
                if self._next(trial.done) is not None:  # sent away
                    break
                self._deliver(place, self._end_of(trial))
            self._leave()
            commands.stop()

    def _end_of(self, trial: Future[TrialEnd]) -> TrialEnd:
        try:
            return trial.result()
        except ParentDied as error:
            # Trials that it has left are ending: the keeper of the folder waits for them.
            click.echo(f"uetemu: rank {self._world.place.number}: {error}", err=True)
            self._world.abort(1)
            raise
        except OSError as error:
            return TrialEnd(status=1, seconds=0.0, error=f"it could not be started: {error}")

    def _next(self, done: Callable[[], bool]) -> object | None:
        """Return the next message, a dismissal at a signal, or None as soon as ``done``."""
        while not done():
            if self._signalled:
                return Dismissal()
            received = self._world.receive()
            if received is not None:
                return received[1]
            self._show_life()
            time.sleep(PAUSE_S)
        return None

    def _show_life(self) -> None:
        if time.monotonic() - self._last_sent > ALIVE_S:
            self._last_sent = time.monotonic()
            self._world.send(0, Alive())

    def _deliver(self, folder: Path, end: TrialEnd) -> None:
        """Send all files of a trial, and its end; then they are here no more."""
        try:
            for path in [folder.with_suffix(".stderr"), *sorted(folder.rglob("*"))]:
                if path.is_file() and not path.is_symlink():
                    self._send_file(path, str(path.relative_to(folder.parent)))
        except OSError as error:
            end = replace(end, status=end.status or 1, error=f"cannot read its files: {error}")
        self._world.send(0, Done(end))
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".stderr").unlink(missing_ok=True)

    def _send_file(self, path: Path, name: str) -> None:
        with path.open("rb") as stream:
            octets, first = stream.read(PIECE_OCTETS), True
            while octets or first:
                self._world.send_taken(0, FilePiece(path=name, octets=octets, first=first))
                octets, first = stream.read(PIECE_OCTETS), False

    def _leave(self) -> None:
        """Take leave of rank 0; nothing may be sent after that."""
        self._world.send(0, Farewell(signalled=self._signalled))


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
