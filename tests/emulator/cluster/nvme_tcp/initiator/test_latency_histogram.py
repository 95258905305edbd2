"""The histogram of latencies against exact percentiles."""

from __future__ import annotations

import random

import pytest

from emulator.cluster.nvme_tcp.initiator.nvme_host import LatencyHistogram


@pytest.mark.parametrize("scale", [5, 1000, 10**9, 10**15])
def test_percentiles_are_exact_to_an_eighth(scale: int) -> None:
    draw = random.Random(scale)
    times = sorted(1 + draw.randrange(scale) for _ in range(999))
    histogram = LatencyHistogram()
    for one in times:
        histogram.add(one)
    for share in (0.1, 0.5, 0.99, 1.0):
        exact = times[max(0, -(-int(share * 999 * 1000) // 1000) - 1)]
        assert exact <= histogram.percentile(share) <= exact * 1.126 + 1
    assert (histogram.least_ns, histogram.most_ns) == (times[0], times[-1])


def test_nothing_has_no_summary() -> None:
    assert LatencyHistogram().summary_us() == {}
