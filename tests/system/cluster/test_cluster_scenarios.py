"""The scenarios of a cluster run from the command line, and leave what their manual says."""

from __future__ import annotations

import csv
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane import lab_record
from emulator.dataplane.kernel import namespaces
from emulator.report.traffic.networks import cluster_tables
from emulator.report.traffic.tables import Bounds
from tests.harness.lab.traffic import within
from tests.harness.runs.processes import forked, uetemu
from topologies import catalogue
from topologies.model import NETWORKS, CableEnd

LONGEST_S = 300

pytestmark = pytest.mark.root

SMALL = "cluster:hosts=2,gpus_per_host=1,spines=0,tenants=0,storage_nodes=1"


def cluster(*arguments: str) -> tuple[int | None, str, str]:
    process = forked("cluster", *arguments)
    out, err = process.communicate(timeout=LONGEST_S)
    return process.returncode, out, err


def ran(folder: Path, scenario: str, *arguments: str) -> list[dict[str, Any]]:
    status, out, err = cluster(scenario, "--topology", SMALL, "-o", str(folder), *arguments)
    assert status == 0, out + err
    result = json.loads((folder / "result.json").read_text())
    assert result["errors"] == []
    assert result["clock"] == "host"
    assert result["digest"] is None
    clusters = [lab for lab in lab_record.recorded() if str(result["lab"]) in lab]
    assert clusters == []
    with (folder / "networks.csv").open() as file:
        assert {row["network"] for row in csv.DictReader(file)} == {
            "backend",
            "frontend",
            "storage",
            "management",
        }
    return result["rows"]


def test_users_requests_are_answered(tmp_path: Path) -> None:
    rows = ran(
        tmp_path,
        "user_requests",
        *("--param", "bursts=2", "--param", "burst=10", "--param", "tokens=3"),
        *("--service-param", "llm.ttft=0.002", "--service-param", "llm.itl=0.001"),
    )
    by_name = {row["what"]: row for row in rows}
    assert by_name["requests"]["sent"] == 20
    assert by_name["requests"]["failed"] == 0
    assert by_name["TTFT"]["samples"] == 20
    assert by_name["ITL"]["samples"] == 40
    assert by_name["firewall of border0"]["reached"] == 0


@pytest.mark.nightly
def test_management_sees_nothing_of_other_networks(tmp_path: Path) -> None:
    rows = ran(tmp_path, "isolation", "--param", "seconds=1", "--param", "file=256KiB")
    by_name = {row["what"]: row for row in rows}
    assert all(row.get("ok", True) for row in rows)
    assert by_name["packets on management"]["foreign"] == 0
    for network in ("backend", "frontend", "storage"):
        octets = by_name[f"octets of {network}"]["octets"]
        assert isinstance(octets, int)
        assert octets > 100_000, network


@pytest.mark.nightly
def test_a_job_starts_over_management_and_says_who_is_missing(tmp_path: Path) -> None:
    status, out, err = cluster(
        "job_bootstrap",
        *("--topology", SMALL),
        *("--param", "parameters=1MiB", "--param", "layout=tree", "-o", str(tmp_path)),
    )
    assert status == 0, out + err
    result = json.loads((tmp_path / "result.json").read_text())
    by_name = {row["what"]: row for row in result["rows"]}
    start = by_name["start of job by tree"]
    assert (start["ranks"], start["right"], start["over"]) == (2, 2, "frontend")
    assert start["clock"] == "host"
    assert "rank 1 of job missing has not registered" in by_name["rank 1 missing"]["reported"]
    assert by_name["rank 0 twice"]["reporting"] == 1
    assert by_name["packets on management"]["foreign"] == 0
    watched = by_name["packets of the rendezvous"]
    assert watched["on_management"] > 0
    assert watched["watched_switches"] > 0
    assert watched["elsewhere"] == 0


def test_flows_outlive_a_dead_leaf(tmp_path: Path) -> None:
    """Lost datagrams end, and connections go on; how long it took is measured, not asserted."""
    rows = ran(
        tmp_path,
        "dead_leaf",
        *("--topology", f"{SMALL},frontend_homes=2", "--param", "seconds=2"),
    )
    quiet, dead, back = rows
    assert [row["what"] for row in rows] == [
        "nothing happens",
        "front-leaf0 dies",
        "front-leaf0 comes back",
    ]
    assert quiet["lost"] == 0
    for row in (dead, back):
        assert row["sent"] > 1000
        assert row["lost"] < row["sent"]
        assert (row["silent"], row["broken"], row["ok"]) == (0, 0, True)


def test_what_cannot_be_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for arguments, stated in (
        (("moon",), "there is no scenario of a cluster"),
        (("isolation", "--param", "moon=1"), "has no parameter 'moon'"),
        (("isolation", "--topology", "clos"), "has no networks beside the backend"),
        (("isolation", "--network-dilation", "moon=1"), "there is no network 'moon'"),
    ):
        status, _, err = cluster(*arguments, "-o", str(tmp_path / "none"))
        assert status == 1
        assert stated in err
        assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "none").exists()


def agrees_with_tshark(folder: Path) -> None:
    """What ``uetemu traffic`` has of each network is what tshark finds in its capture."""
    tables = dict(cluster_tables(folder, Bounds()))
    (side_by_side,) = tables.pop(str(folder))
    found = {str(record["property"]): record for record in side_by_side.records}
    for network in ("frontend", "storage", "management"):
        fields = ("frame.interface_name", "frame.len", "eth.src", "_ws.col.Protocol")
        argv = ["tshark", "-n", "-r", str(folder / network / "capture.pcapng"), "-T", "fields"]
        for name in (*fields, "vxlan.vni"):
            argv += ["-e", name]
        printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        topology = catalogue.load(SMALL).network_named(network)
        machines = {
            str(topology.far_end(CableEnd(one.name, port.name))): port.mac
            for one in topology.gpus
            for port in one.ports
        }
        sent: Counter[str] = Counter()
        octets = vxlan = routing = 0
        for line in printed.splitlines():
            port, length, source, protocol, vni = line.split("\t")
            vxlan += bool(vni)
            routing += protocol in ("BGP", "BFD Control")
            if source.partition(",")[0] == machines.get(port):
                sent[port] += 1
                octets += int(length)
        packets = {one.name: one for one in tables[network]}["packets"].records
        (injected,) = (one for one in packets if one["tier"] == "server to leaf")
        assert (injected["packets"], injected["bytes"]) == (sum(sent.values()), octets)
        assert injected["links"] == len(sent)
        assert found["machines or GPUs that send"][network].startswith(f"{len(sent)} of ")
        assert found["TCP (% of octets sent)"][network] > 80  # PTP is UDP
        assert found["RDMA: UET, RoCEv2 (%)"][network] == 0
        assert (found["BFD packets"][network] > 0) == (routing > 0)
        assert (found["VXLANs"][network] > 0) == (vxlan > 0)
    assert found["packets that belong elsewhere"]["management"] == 0
    for service in ("orchestration: files, names, power", "job rendezvous", "time sync: NTP, PTP"):
        assert found[f"{service} (B)"]["management"] > 0
    for service in ("telemetry", "remote access: SSH"):
        assert found[f"{service} (B)"]["management"] > 0
    moved = {
        "dataset streaming": 2 * 2 * 2**17,
        "checkpoint write": 2 * 2 * 2**16,
        "checkpoint restore": 2 * 2**16,
        "model distribution": 2 * 2**16,
    }
    for work, least in moved.items():
        row = found[f"{work} (B)"]
        assert least < row["storage"] < 2 * least, work
        assert [row[one] for one in ("backend", "frontend", "management")] == [0, 0, 0]
    assert found["checkpoint write (B)"]["storage by RDMA"] > 2 * 2**16
    assert found["RDMA: UET, RoCEv2 (%)"]["storage by RDMA"] == 100
    assert found["model servers (B)"]["frontend"] > 0
    assert found["other TCP, as between ranks (B)"]["frontend"] > 2**18
    assert found["other TCP that a job's master sends (%)"]["frontend"] > 90
    assert found["RDMA: UET, RoCEv2 (%)"]["backend"] == 100
    assert found["one-way delay below 10 us (% of packets)"]["backend"] > 99
    assert found["routers on the way, at most"]["management"] == 0


def test_a_day_goes_by_and_its_report_has_all_networks(tmp_path: Path) -> None:
    rows = ran(
        tmp_path,
        "cluster_day",
        *("--param", "shard=128KiB", "--param", "bursts=2", "--param", "burst=5"),
        *("--param", "parameters=256KiB", "--param", "state=64KiB", "--param", "widths=4,8,2"),
        *("--param", "fault=none", "--report", "--traffic"),
    )
    by_name = {row["what"]: row for row in rows}
    agrees_with_tshark(tmp_path)
    assert all(row.get("ok", True) for row in rows)
    start = by_name["start of the job"]
    assert (start["ranks"], start["right"], start["over"]) == (2, 2, "frontend")
    losses = []
    for part in (1, 2):
        training = by_name[f"training, part {part}, in virtual time"]
        assert training["verdict"] == "exact"
        alone = json.loads((tmp_path / f"training{part}" / "result.json").read_text())
        assert str(training["digest"]) == alone["digest"][:16]
        losses.append((training["loss_first"], training["loss_last"]))
        assert by_name[f"checkpoint {part} stored"]["right"] == 2
    assert losses[1] < losses[0]
    assert by_name["checkpoint 1 restored by others"]["right"] == 2
    assert by_name["packets on management"]["foreign"] == 0
    assert by_name["packets of the rendezvous"]["on_management"] != 0
    assert by_name["packets of the rendezvous"]["elsewhere"] == 0
    page = (tmp_path / "report.html").read_text()
    for name in ("backend", "frontend", "storage", "management"):
        assert f'id="figure-{name}"' in page
        assert (tmp_path / "report-figures" / f"{name}.csv").exists()
    for name in ("job-start", "virtual-training1", "virtual-training2"):
        assert f'id="figure-{name}"' in page


@pytest.mark.nightly
def test_the_networks_of_a_day_are_what_books_say_of_them(tmp_path: Path) -> None:
    status, out, err = cluster(
        *("cluster_day", "--traffic", "--format", "json", "-o", str(tmp_path)),
        *("--param", "parts=1", "--param", "bursts=3"),
    )
    assert status == 0, out + err
    (table,) = json.loads(out)["traffic"]["tables"]
    rows = {row["property"]: row for row in table["data"]}
    frontend, storage, management, backend, by_rdma = (
        {name: row[network] for name, row in rows.items()}
        for network in ("frontend", "storage", "management", "backend", "storage by RDMA")
    )
    # Frontend: a routed Clos, 100 Gb/s that GPUs share, TCP.
    assert (frontend["routers on the way, at most"], frontend["GPUs that share a port"]) == (3, 2)
    assert frontend["rate of their ports (Gb/s)"] == "100"
    assert frontend["TCP (% of octets sent)"] > 99
    # Many short mouse flows of high entropy, bursts of requests, little use.
    assert frontend["mice"] > 0.9 * frontend["flows"] > 100
    entropy = "entropy of flows on a machine's link, most (bits)"
    assert frontend[entropy] > 5
    assert frontend["inference requests (connections)"] == 2 * 3 * 20
    assert frontend["peak to mean of inference requests in 1 ms"] > 5
    assert frontend["use of machines' links, median (%)"] < 1
    # Tenants, BGP EVPN and VXLAN.
    assert (frontend["control plane"], frontend["tenants that send"]) == ("evpn", 2)
    assert frontend["BGP packets with EVPN routes"] > 0
    assert frontend["VXLAN between switches (% of packets)"] > 10
    assert frontend["VXLANs"] >= 2
    # A job starts: GPUs join, and the master rank has the first parameters.
    assert management["ranks that join (connections to the rendezvous)"] == 8
    assert frontend["other TCP, as between ranks (B)"] > 2 * 2**22
    assert frontend["other TCP that a job's master sends (%)"] > 90
    # Management: own interfaces, its services, a low rate.
    assert management["their interfaces"] == "mgmt0"
    services = [name for name in rows if name.startswith(("orchestration", "job", "time sync"))]
    for name in (*services, "telemetry (B)", "remote access: SSH (B)"):
        assert management[name] > 0, name
        assert not frontend[name] + storage[name] + backend[name], name
    assert management["mean rate of machines' links, median (Mb/s)"] < 1
    # It stays up, while all others have a fault.
    assert [one["faults"] for one in (management, frontend, storage, backend)] == [0, 1, 1, 1]
    assert management["packets lost"] == 0
    answered, _, sent = management["connections and pings that were answered"].partition(" of ")
    assert answered == sent
    answered, _, sent = storage["connections and pings that were answered"].partition(" of ")
    assert int(answered) < int(sent)
    # It never carries training, gradients or storage.
    for name in ("RDMA: UET, RoCEv2", "other TCP, as between ranks", "NVMe/TCP", "NFS"):
        assert management[f"{name} (B)"] == 0, name
    assert not any(rows["packets that belong elsewhere"][one] for one in NETWORKS)
    # Storage: four works, NVMe/TCP and RDMA.
    for name, octets in (("dataset streaming (B)", 2**23), ("model distribution (B)", 2**24)):
        assert octets < storage[name] < 1.1 * octets, name
    for name in ("checkpoint write (B)", "checkpoint restore (B)"):
        assert 2**24 < storage[name] < 1.1 * 2**24, name
    assert storage["NVMe/TCP (B)"] > 2**23
    assert by_rdma["RDMA: UET, RoCEv2 (%)"] == 100
    assert 2**24 < by_rdma["checkpoint write (B)"] < 1.1 * 2**24
    # The backend: low entropy, few long elephant flows, bursts, full links, below 10 us one way.
    assert backend[entropy] < 1
    assert backend["flows"] < 10 < frontend["flows"]
    assert backend["octets of elephants (%)"] > 90
    assert backend["peak to mean in 10 us"] > 2
    assert backend["most use in 10 us (%)"] > 70
    assert backend["use of machines' links, median (%)"] > 100 * max(
        one["use of machines' links, median (%)"] for one in (frontend, storage, management)
    )
    assert backend["one-way delay, median (us)"] < backend["one-way delay, p99 (us)"] < 10


def test_a_run_that_is_ended_leaves_its_rows_and_no_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "ended"
    process = uetemu(
        "cluster", "isolation", "--topology", SMALL, "-o", str(folder), "--param", "seconds=60"
    )
    result = folder / "result.json"
    within(LONGEST_S, lambda: (folder / "management.pcap").exists(), "the scenario has begun")
    process.terminate()
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130
    assert "interrupted" in err
    content = json.loads(result.read_text())
    assert content["errors"] == ["the run was interrupted: its rows are those until then"]
    assert [lab for lab in lab_record.recorded() if str(content["lab"]) in lab] == []
    assert [lab for lab in namespaces.everywhere() if str(content["lab"]) in lab] == []
