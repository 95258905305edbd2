"""The four networks of a cluster side by side: each cell, from captures that were made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw

from emulator.cli.reports.traffic_verb import command
from emulator.cluster.run.cluster_context import (
    CHECKPOINT_WRITE,
    DATASET_STREAMING,
    MODEL_DISTRIBUTION,
)
from emulator.cluster.run.cluster_runner import SCHEMA
from emulator.errors import UserError
from emulator.report.traffic.networks import PROPERTIES
from tests.harness.runs.written_folder import (
    BEGAN_US,
    EPOCH_NS,
    directed_capture,
    result,
    row,
    write_folder,
)
from topologies import catalogue
from topologies.model import BACKEND, NETWORKS

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


def update(attributes: bytes, withdrawn: bytes = b"") -> bytes:
    """A BGP UPDATE (RFC 4271)."""
    body = len(withdrawn).to_bytes(2) + withdrawn + len(attributes).to_bytes(2) + attributes
    return bytes([255] * 16) + (19 + len(body)).to_bytes(2) + b"\2" + body


#: ORIGIN, then routes of EVPN (RFC 4760, RFC 7432): more of them than a capture of headers has.
EVPN = update(bytes([0x40, 1, 1, 0, 0x90, 14, 4, 0, 0, 25, 70]) + bytes(1021))


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
    routes = Raw(update(b"", bytes([8, 10])) + EVPN)
    one = frame(0, peers, TCP(sport=4000, dport=179) / routes)[:192]
    frames.append((41.5, "front-leaf0:up1 out", one, 1200))
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
    frames = []
    for at_us in (10, 11, 12):
        write = TCP(sport=7000, dport=4420, seq=at_us)
        frames += over(at_us, up, 9000, (STOR[H0], STOR[STORE]), write)
    for at_us in (50, 51):
        read = TCP(sport=2049, dport=800, seq=at_us)
        frames += over(at_us, down, 9000, (STOR[STORE], STOR[H0]), read)
    return frames


def management() -> list[Placed]:
    """A login and its answer, NTP, a rank that joins, and two packets that are foreign there."""
    own, back = (MGMT[HEAD], MGMT[H0]), (MGMT[H0], MGMT[HEAD])
    frames = []
    for at_us, ends, upper in (
        (0, own, TCP(sport=900, dport=22)),
        (100, own, UDP(sport=123, dport=123)),
        (150, back, TCP(sport=902, dport=29500)),
        (200, own, TCP(sport=901, dport=2049)),
        (250, (FRONT[H0], FRONT[H1]), UDP(sport=5, dport=6)),
        (300, back, TCP(sport=22, dport=900)),
    ):
        one = frame(100, ends, upper)
        ways = ["down2 in", "down0 out"]
        if ends == back:
            ways = ["down0 in", "down2 out"]
        for number, way in enumerate(ways):
            frames.append(placed(at_us + 2 * number, f"mgmt-switch0:{way}", one))
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


def works() -> list[dict[str, Any]]:
    """What storage does, by the clock of captures (us)."""
    times = (
        (CHECKPOINT_WRITE, 5, 45),
        (DATASET_STREAMING, 45, 60),
        (MODEL_DISTRIBUTION, 70, 80),
    )
    return [
        {"work": work, "begin_ns": EPOCH_NS + begin * 1000, "end_ns": EPOCH_NS + end * 1000}
        for work, begin, end in times
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    networks = [{"network": name, "clock": "host", "dilation": 1.0} for name in CAPTURES]
    events = [{"at_s": 0.1, "text": f"storage: nic storage0 {way}"} for way in ("down", "up")]
    content = {"schema": SCHEMA, "topology": SPEC, "networks": networks, "rows": []}
    (tmp_path / "result.json").write_text(
        json.dumps({**content, "events": events, "works": works()})
    )
    lines = ["at_s,network,octets,drops", *(f"1.0,{name},0,{len(name)}" for name in CAPTURES)]
    (tmp_path / "networks.csv").write_text("\n".join(lines) + "\n")
    for name, frames in CAPTURES.items():
        (tmp_path / name).mkdir()
        write_capture(tmp_path / name, frames())
    return tmp_path


def write_capture(folder: Path, frames: list[Placed]) -> None:
    made = sorted(frames)
    ports = sorted({place.split()[0] for _, place, _, _ in made})
    (folder / "capture.pcapng").write_bytes(directed_capture(ports, made))


def properties(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(command, [str(folder), "--format", "json", *options])
    assert done.exception is None, done.exception
    (side_by_side,) = json.loads(done.stdout)[0]["tables"]
    assert side_by_side["figure"] == "networks"
    return {record.pop("property"): record for record in side_by_side["data"]}


def busy_us(octets: int, gbps: float) -> float:
    return (octets + AROUND) * 8 / gbps / 1000


def delay_us(network: str, octets: int, gbps: float, hops_us: float) -> float:
    """From the begin of a frame, whose end is captured, to the end of that at the receiver."""
    topology = catalogue.load(SPEC)
    own = topology if network == BACKEND else topology.network_named(network)
    cable_us = own.links[0].delay_ns / 1000
    return octets * 8 / gbps / 1000 + hops_us + busy_us(octets, gbps) + cable_us


def test_each_cell_is_what_the_captures_have(folder: Path) -> None:
    found = properties(folder, "--elephant", "20kB")
    fabric = ("frontend", "storage", "management", "backend")
    # The frontend: 3 packets of users, 1 of ranks; 100 Gb/s.  Storage: 3 up, 2 down; 200 Gb/s.
    expected: dict[str, tuple[Any, ...]] = {
        "machines or GPUs that send": ("1 of 4", "2 of 4", "2 of 5", "1 of 2"),
        "their interfaces": ("front0", "stor0", "mgmt0", "eth0"),
        "rate of their ports (Gb/s)": ("100", "200", "1", "400"),
        "GPUs that share a port": (1, 1, 1, 1),
        "routers on the way, at most": (3, 3, 0, 0),
        "links between switches that carry": (3, 4, 0, 0),
        "control plane": ("ebgp", "ebgp", "static", "static"),
        "BGP packets": (2, 0, 0, 0),
        "BGP packets with EVPN routes": (1, 0, 0, 0),
        "BFD packets": (1, 0, 0, 0),
        "VXLAN between switches (% of packets)": (round(100 / 12, 3), 0, None, None),
        "VXLANs": (1, 0, 0, 0),
        "tenants that send": (0, None, None, None),
        "TCP (% of octets sent)": (100, 100, 66.667, 0),
        "RDMA: UET, RoCEv2 (%)": (0, 0, 0, 100),
        "flows": (3, 2, 6, 1),
        "mice": (3, 1, 6, 0),
        "elephants": (0, 1, 0, 1),
        "octets of elephants (%)": (0, 60, 0, 100),
        "median flow (B)": (1000, 18000, 100, 32000),
        "entropy of flows on a machine's link, most (bits)": (1.5, 0, 2, 0),
        "entropy of 5-tuples there (bits)": (1.5, 0, 2, 2),
        "entropy of 5-tuples between switches, most (bits)": (2, 0, None, None),
        "one-way delay below 10 us (% of packets)": (100, 100, 100, 100),
        "inference requests (connections)": (2, 0, 0, 0),
        "peak to mean of inference requests in 1 ms": (None, None, None, None),
        "ranks that join (connections to the rendezvous)": (0, 0, 1, 0),
        "RDMA: UET, RoCEv2 (B)": (0, 0, 0, 32000),
        "model servers (B)": (1500, 0, 0, 0),
        "other TCP, as between ranks (B)": (2000, 0, 0, 0),
        "NVMe/TCP (B)": (0, 27000, 0, 0),
        "NFS (B)": (0, 18000, 100, 0),
        "orchestration: files, names, power (B)": (0, 0, 0, 0),
        "job rendezvous (B)": (0, 0, 100, 0),
        "time sync: NTP, PTP (B)": (0, 0, 100, 0),
        "telemetry (B)": (0, 0, 0, 0),
        "remote access: SSH (B)": (0, 0, 200, 0),
        "other services (B)": (0, 0, 100, 0),
        "other TCP that a job's master sends (%)": (100, None, None, None),
        "dataset streaming (B)": (0, 18000, 0, 0),
        "checkpoint write (B)": (0, 27000, 0, 0),
        "checkpoint restore (B)": ("not in this run",) * 4,
        "model distribution (B)": (0, 0, 0, 0),
        "packets that belong elsewhere": (0, 0, 2, 0),
        "faults": (0, 1, 0, 0),
        "packets lost": (8, 7, 10, 7),
        "connections and pings that were answered": ("0 of 3", "0 of 2", "1 of 3", None),
    }
    for name, cells in expected.items():
        assert tuple(found[name][network] for network in fabric) == cells, name
    spans = {
        "frontend": 63 + 0.04 + busy_us(2000, 100),
        "storage": 44 + 0.36 + busy_us(9000, 200),
        "management": 302 + 0.8 + busy_us(100, 1),
        "backend": 105.7 + 0.08 + busy_us(4000, 400),
    }
    #: Octets of the frames of each machine that sends, and the rate of its port.
    sent = {
        "frontend": ([[500, 500, 500, 2000]], 100),
        "storage": ([[9000] * 3, [9000] * 2], 200),
        "management": ([[100] * 4, [100] * 2], 1),
        "backend": ([[4000] * 8], 400),
    }
    #: Frames less than 1 us apart are of one phase.
    phases = {
        "frontend": 3 * busy_us(500, 100) + busy_us(2000, 100),
        "storage": 3 + 2 * busy_us(9000, 200),
        "management": 6 * busy_us(100, 1),
        "backend": 2 * (0.3 + busy_us(4000, 400)),
    }
    lasted = {
        "frontend": busy_us(2000, 100),
        "storage": 1.5 + busy_us(9000, 200),
        "management": busy_us(100, 1),
        "backend": 105.7 + busy_us(4000, 400),
    }
    median_delay = {
        "frontend": delay_us("frontend", 500, 100, 3),
        "storage": delay_us("storage", 9000, 200, 3),
        "management": delay_us("management", 100, 1, 2),
        "backend": delay_us("backend", 4000, 400, 0),
    }
    longest_delay = {**median_delay, "frontend": delay_us("frontend", 2000, 100, 3)}
    for name in fabric:
        machines, gbps = sent[name]
        busy = [sum(busy_us(one, gbps) for one in octets) for octets in machines]
        octets_each = [sum(octets) for octets in machines]
        calculated = {
            "mean rate of machines' links, median (Mb/s)": 8 * np.median(octets_each) / spans[name],
            "use of machines' links, median (%)": 100 * np.median(busy) / spans[name],
            "median flow lasts (us)": lasted[name],
            "communication phases (% of the time)": 100 * phases[name] / spans[name],
            "use of the busiest machine's link then (%)": 100 * max(busy) / phases[name],
            "one-way delay, median (us)": median_delay[name],
            "one-way delay, p99 (us)": longest_delay[name],
        }
        for line, value in calculated.items():
            assert found[line][name] == pytest.approx(value, abs=2e-3, rel=1e-3), (line, name)
    # The busiest 10 us: all of storage's writes; four packets of the backend.
    most = found["most use in 10 us (%)"]
    assert most["storage"] == pytest.approx(10 * 3 * busy_us(9000, 200), abs=1e-3)
    assert most["backend"] == pytest.approx(10 * 4 * busy_us(4000, 400), abs=1e-3)
    ratio = found["peak to mean in 10 us"]["backend"]
    assert ratio == pytest.approx(4 / 8 * math.ceil(spans["backend"] / 10))
    checked = {*expected, *calculated, "most use in 10 us (%)", "peak to mean in 10 us"}
    assert checked == set(PROPERTIES)


def test_requests_that_come_together_are_a_burst(folder: Path) -> None:
    """Three of four connections begin in one of four milliseconds."""
    frames = []
    for number, at_us in enumerate((10, 20, 30, 3500)):
        request = frame(100, (FRONT[H0], FRONT[H1]), TCP(sport=5000 + number, dport=8080))
        frames.append(placed(at_us, "front-leaf0:down0 in", request))
    write_capture(folder / "frontend", frames)
    found = properties(folder)
    assert found["inference requests (connections)"]["frontend"] == 4
    assert found["peak to mean of inference requests in 1 ms"]["frontend"] == 3


def test_runs_in_virtual_time_are_a_silent_backend_and_storage_by_rdma(folder: Path) -> None:
    (folder / "backend" / "capture.pcapng").unlink()
    faults = [{"said": f"t=30us link rail0:up0 {way}"} for way in ("down", "up")]
    hit = {"frames_lost": 5, "faults": faults}
    storage = "cluster_storage:hosts=2,storage_nodes=1"
    ways = {"training": ("h0g0:eth0", "rail0:down1"), "by_rdma": ("h0:stor0", "stor-leaf1:down1")}
    for name, spec, facts, ends in (
        ("training", SPEC, hit, ("10.0.1.2", "10.0.1.3")),
        ("by_rdma", storage, {"work": "checkpoint"}, (STOR[H0], STOR[STORE])),
    ):
        place = write_folder(folder / name, result(row(**facts), topology=spec))
        one = frame(1000, ends, UDP(sport=40000, dport=4793))
        frames = [placed(BEGAN_US + 1 + n, f"{way} out", one) for n, way in enumerate(ways[name])]
        write_capture(place, frames)
    found = properties(folder)
    expected = {
        "their interfaces": ("eth0", "stor0"),
        "rate of their ports (Gb/s)": ("400", "200"),
        "RDMA: UET, RoCEv2 (B)": (1000, 1000),
        "checkpoint write (B)": (0, 1000),
        "dataset streaming (B)": (0, "not in the last row"),
        "packets that belong elsewhere": (0, 0),
        "faults": (1, 0),
        "packets lost": (5, None),
    }
    for name, cells in expected.items():
        assert tuple(found[name][one] for one in ("backend", "storage by RDMA")) == cells, name


def test_a_table_has_the_networks_as_columns_and_then_as_runs(folder: Path) -> None:
    done = CliRunner().invoke(command, [str(folder)])
    assert done.exception is None, done.exception
    head = next(line for line in done.stdout.splitlines() if line.startswith("| property"))
    assert [cell.strip() for cell in head.split("|")[2:-1]] == list(NETWORKS)
    assert "# 3: frontend" in done.stdout
    assert "UDP:1 VXLAN:1" in done.stdout


def test_a_network_without_a_capture_names_the_file(folder: Path) -> None:
    (folder / "storage" / "capture.pcapng").unlink()
    done = CliRunner().invoke(command, [str(folder), "--format", "json"])
    (side_by_side,) = json.loads(done.stdout)[0]["tables"]
    assert (
        "has no storage/capture.pcapng: uetemu cluster --traffic writes it" in side_by_side["note"]
    )
    assert all("storage" not in record for record in side_by_side["data"])


def test_a_cluster_that_cannot_be_built_again_has_a_sentence(folder: Path) -> None:
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**content, "topology": "absent"}))
    refusal = CliRunner().invoke(command, [str(folder)]).exception
    assert isinstance(refusal, UserError)


def test_a_cluster_is_counted_as_a_whole(folder: Path) -> None:
    for option, value in (("--row", "1"), ("--phase", "*")):
        refusal = CliRunner().invoke(command, [str(folder), option, value]).exception
        assert isinstance(refusal, UserError)
        assert "leave --row and --phase out" in str(refusal)
