"""Counters of a run whose transports have switches of their own, one after the other."""

from pathlib import Path

from tests.harness.runs.processes import begun, ended
from tests.harness.runs.whole_run import held


def test_pauses_of_a_transport_stay_when_the_next_one_has_none(tmp_path: Path) -> None:
    """Else frames that were pauses had left a port and were counted nowhere."""
    run = begun(
        *(tmp_path, "--fabric", "model", "--transport", "rocev2,rocev2:pfc=off"),
        *("--param", "senders=16", "--param", "size=256KiB", "--param", "warmups=0"),
        *("--param", "placement=any", "--seed", "2", "--seeds", "1"),
        scenario="incast",
    )
    ended(run)
    ports = held(run.folder, sprayed=True)["ports"].values()
    assert sum(port.get("pfc", {}).get("xoff_sent", 0) for port in ports) > 0
