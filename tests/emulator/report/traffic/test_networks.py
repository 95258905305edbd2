"""The four networks of a cluster side by side: each cell, from captures that were made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet

from emulator.cli.reports.traffic_verb import command
from emulator.cluster.run.cluster_runner import SCHEMA
from emulator.errors import UserError
from emulator.report.traffic.networks import PROPERTIES
from tests.harness.runs.written_folder import directed_capture

SPEC = "cluster:hosts=2,gpus_per_host=1,spines=0,tenants=0,storage_nodes=1"
H0, H1, STORE, HEAD = "h0", "h1", "storage0", "head0"
#: Of the frontend, the storage network and management.
FRONT = {H0: "100.64.0.2", H1: "100.64.1.2"}
STOR = {H0: "100.72.0.2", STORE: "100.72.1.3"}
MGMT = {H0: "100.80.0.2", HEAD: "100.80.0.4"}
#: What surrounds a frame on the wire: preamble, FCS, gap.
AROUND = 24

Placed = tuple[float, str, bytes, int]


def frame(octets: int, ends: tuple[str, str], upper: Packet, ttl: int = 64) -> bytes:
    head = bytes(Ether() / IP(src=ends[0], dst=ends[1], ttl=ttl) / upper)
    return head + bytes(max(0, octets - len(head)))


def placed(at_us: float, place: str, octets: bytes) -> Placed:
    return at_us, place, octets, len(octets)


def over(
    at_us: float, ways: list[str], octets: int, ends: tuple[str, str], upper: Packet
) -> list[Placed]:
    """A packet that passes these places, a router before each that it goes out of."""
    found = []
    ttl = 64
    for number, way in enumerate(ways):
        ttl -= way.endswith("out")
        found.append(placed(at_us + number, way, frame(octets, ends, upper, ttl)))
    return found


def frontend() -> list[Placed]:
    """Requests of two connections of h0 to h1's model server, and what spines see of them."""
    ends = FRONT[H0], FRONT[H1]
    ways = [
        "front-leaf0:down0 in",
        "front-leaf0:up0 out",
        "front-spine0:down1 out",
        "front-leaf1:down0 out",
    ]
    frames = []
    for at_us, sport in ((10, 5000), (20, 5001), (30, 5001)):
        frames += over(at_us, ways, 500, ends, TCP(sport=sport, dport=8080))
    frames += over(70, ways, 2000, ends, TCP(sport=6000, dport=6001))  # between ranks
    peers = "100.100.0.1", "100.100.0.2"
    frames.append(placed(41, "front-leaf0:up1 out", frame(100, peers, TCP(sport=179, dport=4000))))
    frames.append(placed(42, "front-leaf0:up1 out", frame(66, peers, UDP(sport=49152, dport=3784))))
    inner = Ether() / IP(src=ends[0], dst=ends[1]) / TCP(sport=5000, dport=8080)
    outer = UDP(sport=50000, dport=4789) / VXLAN(vni=30000) / inner
    frames.append(placed(43, "front-leaf0:up1 out", frame(150, peers, outer)))
    return frames


def storage() -> list[Placed]:
    """A write of h0 by NVMe/TCP, and a file that it reads by NFS."""
    up = [
        "stor-leaf0:down0 in",
        "stor-leaf0:up0 out",
        "stor-spine0:down1 out",
        "stor-leaf1:down1 out",
    ]
    down = [
        "stor-leaf1:down1 in",
        "stor-leaf1:up0 out",
        "stor-spine0:down0 out",
        "stor-leaf0:down0 out",
    ]
    write = TCP(sport=7000, dport=4420)
    read = TCP(sport=2049, dport=800)
    frames = []
    for at_us in (10, 11, 12):
        frames += over(at_us, up, 9000, (STOR[H0], STOR[STORE]), write)
    for at_us in (50, 51):
        frames += over(at_us, down, 9000, (STOR[STORE], STOR[H0]), read)
    return frames


def management() -> list[Placed]:
    """SSH, NTP, and one packet of the shared file system, which is foreign there."""
    frames = []
    for at_us, upper in (
        (0, TCP(sport=900, dport=22)),
        (100, UDP(sport=123, dport=123)),
        (200, TCP(sport=901, dport=2049)),
    ):
        one = frame(100, (MGMT[HEAD], MGMT[H0]), upper)
        frames += [
            placed(at_us, "mgmt-switch0:down2 in", one),
            placed(at_us + 2, "mgmt-switch0:down0 out", one),
        ]
    return frames


def backend() -> list[Placed]:
    """Two bursts of a UET flow, whose packets have four entropy values."""
    frames = []
    for number in range(8):
        at_us = number * 0.1 + (105 if number >= 4 else 0)
        one = frame(4000, ("10.0.1.2", "10.0.1.3"), UDP(sport=40000 + number % 4, dport=4793))
        frames += [placed(at_us, "rail0:down0 in", one), placed(at_us, "rail0:down1 out", one)]
    return frames


CAPTURES = {"frontend": frontend, "storage": storage, "management": management, "backend": backend}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    networks = [{"network": name, "clock": "host", "dilation": 1.0} for name in CAPTURES]
    content = {"schema": SCHEMA, "topology": SPEC, "networks": networks, "rows": []}
    (tmp_path / "result.json").write_text(json.dumps(content))
    lines = ["at_s,network,octets,drops", *(f"1.0,{name},0,{len(name)}" for name in CAPTURES)]
    (tmp_path / "networks.csv").write_text("\n".join(lines) + "\n")
    for name, frames in CAPTURES.items():
        made = sorted(frames())
        ports = sorted({place.split()[0] for _, place, _, _ in made})
        (tmp_path / name).mkdir()
        (tmp_path / name / "capture.pcapng").write_bytes(directed_capture(ports, made))
    return tmp_path


def properties(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(command, [str(folder), "--format", "json", *options])
    assert done.exception is None, done.exception
    (side_by_side,) = json.loads(done.stdout)[0]["tables"]
    assert side_by_side["figure"] == "networks"
    return {record.pop("property"): record for record in side_by_side["data"]}


def busy_us(octets: int, gbps: float) -> float:
    return (octets + AROUND) * 8 / gbps / 1000


def test_each_cell_is_what_the_captures_have(folder: Path) -> None:
    found = properties(folder, "--elephant", "20kB")
    fabric = ("frontend", "storage", "management", "backend")
    # The frontend: 3 packets of users, 1 of ranks; 100 Gb/s.  Storage: 3 up, 2 down; 200 Gb/s.
    expected: dict[str, tuple[Any, ...]] = {
        "machines or GPUs that send": ("1 of 4", "2 of 4", "1 of 5", "1 of 2"),
        "rate of their ports (Gb/s)": ("100", "200", "1", "400"),
        "GPUs that share a port": (1, 1, None, 1),
        "routers on the way, at most": (3, 3, 0, 0),
        "links between switches that carry": (3, 4, 0, 0),
        "TCP (% of octets sent)": (100, 100, 66.667, 0),
        "RDMA: UET, RoCEv2 (%)": (0, 0, 0, 100),
        "flows": (3, 2, 3, 1),
        "mice": (3, 1, 3, 0),
        "octets of elephants (%)": (0, 60, 0, 100),
        "median flow (B)": (1000, 18000, 100, 32000),
        "entropy of a machine's link, most (bits)": (1.5, 0, 1.585, 2),
        "entropy between switches, most (bits)": (1.585, 0, None, None),
        "BGP packets": (1, 0, 0, 0),
        "BFD packets": (1, 0, 0, 0),
        "VXLAN between switches (% of packets)": (round(100 / 11, 3), 0, None, None),
        "VXLANs": (1, 0, 0, 0),
        "services (B)": (
            "llm:1500 other TCP:2000",
            "nfs:18000 nvme:27000",
            "nfs:100 ntp:100 ssh:100",
            "UET:32000",
        ),
        "management's services (B)": (0, 0, 200, 0),
        "storage's services (B)": (0, 45000, 100, 0),
        "model servers (B)": (1500, 0, 0, 0),
        "between ranks, by TCP (B)": (2000, 0, 0, 0),
        "sends most": ("h0 100 %", "h0 60 %", "head0 100 %", "h0g0 100 %"),
        "storage nodes send (B)": (0, 18000, 0, 0),
        "storage nodes receive (B)": (0, 27000, 0, 0),
        "packets that belong elsewhere": (0, 0, 1, 0),
        "packets lost": (8, 7, 10, 7),
    }
    for name, cells in expected.items():
        assert tuple(found[name][network] for network in fabric) == cells, name
    spans = {
        "frontend": 63 + 0.04 + busy_us(2000, 100),
        "storage": 44 + 0.36 + busy_us(9000, 200),
        "management": 202 + 0.8 + busy_us(100, 1),
        "backend": 105.7 + 0.08 + busy_us(4000, 400),
    }
    sent = {
        "frontend": [3 * busy_us(500, 100) + busy_us(2000, 100)],
        "storage": [3 * busy_us(9000, 200), 2 * busy_us(9000, 200)],
        "management": [3 * busy_us(100, 1)],
        "backend": [8 * busy_us(4000, 400)],
    }
    lasted = {
        "frontend": busy_us(2000, 100),
        "storage": 1.5 + busy_us(9000, 200),
        "management": busy_us(100, 1),
        "backend": 105.7 + busy_us(4000, 400),
    }
    for name in fabric:
        use = sum(100 * one / spans[name] for one in sent[name]) / len(sent[name])
        assert found["median use of machines' links (%)"][name] == pytest.approx(use, abs=1e-3)
        assert found["median flow lasts (us)"][name] == pytest.approx(lasted[name], abs=2e-3)
    # The busiest 10 us: all of storage's writes; four packets of the backend.
    most = found["most use in 10 us (%)"]
    assert most["storage"] == pytest.approx(10 * 3 * busy_us(9000, 200), abs=1e-3)
    assert most["backend"] == pytest.approx(10 * 4 * busy_us(4000, 400), abs=1e-3)
    ratio = found["peak to mean in 10 us"]["backend"]
    assert ratio == pytest.approx(4 / 8 * math.ceil(spans["backend"] / 10))
    checked = {*expected, "median use of machines' links (%)", "median flow lasts (us)"}
    assert checked | {"most use in 10 us (%)", "peak to mean in 10 us"} == set(PROPERTIES)


def test_a_table_has_the_networks_as_columns_and_then_as_runs(folder: Path) -> None:
    done = CliRunner().invoke(command, [str(folder)])
    assert done.exception is None, done.exception
    head = next(line for line in done.stdout.splitlines() if line.startswith("| property"))
    assert [cell.strip() for cell in head.split("|")[2:-1]] == list(CAPTURES)
    assert "# 2: frontend" in done.stdout
    assert "UDP:1 VXLAN:1" in done.stdout


def test_a_network_without_a_capture_names_the_file(folder: Path) -> None:
    (folder / "storage" / "capture.pcapng").unlink()
    done = CliRunner().invoke(command, [str(folder), "--format", "json"])
    (side_by_side,) = json.loads(done.stdout)[0]["tables"]
    assert (
        "has no storage/capture.pcapng: uetemu cluster --capture writes it" in side_by_side["note"]
    )
    assert all("storage" not in record for record in side_by_side["data"])


def test_a_cluster_that_cannot_be_built_again_has_a_sentence(folder: Path) -> None:
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**content, "topology": "absent"}))
    refusal = CliRunner().invoke(command, [str(folder)]).exception
    assert isinstance(refusal, UserError)
