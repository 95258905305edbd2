"""Latency of the fabric: from a frame's first octet at a NIC's port to its last octet at another.

Times are those of tagged frames (:mod:`emulator.sim.frame_taps`).  On an idle fabric of
store-and-forward switches a frame takes the serialisation and the delay of each cable, and the
pipeline of each switch.  Everything beyond that, it waited in queues.

A retransmission whose first copy may still be under way cannot be told from it by RoCEv2.  Such
frames are left out, and counted as ``ambiguous``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from emulator.arithmetic import percentile
from emulator.errors import UserError
from emulator.sim.frame_taps import TaggedFrame

FILE = "frame_latency.csv"
COLUMNS = ("row", "sent_us", "source", "destination", "octets", "latency_ps")
#: Percentiles of the latency by the ends of their keys.
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_PS_PER_US = 10**6


@dataclass(frozen=True, slots=True)
class FrameTime:
    """A frame from port number ``source`` to ``destination``; ``octets`` without FCS."""

    sent_ps: int
    source: int
    destination: int
    octets: int
    latency_ps: int


@dataclass(frozen=True)
class FrameTimes:
    """Times of the tagged frames that arrived; ``tagged`` left a NIC.

    ``ambiguous`` are arrivals of frames that left twice.
    """

    frames: Sequence[FrameTime]
    tagged: int
    ambiguous: int

    @classmethod
    def of(cls, seen: Iterable[TaggedFrame]) -> Self:
        """Pair departures and arrivals of all ports."""
        under_way: dict[bytes, TaggedFrame | None] = {}
        frames: list[FrameTime] = []
        tagged = ambiguous = 0
        for one in sorted(seen):
            if not one.arrives:
                tagged += 1
                under_way[one.tag] = None if one.tag in under_way else one
                continue
            if one.tag not in under_way:
                continue  # it left before the row began, or is the second copy of two
            sent = under_way.pop(one.tag)
            if sent is None:
                ambiguous += 1
                continue
            took = one.when_ps - sent.when_ps
            frames.append(FrameTime(sent.when_ps, sent.port, one.port, one.octets, took))
        return cls(frames, tagged, ambiguous)

    def row(self) -> dict[str, object]:
        """Return the keys of a row."""
        taken = [one.latency_ps for one in self.frames]
        return {
            "frames_tagged": self.tagged,
            "frames_timed": len(taken),
            "frames_ambiguous": self.ambiguous,
            **statistics(taken),
        }


def statistics(latencies_ps: Sequence[int]) -> dict[str, float | None]:
    """Return the least, mean and largest latency (us) and its percentiles by nearest rank."""
    if not latencies_ps:
        return {f"frame_{name}_us": None for name in ("min", "mean", *PERCENTILES, "max")}
    ordered = sorted(latencies_ps)
    ranked = {name: percentile(ordered, share) or 0 for name, share in PERCENTILES.items()}
    found = {"min": ordered[0], "mean": sum(ordered) / len(ordered), **ranked, "max": ordered[-1]}
    return {f"frame_{name}_us": value / _PS_PER_US for name, value in found.items()}


class LatencyFile:
    """The file of a run's frame times, made anew; ``ports`` are the names of ports by number."""

    def __init__(self, path: Path, ports: Sequence[str]) -> None:
        self._path, self._ports = path, ports
        self._write("w", [COLUMNS])

    def add(self, row: int, times: FrameTimes) -> None:
        """Append the frames of row number ``row`` of ``result.json``, from 1 on."""
        ports = self._ports
        self._write(
            "a",
            (
                (
                    row,
                    f"{one.sent_ps / _PS_PER_US:.6f}",
                    *(ports[one.source], ports[one.destination], one.octets, one.latency_ps),
                )
                for one in times.frames
            ),
        )

    def _write(self, mode: str, rows: Iterable[Sequence[object]]) -> None:
        try:
            with self._path.open(mode, newline="") as stream:
                csv.writer(stream, lineterminator="\n").writerows(rows)
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}") from error


class TimedFrame(NamedTuple):
    """A frame's octets, without FCS, and how long the fabric had it."""

    octets: int
    latency_ps: int


def frames_by_row(path: Path) -> Mapping[int, Sequence[TimedFrame]]:
    """Return the frames in a file of :class:`LatencyFile` by the number of their row.

    UserError if there is no such file, or it is damaged.
    """
    found: dict[int, list[TimedFrame]] = {}
    try:
        with path.open(newline="") as stream:
            for line in csv.DictReader(stream):
                one = TimedFrame(int(line["octets"]), int(line["latency_ps"]))
                found.setdefault(int(line["row"]), []).append(one)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"cannot read the latencies in {path}: {error}; repeat the run with --frame-latency 1"
        ) from None
    return found
