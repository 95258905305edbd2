"""Runs of RoCEv2 whose times must lie near those of an independent simulator.

Its figures are of the ns-3 model and the changes in
``tests/emulator/rocev2/congestion/test_dcqcn_reference.py``: the firmware's set, marks on arrival,
the same thresholds, and a pause for each input port from 790 kB on; five seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.runs.processes import begun

#: Part that a time may lie beyond the reference's range.
BAND = 0.15


@pytest.mark.parametrize(
    ("queue_pairs", "least_us", "most_us"), [(1, 1_121.6, 1_244.9), (4, 989.8, 1_105.3)]
)
def test_an_incast_takes_as_long_as_the_reference_s(
    queue_pairs: int, least_us: float, most_us: float, tmp_path: Path
) -> None:
    """Seven NICs of 400 Gb/s send 4 MiB each to one."""
    run = begun(
        tmp_path,
        *("--fabric", "model", "--capture", "none", "--transport", f"rocev2:qps={queue_pairs}"),
        *("--topology", "rail_clos:hosts=8,gpus_per_host=1"),
        *("--param", "senders=7", "--param", "size=4MiB", "--param", "in_flight=64"),
        *("--param", "victim=0", "--param", "warmups=0"),
        scenario="incast",
    )
    status, _, errors = run.communicate()
    assert status == 0, errors
    (row,) = run.result["rows"]
    assert row["dropped_packets"] == row["retransmitted_packets"] == 0
    assert (1 - BAND) * least_us < row["time_us"] < (1 + BAND) * most_us
