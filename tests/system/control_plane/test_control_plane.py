"""Switches that speak: routes from FRR in the kernel, and what follows when a link or process dies.

How long anything takes is never asserted: what FRR says of itself is, and what the kernel has.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.control_plane import daemons
from emulator.dataplane.control_plane.control_plane_choice import chosen
from emulator.dataplane.control_plane.failure import Reroute, time_failure
from emulator.dataplane.control_plane.lab_routing import Routing
from emulator.dataplane.control_plane.routing_tables import asked, computed, living_routes
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import Process
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.dataplane.switch.switch_choice import parse as parse_switch
from emulator.errors import UserError
from tests import CHECKOUT
from tests.harness.lab.traffic import pings, within
from tests.harness.runs.processes import completed as uetemu
from tests.system.conftest import LabFactory
from tests.system.fabric.test_lab import kill_after, nothing_left
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.model import CableEnd, Link, Topology

pytestmark = pytest.mark.root

SMALL = "rail_clos:hosts=2,gpus_per_host=2"
#: NICs on two switches each, rails of which a switch tells in one
HOMED = "clos:hosts=2,gpus_per_host=2,nic_ports=2"
DIVIDED = "clos:hosts=2,gpus_per_host=4,rails_per_switch=2,subnets=divided,subnet_prefix=25"
#: more ports than Linux lets a process join multicast groups on, unless told otherwise
PARALLEL = "rail_clos:hosts=1,gpus_per_host=2,spines=1,uplinks_per_spine=24"
BLACK_HOLE = Faults(black_hole=True)


def speaking(spec: str, plane: str) -> Topology:
    return chosen(catalogue.load(spec), plane)


def routing_of(lab: Lab) -> Routing:
    assert lab.routing is not None
    return lab.routing


def address(topology: Topology, gpu: str) -> str:
    return str(gpu_address(topology.node(gpu)).ip)


def unreached(lab: Lab) -> list[tuple[str, str]]:
    """Pairs of GPUs that do not reach each other, of all pairs."""
    gpus = [gpu.name for gpu in lab.topology.gpus]
    pairs = [(a, address(lab.topology, b)) for a in gpus for b in gpus if a != b]
    return [pair for pair, status in pings(lab, pairs).items() if status]


def places_of_frr() -> list[Path]:
    """Everything in the directories that FRR would use by itself."""
    places = (*daemons.FIXED_PLACES, Path("/var/tmp/frr"))
    return sorted(path for place in places if place.is_dir() for path in place.rglob("*"))


# --- routes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "plane"),
    [
        (SMALL, "ebgp:unnumbered=on,as=tier,bfd=off"),
        (DIVIDED, "ebgp:bfd=off"),
        (HOMED, "ebgp:bfd=off"),
        (PARALLEL, "ibgp:bfd=off"),
    ],
)
def test_the_kernel_has_every_shortest_path(lab: LabFactory, spec: str, plane: str) -> None:
    before = places_of_frr()
    running = lab(speaking(spec, plane))
    assert_learned(running, "bgp")
    assert_told_of_all(running)
    assert routing_of(running).converged_s is not None
    assert places_of_frr() == before


def assert_learned(lab: Lab, sender: str) -> None:
    """Routes are all there, by ``sender``, and packets of the switches come from loopbacks."""
    assert routing_of(lab).differences() == []
    assert unreached(lab) == []
    answer = lab.exec("rail0", ["ip", "-j", "route", "show", "proto", sender]).stdout
    sources = {route["prefsrc"] for route in json.loads(answer) if route.get("type") != "blackhole"}
    assert sources == {"10.255.0.1"}


def assert_told_of_all(lab: Lab) -> None:
    """Every next hop by BGP is a path of a peer that is known; a summary hides what is in it."""
    switch = lab.topology.node("rail0")
    rows = asked(routing_of(lab), "rail0", "")["routes"]
    learned = [
        row
        for row in rows
        for route in row["rib"]
        if route["protocol"] == "bgp" and route["next_hops"] != ["blackhole"]
    ]
    assert learned
    assert all(row["adj_rib_in"] for row in learned)
    told = {row["prefix"] for row in rows if row["adj_rib_out"]}
    assert told >= set(map(str, switch.summaries))
    hidden = [row for row in rows if row["suppressed"]]
    assert len(hidden) == (len(switch.bridges) if switch.summaries else 0)
    assert not any(row["adj_rib_out"] for row in hidden)


def test_what_is_learned_is_what_static_would_be(alert: Lab, lab: LabFactory) -> None:
    """Against a second fabric whose routes nobody learned, route by route from the kernel."""
    assert_learned(alert, "bgp")
    static = lab(SMALL)
    assert static.routing is None
    reader = Routing(
        routing_of(alert).plane,
        static.topology,
        directory=static.directory,
        indices=static.interface_indices(),
        kernels=static.kernel,
        popen=static.popen,
    )
    for switch in static.topology.switches:
        assert routing_of(alert).routes(switch.name) == reader.routes(switch.name)
        assert reader.routes(switch.name)
    kernel = living_routes(static.exec("rail0", ["ip", "-j", "route"]).stdout)
    shown = computed(static.topology, "rail0", "", kernel=kernel)
    assert shown == computed(static.topology, "rail0", "")


def test_frr_says_what_it_was_told_what_it_chose_and_what_it_tells(alert: Lab) -> None:
    record = asked(routing_of(alert), "rail0", "")
    rows = {row["prefix"]: row for row in record["routes"]}
    assert record["export_policy"] == {
        "ipv4 unicast": ["network 10.0.1.0/24", "network 10.255.0.1/32"]
    }
    own, far = rows["10.0.1.0/24"], rows["10.0.2.0/24"]
    assert [path["peer"] for path in own["loc_rib"]] == [None]
    assert own["adj_rib_in"] == []
    assert own["adj_rib_out"] == ["spine0", "spine1"]
    assert {path["peer"]: path["as_path"] for path in far["adj_rib_in"]} == {
        "spine0": "64514 64513",
        "spine1": "64515 64513",
    }
    assert [path["choice"] for path in far["loc_rib"]] == ["best", "equal"]
    assert far["rib"] == [
        {
            "protocol": "bgp",
            "chosen": True,
            "next_hops": ["up0 (172.16.0.1)", "up1 (172.16.0.3)"],
        }
    ]


# --- looking inside ----------------------------------------------------------------------------


def test_a_user_asks_with_vtysh(lab_name: str) -> None:
    before = places_of_frr()
    plane = ("--control-plane", "ebgp:bfd=off")
    up = uetemu("up", SMALL, "--name", lab_name, *plane, "--format", "json")
    assert up.returncode == 0, up.stderr
    assert json.loads(up.stdout)["control_plane"].startswith("ebgp:bfd=off")
    try:
        summary = uetemu("exec", f"{lab_name}:rail0", "--", "vtysh", "-c", "show bgp summary json")
        peers = json.loads(summary.stdout)["ipv4Unicast"]["peers"]
        assert {peer["desc"] for peer in peers.values()} == {"spine0", "spine1"}
        assert {peer["state"] for peer in peers.values()} == {"Established"}
        saved = lab_record.directory_of(lab_name) / "frr" / "spine0" / "frr.conf"
        saved.unlink()
        script = "hostname; ls /run/frr; vtysh -c 'write memory'"
        shell = uetemu("exec", f"{lab_name}:spine0", "--", "sh", "-c", script)
        assert shell.returncode == 0, shell.stderr
        assert shell.stdout.split()[0] == "spine0"
        assert "zebra.pid" in shell.stdout
        assert "router bgp 64514" in saved.read_text()
        assert "control plane ebgp" in uetemu("status", lab_name).stdout
        page = uetemu("routes", f"{lab_name}:rail0", "--prefix", "10.0.2.0/24").stdout
        assert "export policy, ipv4 unicast: network 10.0.1.0/24, network 10.255.0.1/32" in page
        assert "spine0 [64514 64513] and 1 equal | spine0, spine1 | spine0, spine1 |" in page
        wrong = uetemu("routes", f"{lab_name}:rali0")
        assert "has no node 'rali0'; did you mean rail0" in wrong.stderr
        with Lab.attach(lab_name) as attached:
            assert routing_of(attached).differences() == []
            assert "BGP router identifier" in routing_of(attached).vtysh(
                "rail1", "show bgp summary"
            )
            with pytest.raises(UserError, match="vtysh of rail1, 'show nonsense': % Unknown"):
                routing_of(attached).vtysh("rail1", "show nonsense")
            with pytest.raises(UserError, match="h0g0 is no switch"):
                routing_of(attached).vtysh("h0g0", "show version")
    finally:
        down = uetemu("down", lab_name)
    assert down.returncode == 0
    assert nothing_left(lab_name)
    assert places_of_frr() == before


def test_a_run_keeps_what_its_switches_were_told(tmp_path: Path, lab_name: str) -> None:
    fabric = ("--topology", "rail_clos:hosts=1,gpus_per_host=2,spines=1")
    reported = ("--control-plane", "ebgp:bfd=off,hold=60s", "--output", str(tmp_path / "run"))
    work = ("run", "allreduce", "--sizes", "4KiB", "--iterations", "1", "--name", lab_name)
    run = uetemu(*work, *fabric, *reported)
    assert run.returncode == 0, run.stderr
    assert "# Control plane        : ebgp:bfd=off,hold=60s" in run.stdout
    for switch in ("rail0", "rail1", "spine0"):
        assert "router bgp" in (tmp_path / "run" / "frr" / switch / "frr.conf").read_text()
        assert "ADJCHANGE" in (tmp_path / "run" / "frr" / switch / "frr.log").read_text()
    left = uetemu("routes", "spine0", "--run", str(tmp_path / "run"), "--format", "json")
    assert {row["prefix"] for row in json.loads(left.stdout)["routes"] if row["loc_rib"]} == {
        *("10.0.1.0/24", "10.0.2.0/24", "10.255.0.1/32", "10.255.0.2/32", "10.255.64.1/32")
    }
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["control_plane"]["detection_s"] == 60
    fabric_file = json.loads((tmp_path / "run" / "fabric.json").read_text())
    assert fabric_file["profile"]["control_plane"].startswith("ebgp:bfd=off,hold=60s")


# --- failures ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alert() -> Iterator[Lab]:
    """A fabric whose neighbours are missed soon, and whose hold time would not be over soon."""
    topology = speaking(SMALL, "ebgp:interval=300ms,hold=180s")
    name = f"t{os.urandom(5).hex()}"
    with Lab.create(
        name,
        topology,
        FabricSettings(dilation=1000, seed=1, spec=SMALL, switch=parse_switch("shallow")),
    ) as running:
        yield running
    assert nothing_left(name)


@pytest.fixture
def healthy(alert: Lab) -> Iterator[Lab]:
    """Return the lab with all its links; they are mended after the test."""
    link = first_link(alert)
    yield alert
    inject(alert, link, NONE)
    alert.exec(link.b.node, ["ip", "link", "set", link.b.port, "up"])
    routing_of(alert).await_convergence()
    assert unreached(alert) == []


def first_link(lab: Lab) -> Link:
    return lab.topology.link_at(CableEnd("rail0", "up0"))


def inject(lab: Lab, link: Link, faults: Faults) -> None:
    assert lab.asic is not None
    for end in link.ends:
        lab.asic.inject(str(end), faults)


def avoids(lab: Lab, link: Link) -> bool:
    """No switch sends anything into ``link``."""
    return not any(
        hop.port == end.port
        for end in link.ends
        for hops in routing_of(lab).routes(end.node).values()
        for hop in hops
    )


def test_a_dead_far_end_is_found_by_bfd(healthy: Lab) -> None:
    """Both ends have carrier and nothing arrives: BFD misses three packets, BGP waits no longer."""
    link = first_link(healthy)
    after = time_failure(routing_of(healthy), link, lambda: inject(healthy, link, BLACK_HOLE))
    assert avoids(healthy, link)
    assert unreached(healthy) == []
    assert routing_of(healthy).neighbours_lost() >= 2
    assert "BFD Down" in " ".join(found.reason for found in after.detected.values())
    assert after.detected_s is not None
    assert after.detected_s < routing_of(healthy).plane.hold_s
    assert after.rerouted_s > 0


def test_a_lost_carrier_is_found_by_the_interface(healthy: Lab) -> None:
    link = first_link(healthy)

    def pull() -> None:
        healthy.exec(link.b.node, ["ip", "link", "set", link.b.port, "down"])

    after: Reroute = time_failure(routing_of(healthy), link, pull)
    assert avoids(healthy, link)
    assert unreached(healthy) == []
    # FRR 10 logs the state that a session goes to in place of why it left the other.
    reason = "Waiting for peer OPEN" if daemons.is_managed() else "Interface down"
    assert {found.reason for found in after.detected.values()} == {reason}
    assert set(after.detected) == {"rail0", "spine0"}


def test_only_links_between_switches_can_be_timed(healthy: Lab) -> None:
    link = healthy.topology.link_at(CableEnd("h0g0", "eth0"))
    with pytest.raises(UserError, match="ends at h0g0, which has no routes to change"):
        time_failure(routing_of(healthy), link, lambda: None)


def test_what_does_not_converge_is_named(healthy: Lab) -> None:
    link = first_link(healthy)
    routing = routing_of(healthy)
    time_failure(routing, link, lambda: inject(healthy, link, BLACK_HOLE))
    with pytest.raises(
        UserError, match=r"has not converged after .*: the route of rail0 to .* lacks"
    ):
        routing.await_convergence(time_limit_s=0)


def test_ospf_finds_another_way_too(lab: LabFactory) -> None:
    running = lab(speaking(HOMED, "ibgp"), switch=parse_switch("shallow"))
    assert_learned(running, "bgp")
    assert_learned(running, "ospf")
    link = first_link(running)
    after = time_failure(routing_of(running), link, lambda: inject(running, link, BLACK_HOLE))
    assert after.detected
    assert after.detected.keys() <= {"rail0", "spine0"}
    assert avoids(running, link)
    assert unreached(running) == []


def test_a_daemon_that_died_is_named(lab: LabFactory) -> None:
    running = lab(speaking("rail_clos:hosts=1,gpus_per_host=2,spines=1", "ebgp:bfd=off,hold=3s"))
    routing = routing_of(running)
    pid = int((routing.switches["rail0"].directory / "bgpd.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    within(10, lambda: Process.of(pid) is None, "bgpd was dead")
    with pytest.raises(UserError, match="bgpd of rail0 has died; the last it logged: "):
        routing.switches["rail0"].check_alive()
    assert "no routing: bgpd of rail0 has died" in uetemu("status", running.name).stdout


def test_a_daemon_that_stopped_is_not_waited_for(
    lab: LabFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = lab(speaking("rail_clos:hosts=1,gpus_per_host=2,spines=1", "ebgp"))
    switch = routing_of(running).switches["rail0"]
    monkeypatch.setattr(daemons, "ANSWER_S", 1)
    pid = int((switch.directory / "bfdd.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(UserError, match="vtysh of rail0: no answer within 1 s"):
            switch.neighbours_alive()
    finally:
        os.kill(pid, signal.SIGCONT)


# --- life --------------------------------------------------------------------------------------


def test_a_fabric_that_cannot_be_leaves_nothing(
    lab_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "PROGRAMS", Path("/nowhere"))
    with pytest.raises(UserError, match="ebgp needs FRR and there is no /nowhere/zebra: install"):
        Lab.create(
            lab_name, speaking(SMALL, "ebgp"), FabricSettings(dilation=1000, seed=1, spec=SMALL)
        )
    assert nothing_left(lab_name)


def test_what_frr_does_not_understand_is_shown_and_leaves_nothing(
    lab_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nonsense(*_: object, **__: Any) -> dict[str, str]:
        return dict.fromkeys(("rail0", "rail1", "spine0", "spine1"), "router bgp nonsense\n")

    monkeypatch.setattr("emulator.dataplane.control_plane.render.render", nonsense)
    with pytest.raises(UserError, match=r"FRR of rail0 refused to start: .*router bgp nonsense"):
        Lab.create(
            lab_name, speaking(SMALL, "ebgp"), FabricSettings(dilation=1000, seed=1, spec=SMALL)
        )
    assert nothing_left(lab_name)


@pytest.mark.parametrize("started", [0, 3])
def test_killed_while_daemons_start(lab_name: str, started: int) -> None:
    """SIGKILL when so many switches have a daemon; whatever runs by then is found and ended."""
    up = subprocess.Popen(
        [*UP, SMALL, "--name", lab_name, "--control-plane", "ebgp"],
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
    )
    directory = lab_record.directory_of(lab_name) / daemons.DIRECTORY

    def begun() -> bool:
        if started == 0:
            return directory.exists()
        return len(list(directory.glob("*/zebra.pid"))) >= started

    kill_after(up, begun, delay_ms=0)
    assert up.returncode == -signal.SIGKILL
    assert lab_name in cleanup.leftovers()
    assert uetemu("clean", lab_name).returncode == 0
    assert nothing_left(lab_name)
    assert daemons_of(lab_name) == []


def test_down_ends_every_daemon(lab_name: str) -> None:
    topology = speaking(SMALL, "ebgp:bfd=off")
    with Lab.create(lab_name, topology, FabricSettings(dilation=1000, seed=1, spec=SMALL)) as lab:
        assert len(daemons_of(lab_name)) == len(daemons.programs(routing_of(lab).plane)) * 4
    assert daemons_of(lab_name) == []
    assert nothing_left(lab_name)


UP = (sys.executable, "-c", "from emulator.cli.main import main; main()", "up")


def daemons_of(lab: str) -> list[int]:
    """Processes that were started with a file of the lab's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if f"{lab_record.directory_of(lab)}/frr/".encode() in words and b"/usr/lib/frr" in words:
            found.append(int(path.parent.name))
    return found
