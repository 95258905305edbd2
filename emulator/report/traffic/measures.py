"""Measures of a link's frames and of sizes: entropy, bursts, peak to mean, quantiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


def entropy_bits(counts: npt.ArrayLike) -> float:
    """Return Shannon's entropy of what was counted (bits): log2 n if n kinds are alike."""
    some = np.asarray(counts, float)
    shares = some[some > 0] / some.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0  # -0.0 of a single kind


def sizes(octets: npt.NDArray[Any], name: str = "bytes") -> dict[str, float | int | None]:
    """Return the least, median (nearest rank), mean and most of sizes."""
    if not len(octets):
        return dict.fromkeys(f"{part}_{name}" for part in ("least", "median", "mean", "most"))
    ordered = np.sort(octets)
    return {
        f"least_{name}": int(ordered[0]),
        f"median_{name}": int(ordered[(len(ordered) - 1) // 2]),
        f"mean_{name}": round(float(ordered.mean()), 1),
        f"most_{name}": int(ordered[-1]),
    }


def histogram(octets: npt.NDArray[Any]) -> list[Mapping[str, int]]:
    """Return how many sizes lie in each power of two: above half of ``up_to_bytes``."""
    bins = np.ceil(np.log2(np.maximum(octets, 1))).astype(int)
    counts = np.bincount(bins)
    total = np.bincount(bins, weights=octets)
    return [
        {"up_to_bytes": 1 << int(one), "count": int(counts[one]), "sum_bytes": int(total[one])}
        for one in np.flatnonzero(counts)
    ]


@dataclass(frozen=True)
class Bursts:
    """The bursts of a link in order: begin and length (us), octets on the wire."""

    begin_us: Numbers
    length_us: Numbers
    octets: Counts

    @property
    def gap_us(self) -> Numbers:
        """The idle times between bursts."""
        return self.begin_us[1:] - (self.begin_us + self.length_us)[:-1]


def bursts(begin_us: Numbers, busy_us: Numbers, octets: Counts, gap_us: float) -> Bursts:
    """Return the bursts of frames that begin in this order: none idles ``gap_us`` or longer."""
    if not len(begin_us):
        empty = np.zeros(0)
        return Bursts(empty, empty, np.zeros(0, np.int64))
    end = np.maximum.accumulate(begin_us + busy_us)
    first = np.flatnonzero(np.concatenate([[True], begin_us[1:] - end[:-1] >= gap_us]))
    last = np.append(first[1:], len(begin_us)) - 1
    return Bursts(begin_us[first], end[last] - begin_us[first], np.add.reduceat(octets, first))


def peak(
    begin_us: Numbers, busy_us: Numbers, span: tuple[float, float], window_us: float
) -> tuple[float, float] | None:
    """Return the use (0..1) of the busiest of windows side by side, and it over their mean.

    A frame counts in each window for the time that it is on the wire there.  None of under two.
    By the host's clock frames may overlap: a window is full at most.  Windows without a frame are
    not looked at, as a day has many.
    """
    first, last = span
    windows = math.ceil((last - first) / window_us)
    if windows < 2 or not len(begin_us):
        return None
    end = begin_us + busy_us
    # What has passed at a time grows while a frame passes, and is level in between.
    times = np.column_stack([begin_us, end]).ravel()
    passed = np.column_stack([np.cumsum(busy_us) - busy_us, np.cumsum(busy_us)]).ravel()
    # A frame may begin or end in a window, or fill the one behind that in which it begins.
    touched = [np.floor((at - first) / window_us).astype(np.int64) for at in (begin_us, end)]
    numbers = np.unique(np.clip([*touched, touched[0] + 1], 0, windows - 1))
    edges = first + window_us * np.concatenate([numbers, numbers + 1, [0, windows]])
    at_edges = np.interp(edges, times, passed, left=0.0, right=float(busy_us.sum()))
    grown = at_edges[len(numbers) : -2] - at_edges[: len(numbers)]
    most = min(window_us, float(grown.max()))
    mean = float(at_edges[-1] - at_edges[-2]) / windows
    return (most / window_us, most / mean) if mean else None


def at_once(begin_us: Numbers, end_us: Numbers) -> tuple[int, float]:
    """Return how many intervals lie over each other at most, and on average while any does."""
    if not len(begin_us):
        return 0, 0.0
    times = np.concatenate([end_us, begin_us])
    steps = np.concatenate([np.full(len(end_us), -1), np.ones(len(begin_us), int)])
    order = np.lexsort((steps, times))  # at the same time ends come first
    running = np.cumsum(steps[order])
    lasted = np.diff(times[order])
    some = running[:-1] > 0
    covered = float(lasted[some].sum())
    mean = float((running[:-1] * lasted).sum() / covered) if covered else 0.0
    return int(max(running.max(), 1)), mean


def union(begin: Numbers, end: Numbers) -> tuple[Numbers, Numbers]:
    """Return intervals joined where they touch, in order."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > reached[:-1]])
    last = np.append(np.flatnonzero(first)[1:], len(begin)) - 1
    return begin[first], reached[last]
