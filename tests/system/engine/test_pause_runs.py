"""Priority flow control in whole runs: deadlocks, and stages without pauses."""

from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.engine import ring_of_flows
from tests.harness.runs.processes import begun, ended

pytestmark = pytest.mark.root

INCAST = ("--param", "senders=8", "--param", "size=256KiB", "--param", "warmups=0")
CIRCLE = "lossless:pfc_deadlock=allow,xoff=40KiB"


def run(folder: Path, scenario: str, *arguments: str) -> RunProcess:
    made = begun(folder, *arguments, scenario=scenario)
    ended(made)
    assert made.leftovers() == []
    return made


@pytest.mark.parametrize("transport", ["uet:cc=none", "rocev2:cc=none"])
def test_a_deadlock_is_found_and_explained_with_its_circle(tmp_path: Path, transport: str) -> None:
    made = begun(
        tmp_path,
        *("--transport", transport, "--switch", CIRCLE, "--capture", "none"),
        scenario=ring_of_flows.__file__,
    )
    status, _, errors = made.communicate()
    assert status != 0
    assert "stalled" in errors
    assert "a PFC deadlock of 5 links: " in errors
    circle = errors.partition("deadlock of 5 links: ")[2].partition(", and the last")[0]
    links = [link.partition(" -> ") for link in circle.split(" waits for ")]
    assert {ours.partition(":")[2] for ours, _, _ in links} == {"xplus0"}
    for (_, _, theirs), (ours, _, _) in zip(links, (*links[1:], links[0]), strict=True):
        assert theirs.partition(":")[0] == ours.partition(":")[0]  # one switch
    assert made.leftovers() == []


def test_a_fabric_that_can_deadlock_is_refused_unless_asked_for(tmp_path: Path) -> None:
    made = begun(
        tmp_path,
        *("--switch", "lossless", "--capture", "none"),
        scenario=ring_of_flows.__file__,
    )
    status, _, errors = made.communicate()
    assert status != 0
    assert "PFC can bring this fabric to a standstill" in errors
    assert "pfc_deadlock=allow" in errors


def test_stage_without_pauses_leaves_the_buffers_of_the_next_empty(tmp_path: Path) -> None:
    """Frames of a lossy stage are in no lossless buffer, and none is given back for them."""
    paused, lossy = "lossless:xoff=40KiB", "shallow"
    transports = f"uet:cc=none@{paused},uet@{lossy},uet:cc=none,spray=oblivious@{paused}"
    made = run(
        tmp_path, "incast", "--transport", transports, "--seeds", "1", "--capture", "none", *INCAST
    )
    first, between, last = made.result["rows"]
    assert between["pauses"] in (0, None)
    assert last["pauses"] == first["pauses"] > 0
    assert last["dropped_packets"] == 0
