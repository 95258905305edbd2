"""A run's GPUs divided among processes, each of which compiles, weighs and measures its own.

A process that runs alone (:data:`ALONE`) has all GPUs, and its exchanges bring back what it gives.
The ranks of a launcher (:class:`~emulator.workers.ranks.exchange.Ranks`) exchange messages.
Code that works on schedules asks these for their :attr:`JobSchedules.division`, and all processes
run it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar, overload

from emulator.errors import UserError
from emulator.sim.endpoint.operations.operation_table import in_columns
from emulator.sim.endpoint.operations.schedule import (
    Schedule,
    only_operations_of,
    without_others,
)

T = TypeVar("T")


class Processes(Protocol):
    """All processes of a run, as the one of them with ``number`` sees them."""

    number: int
    count: int
    #: the machine of each
    machines: list[str]

    @property
    def reports(self) -> bool:
        """Return whether this process, the first one, writes the run folder."""

    def all_to_all(self, what: str, parts: Sequence[Any]) -> list[Any]:
        """Send ``parts[n]`` to process n; return what each process has for this one, by number.

        All processes call it.  ``what`` is the step's name.
        """

    def gather(self, what: str, value: Any) -> list[Any]:
        """Return the ``value`` of every process, by number; all call it."""

    def to_first(self, what: str, value: Any) -> list[Any]:
        """Return the ``value`` of every process, by number, at process 0; others get nothing.

        All call it.
        """

    def from_first(self, what: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returns at process 0, which alone calls it."""

    def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
        """Register what is to be removed, or completed, should this process be killed."""

    def warned(self) -> AbstractContextManager[None]:
        """Have all others know at once what ends the block."""

    def interrupted_by(self) -> str | None:
        """Return which other process's end has interrupted this one, if one's has."""


class Alone:
    """The one process of a run."""

    number, count, reports = 0, 1, True

    def __init__(self) -> None:
        self.machines = [""]

    def all_to_all(self, what: str, parts: Sequence[Any]) -> list[Any]:
        return list(parts)

    def gather(self, what: str, value: Any) -> list[Any]:
        return [value]

    def to_first(self, what: str, value: Any) -> list[Any]:
        return [value]

    def from_first(self, what: str, make: Callable[[], T]) -> T:
        return make()

    def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
        """Do nothing: this process removes what it leaves."""

    def warned(self) -> AbstractContextManager[None]:
        """Warn nobody."""
        return nullcontext()

    def interrupted_by(self) -> str | None:
        """Return None: there is no other process."""
        return None


ALONE = Alone()


@dataclass(frozen=True)
class Division:
    """The process that has each GPU: ``home[r]`` is the number among ``processes`` of rank r's.

    It has that GPU's schedule, and the times of its operations.
    """

    processes: Processes
    home: Sequence[int]

    @classmethod
    def alone(cls, count: int) -> Division:
        """Return that of ``count`` GPUs where this process has all."""
        return cls(ALONE, (0,) * count)

    @classmethod
    def in_blocks(cls, processes: Processes, count: int) -> Division:
        """Return equal parts of ``count`` GPUs, each GPUs in a row."""
        return cls(processes, [rank * processes.count // count for rank in range(count)])

    @classmethod
    def by_worker(
        cls, processes: Processes, worker_of: Mapping[str, int], gpus: Sequence[str]
    ) -> Division:
        """Return that of ``gpus`` (by rank) where several processes have those of their workers."""
        if processes.count == 1:
            return cls(processes, (0,) * len(gpus))
        return cls(processes, [worker_of[gpu] for gpu in gpus])

    @property
    def count(self) -> int:
        """The number of processes."""
        return self.processes.count

    @property
    def number(self) -> int:
        """The number of this process."""
        return self.processes.number

    @cached_property
    def own(self) -> frozenset[int]:
        """The ranks of this process's GPUs."""
        return frozenset(rank for rank, home in enumerate(self.home) if home == self.number)

    @property
    def on_this_machine(self) -> list[int]:
        """The ranks whose processes are on the machine of this one."""
        machines = self.processes.machines
        here = machines[self.number]
        return [rank for rank, home in enumerate(self.home) if machines[home] == here]

    def first_failure(self, what: str, failure: tuple[object, str] | None) -> str | None:
        """Return the sentence of the failure with the lowest place, of all that processes have.

        ``failure`` is this process's place and sentence; None: it has none.  All processes call
        it, so that all of them fail alike.
        """
        failures = [one for one in self.processes.gather(what, failure) if one is not None]
        return min(failures)[1] if failures else None

    def compiled(self, compile_all: Callable[[], Sequence[Schedule]], what: str) -> JobSchedules:
        """Return the schedules that ``compile_all`` makes of all GPUs, for ``what``.

        All processes call it.  Raises UserError, in all of them, unless there is one for each GPU.
        """
        compiled: Sequence[Schedule] = ()
        refusal: tuple[object, str] | None = None
        try:
            with only_operations_of(None if self.count == 1 else self.own):
                compiled = in_columns(without_others(compile_all()))
            if [schedule.rank for schedule in compiled] != list(range(len(self.home))):
                raise UserError(
                    f"{what} has {len(compiled)} schedules and the fabric {len(self.home)} GPUs; "
                    "compile one for each, in rank order"
                )
        except UserError as error:
            refusal = self.number, str(error)
        stated = self.first_failure("compiled", refusal)
        if stated is not None:
            raise UserError(stated)
        return JobSchedules(compiled, self)


class JobSchedules(Sequence[Schedule]):
    """The schedules of all GPUs of a job, in rank order.

    Those of GPUs that other processes of the ``division`` have are without operations.
    """

    def __init__(self, schedules: Sequence[Schedule], division: Division) -> None:
        self._schedules, self.division = schedules, division

    @classmethod
    def of(cls, schedules: Sequence[Schedule]) -> JobSchedules:
        """Return ``schedules`` with their division; others than such are all this process's."""
        if isinstance(schedules, JobSchedules):
            return schedules
        return cls(schedules, Division.alone(len(schedules)))

    def changed(self, schedules: Sequence[Schedule]) -> JobSchedules:
        """Return other ``schedules`` of the same GPUs."""
        return JobSchedules(schedules, self.division)

    def __len__(self) -> int:
        return len(self._schedules)

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._schedules)

    @overload
    def __getitem__(self, at: int) -> Schedule: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Schedule]: ...

    def __getitem__(self, at: int | slice) -> Schedule | Sequence[Schedule]:
        return self._schedules[at]
