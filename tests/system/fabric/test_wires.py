"""Cables of a lab with a virtual clock: two veth pairs whose inner ends meet in one namespace."""

import json
import signal
import socket
from functools import partial

import pytest

from emulator.dataplane import cleanup
from emulator.dataplane.control_plane.control_plane_choice import chosen
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.wires import Wires
from emulator.errors import UserError
from emulator.topology_file import from_json, to_json
from tests.harness.lab.traffic import within
from tests.harness.lab.wire_tap import datagram, tapped, virtual, with_source_port
from tests.harness.nightly import nightly_beyond
from tests.harness.runs.processes import completed as uetemu
from tests.system.conftest import LabFactory
from tests.system.fabric.test_lab import AT_STEP, python
from topologies import catalogue
from topologies.interface_indices import interface_indices
from topologies.model import CableEnd

RAIL = "rail_clos:hosts=2,gpus_per_host=2"


# --- names and numbers -------------------------------------------------------------------------


def test_index_of_an_inner_end_names_port_and_worker() -> None:
    topology = catalogue.load(RAIL)
    ports = interface_indices(topology)
    wires = Wires.of(topology, {"rail1": 2, "h0g1": 2})
    ends = [end for link in topology.links for end in link.ends]
    assert wires.workers == 3
    assert wires.stride > max(ports.values()) >= wires.stride // 2
    assert len({wires.index(end) for end in ends}) == len(ends)
    for end in ends:
        index = wires.index(end)
        assert index % wires.stride == ports[end] != index
        assert index // wires.stride - 1 == (2 if end.node in ("rail1", "h0g1") else 0)
        assert wires.end_of(index) == end
        assert wires.name(end) == f"w{ports[end]}"


def test_index_of_no_inner_end_is_refused() -> None:
    wires = Wires.of(catalogue.load(RAIL))
    with pytest.raises(KeyError):
        wires.end_of(wires.stride + 1)


# --- in the kernel -----------------------------------------------------------------------------

pytestmark = pytest.mark.root


def test_inner_ends_have_their_names_and_indices(lab: LabFactory) -> None:
    made = virtual(lab, RAIL, worker_of={"rail0": 1})
    wires = made.wires
    assert wires is not None
    seen = dict(namespaces.visitor().inside(made.wires_namespace, socket.if_nameindex))
    ends = [end for link in made.topology.links for end in link.ends]
    assert seen == {1: "lo"} | {wires.index(end): wires.name(end) for end in ends}
    assert any(index // wires.stride == 2 for index in seen)
    for end in ends:
        assert (
            made.inside(end.node, partial(socket.if_nametoindex, end.port))
            == (made.interface_indices()[end])
        )


def test_another_process_finds_the_same_wires(lab: LabFactory) -> None:
    made = virtual(lab, RAIL, worker_of={"rail0": 1})
    assert made.wires is not None
    with Lab.attach(made.name) as found:
        assert found.settings.virtual
        assert found.wires is not None
        end = CableEnd("rail0", "down0")
        assert found.wires.index(end) == made.wires.index(end)
        assert found.wires_namespace == made.wires_namespace
        assert all(port.data.packets == 0 for port in found.counters().values())


def test_lab_of_the_hosts_clock_has_no_wires(lab: LabFactory) -> None:
    made = lab(RAIL)
    assert not made.wires_namespace.exists()


def test_virtual_clock_has_no_dilation(lab_name: str) -> None:
    with pytest.raises(UserError, match="dilation 10: a virtual clock has none"):
        Lab.create(
            lab_name,
            catalogue.load(RAIL),
            FabricSettings(dilation=10, seed=1, spec=RAIL, clock="virtual"),
        )


def test_switch_has_forwarded_when_send_returns(lab: LabFactory) -> None:
    made = virtual(lab, RAIL)
    with tapped(made) as tap:
        for _ in range(200):
            frame = datagram(made, "h0g0", "h1g0")
            assert tap.send(CableEnd("rail0", "down0"), frame) == [
                (CableEnd("rail0", "down1"), frame)
            ]


def test_clean_removes_the_wires(lab_name: str) -> None:
    made = Lab.create(
        lab_name,
        catalogue.load(RAIL),
        FabricSettings(dilation=1, seed=1, spec=RAIL, clock="virtual", persistent=True),
    )
    nodes = len(made.topology.nodes)
    made.close()
    assert cleanup.take_down(lab_name).namespaces == nodes + 1
    assert not cleanup.exists(lab_name)


def test_status_tells_the_clock(lab: LabFactory) -> None:
    made = virtual(lab, RAIL)
    rows = uetemu("status").stdout.splitlines()
    (row,) = [row for row in rows if made.name in row]
    assert "virtual" in row.split()
    assert "dilation virtual" in uetemu("status", made.name).stdout


@pytest.mark.parametrize("step", [1, 9, 12, 20])
def test_killed_while_building(lab_name: str, step: int) -> None:
    source = AT_STEP.format(step=step, signal=int(signal.SIGKILL), name=lab_name, spec=RAIL)
    source = source.replace("dilation=1000", 'dilation=1, clock="virtual"')
    maker = python(source)
    maker.communicate(timeout=60)
    assert maker.returncode == -signal.SIGKILL
    assert uetemu("clean", lab_name).returncode == 0
    assert not cleanup.exists(lab_name)


def test_node_may_not_take_the_name_of_the_wires(lab_name: str) -> None:
    topology = catalogue.load(RAIL)
    renamed = from_json(to_json(topology).replace('"h0g0"', '"wires"'))
    with pytest.raises(UserError, match="give it another name"):
        Lab.create(
            lab_name, renamed, FabricSettings(dilation=1, seed=1, spec=RAIL, clock="virtual")
        )


# --- silence and routing protocols ---------------------------------------------------------------

DESIGNS = (
    RAIL,
    "torus:x=3,y=2",
    "clos:hosts=2,gpus_per_host=2,nic_ports=2",
    "dragonfly:gpus_per_host=1,routers=3,global_links=1,routing=valiant",
)


@pytest.mark.parametrize("spec", nightly_beyond(2, DESIGNS))
def test_nobody_sends_unasked(lab: LabFactory, spec: str) -> None:
    made = virtual(lab, spec)
    gpus = [gpu.name for gpu in made.topology.gpus]
    cable = made.topology.links[-1]
    with tapped(made) as tap:
        made.cables.pull([cable])
        made.cables.plug([cable])
        for other in gpus[1:]:
            frame = datagram(made, gpus[0], other)
            assert tap.send(made.topology.far_end(CableEnd(gpus[0], "eth0")), frame)
        assert not tap.hears_within(3)
    for node in made.topology.switches:  # and nothing is known for a while only
        entries = json.loads(made.exec(node.name, ["bridge", "-j", "fdb", "show"]).stdout)
        assert {entry.get("state") for entry in entries} <= {"permanent", "static"}
        neighbours = made.exec(node.name, ["ip", "neigh", "show"]).stdout
        assert all(line.endswith("PERMANENT") for line in neighbours.split(" \n") if line)


def test_bgp_converges_over_wires_and_hears_of_a_pulled_cable(lab: LabFactory) -> None:
    made = virtual(lab, chosen(catalogue.load(RAIL), "ebgp:bfd=off"))
    cable = made.topology.link_at(CableEnd("rail0", "up0"))
    with tapped(made, 0) as tap:
        frames = [
            with_source_port(datagram(made, "h0g0", "h1g1"), port) for port in range(5000, 5016)
        ]

        def uplinks() -> set[str]:
            return {tap.send(CableEnd("rail0", "down0"), frame)[0][0].port for frame in frames}

        assert len(uplinks()) > 1
        made.cables.pull([cable])
        assert "up0" not in uplinks()
        made.cables.plug([cable])
        within(60, lambda: "up0" in uplinks(), "BGP has the way by the cable again")
