"""A time series of all switch ports of a lab, written while it runs.

::

    with Telemetry(lab.asic, folder / FILE) as telemetry:
        telemetry.sample(now_ns)

A CSV file with one line for each port at the start. From then on there is a line whenever a sample
finds a port changed; the last line of a port holds until its next.

=======================  =====================================================================
``t_us``                 fabric time of the clock, in us
``port``                 ``node:port``
``queue_bytes``          what waits in the data queue at that time
``peak_bytes``           deepest that the data queue was since the sample before, as far as can be
                         seen: exact with a virtual clock and where it is a new maximum, otherwise
                         within a bin of the histogram (a 32nd of the largest limit) below the
                         truth
``control_queue_bytes``  what waits in the queues of control and trimmed packets
``tx_bytes``             sent since counting began, all classes
``tx_packets``           the same in packets
``marked``               packets that the switch marked CE
``trimmed``              packets that found no room and were cut
``dropped``              packets that went no further, for whatever reason, faults included
``data_bytes``           of ``tx_bytes`` what was data, whole packets of any data class
``lost_bytes``           of ``data_bytes`` what a fault of the cable took, or what waited when it
                         was pulled (counted once it is plugged in again)
=======================  =====================================================================

Octets are those on the wire.  Counting began with the lab, or with the last reset, which a new
choice of the switch is, too; then counts go back to zero.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from emulator.dataplane.kernel.programs.bpf_syscall import LOCKED
from emulator.dataplane.switch.bpf.layout import (
    BINS,
    CLASS_COUNTERS,
    PORT_SETTINGS_BYTES,
    PORT_STATE_BYTES,
    QUEUE_STATE,
    RATE_SHIFT,
    SHARE_SHIFT,
    STATE_HEAD,
    DropReason,
    Queue,
    TrafficClass,
    places,
)
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.switch_counters import LOST_FIELD
from emulator.dataplane.switch.virtual_state import (
    DEPARTURES_MARKED,
    PEAK,
    PORT_WORDS,
    VirtualState,
)
from emulator.dataplane.switch.virtual_state import DEPTH as FIRST_DEPTH
from emulator.errors import UserError

FILE = "telemetry.csv"
COLUMNS = (
    "t_us",
    "port",
    "queue_bytes",
    "peak_bytes",
    "control_queue_bytes",
    "tx_bytes",
    "tx_packets",
    "marked",
    "trimmed",
    "dropped",
    "data_bytes",
    "lost_bytes",
)
VALUES = COLUMNS[2:]  # what is recorded of one port at one time
LINES_AT_ONCE = 1000  # that go to the file together
LONGEST_IDLE_NS = 1 << 34  # times the highest rate it still fits 64 bits

_READ = ["rate", "bin_shift", "measured", "low_share"]  # of the settings
_PLACES = [places("port_settings")[name] for name in _READ]
SETTINGS = np.dtype(
    {
        "names": _READ,
        "formats": [f"u{place.size}" for place in _PLACES],
        "offsets": [place.offset for place in _PLACES],
        "itemsize": PORT_SETTINGS_BYTES,
    }
)
_QUEUES, _CLASSES = len(Queue), len(TrafficClass)
STATE = np.dtype(
    {
        "names": ["drained_at", "credit", "low_credit", "queues", "classes"],
        "formats": [
            "u8",
            "u8",
            "u8",
            ("u8", (_QUEUES, 2 + BINS)),
            ("u8", (_CLASSES, CLASS_COUNTERS.size // 8)),
        ],
        "offsets": [8, 16, 24, STATE_HEAD.size, STATE_HEAD.size + _QUEUES * QUEUE_STATE.size],
        "itemsize": PORT_STATE_BYTES,
    }
)
DEPTH, DEEPEST, HISTOGRAM = 0, 1, 2  # of a queue
PACKETS, OCTETS, MARKED, TRIMMED = range(4)  # of a class
DATA_CLASSES = [TrafficClass.DATA, TrafficClass.RETRANSMISSION, TrafficClass.UNTRIMMED]
DEPTHS = slice(FIRST_DEPTH, FIRST_DEPTH + len(Queue))  # of what a virtual clock's engine shares
DROPS = slice(CLASS_COUNTERS.size // 8 - len(DropReason), None)

Numbers = NDArray[np.uint64]


def append_lines(file: io.FileIO, lines: bytes) -> None:
    """Write whole lines to ``file``; OSError if the disk is full, and nothing of a cut line stays.

    ``file`` is not buffered.
    """
    done = file.write(lines)
    if done < len(lines):
        kept = lines.rfind(b"\n", 0, done) + 1
        file.truncate(file.seek(kept - done, os.SEEK_CUR))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SampleFile:
    """Lines of samples in the CSV file ``path``; ``error`` is why they end early."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.error: str | None = None
        self._unwritten = [",".join(columns) + "\n"]

    def start(self) -> None:
        """Make the file and begin.  Raises UserError if it cannot be made."""
        try:
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from error

    def flush(self) -> None:
        """Have whatever was sampled so far in the file, for a reader of it.

        The file holds whole lines at any time: it grows by one ``write`` of them, and what a full
        disk cuts off is taken back.
        """
        lines, self._unwritten = "".join(self._unwritten).encode("ascii"), []
        if not lines or self.error is not None:
            return
        try:
            append_lines(self._file, lines)
        except OSError as error:
            self.error = f"cannot write {self.path}: {error.strerror}"

    def stop(self) -> None:
        """Write what was sampled and close the file; the last sample is the caller's."""
        with self._file:
            self.flush()


class Telemetry(SampleFile):
    """Samples of all switch ports at times of the caller's choice.

    ``interval_ns`` is the fabric time between them, by default one base RTT of the fabric.  Stop it
    before the lab goes.
    """

    def __init__(self, asic: FabricAsic, path: Path, *, interval_ns: int | None = None) -> None:
        super().__init__(path, COLUMNS)
        self.interval_ns = interval_ns or asic.fitted.base_rtt_ns
        self.samples = self.lines = 0
        self._names = list(asic.ports)
        self._series = Series(asic)

    def sample(self, now_ns: int) -> None:
        """Note what has changed up to ``now_ns``.

        It is a time of the virtual clock, or in a lab of the host's clock CLOCK_MONOTONIC.
        """
        if self.error is not None:
            return
        rows, values = self._series.changes(now_ns)
        names = self._names
        self._unwritten += [
            f"{now_ns / 1000:.3f},{names[row]},{','.join(map(str, numbers))}\n"
            for row, numbers in zip(rows.tolist(), values.tolist(), strict=True)
        ]
        self.samples += 1
        self.lines += len(rows)
        if len(self._unwritten) >= LINES_AT_ONCE:
            self.flush()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Series:
    """Samples of all switch ports, each knowing the one before.

    The switches of a virtual clock keep one peak for all who look, and ``anew`` has it begin again
    with each sample: only the run's own may do so.
    """

    def __init__(self, asic: FabricAsic, *, anew: bool = True) -> None:
        self._anew = anew
        self._names, self._joined = list(asic.ports), asic.joined
        mine = set(self._names if self._joined is None else self._joined.mine(self._names))
        #: places in ``asic.ports`` of the ports that this process has
        self._own = np.flatnonzero([name in mine for name in self._names])
        self._program = asic.program
        indices = np.array([port.index for port in asic.ports.values()], dtype=np.intp)
        self._indices = indices[self._own]
        self._virtual = _table_of(asic.virtual)
        self._count = int(self._indices.max(initial=-1)) + 1
        of_kernel = self._count if self._virtual is None else 0
        self._settings = bytearray(of_kernel * PORT_SETTINGS_BYTES)
        copied = self._count if asic.program.in_kernel else 0
        self._states = bytearray(copied * PORT_STATE_BYTES)
        self._dropped: Numbers = np.zeros((len(self._names), len(DropReason)), np.uint64)
        self._reported: Numbers | None = None
        self._histograms: Numbers = np.zeros((len(self._indices), BINS), np.uint64)
        self._deepest: Numbers = np.zeros(len(self._indices), np.uint64)

    def drops(self) -> Numbers:
        """Return what the last sample counted as dropped.

        A row for each port of ``asic.ports``, in it a number for each
        :class:`~emulator.dataplane.switch.bpf.layout.DropReason`.  Ports of other processes have
        none.
        """
        return self._dropped

    def changes(self, now: int) -> tuple[NDArray[np.intp], Numbers]:
        """Rows (places of ports) that are not what they were, and their values."""
        values = self.sample(now)
        if self._reported is None:
            rows = np.arange(len(values))
        else:
            rows = np.flatnonzero((values != self._reported).any(axis=1))
        self._reported = values
        return rows, values[rows]

    def sample(self, now: int) -> Numbers:
        """A row for each port of ``asic.ports``, in their order: :data:`VALUES` at ``now``.

        ``now`` is what CLOCK_MONOTONIC reads, in ns; with a virtual clock it has no meaning.
        """
        states = self._read_states()
        classes, low = states["classes"].sum(axis=1), states["queues"][:, Queue.LOW]
        self._dropped[self._own] = classes[:, DROPS]
        marked = classes[:, MARKED]
        if self._virtual is not None:
            shared = self._virtual[self._indices]
            depths, peaks = shared[:, DEPTHS], shared[:, PEAK]
            marked = marked + shared[:, DEPARTURES_MARKED:].sum(axis=1)
            if self._anew:
                self._virtual[self._indices, PEAK] = depths[:, Queue.LOW]
        else:
            self._program.settings.read_first(self._count, self._settings)
            settings = np.frombuffer(self._settings, SETTINGS)[self._indices]
            depths = _depths(settings, states, now)
            peaks = self._peaks(settings, low, depths[:, Queue.LOW])
        values = np.zeros((len(self._names), len(VALUES)), np.uint64)
        values[self._own] = np.column_stack(
            (
                depths[:, Queue.LOW],
                peaks,
                depths[:, Queue.HIGH] + depths[:, Queue.MEDIUM],
                classes[:, OCTETS],
                classes[:, PACKETS],
                marked,
                classes[:, TRIMMED],
                classes[:, DROPS].sum(axis=1),
                states["classes"][:, DATA_CLASSES, OCTETS].sum(axis=1),
                states["classes"][:, DATA_CLASSES, LOST_FIELD].sum(axis=1),
            )
        )
        return values if self._joined is None else self._joined.rows(self._names, values)

    def _read_states(self) -> NDArray[np.void]:
        """Return the present states of the ports that this process has."""
        table = self._program.ports
        if self._program.in_kernel:
            table.read_first(self._count, self._states, flags=LOCKED)
            return np.frombuffer(self._states, STATE)[self._indices]
        return np.frombuffer(table.mapped(), STATE)[self._indices]

    def _peaks(self, settings: NDArray[np.void], low: Numbers, depths: Numbers) -> Numbers:
        histograms, deepest = low[:, HISTOGRAM:].copy(), low[:, DEEPEST].copy()
        anew = (histograms < self._histograms).any(axis=1)  # counting began again
        self._histograms[anew], self._deepest[anew] = 0, 0
        found = histograms > self._histograms
        top = np.where(found.any(axis=1), BINS - 1 - found[:, ::-1].argmax(axis=1), 0)
        edges = top.astype(np.uint64) << settings["bin_shift"].astype(np.uint64)
        peaks = np.where(deepest > self._deepest, deepest, np.maximum(edges, depths))
        self._histograms, self._deepest = histograms, deepest
        return peaks


def _table_of(virtual: VirtualState | None) -> Numbers | None:
    """Return what a virtual clock's engine shares of all ports.

    A row each, which is the memory itself.
    """
    if virtual is None:
        return None
    return np.frombuffer(virtual.ports, np.uint64).reshape(-1, PORT_WORDS)


def _depths(settings: NDArray[np.void], states: NDArray[np.void], now: int) -> Numbers:
    """Octets in each queue of each port at ``now``: as queue.h drains them."""
    left: Numbers = states["queues"][:, :, DEPTH].copy()
    drained_at = states["drained_at"]
    moment = np.uint64(now)
    idle = np.where(moment > drained_at, moment - drained_at, 0).clip(max=LONGEST_IDLE_NS)
    idle = np.where(settings["measured"] == 1, 0, idle).astype(np.uint64)
    served = (idle * settings["rate"] + states["credit"]) >> np.uint64(RATE_SHIFT)
    owned = (served * settings["low_share"] + states["low_credit"]) >> np.uint64(SHARE_SHIFT)
    owned[settings["measured"] == 1] = 0
    served[settings["measured"] == 1] = 0
    for queue, most in ((Queue.LOW, owned), *((queue, None) for queue in Queue)):
        taken = np.minimum(left[:, queue], served if most is None else np.minimum(most, served))
        left[:, queue] -= taken
        served -= taken
    return left
