"""Topologies as Mininet graphs, in our hands and in those of the stock ``mn``."""

import os
import shutil
import subprocess

import pytest

pytest.importorskip("mininet", reason="Mininet is not installed")

from tests import CHECKOUT
from topologies.designs.rail_clos import rail_clos
from topologies.mininet_topo import FabricTopo, topos
from topologies.model import SWITCH_ROLES, CableEnd, Topology

TOPO_FILE = CHECKOUT / "topologies" / "mininet_topo.py"


@pytest.fixture(scope="module")
def topology() -> Topology:
    return rail_clos()


@pytest.fixture(scope="module")
def topo(topology: Topology) -> FabricTopo:
    return FabricTopo(topology)


def test_nodes_carry_their_model(topo: FabricTopo, topology: Topology) -> None:
    assert set(topo.nodes()) == set(topology.by_name)
    for name, node in topology.by_name.items():
        assert topo.nodeInfo(name)["model"] is node
        assert topo.isSwitch(name) == (node.role in SWITCH_ROLES)
    assert topo.topology is topology


def test_links_carry_their_model_and_port_positions(topo: FabricTopo, topology: Topology) -> None:
    infos = [info for _, _, info in topo.links(withInfo=True)]
    assert sorted((i["model"].a, i["model"].b) for i in infos) == sorted(
        (link.a, link.b) for link in topology.links
    )
    for info in infos:
        for side, end in (("1", info["model"].a), ("2", info["model"].b)):
            node = topology.node(end.node)
            assert info[f"node{side}"] == end.node
            position = info[f"port{side}"] - (1 if node.is_switch else 0)
            assert CableEnd(node.name, node.ports[position].name) == end


def test_parallel_links_stay_apart(topo: FabricTopo) -> None:
    between = [key for a, b, key in topo.links(withKeys=True) if {a, b} == {"rail0", "spine0"}]
    assert len(set(between)) == 3


def test_switches_have_different_datapath_ids(topo: FabricTopo) -> None:
    ids = [topo.nodeInfo(name)["dpid"] for name in topo.switches()]
    assert len(set(ids)) == len(ids) == 6


def test_parameters_arrive_as_mininet_has_parsed_them() -> None:
    topo = topos["rail_clos"](hosts=2, nic_rate="200G", uplinks_per_spine=1)
    assert len(topo.hosts()) == 8
    assert {info["model"].rate_bps for _, _, info in topo.links(withInfo=True)} == {200 * 10**9}


@pytest.mark.parametrize(
    ("bare", "named", "message"),
    [
        ((), {"host": 2}, "did you mean hosts"),
        ((), {"hosts": 2.5}, "hosts: '2.5' is not a whole number"),
        ((4,), {}, "4 has no name"),
    ],
)
def test_bad_parameters_end_mn_without_its_clean_up(
    bare: tuple[int, ...], named: dict[str, int], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        topos["rail_clos"](*bare, **named)


def _stock_mininet(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the stock ``mn`` in namespaces of its own: its clean-up works by name pattern."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for program in ("mn", "unshare", "brctl", "ping"):
        if shutil.which(program) is None:
            pytest.skip(f"the program {program} is not installed")
    # The clean-up also deletes from /tmp; the checkout, which may be there, is seen in /mnt.
    script = (
        'mount --bind "$0" /mnt && mount -t tmpfs tmpfs /tmp && ip link set lo up && cd / && '
        'exec mn --custom "/mnt/$1" --controller none "${@:2}"'
    )
    return subprocess.run(
        [
            *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("bash", "-c", script, str(CHECKOUT), str(TOPO_FILE.relative_to(CHECKOUT))),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.root
def test_stock_mininet_pings_all_over_a_fabric_without_loops() -> None:
    topo = "rail_clos,hosts=2,gpus_per_host=2,spines=1,uplinks_per_spine=1"
    run = _stock_mininet("--topo", topo, "--switch", "lxbr", "--test", "pingall")
    assert "0% dropped (12/12 received)" in run.stdout + run.stderr


@pytest.mark.root
@pytest.mark.slow
def test_stock_mininet_pings_all_over_a_clos_with_spanning_tree() -> None:
    topo = "rail_clos,hosts=2,gpus_per_host=2"
    run = _stock_mininet("--topo", topo, "--switch", "lxbr,stp=1", "--wait", "--test", "pingall")
    assert "0% dropped (12/12 received)" in run.stdout + run.stderr


@pytest.mark.root
def test_stock_mininet_says_what_is_wrong_with_a_parameter() -> None:
    run = _stock_mininet("--topo", "rail_clos,hosts=x", "--switch", "lxbr", "--test", "none")
    assert run.returncode == 1
    assert run.stderr.strip().splitlines()[-1].startswith("mn: hosts: 'x' is not a whole number")
