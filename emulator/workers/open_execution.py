"""An execution whose operations are not known when it begins: they are added while it goes on.

Whoever drives it adds schedules at times of its own choice, and runs the fabric until something is
over that it waits for::

    execution.at(when_ns, act)        act() in the fabric's order, such as one that calls add()
    execution.add(schedules)          now: operations of ranks, which begin as their order says
    execution.pass_barrier(name, ranks)
    execution.run()                   until stop(), or until nothing will ever happen again

What ranks come to (barriers reached, executions that failed) is heard one lookahead later, as
decisions of a run always hold (:mod:`emulator.workers.virtual_fabric`).  So it is the same with any
number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from emulator.sim.endpoint.operations.gpu_memory import GpuMemory
from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, OperationTable
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.sim.event_queue import NEVER, PASS, PS
from emulator.workers.virtual_fabric import VirtualFabric
from emulator.workers.windows import News
from emulator.workers.worker import Load, WorkerPart, call

#: Makes an execution while it goes on.
Drive = Callable[["OpenExecution"], None]


class OpenExecution:
    """Execution number ``number`` of the ranks on ``nodes`` with ``memories``, on ``fabric``.

    ``heard`` are called with a rank and the names of barriers that it has reached; ``failed`` with
    the result of one that has failed.  The death of one of ``spare`` alone does not fail it.
    """

    def __init__(
        self,
        fabric: VirtualFabric,
        nodes: Mapping[int, str],
        number: int,
        memories: Mapping[int, GpuMemory],
    ) -> None:
        self.memories = memories
        self._fabric, self._events, self._nodes = fabric, fabric.events, nodes
        self._number = number
        self._acts: dict[int, list[tuple[tuple[int, ...], Callable[[], None]]]] = {}
        self.heard: Callable[[int, Sequence[str]], None] = lambda rank, names: None
        self.failed: Callable[[RankResult], None] = lambda result: None
        self.spare: Collection[int] = ()
        self._ended: set[int] = set()
        self._some_failed = False

    @property
    def now_ns(self) -> int:
        """Return the fabric's time."""
        return -(-self._events.now // PS)

    @property
    def awaits(self) -> bool:
        """Return whether something is to be done at a time to come (:meth:`at`)."""
        return bool(self._acts)

    def at(self, when_ns: int, order: tuple[int, ...], act: Callable[[], None]) -> None:
        """Have ``act`` called at ``when_ns``, or now if that is over; ``order`` within an instant.

        An act of the same instant that comes while others are called follows them.
        """
        self._at(max(when_ns * PS, self._events.now), order, act)

    def _at(self, when: int, order: tuple[int, ...], act: Callable[[], None]) -> None:
        if when not in self._acts:
            self._acts[when] = []
            self._events.at(when, PASS, self._carry_out, when)
        self._acts[when].append((order, act))

    def _carry_out(self, when: int) -> None:
        for _, act in sorted(self._acts.pop(when), key=lambda one: one[0]):
            act()

    def add(self, schedules: Sequence[Schedule], layout: Mapping[str, int]) -> None:
        """Add the operations of ``schedules`` now; all ranks lay their memories out by ``layout``.

        A rank that has ended takes none.
        """
        fabric = self._fabric
        loads: list[list[Load]] = [[] for _ in fabric.workers]
        for one in schedules:
            peers = OperationTable.of(one.operations).peers(WRITE, COPY)
            layouts = dict.fromkeys(peers, layout)
            loads[fabric.owner(self._nodes[one.rank])].append((one.rank, one, layouts))
        fabric.each_with([call(WorkerPart.add, each) for each in loads])

    def pass_barrier(self, name: str, ranks: Collection[int]) -> None:
        """Let those of ``ranks`` go on that wait at barrier ``name``."""
        self._fabric.each(WorkerPart.pass_barrier, self._number, name, sorted(ranks))

    def run(self, until_ns: int | None = None) -> bool:
        """Let time pass until :meth:`stop`, or ``until_ns``; return whether it was stopped.

        Without that nothing will ever happen again by itself, or it is ``until_ns``.
        """
        return self._fabric.run(NEVER if until_ns is None else until_ns * PS)

    def stop(self) -> None:
        """End :meth:`run`, from within an act."""
        self._events.stop()

    def standing(self) -> str:
        """Name what pauses hold up now, as the end of a sentence."""
        return self._fabric.standing()

    def hear(self, news: News) -> None:
        """Take what a rank has come to."""
        rank, when = news.rank, news.when_ps + self._fabric.lookahead_ps
        assert rank is not None
        if news.barriers:
            names = news.barriers
            self._at(when, (0, rank), lambda: self.heard(rank, names))
        result = news.result
        if result is not None:
            self._ended.add(rank)
            if result.error is not None:
                self._some_failed = True
                self._at(when, (1, rank), lambda: self.failed(result))

    def end(self) -> None:
        """Let all ranks end, which is known a lookahead later.

        Those that wait for one that has failed do not.
        """
        self._fabric.each(WorkerPart.finish)
        self._fabric.run(self._events.now + self._fabric.lookahead_ps)
        if len(self._ended) < len(self._nodes) and not self._some_failed:
            raise RuntimeError("ranks have operations left after the last call has ended")
