"""The two clocks of runs, host and virtual, as the rest of a run sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

from emulator.control_plane.charged_time import Broken
from emulator.endpoint.agent_processes import Progress
from emulator.endpoint.operations.gpu_memory import GpuMemory
from emulator.endpoint.operations.rank_result import RankResult
from emulator.endpoint.operations.schedule import Schedule
from emulator.lab import Lab

#: Has the kernel undo what was struck last (False), or strikes it again (True).
Repeat = Callable[[bool], None]


class RunClock(Protocol):
    """The time of a run in ns of the fabric."""

    @property
    def began(self) -> str: ...

    def now(self) -> int: ...

    def host_seconds(self, fabric_duration_ns: int) -> float: ...


class TimeBase(Protocol):
    """The keeper of a run's time: the host's clock, or the virtual one."""

    @property
    def clock(self) -> RunClock: ...

    @property
    def schedule(self) -> Callable[[int, Callable[[], None]], None] | None:
        """Schedule work at a time (ns); None: the caller waits for the time itself."""

    def unrouted(self, lab: Lab) -> int:
        """Return how many packets switches had no way for, since the lab was built."""

    def faulted(self, before: Broken, after: Broken, repeat: Repeat) -> None:
        """Have routes follow that other cables carry nothing now than ``before``."""


Counts = dict[int, Mapping[str, Mapping[str, int]]]


class Pool(Protocol):
    """The endpoints of a run, one for each GPU."""

    @property
    def memories(self) -> dict[int, GpuMemory]:
        """The memories that are on this machine, by rank."""

    @property
    def pids(self) -> dict[int, int]: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def start(self, progress: Progress | None = None) -> None: ...

    def load(self, schedules: Sequence[Schedule]) -> None: ...

    def total(self, of_own: int) -> int:
        """Return the sum of a number that each machine has of the GPUs of its own memories."""

    def renew(self) -> None: ...

    def run(
        self,
        start_in_ns: int | None = None,
        timeout: float = 60.0,
        started: Callable[[int], None] | None = None,
        gap_ns: int = 0,
    ) -> list[RankResult]: ...

    def counters(self) -> Counts: ...

    def settled(self) -> Counts: ...

    def close(self) -> Counts: ...
