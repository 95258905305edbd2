"""Sizes of flows by their distribution: lines of octets and the cumulative per cent of flows.

::

    0 0
    10000 15
    30000000 100

Files of public simulators have this form.  Between two lines sizes are taken to be even.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from emulator.errors import UserError

Points = Sequence[tuple[float, float]]

#: Web search, of the DCTCP paper (Alizadeh et al., SIGCOMM 2010), and Facebook's Hadoop (Roy et
#: al., "Inside the Social Network's (Datacenter) Network", SIGCOMM 2015), with the points that the
#: HPCC paper (Li et al., SIGCOMM 2019) took: github.com/alibaba-edu/High-Precision-Congestion-
#: Control, ``traffic_gen/WebSearch_distribution.txt`` and ``traffic_gen/FbHdp_distribution.txt``.
NAMED: dict[str, Points] = {
    "websearch": (
        *((0, 0), (10_000, 15), (20_000, 20), (30_000, 30), (50_000, 40), (80_000, 53)),
        *((200_000, 60), (1_000_000, 70), (2_000_000, 80), (5_000_000, 90)),
        *((10_000_000, 97), (30_000_000, 100)),
    ),
    "hadoop": (
        *((0, 0), (100, 1), (200, 2), (300, 5), (350, 15), (400, 20), (500, 30), (600, 40)),
        *((700, 50), (1_000, 60), (2_000, 67), (7_000, 70), (30_000, 72), (50_000, 82)),
        *((80_000, 87), (120_000, 90), (300_000, 95), (1_000_000, 97.5), (2_000_000, 99)),
        (10_000_000, 100),
    ),
}
#: Octets of a file, and of a flow, at most.
LONGEST_FILE, LARGEST = 2**20, 2**40


@dataclass(frozen=True)
class FlowSizes:
    """``points`` are octets and cumulative per cent, both growing from 0 per cent to 100."""

    points: Points

    @property
    def mean(self) -> float:
        """Return the mean size (octets)."""
        return sum((a + b) / 2 * (q - p) for (a, p), (b, q) in pairwise(self.points)) / 100

    def draw(self, rng: random.Random) -> float:
        """Return the octets of a flow."""
        share = rng.uniform(0, 100)
        place = max(1, bisect_left([percent for _, percent in self.points], share))
        (a, p), (b, q) = self.points[place - 1 : place + 1]
        return a + (b - a) * (share - p) / (q - p)


def flow_sizes(name: str) -> FlowSizes:
    """Return the distribution of that name, or of the file ``name``; UserError if it is none."""
    return FlowSizes(NAMED[name] if name in NAMED else _read(Path(name)))


def _read(path: Path) -> Points:
    try:
        with path.open("rb") as stream:
            content = stream.read(LONGEST_FILE + 1)
    except OSError as error:
        raise UserError(
            f"sizes is {str(path)!r}: {error.strerror}; name a file, or {' or '.join(NAMED)}"
        ) from None
    if len(content) > LONGEST_FILE:
        raise UserError(f"{path} has more than {LONGEST_FILE} B; take fewer points")
    points: list[tuple[float, float]] = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            octets, percent = map(float, line.split())
        except ValueError:
            raise _wrong(
                path, number, "write octets and a cumulative per cent, as 10000 15"
            ) from None
        before = points[-1] if points else (-1.0, -1.0)
        grows = before[0] < octets <= LARGEST and before[1] < percent <= 100 and octets >= 0
        if not grows or bool(points) == (percent == 0):
            stated = "must grow from line to line, from 0 per cent to 100 and to 1 TiB at most"
            raise _wrong(path, number, f"octets and per cent {stated}")
        points.append((octets, percent))
    if len(points) < 2 or points[-1][1] != 100:
        raise UserError(f"{path} does not end at 100 per cent; add the largest size")
    return points


def _wrong(path: Path, line: int, stated: str) -> UserError:
    return UserError(f"{path}, line {line}: {stated}")
