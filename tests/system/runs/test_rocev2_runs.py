"""Runs whose endpoints speak RoCEv2, and what their captures show."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from scapy.utils import RawPcapNgReader

from emulator.dataplane.switch.code_points import LAB
from emulator.pytest_plugin.runs import RunProcess
from emulator.rocev2.wire.packets import PacketDecapsulator, PacketFlow, encapsulation
from tests.harness.runs.processes import SMALL, forked

TSHARK = shutil.which("tshark")
on_a_fabric = [
    pytest.mark.root,
]
pytestmark = on_a_fabric


def flows(capture: Path) -> list[PacketFlow]:
    """Every frame of a capture, opened by whom it is for: its ICRC is right."""
    found = []
    for frame, _ in RawPcapNgReader(str(capture)):
        mac = ":".join(f"{octet:02x}" for octet in frame[:6])
        address = ".".join(map(str, frame[30:34]))
        flow = PacketDecapsulator(encapsulation(address, mac)).open(memoryview(frame))
        assert not isinstance(flow, str), flow
        found.append(flow)
    return found


def complaints(capture: Path) -> str:
    strange = "_ws.expert or _ws.malformed or !infiniband"
    done = subprocess.run(
        [str(TSHARK), "-n", "-r", str(capture), "-Y", strange],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    "variant",
    ["rocev2", "rocev2:qps=4,recovery=selective_repeat", "rocev2:mtu=1024,window=bdp,cc=none"],
)
def test_an_allreduce(start: Callable[..., RunProcess], variant: str) -> None:
    kept = ("--endpoints", "kept")  # each life has queue pairs of its own
    run = start(*SMALL, *kept, "--sizes", "64KiB", "--transport", variant, "--snaplen", "full")
    status, out, err = run.communicate()
    assert (status, err) == (0, ""), out
    assert run.result["transport"] == variant
    assert [row["wrong"] for row in run.result["rows"]] == [0]
    capture = run.folder / "capture.pcapng"
    seen = flows(capture)
    opcodes = Counter(flow.opcode for flow in seen)
    assert set(opcodes) <= {0x06, 0x07, 0x09, 0x0B, 0x11, 0x81}
    assert {0x06, 0x09, 0x11} <= set(opcodes)
    mtu = 1024 if "mtu" in variant else 4096
    assert max(flow.payload_end - flow.payload_at for flow in seen) == mtu
    ports: dict[tuple[bytes, int], set[int]] = {}
    for flow in seen:
        ports.setdefault((flow.source, flow.dqpn), set()).add(flow.source_port)
    assert {len(several) for several in ports.values()} == {1}
    assert max(Counter(source for source, _ in ports).values()) == (4 if "qps" in variant else 1)
    for flow in seen:
        assert flow.traffic_class >> 2 == (LAB.control if flow.opcode in (0x11, 0x81) else 26)
        assert flow.traffic_class & 3 in (2, 3)
    endpoint = next(iter(run.result["endpoints"].values()))
    assert endpoint["transport.tx_data_packets"] > 0
    assert endpoint["transport.rx_acks"] > 0
    if TSHARK is not None:
        assert complaints(capture) == ""


def test_event_logs_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    process = forked(
        *("run", "allreduce", "--transport", "rocev2", "--event-log", "all"),
        *("--output", str(tmp_path / "run")),
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "write no event logs; leave the option out" in err
    assert not (tmp_path / "run").exists()
