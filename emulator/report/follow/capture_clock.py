"""The times of a capture as fabric time, and the iteration of the run that each belongs to."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from emulator.dataplane.switch.switch_choice import requested
from emulator.errors import UserError
from emulator.report.run_folder import RunRecord
from emulator.run_files import EPOCH_S


@dataclass(frozen=True)
class RunPeriod:
    """An iteration of a row, both counted from 1; ``row`` 0 is another time, with its ``name``."""

    row: int
    number: int
    begun_ns: int
    name: str = "a warm-up"

    def __str__(self) -> str:
        return f"row {self.row}, iteration {self.number}" if self.row else self.name


class CaptureClock:
    """The clock of a run's capture.

    On the virtual clock a time in the file is fabric time since 2000-01-01.  On the host's clock it
    is the machine's, ``dilation`` times as long, and belongs to no iteration.
    """

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.virtual = not record.by_host_clock
        dilation = record.result.get("dilation")
        usable = isinstance(dilation, int | float) and dilation > 0 and not self.virtual
        self.dilation = float(dilation) if usable and dilation is not None else 1.0

    @cached_property
    def iterations(self) -> list[RunPeriod]:
        """Return the measured iterations and the times around them, in order of time."""
        epoch_ns = EPOCH_S * 10**9 if self.virtual else 0
        begins = {epoch_ns: RunPeriod(0, 0, epoch_ns)}
        if not self.virtual:
            begins = {epoch_ns: RunPeriod(0, 0, epoch_ns, "the run")}
        else:
            for number, row in enumerate(self._record.rows, 1):
                times = self._record.times_us(number)
                for count, at_us in enumerate(self._record.began_us(number), 1):
                    length = times[count - 1] if count <= len(times) else row.get("time_us") or 0
                    begun, end = (epoch_ns + round(at * 1000) for at in (at_us, at_us + length))
                    begins[begun] = RunPeriod(number, count, begun)
                    begins.setdefault(end, RunPeriod(0, 0, end))
        return [begins[at] for at in sorted(begins)]

    def period(self, at_ns: int) -> int:
        """Return the index of the iteration that was the last to begin before ``at_ns``."""
        return max(0, bisect_right(self.iterations, at_ns, key=lambda one: one.begun_ns) - 1)

    def origin_ns(self, period: int, first_ns: int) -> int:
        """Return the time that a reader's times count from: the iteration's begin, if it is known.

        It is the first sighting of the packet else.
        """
        one = self.iterations[period]
        return one.begun_ns if one.row else first_ns

    def latency_us(self, period: int) -> float:
        """Return the latency of the switches' pipeline in a period, by the row's switch.

        Of a warm-up it is that of the run's switch.
        """
        row = self.iterations[period].row
        facts = self._record.rows[row - 1] if row else self._record.result
        try:
            choice = requested(str(facts.get("switch")))
        except UserError:
            return 0.0  # a run of several switches, or of another version
        return 0.0 if choice is None else choice.latency_ns / 1000

    def fabric_us(self, duration_ns: int) -> float:
        """Return a duration of the file as fabric time."""
        return duration_ns / self.dilation / 1000
