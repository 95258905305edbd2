"""Runs whose times and queues must lie in the bands that UEC's public simulator sets.

A figure of htsim is that of uet-htsim on the fabric that ``uetemu graph -f htsim`` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.runs.processes import begun


def replayed(folder: Path, flows: list[tuple[int, int]], *arguments: str) -> dict[str, Any]:
    """What result.json of a modelled run holds in which each of ``flows`` has 512 KiB."""
    matrix = folder / "flows.cm"
    lines = [f"{s}->{d} id {i} start 0 size 524288" for i, (s, d) in enumerate(flows, start=1)]
    matrix.write_text("\n".join(["Nodes 32", f"Connections {len(flows)}", *lines, ""]))
    model = ("--fabric", "model", "--capture", "none")
    run = begun(folder, str(matrix), *model, *arguments, scenario="trace")
    status, _, errors = run.communicate()
    assert status == 0, errors
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


def test_without_trimming_a_window_that_is_lost_waits_for_no_timer(tmp_path: Path) -> None:
    """16 GPUs write 512 KiB to one; htsim with SLEEK: 183.6 us.

    All that is left of a window is lost: 73 packets, more than one answer to a PROBE shows.
    """
    flows = [(source, 0) for source in range(1, 17)]
    fabric = ("--topology", "fat_tree:leaves=8,gpus_per_host=1", "--switch", "deep")
    result = replayed(tmp_path, flows, *fabric)
    assert total(result, "rto_expirations") == 0
    assert total(result, "tx_retransmitted_packets") == total(result, "losses_inferred") > 0
    assert result["rows"][0]["time_us"] < 1.1 * 183.6
