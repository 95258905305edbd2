"""Link layer retry and credits in whole fabrics: times by hand, and runs over both transports."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from emulator.sim.endpoint.operations.schedule import Receive, Write
from emulator.sim.event_queue import PS
from tests.harness.engine.bench_of_gpus import gpu_bench
from tests.harness.engine.linked_cable import Script
from tests.harness.runs.processes import begun, ended
from tests.system.engine.test_times_by_hand import (
    CABLE_PS,
    FRAME,
    ON_WIRE_PS,
    PACKET,
    RAIL,
    START_PS,
    schedule,
)
from topologies.model import CableEnd

pytestmark = pytest.mark.root

SET_PS = 8 * 20
TIMER_PS = 5_000 * PS
NIC, SWITCH = CableEnd("h1g0", "eth0"), CableEnd("rail0", "down1")
SCHEDULES = [
    schedule(0, Receive(peer=1, tag=1, into=PACKET)),
    schedule(1, Write(peer=0, tag=1, local=PACKET, remote=PACKET)),
    schedule(2),
]
#: What follows the arrival at the switch: it stores and forwards.
REST_PS = ON_WIRE_PS + CABLE_PS


@pytest.mark.parametrize(
    ("lost", "lost_back", "late_ps"),
    [
        ([], [], 0),
        ([0], [], CABLE_PS + SET_PS + CABLE_PS + ON_WIRE_PS),
        ([0], [0], TIMER_PS + ON_WIRE_PS),
    ],
    ids=["sound", "by a NACK", "by the timer"],
)
def test_a_lone_packet(lab_name: str, lost: list[int], lost_back: list[int], late_ps: int) -> None:
    """An error on the NIC's cable costs a NACK and a second way, or the timer; nobody else sees it.

    The NACK leaves as the frame with the error has come: c = 160 ps of line, and the cable back.
    The timer runs from when the frame has left.
    """
    with gpu_bench(lab_name, RAIL, switch="shallow:llr=on,llr_timer=5us") as bench:
        assert bench.network.links is not None
        ends = bench.network.links.ends
        ends[NIC].errors = Script(lost)  # type: ignore[assignment]
        ends[SWITCH].errors = Script(lost_back)  # type: ignore[assignment]
        sent, came = bench.departures("h1g0", "eth0"), bench.arrivals("h1g0", "eth0")
        results = bench.run(SCHEDULES)
        bench.pool.settled()
        counters = bench.fabric.link_counters()
    at_the_switch = START_PS + ON_WIRE_PS + CABLE_PS + late_ps
    data = [frame for frame in sent.frames if frame[1] == FRAME]
    assert data == [(START_PS, FRAME)]
    assert came.frames[0] == (at_the_switch, FRAME)
    assert results[0].end_ns == (at_the_switch + REST_PS) // PS
    nic = counters[str(NIC)]
    assert nic.replays == nic.replayed_frames == len(lost)
    assert nic.nacks_received == len(lost) - len(lost_back)
    assert nic.replay_timer_expiries == len(lost_back)


SWEEP = ("--param", "losses=0", "--param", "bers=1e-6", "--param", "size=128KiB")


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_bit_errors_are_replayed_and_no_transport_sees_them(transport: str, tmp_path: Path) -> None:
    run = begun(
        *(tmp_path, "--switch", "lossless:llr=on", "--transport", transport, *SWEEP),
        *("--capture", "rail0:down0"),
        scenario="losssweep",
    )
    out = ended(run)
    sound, struck = run.result["rows"]
    assert sound["replays"] == sound["wrong"] == struck["wrong"] == 0
    assert struck["replays"] > 0
    assert struck["retransmitted_packets"] == struck["dropped_packets"] == 0
    assert struck["link_lost_packets"] == struck["replay_timeouts"] == 0
    assert struck["link_recovery_us"] > 1.2  # twice the cable of 600 ns
    assert struck["time_us"] > sound["time_us"]
    assert run.result["fidelity"]["account"]["dropped"] == {}
    assert " replays of " in out
    if shutil.which("tshark"):
        command = ("tshark", "-r", str(run.folder / "capture.pcapng"), "-T", "fields")
        kinds = subprocess.run(
            (*command, "-e", "eth.type"), capture_output=True, text=True, check=True
        ).stdout.split()
        assert set(kinds) <= {"0x0800", "0x8808"}  # frames alone, PAUSE frames among them


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_an_incast_with_credits_loses_nothing(transport: str, tmp_path: Path) -> None:
    run = begun(
        *(tmp_path, "--switch", "lossless:cbfc=on", "--transport", f"{transport}:cc=none"),
        *("--param", "senders=3", "--param", "size=256KiB", "--capture", "none"),
        scenario="incast",
    )
    ended(run)
    (row,) = run.result["rows"]
    assert row["dropped_packets"] == row["trimmed_packets"] == row["retransmitted_packets"] == 0
    assert row["pauses"] is None
    assert row["credit_stalled_us"] == pytest.approx(row["credit_stalled_nics_us"])
    assert row["credit_stalled_us"] > 0
    assert 0 < row["lossless_held_bytes"] <= row["lossless_buffer_bytes"]
    assert "pfc" not in run.result["ports"]["rail0:down1"]
    assert run.result["warnings"] == []


def test_frames_with_errors_are_lost_without_retry_and_no_credit_with_them(tmp_path: Path) -> None:
    run = begun(
        *(tmp_path, "--switch", "lossless:cbfc=on,cbfc_buffer=20KiB", "--transport", "uet"),
        *("--fault", "t=0 link rail0:down1 loss=3%", "--param", "senders=3"),
        *("--param", "size=128KiB", "--capture", "none"),
        scenario="incast",
    )
    ended(run)
    (row,) = run.result["rows"]
    assert row["lost_packets"]["in_flight"] == row["link_lost_packets"] > 0
    assert row["wrong"] == 0
    links = [port["link"] for port in run.result["ports"].values()]
    assert sum(link["repaired_cells"] for link in links) > 0
    (warning,) = run.result["warnings"]
    assert warning.startswith("the receive buffer of 20 KiB is less than")


def test_a_link_that_gives_up_goes_on_without_retry(tmp_path: Path) -> None:
    run = begun(
        *(tmp_path, "--switch", "shallow:llr=on,llr_replays=1", "--transport", "uet"),
        *("--fault", "t=0 link rail0:down0 loss=30%", "--param", "senders=2"),
        *("--param", "size=64KiB", "--capture", "none"),
        scenario="incast",
    )
    ended(run)
    ports = run.result["ports"]
    assert sum(port["link"]["link_failures"] for port in ports.values()) > 0
    assert run.result["rows"][0]["link_lost_packets"] > 0


def test_rows_with_and_without_a_link_layer_leave_no_trace_in_each_other(tmp_path: Path) -> None:
    """Switches that change between rows, and cables that lose frames, come to the same again."""
    common = ("--capture", "none", "--seeds", "1", *SWEEP)
    both = begun(
        *(tmp_path, "--transport", "uet@shallow:llr=on,uet@shallow,uet@lossless:cbfc=on", *common),
        scenario="losssweep",
    )
    ended(both)
    for switch in ("shallow:llr=on", "shallow", "lossless:cbfc=on"):
        alone = begun(
            tmp_path, "--transport", "uet", "--switch", switch, *common, scenario="losssweep"
        )
        ended(alone)
        digests = [row["digest"] for row in alone.result["rows"]]
        beside = [row["digest"] for row in both.result["rows"] if row["switch"] == switch]
        assert beside == digests, json.dumps({switch: digests})
