"""Queue depths over time, read back from the telemetry of a run.

The file is read on as it grows, so that a trial sees its own samples and nothing is read twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from emulator.dataplane.switch.telemetry import COLUMNS, Telemetry

#: Samples kept of one trial, all ports together; later ones are not read into memory.
KEPT = 2_000_000

_T, _PORT = COLUMNS.index("t_us"), COLUMNS.index("port")
_VALUES = tuple(
    COLUMNS.index(name)
    for name in ("queue_bytes", "data_bytes", "lost_bytes", "marked", "trimmed", "dropped")
)


#: Time (ns), octets in the queue, octets of data admitted, those of them that a fault took, and
#: packets marked, trimmed and dropped.
Sample = tuple[float, ...]
_COUNT = 2
_EMPTY = (0.0,) * len(_VALUES)


@dataclass(frozen=True)
class QueueSeries:
    """The data queue of one port over time.

    ``t_ns`` is the time of the run's clock, growing; ``octets`` holds from there until the next
    sample.  ``admitted`` is what had been let into it since counting began, octets on the wire, and
    ``lost`` what of that a fault took.  ``marked``, ``trimmed`` and ``dropped`` are packets, by the
    switch, since counting began.
    """

    t_ns: npt.NDArray[np.float64]
    octets: npt.NDArray[np.float64]
    admitted: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    lost: npt.NDArray[np.float64] | None = None
    marked: npt.NDArray[np.float64] | None = None
    trimmed: npt.NDArray[np.float64] | None = None
    dropped: npt.NDArray[np.float64] | None = None

    @property
    def arrived(self) -> npt.NDArray[np.float64]:
        """Octets of data that have come out of the cable, at the times ``t_ns``."""
        left = self.admitted - self.octets
        return left if self.lost is None else left - self.lost

    def rate(self, begin_ns: float, end_ns: float) -> float | None:
        """Octets of data per ns that left between two times; None where samples do not reach."""
        if not len(self.admitted) or begin_ns < self.t_ns[0]:
            return None
        end_ns = min(end_ns, float(self.t_ns[-1]))  # there is no record of what left later
        if end_ns <= begin_ns:
            return None
        left = np.interp([begin_ns, end_ns], self.t_ns, self.admitted - self.octets)
        return float((left[1] - left[0]) / (end_ns - begin_ns))

    def mean(self, begin_ns: float, end_ns: float) -> float | None:
        """Return the mean depth from ``begin_ns`` to ``end_ns``, weighted by time.

        None before the first sample or for no time at all.
        """
        if not len(self.t_ns) or end_ns <= begin_ns or begin_ns < self.t_ns[0]:
            return None
        first = int(np.searchsorted(self.t_ns, begin_ns, side="right")) - 1
        last = int(np.searchsorted(self.t_ns, end_ns, side="left"))
        edges = np.clip(np.append(self.t_ns[first:last], end_ns), begin_ns, end_ns)
        return float(np.dot(self.octets[first:last], np.diff(edges)) / (end_ns - begin_ns))


class QueueReader:
    """Reads what ``telemetry`` has written since the last call."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._position = 0
        self._rest = ""
        self._last: dict[str, Sample] = {}

    def read(self) -> dict[str, QueueSeries]:
        """The series of every port since the last call, with the value it had then.

        All of them end with the latest sample: a port that has no line of it had not changed.
        """
        self._telemetry.flush()
        found = {port: [sample] for port, sample in self._last.items()}
        kept = 0
        for line in self._lines(self._telemetry.path):
            fields = line.split(",")
            if fields[_T] == COLUMNS[_T]:
                continue
            port = fields[_PORT]
            values = [float(fields[place]) for place in _VALUES]
            sample = float(round(float(fields[_T]) * 1000)), *values
            last = self._last.get(port)
            self._last[port] = sample
            kept += 1
            if kept > KEPT:
                continue
            if last is not None and sample[_COUNT] < last[_COUNT]:  # counting began again
                found[port] = [(last[0], *_EMPTY)]
            found.setdefault(port, []).append(sample)
        latest = max((samples[-1][0] for samples in found.values()), default=0.0)
        for samples in found.values():
            if samples[-1][0] < latest:
                samples.append((latest, *samples[-1][1:]))
        return {port: QueueSeries(*np.array(samples).T) for port, samples in found.items()}

    def restart(self) -> None:
        """The switches have just begun to count anew, with empty queues."""
        self.read()
        self._last = {port: (sample[0], *_EMPTY) for port, sample in self._last.items()}

    def _lines(self, path: Path) -> list[str]:
        with path.open(encoding="ascii") as stream:
            stream.seek(self._position)
            text = self._rest + stream.read()
            self._position = stream.tell()
        *lines, self._rest = text.split("\n")
        return lines
