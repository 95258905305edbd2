"""``uetemu routes`` without a lab: the page of a fabric, and sentences."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emulator.cli.labs.routes_verb import command
from emulator.dataplane.control_plane import routing_tables
from emulator.dataplane.control_plane.routing_tables import RoutesRecord, computed
from emulator.errors import UserError
from tests.harness.runs.modelled_run import ModelledRun
from topologies import catalogue
from topologies.model import TopologyError

FABRIC = ("--topology", "rail_clos:hosts=1,gpus_per_host=2")


def routes(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=True)


def test_a_page_has_what_stands_in_and_a_line_for_each_route() -> None:
    shown = routes("rail0", *FABRIC, "--prefix", "10.0.2.3").stdout
    assert "rail0: control plane static; topology" in shown
    assert "Adj-RIB-In: nothing: no neighbour tells of routes" in shown
    assert shown.count("\n| 10.") == 1
    assert "| 10.0.2.0/24 | static: up0 (172.16.0.1), up1 (172.16.0.3) |" in shown
    assert routes("rail0", *FABRIC, "--prefix", "11.0.0.0/8").stdout.endswith("no route\n")


def test_json_has_the_same() -> None:
    record = json.loads(routes("spine0", *FABRIC, "--format", "json").stdout)
    assert record["node"] == "spine0"
    assert {row["prefix"] for row in record["routes"]} >= {"10.0.1.0/24", "10.0.2.0/24"}


def test_a_run_on_a_model_has_what_bgp_ends_with(tmp_path: Path) -> None:
    fabric = ("--topology", "rail_clos:hosts=2,gpus_per_host=2", "--sizes", "4KiB")
    run = ModelledRun(tmp_path, "sendrecv", *fabric, "--control-plane", "ebgp")
    status, _, errors = run.communicate()
    assert status == 0, errors
    shown = routes("rail0", "--run", str(run.folder)).stdout
    assert "Adj-RIB-In: not known: no daemon was asked" in shown
    assert "| 10.0.2.0/24    | bgp: up0 (172.16.0.1), up1 (172.16.0.3) |" in shown


def test_a_node_of_other_networks_of_a_cluster_is_found() -> None:
    cluster = ("--topology", "cluster:hosts=1,gpus_per_host=1")
    assert "front-leaf0: control plane evpn" in routes("front-leaf0", *cluster).stdout
    machine = routes("h0", *cluster).stdout
    for port in ("front0 (100.66.0.1)", "stor0 (100.72.0.1)", "mgmt0 (100.80.0.1)"):
        assert f"static: {port}" in machine


def test_the_page_leaves_out_what_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as OSPF's routes to links, which zebra does not choose."""

    def unused(*_words: object, **_options: object) -> RoutesRecord:
        record = computed(catalogue.load(FABRIC[1]), "rail0", "here")
        record["routes"][0]["rib"][0]["chosen"] = False
        return record

    monkeypatch.setattr(routing_tables, "computed", unused)
    shown = routes("rail0", *FABRIC).stdout
    assert "10.0.1.0/24" not in shown
    assert "10.0.2.0/24" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("rali0", *FABRIC), "rail_clos has no node 'rali0'; did you mean rail0"),
        (("rail0", *FABRIC, "--prefix", "ten"), "'ten' is no IPv4 prefix"),
        (("rail0", *FABRIC, "--run", "runs/1"), "give one of them"),
        (("rail0", "--run", "/nowhere"), "/nowhere"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    error = routes(*words).exception
    assert isinstance(error, (UserError, TopologyError))
    assert sentence in str(error)
