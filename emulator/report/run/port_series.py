"""Samples of ports for each row of a run, from ``telemetry.csv`` or ``line_telemetry.csv``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from emulator.dataplane.switch.telemetry import COLUMNS, FILE
from emulator.report.run_folder import RunRecord, drawn_rows
from emulator.run_files import CAPTURE, EPOCH_S

#: Lines that are read at most.
MOST_SAMPLES = 4_000_000

_ABSENT = f"the run folder has no {FILE}: its switches are plain queues, or the run ended early"
#: Columns that hold depths at a time; all others are counts, which only grow.
DEPTHS = frozenset({"queue_bytes", "peak_bytes", "control_queue_bytes"})

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PortSeries:
    """The samples of one port: ``values`` by the columns of the telemetry; a value holds on."""

    t_us: Numbers
    values: Mapping[str, Numbers]

    def growth(self, column: str, edges: Numbers) -> Numbers:
        """Return how much a count grew between neighbouring ``edges`` (us)."""
        return np.diff(np.interp(edges, self.t_us, self.values[column]))

    def window(self, begin_us: float, end_us: float) -> PortSeries:
        """Return the samples in a time, with what held at its begin and at its end."""
        first = max(0, int(np.searchsorted(self.t_us, begin_us, side="right")) - 1)
        last = int(np.searchsorted(self.t_us, end_us, side="right"))
        times = np.clip(self.t_us[first:last], begin_us, end_us)
        cut = {name: column[first:last].copy() for name, column in self.values.items()}
        if len(times) and "peak_bytes" in cut:
            cut["peak_bytes"][0] = cut["queue_bytes"][0]  # the deepest before belongs to before
        if len(times) and times[-1] < end_us:
            times = np.append(times, end_us)
            cut = {name: np.append(column, column[-1]) for name, column in cut.items()}
        return PortSeries(times, cut)


@dataclass(frozen=True)
class IterationWindow:
    """The last iteration of a row on the run's clock (us)."""

    begin_us: float
    end_us: float


def window_of(record: RunRecord, number: int) -> IterationWindow | None:
    """Return the time of the row's last iteration; None where the run has no record of it."""
    began, times = record.began_us(number), record.times_us(number)
    length = times[-1] if times else record.rows[number - 1].get("time_us")
    if not began or not isinstance(length, int | float):
        return None
    return IterationWindow(float(began[-1]), float(began[-1] + length))


def capture_filter(window: IterationWindow) -> str:
    """Wireshark's display filter for an iteration of a run on the virtual clock."""
    begin, end = (EPOCH_S * 10**9 + round(at * 1000) for at in (window.begin_us, window.end_us))
    first, last = (f"{at // 10**9}.{at % 10**9:09d}" for at in (begin, end))
    return f"frame.time_epoch >= {first} && frame.time_epoch <= {last}"


def capture_filters(record: RunRecord, condition: str) -> dict[int, str]:
    """Display filters for the last iteration of each drawn row, where the capture has its times."""
    if not (record.path / CAPTURE).exists() or record.by_host_clock:
        return {}
    windows = {row: window_of(record, row) for row in drawn_rows(len(record.rows))}
    return {
        row: f"{condition} && {capture_filter(window)}"
        for row, window in windows.items()
        if window is not None
    }


def cut_series(
    record: RunRecord, series: Mapping[str, PortSeries]
) -> tuple[dict[int, dict[str, PortSeries]], dict[int, IterationWindow]]:
    """Return the samples in the last iteration of each drawn row, by port, and these times."""
    cut: dict[int, dict[str, PortSeries]] = {}
    windows: dict[int, IterationWindow] = {}
    for row in drawn_rows(len(record.rows)):
        window = window_of(record, row)
        if window is None:
            continue
        windows[row] = window
        cut[row] = {
            port: one.window(window.begin_us, window.end_us) for port, one in series.items()
        }
    return cut, windows


def read_series(
    file: Path, heading: Sequence[str] = COLUMNS, absent: str = _ABSENT
) -> dict[str, PortSeries] | str:
    """Return the samples of every port in ``file``; or why there are none.

    ``heading`` are its columns, time and port first; ``absent`` is the reason if there is no file.
    """
    if not file.exists():
        return absent
    columns: dict[str, list[tuple[float, ...]]] = {}
    try:
        with file.open(encoding="utf-8", errors="replace", newline="") as stream:
            reader = csv.reader(stream)
            if tuple(next(reader, [])[: len(heading)]) != tuple(heading):
                return f"{file.name} is of another version"
            for line in islice(reader, MOST_SAMPLES):
                if len(line) < len(heading):
                    continue  # the last line of a run that was killed
                try:
                    sample = (float(line[0]), *map(float, line[2 : len(heading)]))
                except ValueError:
                    return f"{file.name} is damaged"
                columns.setdefault(line[1], []).append(sample)
    except (OSError, csv.Error) as error:
        return f"{file.name} cannot be read ({error})"
    if not columns:
        return f"{file.name} holds no samples"
    found = {}
    for port, samples in columns.items():
        table = np.array(samples).T
        values = dict(zip(heading[2:], table[1:], strict=True))
        for name in set(values) - DEPTHS:
            values[name] = unbroken(values[name])
        found[port] = PortSeries(table[0], values)
    return found


def unbroken(counts: Numbers) -> Numbers:
    """Counts that go on where they went back to 0: a new stage of a run counts anew."""
    grown = np.diff(counts, prepend=0)
    restarted = grown < 0
    grown[restarted] = counts[restarted]
    return np.cumsum(grown)
