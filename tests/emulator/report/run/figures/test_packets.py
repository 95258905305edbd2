"""Figures of captured packets: whose ladder, how long between ports, in which words."""

from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from emulator.report.run.figures.packets import LADDER, packet_figures, packet_words
from emulator.report.run_folder import RunRecord
from tests.harness.runs.written_folder import BEGAN_US, capture, result, row, write_folder
from uet.wire import pds, ses

ONE, TWO, THREE = "10.0.1.3", "10.0.1.2", "10.0.1.4"


def frame(psn: int, source: str = ONE, target: str = TWO, ecn: int = 2, ttl: int = 64) -> bytes:
    request = pds.UET_RUD_REQ(psn=psn, spdcid=5, dpdcid=6) / ses.UET_SES_STD(message_id=9)
    ip = IP(src=source, dst=target, tos=ecn, ttl=ttl)
    return bytes(Ether() / ip / UDP(sport=50000, dport=4793) / request / bytes(64))


def figures(tmp_path: Path, frames: list[tuple[float, int, bytes]]) -> dict[str, Any]:
    folder = write_folder(tmp_path / "run", result(row()))
    (folder / "capture.pcapng").write_bytes(capture(frames))
    return {figure.name: figure for figure in packet_figures(RunRecord.read(folder))}


def test_a_ladder_has_the_first_flow_of_the_last_iteration_at_one_port(tmp_path: Path) -> None:
    frames = [
        (BEGAN_US - 40, 0, frame(1)),  # of the iteration before
        (BEGAN_US + 1.0, 0, frame(2)),
        (BEGAN_US + 1.5, 0, frame(3, source=THREE)),
        (BEGAN_US + 2.0, 1, frame(2)),
        (BEGAN_US + 3.0, 0, frame(4, source=TWO, target=ONE)),
        (BEGAN_US + 50, 0, frame(5)),
    ]
    ladder = figures(tmp_path, frames)["ladder"]
    assert [(one["from"], one["to"], one["t_us"]) for one in ladder.records] == [
        ("h1g0", "h0g0", 1.0),
        ("h0g0", "h1g0", 3.0),
    ]
    assert "psn=2" in ladder.records[0]["packet"]
    assert f"ip.addr == {ONE}" in ladder.filters[1]
    assert "946684800.000100000" in ladder.filters[1]


def test_times_between_ports_are_of_the_same_packet(tmp_path: Path) -> None:
    frames = []
    for psn, time_us in ((1, 0.5), (2, 0.7), (3, 1.1)):
        frames.append((BEGAN_US + 2 * psn, 0, frame(psn)))
        # ECN and TTL change on the way
        frames.append((BEGAN_US + 2 * psn + time_us, 1, frame(psn, ecn=3, ttl=63)))
    latency = figures(tmp_path, frames)["packet-latency"]
    assert {one["way"] for one in latency.records} == {"h1g0:eth0 to rail0:down0"}
    by_share = {one["share"]: one["latency_us"] for one in latency.records}
    assert by_share[0] == pytest.approx(0.5)
    assert by_share[0.5] == pytest.approx(0.7)
    assert by_share[1] == pytest.approx(1.1)
    assert latency.records[0]["packets"] == 3


def test_one_captured_port_has_no_latency_and_says_how_to_get_one(tmp_path: Path) -> None:
    latency = figures(tmp_path, [(BEGAN_US + 1, 0, frame(1))])["packet-latency"]
    assert latency.reason is not None
    assert "--capture" in latency.reason


def test_a_ladder_is_short(tmp_path: Path) -> None:
    many = [(BEGAN_US + number / 100, 0, frame(number)) for number in range(3 * LADDER)]
    assert len(figures(tmp_path, many)["ladder"].records) == LADDER


@pytest.mark.parametrize("content", [b"", b"\x0a\x0d\x0d\x0a", b"no capture at all" * 20])
def test_a_damaged_capture_becomes_a_reason(tmp_path: Path, content: bytes) -> None:
    folder = write_folder(tmp_path / "run", result(row()))
    (folder / "capture.pcapng").write_bytes(content)
    for figure in packet_figures(RunRecord.read(folder)):
        assert figure.reason is not None


def test_figures_of_a_cut_capture_say_so(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", result(row()))
    frames = [(BEGAN_US + at, at % 2, frame(1 + at // 2)) for at in range(1, 7)]
    (folder / "capture.pcapng").write_bytes(capture(frames)[:-8])
    for figure in packet_figures(RunRecord.read(folder)):
        assert figure.records
        assert "capture.pcapng ends in the middle of a packet" in figure.note


def test_packets_in_words() -> None:
    octets = frame(7, ecn=3)
    words = packet_words(octets, len(octets))
    assert words.startswith("RUD_REQ psn=7 message_id=9")
    assert words.endswith("CE")
    roce = Ether() / IP(src=ONE, dst=TWO) / UDP(sport=50000, dport=4791)
    bth = bytes([0x0A, 0, 0xFF, 0xFF, 0, 0, 0, 17, 0x80, 0, 0, 5])
    octets = bytes(roce / bth / bytes(32))
    assert packet_words(octets, len(octets)) == "WRITE_ONLY psn=5 qp=0x11"
    assert packet_words(b"\x00" * 20, 20) == "20 octets"
    assert packet_words(b"", 0) == "0 octets"
