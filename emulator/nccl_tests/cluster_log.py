"""The content of a log of nccl-tests: its collective, its ranks, and a row for each size."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from emulator.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CollectiveForm:
    """The arithmetic of nccl-tests for a collective.

    ``factor`` is busbw over algbw for a number of ranks; ``parted`` where each rank owns one part
    and the count is that of a part.
    """

    scenario: str
    factor: Callable[[int], float]
    parted: bool = False


def _whole(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


#: The collectives by the name of their test, less ``_perf``, and the scenarios that run them.
COLLECTIVES: Mapping[str, CollectiveForm] = {
    "all_reduce": CollectiveForm(scenario="allreduce", factor=lambda n: 2 * (n - 1) / n),
    "all_gather": CollectiveForm(scenario="allgather", factor=_others, parted=True),
    "reduce_scatter": CollectiveForm(scenario="reducescatter", factor=_others, parted=True),
    "alltoall": CollectiveForm(scenario="alltoall", factor=_others, parted=True),
    "gather": CollectiveForm(scenario="gather", factor=_others, parted=True),
    "scatter": CollectiveForm(scenario="scatter", factor=_others, parted=True),
    "broadcast": CollectiveForm(scenario="broadcast", factor=_whole),
    "reduce": CollectiveForm(scenario="reduce", factor=_whole),
    "sendrecv": CollectiveForm(scenario="sendrecv", factor=_whole),
}
_TEST = re.compile(r"\b([a-z_]{2,32}?)_perf(?:_mpi)?\b")
#: Octets of an element of each type, by nccl-tests' names.
ELEMENT_BYTES: Mapping[str, int] = {
    "int8": 1, "char": 1, "uint8": 1, "int32": 4, "int": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "half": 2, "float": 4, "double": 8, "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1,
}  # fmt: skip
#: Sizes, counts and times beyond these are no measurement.
LARGEST_BYTES = 2**50
LARGEST_TIME_US = 1e12


def test_in(text: str) -> str | None:
    """Return the test that a command in ``text`` starts, less ``_perf``; None if it is none.

    Packages that build the tests with MPI call them ``all_reduce_perf_mpi``.
    """
    found = _TEST.search(text)
    return found[1] if found else None


@dataclass(frozen=True)
class ClusterTimes:
    """A time (us), and the bandwidths (GB/s) of one placement of the buffers.

    ``wrong`` is the number of elements that the cluster found wrong, None if it did not say.  The
    steps are units of the last digit that was printed, 0 where a value is not rounded.
    """

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None = field(default=None, kw_only=True)
    time_step_us: float = field(default=0.0, kw_only=True)
    algbw_step_gbps: float = field(default=0.0, kw_only=True)

    def agree(self, size: int) -> bool:
        """Return whether ``size`` (octets) over the time is algbw, as far as digits say it."""
        least = size / (self.time_us + self.time_step_us / 2) / 1000
        short = self.time_us - self.time_step_us / 2
        most = size / short / 1000 if short > 0 else math.inf
        slack = self.algbw_step_gbps / 2 + 0.005 * self.algbw_gbps
        return least - slack <= self.algbw_gbps <= most + slack


@dataclass(frozen=True, kw_only=True)
class ClusterRow:
    """A row of a log; ``where`` names the file and the line or the member."""

    where: str
    size: int
    count: int
    type: str
    redop: str = "none"
    root: int = -1
    out_of_place: ClusterTimes | None = None
    in_place: ClusterTimes | None = None

    def __post_init__(self) -> None:
        if self.type not in ELEMENT_BYTES:
            raise UserError(
                f"{self.where}: the type {self.type!r} is none of nccl-tests'; "
                f"known are {', '.join(ELEMENT_BYTES)}"
            )
        for name, value in (("size", self.size), ("count", self.count)):
            if not 0 <= value <= LARGEST_BYTES:
                raise UserError(
                    f"{self.where}: a {name} of {value} is none; it is 0 to {LARGEST_BYTES}"
                )
        for times in (self.out_of_place, self.in_place):
            if times is not None and self.size:
                self._check(times)

    def _check(self, times: ClusterTimes) -> None:
        if not 0 < times.time_us <= LARGEST_TIME_US:
            raise UserError(
                f"{self.where}: a time of {times.time_us} us is no measurement; "
                "take the row out of the log"
            )
        if not all(0 <= one < math.inf for one in (times.algbw_gbps, times.busbw_gbps)):
            raise UserError(
                f"{self.where}: bandwidths of {times.algbw_gbps} and {times.busbw_gbps} GB/s are "
                "no measurement; take the row out of the log"
            )
        if not times.agree(self.size):
            raise UserError(
                f"{self.where}: {self.size} B in {times.time_us} us are "
                f"{self.size / times.time_us / 1000:.4g} GB/s, and algbw is "
                f"{times.algbw_gbps:.4g}; is the time not in us, or is algbw counted otherwise, as "
                "by the all_gather and reduce_scatter of nccl-tests 2.0?"
            )


@dataclass(frozen=True, kw_only=True)
class ClusterLog:
    """A log of one test.

    ``collective`` and ``ranks`` are None if the log does not name them. ``hosts`` are the ranks on
    each host, by its name, as far as the log lists them.  ``failed``: the test itself says that
    results were out of bounds.
    """

    source: str
    collective: str | None
    ranks: int | None
    rows: Sequence[ClusterRow]
    hosts: Mapping[str, int] = field(default_factory=dict)
    version: str | None = None
    iterations: int | None = None
    aggregated: int = 1
    failed: bool = False

    @property
    def wrong_sizes(self) -> Mapping[int, int]:
        """The sizes in which the cluster found wrong elements, and how many at most."""
        found: dict[int, int] = {}
        for row in self.rows:
            for times in (row.out_of_place, row.in_place):
                if times is not None and times.wrong:
                    found[row.size] = max(times.wrong, found.get(row.size, 0))
        return found

    def named(self, collective: str | None) -> str:
        """Return the collective: that of the log, or else the user's ``collective``."""
        if self.collective is None and collective is None:
            raise UserError(
                f"{self.source} does not name its test, as older versions of nccl-tests do not; "
                f"name it with --collective, which is one of {', '.join(COLLECTIVES)}"
            )
        if None not in (self.collective, collective) and self.collective != collective:
            raise UserError(
                f"{self.source} is of {self.collective}_perf, and --collective says {collective}; "
                "leave the option out"
            )
        name = self.collective or collective or ""
        if name not in COLLECTIVES:
            raise UserError(
                f"{self.source} is of {name}_perf, which no scenario runs; "
                f"those that can be run are {', '.join(COLLECTIVES)}"
            )
        return name

    def check_factor(self, collective: str, ranks: int) -> None:
        """Raise UserError unless busbw over algbw is that of ``collective`` over ``ranks``.

        A value has two decimals, so rows of less than 1 GB/s do not count.
        """
        due = COLLECTIVES[collective].factor(ranks)
        for row in self.rows:
            for times in (row.out_of_place, row.in_place):
                if times is None or times.algbw_gbps < 1:
                    continue
                found = times.busbw_gbps / times.algbw_gbps
                if abs(found - due) > 0.01 * (1 + due):  # two roundings
                    raise UserError(
                        f"{row.where}: busbw is {found:.3f} of algbw, and for {collective} over "
                        f"{ranks} ranks it is {due:.3f}; name the right --collective, and a "
                        "--topology with as many GPUs as the log has ranks"
                    )

    def check_sizes(self, collective: str, ranks: int) -> None:
        """Raise UserError unless sizes and counts belong together as in nccl-tests 2."""
        parts = ranks if COLLECTIVES[collective].parted else 1
        for row in self.rows:
            due = row.count * ELEMENT_BYTES[row.type] * parts
            if row.size != due:
                raise UserError(
                    f"{row.where}: {row.count} elements of type {row.type} are {due} B over "
                    f"{ranks} ranks, and the size is {row.size} B; nccl-tests before 2.0 printed "
                    "other sizes, and so does a test over another number of ranks"
                )
