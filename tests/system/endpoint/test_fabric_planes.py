"""Figure 14-1 in a real fabric: a FEP in each plane, and work that leaves a dead plane."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address

import pytest

from emulator.asic.port_faults import Faults
from emulator.errors import UserError
from emulator.pytest_plugin.run_factory import RunFactory
from emulator.transports import fit
from tests.harness.lab.endpoint_lab import needs_root, root
from tests.system.endpoint.test_homing import Job, fabric, seen_at
from tests.system.runs.test_traffic_runs import run
from topologies.catalogue import load
from topologies.designs.planes import fep_addresses, fep_number
from topologies.model import CableEnd, Link, Topology

pytestmark = [root, needs_root]

SPEC = "fabric_planes"


def transport(job: Job, gpu: str) -> Mapping[str, int]:
    rank = [one.name for one in job.lab.topology.gpus].index(gpu)
    return job.pool.counters()[rank]["transport"]


def sent(job: Job) -> list[int]:
    """Data packets of all GPUs in each plane."""
    total = [0, 0]
    for place, layers in job.pool.counters().items():
        gpu = job.lab.topology.gpus[place]
        for plane, fep in enumerate(gpu.feps):
            layer = layers[f"fep{fep_number(job.lab.topology, gpu, fep.name)}"]
            total[plane] += layer["tx_data_packets"]
    return total


def cables_of(topology: Topology, switch: str) -> list[Link]:
    return [link for link, _, _ in topology.neighbours(switch)]


def test_the_kernel_has_a_way_in_each_plane_and_none_between_them() -> None:
    with fabric(SPEC) as lab:
        addresses = fep_addresses(lab.topology.node("h1g1"))
        for plane, address in enumerate(addresses):
            way = lab.exec("h0g0", ["ip", "route", "get", address]).stdout
            port = lab.topology.node("h0g0").feps[plane]
            assert port.address is not None
            assert f"dev {port.name} src {port.address.ip}" in way
            lab.exec("h0g0", ["ping", "-c", "1", "-W", "20", address]).check_returncode()
        other = lab.exec("rail0", ["ip", "route", "get", addresses[1]])
        assert other.returncode != 0


def test_a_fep_talks_over_its_own_leaf_to_the_feps_in_its_plane() -> None:
    with fabric(SPEC) as lab, Job(lab, "uet") as job, ExitStack() as stack:
        ports = [CableEnd("rail0", "down0"), CableEnd("rail1", "down0")]  # those of h0g0
        seen = [stack.enter_context(seen_at(lab, port)) for port in ports]
        job.run()
        mac = lab.topology.node("h0g0").ports[0].mac
        for plane, tap in enumerate(seen):
            tap.setblocking(False)
            frames = []
            with suppress(BlockingIOError):
                while True:
                    frames.append(tap.recv(64))
            pairs = {(IPv4Address(frame[26:30]), IPv4Address(frame[30:34])) for frame in frames}
            feps = {IPv4Address(fep_addresses(gpu)[plane]) for gpu in lab.topology.gpus}
            assert pairs
            assert {address for pair in pairs for address in pair} <= feps
            ours = IPv4Address(fep_addresses(lab.topology.node("h0g0"))[plane])
            left = [frame for frame in frames if IPv4Address(frame[26:30]) == ours]
            assert {frame[6:12].hex(":") for frame in left} == {mac}
        assert min(sent(job)) > 0


@pytest.mark.parametrize("dead", [0, 1])
def test_work_leaves_a_dead_leaf_and_comes_back(dead: int) -> None:
    with fabric(SPEC) as lab, Job(lab, "uet") as job:
        cables = cables_of(lab.topology, f"rail{dead}")
        job.run(lambda: lab.cables.pull(cables))
        before = sent(job)
        assert min(before) > 0
        job.run()
        after = sent(job)
        assert after[dead] == before[dead]
        assert after[1 - dead] > before[1 - dead]
        assert {transport(job, gpu.name)["planes_down"] for gpu in lab.topology.gpus} == {1}
        lab.cables.plug(cables)
        job.run()
        assert sent(job)[dead] > after[dead]
        assert {transport(job, gpu.name)["planes_up"] for gpu in lab.topology.gpus} == {1}


def test_work_leaves_a_plane_that_swallows_what_one_gpu_gets() -> None:
    with fabric(SPEC) as lab, Job(lab, "uet") as job:
        asic = lab.asic
        assert asic is not None
        job.run(lambda: asic.inject("rail0:down0", Faults(black_hole=True)))
        counters = [transport(job, gpu.name) for gpu in lab.topology.gpus]
        assert sum(each["planes_silent"] for each in counters) > 0
        assert sum(each["tx_messages_issued_again"] for each in counters) > 0
        assert {each["planes_down"] for each in counters} == {0}


@pytest.mark.parametrize("dead", ["rail0", "rail1"])
def test_a_run_has_the_counters_of_each_fep_and_survives_its_leaf(
    uetemu_run: RunFactory, dead: str
) -> None:
    fault = ("--fault", f"t=5us switch {dead} down")
    given = {"sizes": "1MiB", "message": "16KiB", "warmups": "0"}
    content = run(uetemu_run, "permutation", "--topology", SPEC, *fault, **given)
    topology = load(SPEC)
    for gpu in topology.gpus:
        counters = content["endpoints"][gpu.name]
        feps = [fep_number(topology, gpu, fep.name) for fep in gpu.feps]
        each = [counters[f"fep{number}.tx_data_packets"] for number in feps]
        assert min(each) > 0
        assert sum(each) == counters["transport.tx_data_packets"]
        assert counters["transport.planes_down"] > 0
    assert json.loads((content["folder"] / "fabric.json").read_text())["nodes"][0]["ports"][1][
        "fep"
    ]


@pytest.mark.parametrize("dead", ["rail0", "rail1"])
def test_work_leaves_a_black_cable_in_a_run(uetemu_run: RunFactory, dead: str) -> None:
    fault = ("--fault", f"t=5us link {dead}:down0 blackhole")
    short = ("--sizes", "1MiB", "--param", "warmups=0", "--capture", "none")
    content = run(uetemu_run, "permutation", "--topology", SPEC, *fault, *short)
    assert [row["wrong"] for row in content["rows"]] == [0]
    counters = [content["endpoints"][gpu.name] for gpu in load(SPEC).gpus]
    assert sum(each["transport.planes_silent"] for each in counters) > 0
    assert sum(each["transport.tx_messages_issued_again"] for each in counters) > 0
    assert {each["transport.planes_down"] for each in counters} == {0}


def test_one_address_over_both_ports_and_rocev2_are_told_apart() -> None:
    with pytest.raises(UserError, match="take homing=paths"):
        fit("rocev2", load(SPEC))
    assert fit("rocev2", load(f"{SPEC}:homing=paths")).configs["h0g0"]["address"] == "10.255.192.1"
