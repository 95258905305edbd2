"""Rails that lie on the switches of two pods: EVPN tells who is where, VXLAN carries.

::

    pod 0                              pod 1
      rail0  h0g0 h1g0  ~ VNI 10101 ~    rail2  h2g0 h3g0
      rail1  h0g1 h1g1  ~ VNI 10102 ~    rail3  h2g1 h3g1
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN

from emulator.dataplane.control_plane.failure import time_failure
from emulator.dataplane.control_plane.lab_routing import Routing
from emulator.dataplane.control_plane.routing_tables import asked
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.bpf.layout import DropReason, TrafficClass
from emulator.dataplane.switch.switch_choice import parse as parse_switch
from emulator.sim.endpoint.nic.packet_nic import Nic
from tests.harness.lab.traffic import blast, kill, send_flows, within
from tests.harness.runs.processes import completed as uetemu
from tests.system.control_plane.test_control_plane import address, routing_of, unreached
from tests.system.endpoint.test_endpoint_nic import SIZE, header, open_nic
from tests.system.fabric.test_lab import nothing_left
from topologies import catalogue
from topologies.addressing import next_hops
from topologies.model import CableEnd

pytestmark = pytest.mark.root

#: Uplinks are slower than NICs, so that packets wait in tunnels.
SPEC = (
    "clos:pods=2,hosts=2,gpus_per_host=2,spines=2,super_spines=1,subnets=stretched,"
    "uplink_rate=25Gbps,uplinks_per_spine=1,uplinks_per_super=1,buffer=128KiB"
)
ETH_P_ALL = 3
SPINES = (("spine0", "down0"), ("spine1", "down0"))  # what comes from rail0, and goes there
FLOWS = range(40_000, 40_040)
ECT0 = 2
TOS = 46 << 2  # what control packets have
DATA = (TrafficClass.DATA, TrafficClass.UNTRIMMED)


@pytest.fixture(scope="module")
def pods() -> Iterator[Lab]:
    topology = catalogue.load(SPEC)
    name = f"t{os.urandom(5).hex()}"
    with Lab.create(
        name,
        topology,
        FabricSettings(dilation=20_000, seed=1, spec=SPEC, switch=parse_switch("shallow")),
    ) as running:
        yield running
    assert nothing_left(name)


def mac_of(lab: Lab, gpu: str) -> str:
    return lab.topology.node(gpu).ports[0].mac


def test_everybody_reaches_everybody(pods: Lab) -> None:
    """GPUs of one rail reach each other by a tunnel alone, others by the anycast gateway too."""
    assert routing_of(pods).differences() == []
    assert routing_of(pods).member_differences() == []
    assert unreached(pods) == []


def test_spines_know_rails_only_as_wholes(pods: Lab) -> None:
    """No route to a single GPU anywhere: EVPN has those."""
    for switch in pods.topology.switches:
        routes = routing_of(pods).routes(switch.name)
        rails = {str(to) for to in routes if to.prefixlen < 31}
        own = {str(bridge.gateway.network) for bridge in switch.bridges if bridge.gateway}
        assert rails | own == {"10.0.1.0/24", "10.0.2.0/24"}
        assert {to.prefixlen for to in routes} <= {24, 32}


def test_what_frr_says_of_it(pods: Lab) -> None:
    reported = routing_of(pods).vtysh("rail0", "show bgp l2vpn evpn route type macip")
    assert f"[2]:[0]:[48]:[{mac_of(pods, 'h3g0')}]:[32]:[10.0.1.5]" in reported
    reported = routing_of(pods).vtysh("rail0", "show bgp l2vpn evpn route type multicast")
    assert "[3]:[0]:[32]:[10.255.0.3]" in reported
    assert "10.255.0.3" in routing_of(pods).vtysh("rail0", "show evpn vni 10101")
    rows = asked(routing_of(pods), "rail0", "")["routes"]
    (far,) = (row for row in rows if row["prefix"].endswith("[32]:[10.0.1.5]"))
    assert {path["next_hop"] for path in far["loc_rib"]} == {"10.255.0.3"}
    assert {path["peer"] for path in far["adj_rib_in"]} == {"spine0", "spine1"}


def test_a_packet_in_the_fabric_has_vni_and_loopbacks_around_it(pods: Lab) -> None:
    """Forty flows from h0g0 to h2g0, seen where they come from rail0."""
    with ExitStack() as stack:
        taps = [stack.enter_context(pods.inside(node, partial(tap, port))) for node, port in SPINES]
        send_flows(pods, "h0g0", address(pods.topology, "h2g0"), FLOWS)
        seen: list[list[Ether]] = [[] for _ in taps]

        def all_seen() -> bool:
            for packets, one in zip(seen, taps, strict=True):
                packets.extend(tunnelled(one))
            return sum(map(len, seen)) >= len(FLOWS)

        within(20, all_seen, "all flows were seen")
    assert all(seen), "both spines carry some of the flows: the source port tells flows apart"
    for outer in (packet for packets in seen for packet in packets):
        assert (outer[IP].src, outer[IP].dst) == ("10.255.0.1", "10.255.0.3")
        assert outer[UDP].chksum == 0
        assert outer[VXLAN].vni == 10_101
        inner = outer[VXLAN].payload
        assert (inner.src, inner.dst) == (mac_of(pods, "h0g0"), mac_of(pods, "h2g0"))
        assert inner[IP].ttl == 64  # the rail is one network: nobody has routed it
    assert {outer[IP].tos for packets in seen for outer in packets} == {0}
    assert len({outer[UDP].sport for packets in seen for outer in packets}) > len(FLOWS) // 2


def test_the_class_of_a_packet_is_seen_from_outside(pods: Lab) -> None:
    """By its DSCP switches on the way queue it as those at the ends do."""
    with ExitStack() as stack:
        taps = [stack.enter_context(pods.inside(node, partial(tap, port))) for node, port in SPINES]
        sender = blast(pods, "h0g0", address(pods.topology, "h2g0"), size=100, tos=TOS, count=1)
        stack.callback(kill, sender)
        seen: list[Ether] = []

        def one_seen() -> bool:
            seen.extend(packet for one in taps for packet in tunnelled(one))
            return bool(seen)

        within(20, one_seen, "the packet was seen")
    assert seen[0][IP].tos == seen[0][VXLAN].payload[IP].tos == TOS


def tap(port: str) -> socket.socket:
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    found.bind((port, ETH_P_ALL))
    found.setblocking(False)
    return found


def tunnelled(sniffer: socket.socket) -> Iterator[Ether]:
    """The frames with a tunnel's UDP port that ``sniffer`` has got."""
    while True:
        try:
            frame, sender = sniffer.recvfrom(65_536)
        except BlockingIOError:
            return
        packet = Ether(frame)
        if sender[2] != socket.PACKET_OUTGOING and VXLAN in packet:
            yield packet


def test_frames_are_larger_between_switches_and_nowhere_else(pods: Lab) -> None:
    """What ports count, and so their queues and rates, has the tunnel where there is one."""
    assert pods.asic is not None
    pods.asic.reset()
    octets, count = SIZE + 42 + 24, 10
    ways = {"h2g0": (50, "rail2:down0"), "h0g1": (0, "rail1:down0")}
    for peer, (tunnel, last) in ways.items():
        with ExitStack() as stack:
            nic = open_nic(pods, "h0g0", stack, frame_octets=SIZE + 42)
            before = counted(pods, "rail0:up0", "rail0:up1")
            towards = next_hops(pods.topology, "h0g0")[address(pods.topology, peer)]
            frame = bytes.fromhex(towards.replace(":", "")) + header(pods, "h0g0", peer, SIZE)[6:]
            nic.send([(frame, bytes(SIZE))] * count)

            def arrived(nic: Nic = nic, at: str = last) -> bool:
                nic.send([])
                return counted(pods, at)[0] == count

            within(20, arrived, f"{peer} has all of them")
        assert counted(pods, last) == (count, count * octets)
        packets, total = counted(pods, "rail0:up0", "rail0:up1")
        assert (packets - before[0], total - before[1]) == (count, count * (octets + tunnel))


def counted(lab: Lab, *ports: str) -> tuple[int, int]:
    """Packets of data and their octets, by the switches."""
    assert lab.asic is not None
    counters = lab.asic.counters()
    rows = [counters[port].classes[kind] for port in ports for kind in DATA]
    return sum(row.packets for row in rows), sum(row.bytes for row in rows)


def test_marks_come_out_of_the_tunnel_and_nothing_is_trimmed_in_it(pods: Lab) -> None:
    """h0g0 sends sixteen times what an uplink takes: rail0 marks and drops what is in tunnels."""
    assert pods.asic is not None
    pods.asic.reset()
    receiver = pods.popen("h2g0", ["/usr/bin/python3", "-c", MARKS], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == b"ready\n"
    with ExitStack() as stack:
        stack.callback(kill, receiver)
        nic = open_nic(pods, "h0g0", stack, frame_octets=SIZE + 42)
        frame = marked_capable(header(pods, "h0g0", "h2g0", SIZE))

        def overflowing() -> bool:
            if room := nic.room():
                nic.send([(frame, bytes(SIZE))] * room)
            return dropped(pods) > 0

        within(30, overflowing, "an uplink of rail0 has dropped")
        assert receiver.stdout.readline() == b"CE\n"
    uplinks = [pods.asic.counters()[f"rail0:up{n}"].classes for n in (0, 1)]
    assert sum(rows[kind].marked for rows in uplinks for kind in DATA) > 0
    assert sum(rows[kind].trimmed for rows in uplinks for kind in DATA) == 0


#: Prints CE when a datagram of port 4793 comes whose IP header has the mark.
MARKS = """
import socket
here = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
here.bind(("eth0", 0x0800))
print("ready", flush=True)
while True:
    frame = here.recv(65536)
    if frame[23] == 17 and frame[36:38] == (4793).to_bytes(2, "big") and frame[15] & 3 == 3:
        print("CE", flush=True)
        break
"""


def marked_capable(frame: bytes) -> bytes:
    """``frame`` with ECT(0), its header's checksum put right."""
    packet = Ether(frame)
    packet[IP].tos = ECT0
    del packet[IP].chksum
    return bytes(packet)[: len(frame)]


def dropped(lab: Lab) -> int:
    assert lab.asic is not None
    rows = [lab.asic.counters()[f"rail0:up{number}"].classes for number in (0, 1)]
    return sum(row[kind].drops[DropReason.TAIL] for row in rows for kind in DATA)


def test_a_frame_that_waits_in_a_tunnel_is_the_switchs(pods: Lab) -> None:
    """Its sender's NIC, which may queue two frames, goes on."""
    with ExitStack() as stack:
        nic: Nic = open_nic(pods, "h0g0", stack, queue_frames=2, frame_octets=SIZE + 42)
        frame = header(pods, "h0g0", "h2g0", SIZE)

        def waiting() -> int:
            rows = pods.counters(["rail0"])
            return sum(rows[f"rail0:up{n}"].data.backlog_packets for n in (0, 1))

        def fills() -> bool:
            if room := nic.room():
                nic.send([(frame, bytes(SIZE))] * room)
            return waiting() > 6

        within(30, fills, "more waits in the switch than the NIC may queue")


def test_who_is_not_known_is_named(pods: Lab) -> None:
    """rail2 takes back what it told; rail0 forgets."""
    routing = routing_of(pods)
    gone = {
        "rail0 does not know that VNI 10101 is at rail2",
        "rail0 does not know that h2g0 is behind rail2 (VNI 10101)",
        "rail0 does not know that h3g0 is behind rail2 (VNI 10101)",
    }
    notify(routing, "rail2", "no advertise-all-vni")
    try:
        within(20, lambda: gone <= set(routing.member_differences()), "rail0 has forgotten")
    finally:
        notify(routing, "rail2", "advertise-all-vni")
    routing.await_convergence()
    assert unreached(pods) == []


FLOOD = "00:00:00:00:00:00 dev vxlan10101"
#: What is done to the tables of rail0, how it is undone, and what is said of it; H0 and H2 are the
#: MACs of h0g0, which is plugged in there, and h2g0, which is behind rail2 (10.255.0.3).
TABLES = {
    "a tunnel to the wrong switch": (
        "replace H2 dev vxlan10101 dst 10.255.0.4 self extern_learn",
        "replace H2 dev vxlan10101 dst 10.255.0.3 self extern_learn",
        "rail0 does not know that h2g0 is behind rail2 (VNI 10101)",
        "rail0 takes h2g0 to be behind rail3 (VNI 10101)",
    ),
    "a tunnel for a GPU of its own": (
        "replace H0 dev vxlan10101 master static",
        "replace H0 dev down0 master static",
        "rail0 does not know that h0g0 is behind its down0",
        "rail0 takes h0g0 to be behind a tunnel (VNI 10101)",
    ),
    "broadcast misses a switch": (
        f"del {FLOOD} dst 10.255.0.3 self",
        f"append {FLOOD} dst 10.255.0.3 self permanent",
        "rail0 does not know that VNI 10101 is at rail2",
    ),
    "broadcast goes to one that has another rail": (
        f"append {FLOOD} dst 10.255.0.4 self permanent",
        f"del {FLOOD} dst 10.255.0.4 self",
        "rail0 takes VNI 10101 to be at rail3, too",
    ),
    "a MAC of nobody": (
        "replace 02:99:00:00:00:01 dev vxlan10101 dst 10.9.9.9 self",
        "del 02:99:00:00:00:01 dev vxlan10101 dst 10.9.9.9 self",
        "rail0 takes 02:99:00:00:00:01 to be behind 10.9.9.9, which is no switch (VNI 10101)",
    ),
}


@pytest.mark.parametrize("wrong", TABLES)
def test_what_is_wrong_in_a_table_is_named(pods: Lab, wrong: str) -> None:
    change, undo, *stated = TABLES[wrong]
    routing = routing_of(pods)
    zebra = int((routing.switches["rail0"].directory / "zebra.pid").read_text())

    def alter(command: str) -> None:
        for name, gpu in (("H0", "h0g0"), ("H2", "h2g0")):
            command = command.replace(name, mac_of(pods, gpu))
        pods.exec("rail0", ["bridge", "fdb", *command.split()])

    os.kill(zebra, signal.SIGSTOP)  # or it would put some of it right at once
    try:
        alter(change)
        assert sorted(routing.member_differences()) == sorted(stated)
    finally:
        alter(undo)
        os.kill(zebra, signal.SIGCONT)
    routing.await_convergence()


def notify(routing: Routing, switch: str, command: str) -> None:
    """Have FRR of ``switch`` do ``command`` in its configuration of EVPN."""
    path = ("configure terminal", "router bgp", "address-family l2vpn evpn")
    routing.vtysh(switch, "\n".join((*path, command)))


def test_a_lost_uplink_cuts_no_tunnel(pods: Lab) -> None:
    link = pods.topology.link_at(CableEnd("rail0", "up0"))

    def pull() -> None:
        pods.exec(link.b.node, ["ip", "link", "set", link.b.port, "down"])

    try:
        time_failure(routing_of(pods), link, pull)
        assert unreached(pods) == []
    finally:
        pods.exec(link.b.node, ["ip", "link", "set", link.b.port, "up"])
    routing_of(pods).await_convergence()


def test_an_allreduce_over_tunnels_is_right(tmp_path: Path, lab_name: str) -> None:
    spec = "clos:segments=2,hosts=1,gpus_per_host=2,spines=1,rails_per_switch=2,subnets=stretched"
    work = ("run", "allreduce", "--sizes", "16KiB", "--iterations", "1", "--name", lab_name)
    fabric = ("--topology", spec, "--output", str(tmp_path / "run"))
    run = uetemu(*work, *fabric)
    assert run.returncode == 0, run.stderr
    assert "# Control plane        : evpn" in run.stdout
    row = next(line for line in run.stdout.splitlines() if line.split()[:1] == ["16384"])
    assert row.split()[8] == "0"  # #wrong
    assert "advertise-all-vni" in (tmp_path / "run" / "frr" / "rail0" / "frr.conf").read_text()
