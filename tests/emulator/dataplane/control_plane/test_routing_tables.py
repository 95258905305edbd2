"""Routes as a page: of the topology, and as a run has left them.  FRR's: tests/system."""

import json
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from emulator.dataplane.control_plane.control_plane_choice import chosen
from emulator.dataplane.control_plane.daemons import directory_of
from emulator.dataplane.control_plane.routing_tables import (
    ROUTES,
    RoutesRecord,
    computed,
    left_in,
    link_local,
    living_routes,
    overlapping,
)
from emulator.errors import UserError
from topologies import catalogue
from topologies.model import Topology


@pytest.fixture(scope="module")
def fabric() -> Topology:
    return catalogue.load("rail_clos:hosts=1,gpus_per_host=2")


def hops(record: RoutesRecord) -> dict[str, list[str]]:
    return {row["prefix"]: row["rib"][0]["next_hops"] for row in record["routes"]}


def test_static_routes_stand_for_those_of_protocols(fabric: Topology) -> None:
    record = computed(fabric, "rail0", "here")
    both = ["up0 (172.16.0.1)", "up1 (172.16.0.3)"]
    assert hops(record)["10.0.2.0/24"] == both
    assert hops(record)["10.0.1.0/24"] == []
    assert record["routes"][0]["rib"][0]["protocol"] == "own"
    assert set(record["stands_in"]) == {"export_policy", "loc_rib", "adj_rib_in", "adj_rib_out"}
    spoken = computed(chosen(fabric, "ebgp"), "rail0", "here")
    assert hops(spoken) == hops(record)
    networks = ["network 10.0.1.0/24", "network 10.255.0.1/32"]
    assert spoken["export_policy"] == {"ipv4 unicast": networks}


def test_an_end_point_has_gateways_and_its_own_subnets(fabric: Topology) -> None:
    record = computed(chosen(fabric, "ebgp"), "h0g0", "here")
    assert hops(record) == {"0.0.0.0/0": ["eth0 (10.0.1.1)"], "10.0.1.0/24": ["eth0"]}
    assert record["control_plane"] == "static"
    bonded = catalogue.load("clos:hosts=1,gpus_per_host=1,nic_ports=2,homing=bond")
    assert hops(computed(bonded, "h0g0", "here"))["10.0.1.0/24"] == ["bond0"]


def test_a_running_node_has_what_its_kernel_says(fabric: Topology) -> None:
    kernel = living_routes(
        '[{"dst":"100.72.0.0/13","gateway":"100.72.0.1","dev":"stor0","protocol":"static","flags":[]}]'
    )
    assert hops(computed(fabric, "h0g0", "here", kernel=kernel)) == {
        "100.72.0.0/13": ["stor0 (100.72.0.1)"]
    }


def test_a_prefix_chooses_what_covers_it_or_lies_in_it(fabric: Topology) -> None:
    record = computed(fabric, "rail0", "here")
    for prefix, kept in {
        "10.0.2.7/32": {"10.0.2.0/24"},
        "10.0.0.0/16": {"10.0.1.0/24", "10.0.2.0/24"},
        "10.9.0.0/16": set(),
    }.items():
        assert set(hops(overlapping(record, IPv4Network(prefix)))) == kept


def test_a_prefix_is_found_in_routes_of_evpn(fabric: Topology) -> None:
    record = computed(fabric, "rail0", "here")
    host = "10.255.0.1:2 [2]:[0]:[48]:[12:01:00:00:00:00]:[32]:[10.0.1.2]"
    station = "10.255.0.1:2 [2]:[0]:[48]:[12:01:00:00:00:00]"
    subnet = "10.255.0.1:2 [5]:[0]:[24]:[10.0.3.0]"
    rows = [{**record["routes"][0], "prefix": prefix} for prefix in (host, station, subnet)]
    told: RoutesRecord = {**record, "routes": rows}  # type: ignore[typeddict-item]

    def found(prefix: str) -> list[str]:
        return [row["prefix"] for row in overlapping(told, IPv4Network(prefix))["routes"]]

    assert found("10.0.1.0/24") == [host]
    assert found("10.0.3.9/32") == [subnet]


def test_next_hops_behind_a_dead_port_do_not_count() -> None:
    alive = {"gateway": "172.16.0.3", "dev": "up1", "flags": []}
    dead = {"gateway": "172.16.0.1", "dev": "up0", "flags": ["dead", "linkdown"]}
    static = {"protocol": "static"}
    routes = [
        {"dst": "10.0.2.0/24", "flags": [], "nexthops": [dead, alive], **static},
        {"dst": "10.0.2.0/24", "metric": 9, **static, **dead},
        {"dst": "10.255.64.2", **static, **alive},
        {"dst": "default", **static, **dead},
        {"type": "blackhole", "dst": "10.9.0.0/16", "flags": [], **static},
        {
            "dst": "99.0.0.0/8",
            "via": {"family": "inet6", "host": "fe80::1"},
            "dev": "up1",
            "flags": [],
        },
        {"dst": "172.16.0.2/31", "dev": "up1", "flags": [], "protocol": "kernel"},
    ]
    found = living_routes(json.dumps(routes))
    assert {prefix: (route["protocol"], route["next_hops"]) for prefix, route in found.items()} == {
        "10.0.2.0/24": ("static", ["up1 (172.16.0.3)"]),
        "10.255.64.2/32": ("static", ["up1 (172.16.0.3)"]),
        "0.0.0.0/0": ("static", []),
        "10.9.0.0/16": ("static", ["blackhole"]),
        "99.0.0.0/8": ("boot", ["up1 (fe80::1)"]),
        "172.16.0.2/31": ("connected", ["up1"]),
    }


def test_a_link_local_address_is_that_which_linux_makes_of_a_mac() -> None:
    assert link_local("12:12:00:00:00:00") == "fe80::1012:ff:fe00:0"


def test_a_run_has_left_routes_or_none_or_says_why(fabric: Topology, tmp_path: Path) -> None:
    assert left_in(tmp_path, "rail0") is None
    file = directory_of(tmp_path, "rail0") / ROUTES
    file.parent.mkdir(parents=True)
    record = computed(fabric, "rail0", "here")
    file.write_text(json.dumps(record))
    assert left_in(tmp_path, "rail0") == record
    file.write_text(json.dumps({"missing": "bgpd of rail0 has died"}))
    with pytest.raises(UserError, match="not kept the routes of rail0: bgpd of rail0 has died"):
        left_in(tmp_path, "rail0")
    cut = json.dumps({key: value for key, value in record.items() if key != "source"})
    for damaged in ("", "[]", cut, json.dumps({**record, "routes": [{}]})):
        file.write_text(damaged)
        with pytest.raises(UserError, match="damaged"):
            left_in(tmp_path, "rail0")
