"""Rank 0 of a job: it hands trials to the other ranks and takes the files of their folders.

One thread has all of MPI.  Others call :meth:`TrialFarm.run`, which waits for a trial's end.  MPI
may keep the thread for ever in a message to a rank that has died: nobody waits for the thread once
the launcher ends all.

A trial that failed is tried once more on another machine, or where there is none by another rank;
what came of that counts.  The desk has the books of it: no messages, no files, no clock.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.suite.farm.messages import (
    Alive,
    Dismissal,
    Done,
    Farewell,
    FarmTask,
    FilePiece,
    Greeting,
    Welcome,
)
from emulator.suite.farm.mpi_world import MpiWorld
from emulator.suite.farm.rank_facts import difference, facts_of
from emulator.suite.trials import TrialEnd
from emulator.workers.interrupts import Interrupted

#: A rank gets no trials any more when so many failed there that ran elsewhere.
STRIKES = 2
#: Seconds between two looks for messages while there are none.
PAUSE_S = 0.01
#: A rank that has sent nothing for so long (s) is given up: it says twelve times as often that it
#: is alive.
SILENCE_S = 60.0
#: So long (s) ranks have to take their leave when the launcher ends all of them, which it kills a
#: second later.
LEAVE_S = 0.5


@dataclass(eq=False)
class TrialOrder:
    """A trial that somebody waits for; ``failed`` is the rank that it failed at, and why."""

    task: FarmTask
    failed: tuple[int, str] | None = None


@dataclass
class _Rank:
    machine: str
    order: TrialOrder | None = None
    strikes: int = 0


class TrialDesk:
    """Orders and the ranks that work on them; ``machines`` are those of the ranks."""

    def __init__(self, machines: Mapping[int, str]) -> None:
        self._ranks = {rank: _Rank(machine) for rank, machine in machines.items()}
        self._waiting: deque[TrialOrder] = deque()

    @property
    def ranks(self) -> list[int]:
        """Return the ranks that are there."""
        return list(self._ranks)

    def place(self, rank: int) -> str:
        """Return the words for a rank and its machine."""
        return f"rank {rank} on {self._ranks[rank].machine}"

    def submit(self, order: TrialOrder) -> None:
        """Put ``order`` behind those that wait."""
        self._waiting.append(order)

    def assignments(self) -> Iterator[tuple[int, TrialOrder]]:
        """Give idle ranks what waits, the oldest first; yield each rank with its order."""
        for order in [*self._waiting]:
            idle = [rank for rank, state in self._ranks.items() if state.order is None]
            rank = next((one for one in idle if one in self._allowed(order)), None)
            if rank is not None:
                self._waiting.remove(order)
                self._ranks[rank].order = order
                yield rank, order

    def order_of(self, rank: int) -> TrialOrder | None:
        """Return what ``rank`` works on."""
        return self._ranks[rank].order

    def ended(self, rank: int, end: TrialEnd) -> TrialEnd | None:
        """Take the end of the order of ``rank``; return it with its place.

        None if it tries again or has none.
        """
        order, self._ranks[rank].order = self._ranks[rank].order, None
        if order is None:
            return None
        end = replace(end, place=self.place(rank))
        if order.failed is not None:
            return self._second(order.failed, end)
        if end.status != 0 and len(self._ranks) > 1:
            order.failed = rank, f"{self.place(rank)} ({end.why})"
            self._waiting.appendleft(order)
            return None
        return end

    def lost(self, rank: int, why: str) -> TrialEnd | None:
        """Strike ``rank`` off; return the end of its order, None if it tries again or has none."""
        place, order = self.place(rank), self._ranks.pop(rank).order
        if order is None:
            return None
        end = TrialEnd(status=-1, seconds=0.0, error=why, place=place)
        if order.failed is not None:
            return self._second(order.failed, end)
        if not self._ranks:
            return end
        order.failed = rank, f"{place} ({why})"
        self._waiting.appendleft(order)
        return None

    def _allowed(self, order: TrialOrder) -> set[int]:
        """Return the ranks that may take ``order``: the best there are, idle or not."""
        fit = {rank for rank, state in self._ranks.items() if state.strikes < STRIKES}
        fit = fit or set(self._ranks)
        if order.failed is None:
            return fit
        first = order.failed[0]
        others = {rank for rank in self._ranks if rank != first}
        here = self._ranks[first].machine if first in self._ranks else None
        away = {rank for rank in others if self._ranks[rank].machine != here}
        return (away & fit) or (others & fit) or others or set(self._ranks)

    def _second(self, failed: tuple[int, str], end: TrialEnd) -> TrialEnd:
        first, stated = failed
        if end.status != 0:
            return replace(end, again=f"failed at {stated}, and at {end.place} ({end.why})")
        if first in self._ranks:
            self._ranks[first].strikes += 1
        return replace(end, again=f"failed at {stated}, and ran at {end.place}")


class TrialFarm:
    """The other ranks of ``world`` as a runner of trials; a context manager.

    Entering it waits for all ranks, and raises UserError if one of them has another program or
    other files.  Leaving it dismisses them.
    """

    def __init__(self, world: MpiWorld) -> None:
        self._world = world
        self._others = range(1, world.place.count)
        self.at_once = len(self._others)
        self._own = facts_of(sys.argv[1:])
        self._greetings: dict[int, Greeting] = {}
        self._desk = TrialDesk({})
        self._heard: dict[int, float] = {}
        self._farewells: dict[int, Farewell] = {}
        self._folders: dict[TrialOrder, Path] = {}
        self._ends: dict[TrialOrder, Future[TrialEnd]] = {}
        self._submitted: list[tuple[TrialOrder, Path, Future[TrialEnd]]] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = self._closing = False
        self._stop: Future[None] = Future()
        #: the rank that takes a message from the thread
        self._sends_to: int | None = None
        self._failed: BaseException | None = None
        self._left = threading.Condition()
        self._given_up: dict[int, str] = {}
        self._cause: str | None = None
        self._thread = threading.Thread(target=self._work, name="farm", daemon=True)

    def __enter__(self) -> TrialFarm:
        try:
            self._await_greetings()
            reasons = (difference(self._own, one, rank) for rank, one in self._greeted())
            if (reason := next(filter(None, reasons), None)) is not None:
                raise UserError(reason)
        except Interrupted as stop:  # the launcher ends the others, too
            late = self._names(set(self._others) - self._greetings.keys())
            before = f", before {' and '.join(late)} had begun" if late else ""
            raise UserError(f"{stop}, which the launcher sent to all ranks{before}") from None
        except BaseException:
            for rank in self._others:
                self._world.send(rank, Dismissal())
            raise
        self._desk = TrialDesk({rank: one.machine for rank, one in self._greeted()})
        self._heard = dict.fromkeys(self._others, time.monotonic())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._wake.set()
        # Ranks that are no more would be waited for at the end of MPI.
        if self._cause is not None:
            atexit.register(os._exit, 1)  # the launcher ends all others
            return
        self._thread.join()
        if self._given_up:
            atexit.register(self._world.abort, 1)

    def _greeted(self) -> list[tuple[int, Greeting]]:
        return sorted(self._greetings.items())

    @property
    def ranks(self) -> Mapping[str, Mapping[str, object]]:
        """Return for each rank its machine, processors and kernel."""
        return {
            str(rank): {
                "machine": one.machine,
                "processors": one.processors,
                "kernel": one.kernel,
            }
            for rank, one in self._greeted()
        }

    @property
    def given_up(self) -> Mapping[int, str]:
        """Return the ranks that did not answer any more, each with its sentence."""
        return self._given_up

    def run(self, words: Sequence[str], folder: Path) -> TrialEnd:
        """Have a rank run ``uetemu`` with ``words``, and return its end when its files are here.

        Raises RuntimeError if the farm was stopped, and what keeps files from being written.
        """
        order = TrialOrder(FarmTask(name=folder.name, words=tuple(words)))
        end: Future[TrialEnd] = Future()
        with self._lock:
            if self._stopped or self._failed is not None:
                raise self._failed or RuntimeError("the suite has been stopped")
            self._submitted.append((order, folder, end))
        self._wake.set()
        either: list[Future[Any]] = [end, self._stop]
        wait(either, return_when=FIRST_COMPLETED)
        if not end.done():
            raise RuntimeError("the suite has been stopped")
        return end.result()

    def stop(self) -> None:
        """Let no caller wait any more; trials that run are interrupted."""
        with self._lock:
            if not self._stopped:
                self._stop.set_result(None)
            self._stopped = True
        self._wake.set()

    def cause(self, stop: Interrupted) -> str:
        """Return why the launcher ends all ranks: it names those that do not take their leave.

        A launcher does so because a rank has died, or because a user wishes it.  One that still
        delivers files has not died.
        """
        if self._cause is None:
            told = time.monotonic()
            with self._left:
                self._left.wait_for(lambda: len(self._farewells) == self.at_once, LEAVE_S)
            dead = self._sends_to
            heard = {rank for rank, when in self._heard.items() if when > told}
            silent = self._names(set(self._others) - self._farewells.keys() - heard)
            if dead is not None:  # the thread has taken no leave of the others
                silent = self._names({dead})
            self._cause = f"{stop}, which the launcher sent to all ranks"
            if silent:
                self._cause = f"{' and '.join(silent)} died, so the launcher ended all ranks"
        return self._cause

    def _names(self, ranks: Collection[int]) -> list[str]:
        """Return the ranks, each with its machine if it has begun."""
        found = ((rank, self._greetings.get(rank)) for rank in sorted(ranks))
        return [f"rank {rank} on {one.machine}" if one else f"rank {rank}" for rank, one in found]

    def _await_greetings(self) -> None:
        while len(self._greetings) < len(self._others):
            received = self._world.receive()
            if received is None:
                time.sleep(PAUSE_S)
                continue
            rank, message = received
            if isinstance(message, Greeting):
                self._greetings[rank] = message

    # --- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            for rank in self._others:
                self._send(rank, Welcome())
            while not self._closing:
                self._take_orders()
                if not self._take_message():
                    self._wake.wait(PAUSE_S)
                    self._wake.clear()
        except Exception as error:  # noqa: BLE001 - whoever waits for a trial gets it
            with self._lock:
                self._failed = error
            self._fail_all(error)
        if self._cause is None:
            self._dismiss()

    def _send(self, rank: int, message: object) -> None:
        self._sends_to = rank
        self._world.send(rank, message)
        self._sends_to = None

    def _take_orders(self) -> None:
        with self._lock:
            submitted, self._submitted = self._submitted, []
            stopped = self._stopped
        for order, folder, end in submitted:
            self._folders[order], self._ends[order] = folder, end
            self._desk.submit(order)
        if stopped:
            self._fail_all(RuntimeError("the suite has been stopped"))
            return
        for rank, order in self._desk.assignments():
            self._send(rank, order.task)
        now = time.monotonic()
        for rank in [*self._desk.ranks]:
            if now - self._heard[rank] > SILENCE_S:
                self._give_up(rank)

    def _take_message(self) -> bool:
        received = self._world.receive()
        if received is None:
            return False
        rank, message = received
        self._heard[rank] = time.monotonic()
        order = self._desk.order_of(rank) if rank in self._desk.ranks else None
        if isinstance(message, FilePiece) and order in self._ends:
            self._write(order, message)
        elif isinstance(message, Done) and order in self._ends:
            self._settle(order, self._desk.ended(rank, message.end))
        elif isinstance(message, Farewell):
            with self._left:
                self._farewells[rank] = message
                self._left.notify_all()
        else:
            assert isinstance(message, Alive | FilePiece | Done)  # of a trial that was given up
        return True

    def _write(self, order: TrialOrder, piece: FilePiece) -> None:
        folder = self._folders[order]
        path = folder.parent / piece.path
        inside = path.resolve().is_relative_to(folder.resolve())
        if not inside and path != folder.with_suffix(".stderr"):
            raise ValueError(f"a rank sent {piece.path}, which lies outside of its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb" if piece.first else "ab") as stream:
            stream.write(piece.octets)

    def _settle(self, order: TrialOrder, ended: TrialEnd | None) -> None:
        """Tell whoever waits for ``order`` that it has ended, or make room for its second try."""
        folder = self._folders[order]
        if ended is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".stderr").unlink(missing_ok=True)
            return
        self._ends.pop(order).set_result(ended)
        del self._folders[order]

    def _give_up(self, rank: int) -> None:
        place = self._desk.place(rank)
        self._given_up[rank] = f"{place} has sent nothing for {SILENCE_S:g} s and was given up"
        order = self._desk.order_of(rank)
        ended = self._desk.lost(rank, "it did not answer any more")
        if order is not None:
            self._settle(order, ended)
        if not self._desk.ranks:
            raise UserError("no rank answers any more: " + "; ".join(self._given_up.values()))

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            submitted, self._submitted = self._submitted, []
        for end in [*self._ends.values(), *(end for *_, end in submitted)]:
            if not end.done():
                end.set_exception(error)
        self._ends.clear()

    def _dismiss(self) -> None:
        """Send all ranks away, and wait until those that answer have left."""
        for rank in self._desk.ranks:
            self._send(rank, Dismissal())
        while set(self._desk.ranks) - set(self._farewells):
            if not self._take_message():
                time.sleep(PAUSE_S)
            now = time.monotonic()
            for rank in [*self._desk.ranks]:
                if rank not in self._farewells and now - self._heard[rank] > SILENCE_S:
                    self._desk.lost(rank, "it did not answer any more")
