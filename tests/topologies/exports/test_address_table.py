"""The table of addresses says of every interface what the model says."""

import csv
import io

import pytest
from click.testing import CliRunner

from emulator.cli.graph import graph_verb
from topologies import catalogue
from topologies.exports.address_table import to_csv
from topologies.model import CableEnd


@pytest.mark.parametrize(
    "spec",
    [
        "rail_clos",
        "clos:nic_ports=2,hosts=2",
        "clos:nic_ports=4,hosts=2",
        "clos:gpus_per_nic=2,hosts=2,rails_per_switch=2",
    ],
)
def test_the_csv_agrees_with_the_model(spec: str) -> None:
    topology = catalogue.load(spec)
    rows = {
        (row["node"], row["port"]): row for row in csv.DictReader(io.StringIO(to_csv(topology)))
    }
    count = 0
    for node in topology.nodes:
        if node.loopback is not None:
            count += 1
            assert rows[node.name, "lo"]["address"] == f"{node.loopback}/32"
        for bridge in node.bridges:
            count += 1
            row = rows[node.name, bridge.name]
            assert (row["mac"], row["address"]) == (bridge.mac, str(bridge.gateway or ""))
        for port in node.ports:
            count += 1
            row = rows[node.name, port.name]
            end = CableEnd(node.name, port.name)
            link = topology.link_at(end)
            (far,) = set(link.ends) - {end}
            assert row["mac"] == port.mac
            assert row["address"] == str(port.address or "")
            assert row["bridge"] == (port.bridge or "")
            assert f"{row['far_node']}:{row['far_port']}" == str(far)
            assert int(row["rate_bps"]) == link.rate_bps
            assert row["role"] == node.role
    assert len(rows) == count


def test_members_of_a_bridge_have_its_subnet() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(catalogue.load("rail_clos")))))
    members = [row for row in rows if row["bridge"] == "rail2"]
    assert len(members) == 6
    assert {row["subnet"] for row in members} == {"10.0.3.0/24"}
    assert {row["address"] for row in members} == {""}


def test_the_text_table_has_a_line_for_every_interface() -> None:
    run = CliRunner().invoke(graph_verb.command, ["rail_clos:hosts=40", "-f", "addresses"])
    assert run.exit_code == 0
    topology = catalogue.load("rail_clos:hosts=40")
    interfaces = sum(
        len(node.ports) + len(node.bridges) + (node.loopback is not None) for node in topology.nodes
    )
    assert run.stdout.count("\n") == interfaces + 4  # title, blank, heading, rule
    assert "| rail3  | down39 " in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 120
