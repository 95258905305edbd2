"""One trial on running agents: fill the memories, run, compare what came out, count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

from emulator.endpoint.gpu import GpuMemory
from emulator.endpoint.schedule import Schedule
from emulator.endpoint.spawn import AgentPool
from emulator.endpoint.spec import RankResult
from emulator.errors import UserError
from emulator.run.fidelity import Slip
from emulator.scenario import Contents, Outcome, Trial

#: All ones: in every floating-point type this is not a number, which equals nothing.
POISON = 0xFF

#: Counters by rank, layer and name.
Counts = Mapping[int, Mapping[str, Mapping[str, int]]]


@dataclass
class HostLoad:
    """What the measured iterations asked of the machine, for the fidelity verdict."""

    busy_s: float = 0.0
    available_s: float = 0.0
    slips: list[Slip] = field(default_factory=list)

    @property
    def busy(self) -> float:
        """Share of all processors' time that was in use."""
        return self.busy_s / self.available_s if self.available_s else 0.0

    def slip(self) -> Slip:
        """All slips together; the percentile is the mean of the agents', by their wake-ups."""
        wakeups = sum(slip.wakeups for slip in self.slips)
        weighted = sum(slip.p99_ns * slip.wakeups for slip in self.slips)
        return Slip(
            wakeups=wakeups,
            p99_ns=weighted / wakeups if wakeups else 0.0,
            max_ns=max((slip.max_ns for slip in self.slips), default=0.0),
        )


@dataclass(frozen=True)
class Measured:
    """``outcome`` of a trial, and the last iteration in detail."""

    outcome: Outcome
    schedules: Sequence[Schedule]
    results: Sequence[RankResult]


def measure(
    trial: Trial,
    pool: AgentPool,
    *,
    ideal_ns: float,
    timeout_s: float,
    host: HostLoad,
    progress: Callable[[], None],
) -> Measured:
    """Run ``trial``'s warm-ups and iterations.

    ``host`` is added to by those that count, ``progress`` called after each.  Every iteration is
    verified, warm-ups too.  Raises :class:`~emulator.endpoint.spawn.AgentError` if a rank fails.
    """
    schedules = trial.compile()
    pool.load(schedules)
    memories = pool.memories
    inputs = {rank: trial.inputs(rank) for rank in memories}
    expected = {rank: trial.expected(rank) for rank in memories}
    for rank, schedule in enumerate(schedules):
        check_contents(schedule, "inputs", inputs[rank])
        check_contents(schedule, "expected", expected[rank])
    for rank, memory in memories.items():
        _fill(memory, inputs[rank])
    wrong = 0
    times: list[int] = []
    results: Sequence[RankResult] = ()
    before: Counts = {}
    for iteration in range(-trial.warmups, trial.iterations):
        for rank, memory in memories.items():
            for name in expected[rank]:
                memory.array(name, np.uint8)[:] = POISON
            _fill(memory, {n: c for n, c in inputs[rank].items() if n in expected[rank]})
        if iteration == 0:
            before = pool.counters()
        processors = psutil.cpu_times()
        results = pool.run(timeout=timeout_s)
        busy, available = processor_seconds(processors)
        wrong += sum(
            _wrong(memory.array(name, content.dtype), content)
            for rank, memory in memories.items()
            for name, content in expected[rank].items()
        )
        if iteration >= 0:
            host.busy_s += busy
            host.available_s += available
            times.append(duration_ns(results))
            host.slips += slips(pool.counters())
        progress()
    outcome = Outcome(
        times_ns=tuple(times),
        ideal_ns=ideal_ns,
        wrong=wrong,
        counters=difference(before, pool.counters()),
    )
    return Measured(outcome, schedules, results)


def check_contents(schedule: Schedule, what: str, contents: Contents) -> None:
    """:class:`UserError` unless ``contents`` fill buffers of ``schedule`` to the octet."""
    for name, content in contents.items():
        size = schedule.buffers.get(name)
        if size is None:
            known = ", ".join(schedule.buffers) or "none"
            raise UserError(
                f"{what}({schedule.rank}) of the scenario names a buffer {name!r} that the rank "
                f"does not have; its buffers are {known}"
            )
        if content.nbytes != size:
            raise UserError(
                f"{what}({schedule.rank}) of the scenario has {content.nbytes} octets for buffer "
                f"{name!r} of {size}; make both alike"
            )


def duration_ns(results: Sequence[RankResult]) -> int:
    """From the common start until the last rank was done."""
    return max(result.end_ns for result in results) - min(result.start_ns for result in results)


def slips(counters: Counts) -> list[Slip]:
    """The timer slip of every agent during the last execution."""
    return [
        Slip(
            wakeups=layers["loop"]["timer_slip_count"],
            p99_ns=layers["loop"]["timer_slip_p99_ns"],
            max_ns=layers["loop"]["timer_slip_max_ns"],
        )
        for layers in counters.values()
    ]


def difference(before: Counts, after: Counts) -> dict[str, int]:
    """What the transports counted in between, summed over all ranks."""
    total: Counter[str] = Counter()
    for counters, sign in ((after, 1), (before, -1)):
        for layers in counters.values():
            for name, value in layers["transport"].items():
                total[name] += sign * value
    return dict(total)


def processor_seconds(since: object) -> tuple[float, float]:
    """Seconds in use and seconds there were on all processors, since ``psutil.cpu_times()``."""
    now = psutil.cpu_times()
    spans = [b - a for a, b in zip(since, now, strict=True)]  # type: ignore[call-overload]
    named = dict(zip(now._fields, spans, strict=True))
    # Guest time is part of user and nice time already (proc(5)).
    total = sum(span for name, span in named.items() if not name.startswith("guest"))
    idle = named["idle"] + named.get("iowait", 0.0)
    return max(0.0, total - idle), total


def _fill(memory: GpuMemory, contents: Contents) -> None:
    for name, content in contents.items():
        memory.array(name, content.dtype)[:] = content


def _wrong(found: np.ndarray, wanted: np.ndarray) -> int:
    return int(np.count_nonzero(found != wanted))
