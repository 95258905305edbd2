"""Priority flow control in whole runs by the virtual clock."""

import shutil
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.engine import ring_of_flows
from tests.harness.runs.processes import begun
from tests.scenarios.test_pfc_runs import check_little_headroom, check_storm, pause_frames

pytestmark = pytest.mark.root

INCAST = ("--param", "senders=8", "--param", "size=256KiB", "--param", "warmups=0")
NO_CONTROL = ("--transport", "uet:cc=none")
CIRCLE = "lossless:pfc_deadlock=allow,xoff=40KiB"


def run(folder: Path, scenario: str, *arguments: str) -> RunProcess:
    made = begun(folder, "--clock", "virtual", *arguments, scenario=scenario)
    status, _, errors = made.communicate()
    assert status == 0, errors
    assert made.leftovers() == []
    return made


def test_an_incast_loses_nothing(tmp_path: Path) -> None:
    """Every PAUSE frame that is sent arrives, and the capture has it at both ends."""
    switch = ("--switch", "lossless:xoff=40KiB", "--capture", "rail0:down1,h1g0")
    made = run(tmp_path, "incast", *NO_CONTROL, *switch, *INCAST)
    (row,) = made.result["rows"]
    assert row["dropped_packets"] == row["trimmed_packets"] == row["retransmitted_packets"] == 0
    assert row["wrong"] == 0
    assert row["pauses"] >= 8
    assert row["paused_us"] == row["paused_nics_us"] > 0
    assert made.result["warnings"] == []
    assert made.result["fidelity"]["account"]["dropped"] == {}
    ports = {name: port["pfc"] for name, port in made.result["ports"].items() if "pfc" in port}
    for names in (("xoff_sent", "xoff_received"), ("xon_sent", "xon_received")):
        sent, received = (sum(port[name] for port in ports.values()) for name in names)
        assert sent == received > 0
    for host in range(1, 9):
        nic, switch_port = ports[f"h{host}g0:eth0"], ports[f"rail0:down{host}"]
        assert nic["paused_ns"] > 0
        assert nic["pauses"] == switch_port["xoff_sent"] == switch_port["xon_sent"]
    if shutil.which("tshark"):
        frames = pause_frames(made.folder / "capture.pcapng")
        times = [frame["macc.cbfc.pause_time.c0"] for frame in frames]
        assert times.count("65535") == 2 * ports["rail0:down1"]["xoff_sent"]
        assert times.count("0") == 2 * ports["rail0:down1"]["xon_sent"]
        for frame in frames:
            assert frame["frame.len"] == "60"
            assert frame["_ws.expert.message"] == frame["_ws.malformed"] == ""


def test_with_next_to_no_headroom_it_loses_some(tmp_path: Path) -> None:
    switch = ("--switch", "lossless:xoff=40KiB,headroom=10KiB", "--capture", "none")
    made = run(tmp_path, "incast", *NO_CONTROL, *switch, *INCAST)
    check_little_headroom(made.result)


def test_a_storm_stops_whoever_shares_a_queue_with_it(tmp_path: Path) -> None:
    sizes = ("--param", "size=512KiB", "--param", "storm_for=200us", "--param", "watchdog=30us")
    made = run(tmp_path, "pfcstorm", *sizes, "--capture", "none")
    check_storm(made.result)


@pytest.mark.parametrize("transport", ["uet:cc=none", "rocev2:cc=none"])
def test_a_deadlock_is_found_and_explained_with_its_circle(tmp_path: Path, transport: str) -> None:
    made = begun(
        tmp_path,
        *("--clock", "virtual", "--transport", transport, "--switch", CIRCLE, "--capture", "none"),
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
        *("--clock", "virtual", "--switch", "lossless", "--capture", "none"),
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
