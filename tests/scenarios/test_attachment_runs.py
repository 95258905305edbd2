"""Runs on GPUs with two ports, behind shared NICs, and on rails without a spine."""

import subprocess
from collections import defaultdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from emulator.dataplane.capture.fabric_capture import ports_of, select
from emulator.pytest_plugin.runs import RunFactory
from emulator.run.plan.run_plan import default_capture
from scenarios import incast
from tests.scenarios.test_traffic_runs import run
from topologies.catalogue import load

SHORT = {"size": "128KiB", "message": "16KiB", "warmups": "0"}

#: GPUs of one server to those of their number on the other, all behind one NIC on each side.
SIDE_BY_SIDE = '''
"""Four GPUs behind one NIC send to four behind another."""
from dataclasses import dataclass
from emulator.run.report import traffic
from scenarios.workloads.flows import Flow, Traffic, TrafficParameters


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    pass


def topology(parameters):
    return "clos:hosts=2,gpus_per_host=4,gpus_per_nic=4,spines=0"


def schedules(parameters, topology, seed):
    flows = tuple(Flow(source=at, destination=at + 4, length=parameters.size) for at in range(4))
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    return [pattern.trial("side by side", parameters)]


def measures(parameters, topology, trial, outcome):
    return traffic.measured(topology, outcome)
'''


def test_both_ports_carry_an_allreduce(uetemu_run: RunFactory) -> None:
    """A flow of RoCEv2 has one port, and all packets of UET take turns."""
    content = run(
        uetemu_run,
        "allreduce",
        "--topology",
        "clos:hosts=2,gpus_per_host=2,spines=1,nic_ports=2,planes=own",
        "--transport",
        "uet,rocev2",
        "--seeds",
        "1",
        sizes="256KiB",
        iterations="1",
    )
    for gpu, counts in content["endpoints"].items():
        first, second = (counts[f"nic.port{n}_frames_out"] for n in (0, 1))
        assert min(first, second) > (first + second) / 8, gpu
    captured = {frame["frame.interface_name"] for frame in frames(content)}
    assert {"rail0:down0", "rail2:down0"} <= captured


def test_default_captures_have_all_ports_of_a_gpu() -> None:
    topology = load("clos:hosts=2,gpus_per_host=2,spines=1,nic_ports=2,uplinks_per_spine=1")
    for chosen in (default_capture(topology), incast.capture(incast.Parameters(), topology)):
        ports = {str(tap) for tap in select(chosen, ports_of(topology))}
        assert any(port.startswith("rail0:down0") for port in ports)
        assert any(port.startswith("rail2:down0") for port in ports)


def test_gpus_share_a_nic_fairly_and_nothing_is_lost_in_it(
    uetemu_run: RunFactory, tmp_path: Path
) -> None:
    scenario = tmp_path / "side_by_side.py"
    scenario.write_text(SIDE_BY_SIDE)
    content = run(uetemu_run, str(scenario), "--capture", "none", **SHORT)
    (row,) = content["rows"]
    # four flows through one cable of 400 Gb/s: 50 octets/ns
    assert row["ideal_us"] * 1000 > 4 * 128 * 1024 / 50
    assert row["jain"] > 0.9
    assert row["dropped_packets"] == row["trimmed_packets"] == 0
    nic = {name: port for name, port in content["ports"].items() if name.startswith("h0n0")}
    assert len(nic) == 5
    assert all(port["data"]["drops"] == 0 for port in nic.values())
    assert nic["h0n0:port0"]["data"]["packets"] > 0


def test_a_pause_holds_all_gpus_of_a_shared_nic(uetemu_run: RunFactory) -> None:
    content = run(
        uetemu_run,
        "incast",
        "--capture",
        "none",
        "--topology",
        "clos:hosts=3,gpus_per_host=2,gpus_per_nic=2,spines=0,pcie_rate=512Gbps",
        "--transport",
        "rocev2:cc=none",
        "--switch",
        "lossless:xoff=40KB",
        senders="4",
        **SHORT,
    )
    (row,) = content["rows"]
    assert row["dropped_packets"] == row["retransmitted_packets"] == 0
    ports = content["ports"]
    for nic in ("h1n0:port0", "h2n0:port0"):
        assert ports[nic]["pfc"]["pauses"] > 0
    assert all(port["data"]["drops"] == 0 for port in ports.values())


def test_what_changes_the_rail_does_so_inside_the_server(uetemu_run: RunFactory) -> None:
    """Rail r is 10.0.(r+1).0: on its switch there are frames from there to there and no others."""
    content = run(
        uetemu_run,
        "permutation",
        "--capture",
        "rail*",
        "--topology",
        "clos:hosts=2,gpus_per_host=2,spines=0",
        sizes="64KiB",
        warmups="0",
    )
    assert content["rows"][0]["relayed_messages"] > 0
    seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for frame in frames(content):
        switch = frame["frame.interface_name"].partition(":")[0]
        seen[switch].add((frame["ip.src"], frame["ip.dst"]))
    assert set(seen) == {"rail0", "rail1"}
    for switch, pairs in seen.items():
        subnet = int(switch[-1]) + 1
        assert {ip_address(end).packed[2] for pair in pairs for end in pair} == {subnet}


def frames(content: dict[str, Any]) -> list[dict[str, str]]:
    """Return what tshark says of every captured IP packet."""
    names = ("frame.interface_name", "ip.src", "ip.dst")
    arguments = [part for name in names for part in ("-e", name)]
    capture = str(content["folder"] / "capture.pcapng")
    shown = subprocess.run(
        ["tshark", "-r", capture, "-Y", "ip", "-T", "fields", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("\t") for line in shown.stdout.splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows]
