"""Runs of RoCEv2 whose times must lie near those of an independent simulator.

Its figures are of the ns-3 model and the changes in
``tests/emulator/rocev2/congestion/test_dcqcn_reference.py``: the firmware's set, marks on arrival,
the same thresholds, and for the incast a pause for each input port from 790 kB on; five seeds.
"""

from pathlib import Path

import pytest

from tests.harness.nightly import nightly_beyond
from tests.harness.runs.processes import begun, ended

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
    ended(run)
    (row,) = run.result["rows"]
    assert row["dropped_packets"] == row["retransmitted_packets"] == 0
    assert (1 - BAND) * least_us < row["time_us"] < (1 + BAND) * most_us


@pytest.mark.parametrize(
    ("mark_on", "victim_us", "incast_us"),
    nightly_beyond(
        1,
        [
            ("arrival", (4_360.2, 4_787.8), (1_327.7, 1_380.0)),
            ("departure", (4_021.4, 4_460.7), (1_551.4, 1_844.1)),
        ],
    ),
)
def test_a_victim_comes_back_as_it_does_in_the_reference(
    mark_on: str, victim_us: tuple[float, float], incast_us: tuple[float, float], tmp_path: Path
) -> None:
    """Seven NICs of 400 Gb/s send 8 MiB each to one, an eighth 56 MiB to another.

    With seed 2 the victim's uplink carries one flow of the incast, the spine's link down that one
    and one more.  The reference has these paths as a tree, delays of 600 ns, and no pauses.
    """
    run = begun(
        tmp_path,
        *("--fabric", "model", "--capture", "none", "--transport", "rocev2", "--seed", "2"),
        *("--topology", "fat_tree:radix=8,leaves=4,gpus_per_host=1"),
        "--switch",
        "th5:untrimmed.kmin_bytes=800KB,untrimmed.kmax_bytes=3200KB,untrimmed.pmax=0.2,"
        f"mark_on={mark_on}",
        *("--param", "senders=7", "--param", "size=8MiB"),
        *("--param", "alone=0", "--param", "warmups=0"),
        scenario="victim",
    )
    ended(run)
    (row,) = run.result["rows"]
    assert row["dropped_packets"] == row["pauses"] == 0
    assert row["last_flow"] == "h0g0 to h5g0"
    for seen, (least, most) in (
        (row["last_flow_us"], victim_us),
        (row["last_flow_us"] - row["last_flow_alone_us"], incast_us),
    ):
        assert (1 - BAND) * least < seen < (1 + BAND) * most
