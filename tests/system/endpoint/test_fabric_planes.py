"""Figure 14-1 in a real fabric: a FEP in each plane, and work that leaves a dead plane."""

import json

import pytest

from emulator.errors import UserError
from emulator.pytest_plugin.runs import RunFactory
from emulator.transports import fit
from tests.harness.lab.endpoint_lab import small_lab
from tests.scenarios.test_traffic_runs import run
from topologies.catalogue import load
from topologies.designs.planes import fep_addresses, fep_number

pytestmark = pytest.mark.root

SPEC = "fabric_planes"


def test_the_kernel_has_a_way_in_each_plane_and_none_between_them() -> None:
    with small_lab(SPEC) as lab:
        addresses = fep_addresses(lab.topology.node("h1g1"))
        for plane, address in enumerate(addresses):
            way = lab.exec("h0g0", ["ip", "route", "get", address]).stdout
            port = lab.topology.node("h0g0").feps[plane]
            assert port.address is not None
            assert f"dev {port.name} src {port.address.ip}" in way
            lab.exec("h0g0", ["ping", "-c", "1", "-W", "20", address]).check_returncode()
        other = lab.exec("rail0", ["ip", "route", "get", addresses[1]])
        assert other.returncode != 0


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


def test_a_dead_plane_of_eight_costs_its_share(uetemu_run: RunFactory) -> None:
    """Messages of 896 packets, a multiple of eight and of seven, on both kinds of fabric."""
    eight = ("--topology", f"{SPEC}:nic_ports=8,nic_rate=100Gbps")
    given = {"sizes": "7MiB", "message": "3584KiB", "warmups": "0"}
    dead = ("--fault", "t=0us switch rail3 down")
    (whole,) = run(uetemu_run, "permutation", *eight, "--fabric", "model", **given)["rows"]
    rows = [
        run(uetemu_run, "permutation", *eight, *dead, *fabric, **given)["rows"][0]
        for fabric in (("--fabric", "model"), ("--workers", "2"))
    ]
    assert rows[0]["digest"] == rows[1]["digest"]
    assert rows[0]["wrong"] == 0
    assert rows[0]["time_us"] / whole["time_us"] == pytest.approx(8 / 7, rel=0.02)


def test_one_address_over_both_ports_and_rocev2_are_told_apart() -> None:
    with pytest.raises(UserError, match="take homing=paths"):
        fit("rocev2", load(SPEC))
    assert fit("rocev2", load(f"{SPEC}:homing=paths")).configs["h0g0"]["address"] == "10.255.192.1"
