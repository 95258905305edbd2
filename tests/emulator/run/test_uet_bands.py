"""Runs whose times and queues must lie in the bands that UEC's public simulator sets.

A figure of htsim is that of uet-htsim on the fabric that ``uetemu graph -f htsim`` writes.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.runs.processes import begun, ended


def replayed(
    folder: Path, flows: list[tuple[int, int]], *arguments: str, octets: int = 524_288
) -> dict[str, Any]:
    """What result.json of a modelled run holds in which each of ``flows`` has so many octets."""
    matrix = folder / "flows.cm"
    lines = [f"{s}->{d} id {i} start 0 size {octets}" for i, (s, d) in enumerate(flows, start=1)]
    matrix.write_text("\n".join(["Nodes 32", f"Connections {len(flows)}", *lines, ""]))
    model = ("--fabric", "model", "--capture", "none")
    run = begun(folder, str(matrix), *model, *arguments, scenario="trace")
    ended(run)
    result: dict[str, Any] = run.result
    return result


def total(result: dict[str, Any], counter: str) -> int:
    """The sum of a counter over all endpoints."""
    return sum(endpoint.get(f"transport.{counter}", 0) for endpoint in result["endpoints"].values())


def test_flows_to_many_peers_meet_in_no_bursts(tmp_path: Path) -> None:
    """16 GPUs on four leaves, each with a flow of 512 KiB to every other one.

    htsim: the last flow at 166.1 us, 7,928 ACKs, no more than 2 marks, 73 KB in the deepest queue.
    """
    flows = [(source, (source + k) % 16) for k in range(1, 16) for source in range(16)]
    result = replayed(tmp_path, flows, "--topology", "fat_tree:leaves=8,gpus_per_host=1")
    switches = [port["asic"] for port in result["ports"].values() if "asic" in port]
    assert result["rows"][0]["time_us"] < 1.03 * 166.1
    assert sum(each["classes"]["data"]["marked"] for each in switches) < 100
    assert max(each["queues"]["low"]["max_bytes"] for each in switches) < 100_000
    # each packet of a flow's first round trip has SYN, and an ACK of its own: five of a flow
    assert total(result, "tx_acks") < 1.1 * 7_928 + 5 * len(flows)


@pytest.mark.parametrize(
    ("senders", "most"), [(8, 1.2 * 92.6), (16, 1.1 * 183.6)], ids=["8:1", "16:1"]
)
def test_without_trimming_a_window_that_is_lost_waits_for_no_timer(
    senders: int, most: float, tmp_path: Path
) -> None:
    """Each writes 512 KiB to one; htsim with SLEEK: 92.6 and 183.6 us.

    All that is left of a window of one of 16 is lost: 73 packets, more than one answer to a PROBE
    shows.  Of 8 each has lost packets for some RTTs; the cuts that UES asks for take 7 us.
    """
    flows = [(source, 0) for source in range(1, senders + 1)]
    fabric = ("--topology", "fat_tree:leaves=8,gpus_per_host=1", "--switch", "deep")
    result = replayed(tmp_path, flows, *fabric)
    assert total(result, "rto_expirations") == 0
    assert total(result, "tx_retransmitted_packets") == total(result, "losses_inferred") > 0
    assert result["rows"][0]["time_us"] < most


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("thresholds", "htsim"), [("thresholds=scaled", 127.2), ("", 161.5)], ids=["scaled", "deep"]
)
def test_bitmap_spraying_avoids_a_slow_spine(thresholds: str, htsim: float, tmp_path: Path) -> None:
    """A permutation of 16 times 4 MiB, and one of four spines at a quarter of its rate.

    htsim scales the thresholds of such a port by its rate.  The second figure is that of htsim with
    the line that scales them taken out: the queue is four times as long in time.
    """
    flows = [
        (4 * host + rail, 4 * ((host + 1) % 4) + (rail + 1) % 4)
        for host in range(4)
        for rail in range(4)
    ]
    slow = "; ".join(f"t=0 link rail{rail}:up0 rate=100Gbps {thresholds}" for rail in range(4))
    fabric = ("--topology", "rail_clos:hosts=4,gpus_per_host=4,spines=4", "--fault", slow)
    once = ("--transport", "uet:spray=bitmap", "--iterations", "1", "--param", "idle_ranks=drop")
    result = replayed(tmp_path, flows, *fabric, *once, octets=4 << 20)
    assert result["rows"][0]["time_us"] < 1.15 * htsim


@pytest.mark.conformance("C-182")
@pytest.mark.parametrize(
    ("spray", "thresholds", "least", "most"),
    [
        ("oblivious", "thresholds=scaled", 42.0, 45.3),
        ("oblivious", "", 56.9, 58.4),
        ("reps", "thresholds=scaled", 38.0, 40.7),
        ("reps", "", 53.9, 56.6),
    ],
)
def test_a_slow_spine_costs_what_it_costs_in_htsim(
    spray: str, thresholds: str, least: float, most: float, tmp_path: Path
) -> None:
    """Within a tenth, and what is sent again is what was trimmed: a slow path is no loss.

    A permutation of two rails of four GPUs, all of it across the spines.  ``least`` and ``most``
    (us) are of uet-htsim (August 2025) over three seeds with ``-failed 1``, which shrinks the
    queues of slow links with their rate, and with those two lines taken out.
    """
    flows = [(0, 3), (2, 7), (4, 1), (6, 5), (1, 2), (3, 4), (5, 6), (7, 0)]
    slow = "; ".join(f"t=0 link rail{rail}:up0 rate=100Gbps {thresholds}" for rail in range(2))
    fabric = "rail_clos:hosts=4,gpus_per_host=2,spines=4,nic_delay=600ns,uplink_delay=600ns"
    once = ("--transport", f"uet:spray={spray}", "--iterations", "1", "--param", "idle_ranks=drop")
    result = replayed(tmp_path, flows, "--topology", fabric, "--fault", slow, *once, octets=1 << 20)
    assert 0.9 * least < result["rows"][0]["time_us"] < 1.1 * most
    assert total(result, "tx_retransmitted_packets") == total(result, "rx_trimmed")
    for counter in ("rx_duplicates", "losses_inferred", "rto_expirations"):
        assert total(result, counter) == 0
