"""The fabric in the kernel is the one the topology describes."""

import json
import os
import re
import select
import socket
import time
from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest

from emulator.dataplane.kernel import kernel_objects, namespaces
from emulator.dataplane.kernel.fabric.build import Fabric
from emulator.dataplane.kernel.netlink import KernelRefusal, RouteSocket
from emulator.dataplane.kernel.port_counters import (
    PortCounters,
    QueueCounters,
    ports_not_ready,
    read_ports,
)
from emulator.dataplane.kernel.shaping import (
    DATA_SHARE,
    Egress,
    egress_requests,
)
from emulator.dataplane.lab import Lab
from tests.harness.lab.traffic import blast, kill, pings, send_flows, within
from tests.system.conftest import SMALL, LabFactory
from topologies import catalogue
from topologies.ethernet import FRAMING_OCTETS
from topologies.interface_indices import interface_indices
from topologies.model import Bridge, Port
from topologies.routing.static_routes import static_routes

pytestmark = pytest.mark.root

REFERENCE = "rail_clos:hosts=6,gpus_per_host=4"
CONTROL_TOS = 0xB8


def address_of(lab: Lab, gpu: str) -> str:
    address = lab.topology.node(gpu).ports[0].address
    assert address is not None
    return str(address.ip)


def shown(lab: Lab, node: str, *argv: str) -> list[dict[str, Any]]:
    return json.loads(lab.exec(node, argv).stdout)


# --- reachability and routes -------------------------------------------------------------------


def test_every_gpu_reaches_every_other(lab: LabFactory) -> None:
    small = lab()
    names = [gpu.name for gpu in small.topology.gpus]
    pairs = [(a, address_of(small, b)) for a in names for b in names if a != b]
    assert set(pings(small, pairs).values()) == {0}


def test_reference_cluster_reaches_across_rails_and_hosts(lab: LabFactory) -> None:
    big = lab(REFERENCE)
    pairs = [("h0g0", "h5g0"), ("h0g0", "h5g3"), ("h3g2", "h2g1"), ("spine1", "h4g3")]
    status = pings(big, [(a, address_of(big, b)) for a, b in pairs])
    assert set(status.values()) == {0}


def test_kernel_routes_are_the_computed_ones(lab: LabFactory) -> None:
    big = lab(REFERENCE)
    computed = static_routes(big.topology)
    for node in big.topology.nodes:
        kernel = {}
        for row in shown(big, node.name, "ip", "-j", "route", "show", "proto", "static"):
            hops = row.get("nexthops") or [row]
            kernel[row["dst"]] = {(hop["dev"], IPv4Address(hop["gateway"])) for hop in hops}
        expected = {}
        for route in computed[node.name]:
            text = str(route.destination).removesuffix("/32").replace("0.0.0.0/0", "default")
            expected[text] = {(hop.port, hop.via) for hop in route.hops}
        assert kernel == expected


def test_gpu_goes_straight_within_its_rail_and_by_the_gateway_to_others(lab: LabFactory) -> None:
    small = lab()
    (direct,) = shown(small, "h0g0", "ip", "-j", "route", "get", address_of(small, "h1g0"))
    (routed,) = shown(small, "h0g0", "ip", "-j", "route", "get", address_of(small, "h1g1"))
    assert "gateway" not in direct
    assert routed["gateway"] == "10.0.1.1"


def test_ecmp_spreads_flows_over_all_uplinks(lab: LabFactory) -> None:
    big = lab(REFERENCE)
    flows = 600
    send_flows(big, "h0g0", address_of(big, "h1g1"), range(20_000, 20_000 + flows))
    within(60, lambda: big.counters()["h1g1:eth0"].rx_packets >= flows, "all flows arrived")
    counters = big.counters()
    used = [counters[f"rail0:{port.name}"].tx_packets for port in uplinks(big, "rail0")]
    assert sum(used) == flows
    # 6 uplinks, binomial(600, 1/6): mean 100, standard deviation 9.1; five of them either way
    assert all(54 <= count <= 146 for count in used), used


def test_switches_hash_with_seeds_of_their_own(lab: LabFactory) -> None:
    small = lab()
    seeds = {
        switch.name: small.exec(
            switch.name, ["cat", "/proc/sys/net/ipv4/fib_multipath_hash_seed"]
        ).stdout.strip()
        for switch in small.topology.switches
    }
    if not any(seeds.values()):
        pytest.skip("the kernel has no fib_multipath_hash_seed")
    assert seeds == {switch.name: str(switch.hash_seed) for switch in small.topology.switches}


def uplinks(lab: Lab, rail: str) -> list[Port]:
    return [port for port in lab.topology.node(rail).ports if port.bridge is None]


# --- interfaces --------------------------------------------------------------------------------


def test_interfaces_are_those_of_the_model(lab: LabFactory) -> None:
    small = lab("rail_clos:hosts=2,gpus_per_host=2,mtu=4200")
    indices = interface_indices(small.topology)
    assert len(set(indices.values())) == len(indices)
    for node in small.topology.nodes:
        links = {row["ifname"]: row for row in shown(small, node.name, "ip", "-j", "link")}
        names = {port.name for port in node.ports} | {bridge.name for bridge in node.bridges}
        assert links.keys() == names | {"lo"}
        for port in node.ports:
            row = links[port.name]
            assert row["address"] == port.mac
            assert row["mtu"] == 4200
            assert row["ifalias"] == f"uetemu:{small.name}:{node.name}:{port.name}"
            assert row["operstate"] == "UP"
            assert row.get("master") == port.bridge
        for bridge in node.bridges:
            assert links[bridge.name]["operstate"] == "UP"
            assert links[bridge.name]["ifalias"] == f"uetemu:{small.name}:{node.name}:{bridge.name}"
    ours = {(end.node, end.port): index for end, index in indices.items()}
    for node in small.topology.nodes:
        for row in shown(small, node.name, "ip", "-j", "link"):
            if row["ifname"] != "lo":
                assert row["ifindex"] == ours[node.name, row["ifname"]]


def test_a_refused_request_names_its_object(lab: LabFactory) -> None:
    small = lab()
    assert small.fabric is not None
    kernel = small.fabric["h0g0"].kernel
    index = small.fabric["h0g0"].intf("eth0").index
    for request in egress_requests(Egress(rate_bps=1e9, mtu=9000, buffer_bytes=10_000)):
        kernel.queue(request.kind, request.flags, request.body(index), "eth0 again")
    with pytest.raises(KernelRefusal, match=r"eth0 again: .*File exists"):
        kernel.flush()
    assert shown(small, "h0g0", "ip", "-j", "link")  # and the socket is still in step
    assert small.counters()["h0g0:eth0"].tx_packets == 0


# --- ready to send -----------------------------------------------------------------------------


def test_a_port_is_not_ready_before_its_cable_has_both_ends_up() -> None:
    """Up, and by its flags running, it would still discard what it is given."""

    def ends() -> list[list[str]]:
        namespaces.leave_for_unnamed()
        kernel, here = RouteSocket(), os.open(namespaces.OWN, os.O_RDONLY)
        try:
            macs = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
            near, far = (("a", 2, macs[0]), ("b", 3, macs[1]))
            kernel_objects.veth(kernel, near, far, far_namespace=here, mtu=1500, subject="cable")
            answers = []
            for index in (2, 3):
                kernel_objects.raise_link(kernel, index, subject="end")
                kernel.flush()
                answers.append(ports_not_ready(kernel))
            within(60, lambda: not ports_not_ready(kernel), "both ready")
            return answers
        finally:
            os.close(here)
            kernel.close()

    one_up, _ = namespaces.visitor().run(ends)
    assert sorted(one_up) == ["a", "b"]


def test_a_lab_is_ready_when_it_is_there(lab: LabFactory) -> None:
    big = lab(REFERENCE)
    assert big.fabric is not None
    assert [name for name in big.fabric if ports_not_ready(big.fabric[name].kernel)] == []


def test_the_first_packets_of_a_lab_arrive(lab: LabFactory) -> None:
    for _ in range(5):
        small = lab()
        for gpu in ("h0g0", "h0g1", "h1g0"):  # over a spine, a bridge, and back out of the switch
            send_flows(small, gpu, address_of(small, "h1g1"), range(30_000, 30_010))

        def arrived(lab: Lab = small) -> bool:
            return lab.counters()["h1g1:eth0"].rx_packets >= 30

        within(60, arrived, "all arrived")


def test_a_bridge_without_a_cable_holds_nothing_up(lab: LabFactory) -> None:
    model = catalogue.load(SMALL)
    spare = Bridge(
        name="spare", rail=0, mac="02:00:00:00:ff:01", gateway=IPv4Interface("10.9.9.1/24")
    )
    nodes = [
        replace(node, bridges=(*node.bridges, spare)) if node.name == "rail0" else node
        for node in model.nodes
    ]
    made = lab(replace(model, nodes=tuple(nodes)))
    assert "spare" in {row["ifname"] for row in shown(made, "rail0", "ip", "-j", "link")}


# --- quiet -------------------------------------------------------------------------------------


def test_nothing_is_on_the_wire_but_what_is_sent(lab: LabFactory) -> None:
    small = lab()
    taps = [small.inside(node, packet_tap) for node in ("h0g0", "h1g1", "rail0", "spine0")]
    pairs = [("h0g0", address_of(small, "h1g1")), ("h1g1", address_of(small, "h0g0"))]
    assert set(pings(small, pairs).values()) == {0}
    # duplicate address detection, router solicitation, MLD and ARP all come within a second
    kinds = heard(taps, 1.5)
    for tap in taps:
        tap.close()
    assert kinds.keys() == {"ICMP"}
    total = sum(row.rx_packets for row in small.counters().values())
    assert total == 2 * 2 * 4  # two pings there and back, four cables each way


def packet_tap() -> socket.socket:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))


def heard(taps: list[socket.socket], seconds: float) -> Counter[str]:
    kinds: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for tap in select.select(taps, [], [], left)[0]:
            frame, address = tap.recvfrom(2048)
            if address[0] == "lo":
                continue
            icmp = frame[12:14] == b"\x08\x00" and frame[23] == 1
            kinds["ICMP" if icmp else frame[12:14].hex()] += 1
    return kinds


def test_frames_to_one_gpu_are_not_flooded_to_others(lab: LabFactory) -> None:
    three = lab("rail_clos:hosts=3,gpus_per_host=2")
    send_flows(three, "h0g0", address_of(three, "h1g0"), range(30_000, 30_020))
    send_flows(three, "h0g1", address_of(three, "h1g0"), range(30_000, 30_020))
    within(60, lambda: three.counters()["h1g0:eth0"].rx_packets >= 40, "all arrived")
    assert three.counters()["h2g0:eth0"].rx_packets == 0


# --- egress ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dilation", [1, 40, 1000, 10_000])
def test_classes_have_the_dilated_rate(lab: LabFactory, dilation: int) -> None:
    small = lab(dilation=dilation)
    for node, port in (("h0g0", "eth0"), ("rail1", "down1"), ("rail0", "up0"), ("spine1", "down0")):
        listing = small.exec(node, ["tc", "class", "show", "dev", port]).stdout
        found = {c: (r, int(p)) for c, p, r in CLASS.findall(listing)}
        rate = f"{400_000 // dilation}Mbit".replace("000Mbit", "Gbit")
        assert found == {"1:10": (rate, 0), "1:20": (rate, 1)}
        assert re.search(rf"class htb 1:1 root rate {rate} overhead 24 ceil {rate} ", listing)


CLASS = re.compile(r"class htb (\S+) parent 1:1 .*?prio (\d) .*? ceil (\S+) ")


@pytest.mark.parametrize(
    ("size", "tos", "queue"),
    [(1000, 0, "data"), (8900, 0, "data"), (8900, CONTROL_TOS, "control")],
)
def test_a_port_carries_its_rate_and_not_more(
    lab: LabFactory, size: int, tos: int, queue: str
) -> None:
    dilation = 10_000
    small = lab(dilation=dilation)
    shares: list[float] = []

    def near_the_rate() -> bool:
        # 1.25 MB is a quarter of a second, against which one frame is under 1 per cent
        shares.append(least_share(small, "h0g0:eth0", queue, 400e9 / dilation, 1_250_000))
        return shares[-1] > 0.8

    sender = blast(small, "h0g0", address_of(small, "h1g0"), size=size, tos=tos)
    try:
        # a busy machine falls short of the rate now and then, and never exceeds it
        within(120, near_the_rate, "a full link")
    finally:
        kill(sender)
    assert max(shares) < 1.02


def least_share(lab: Lab, port: str, queue: str, rate_bps: float, octets: int) -> float:
    """The share of ``rate_bps`` that the queue used at least while it sent ``octets``.

    Preamble and gap of each frame included.  Whenever this process was off the processor counts
    as time in which the queue might have sent.
    """

    def sent() -> int:
        row: QueueCounters = getattr(lab.counters()[port], queue)
        return row.bytes + row.packets * FRAMING_OCTETS

    begin = time.monotonic()
    start = end = sent()

    def enough() -> bool:
        nonlocal end
        end = sent()
        return end - start >= octets

    within(60, enough, f"{octets} octets left {port}")
    return (end - start) * 8 / (time.monotonic() - begin) / rate_bps


def test_control_goes_before_data(lab: LabFactory) -> None:
    """While control waits, not more of data leaves than the share that data own."""
    small = lab(dilation=1_000_000)  # 400 kb/s, 29 ms a frame
    to = address_of(small, "h1g0")

    def eth0() -> PortCounters:
        return small.counters()["h0g0:eth0"]

    data = blast(small, "h0g0", to, size=1400, count=200)
    control = None
    try:
        within(60, lambda: eth0().data.backlog_packets > 100, "data waiting")
        control = blast(small, "h0g0", to, size=1400, tos=CONTROL_TOS, count=150)
        within(60, lambda: control.poll() is not None, "all control handed over")
        first = last = eth0()
        assert first.control.backlog_packets > 0
        while (now := eth0()).control.backlog_packets > 10:
            last = now
    finally:
        kill(*(sender for sender in (data, control) if sender is not None))
    control_packets = last.control.packets - first.control.packets
    data_packets = last.data.packets - first.data.packets
    assert control_packets >= 20
    assert data_packets <= 2 * DATA_SHARE * control_packets + 1
    assert last.data.backlog_packets > 0
    within(60, lambda: eth0().data.packets > last.data.packets, "data after control")


def test_expedited_forwarding_and_routing_are_control(lab: LabFactory) -> None:
    small = lab()
    to = address_of(small, "h1g1")
    tos = {0x00: 0, 0x02: 0, 0x20: 0, 0xB8: 1, 0xB9: 1, 0xBA: 1, 0xBB: 1, 0xC0: 1, 0x38: 0}

    def send() -> None:
        for field in tos:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                out.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, field)
                out.sendto(b"x", (to, 4793))

    small.inside("h0g0", send)
    within(60, lambda: small.counters()["h1g1:eth0"].rx_packets >= len(tos), "all arrived")
    counters = small.counters()
    for port in ("h0g0:eth0", "rail1:down1"):
        assert counters[port].control.packets == sum(tos.values())
        assert counters[port].data.packets == len(tos) - sum(tos.values())


def test_a_queue_drops_what_the_buffer_cannot_hold(lab: LabFactory) -> None:
    small = lab("rail_clos:hosts=3,gpus_per_host=2,buffer=64KiB", dilation=10_000)
    to = address_of(small, "h2g0")
    senders = [blast(small, node, to, size=8000) for node in ("h0g0", "h1g0")]
    try:  # two NICs into one port
        within(60, lambda: small.counters()["rail0:down2"].data.drops > 0, "a drop")
        assert small.counters()["rail0:down2"].data.backlog_bytes <= 64 * 1024
    finally:
        kill(*senders)


def test_ipv6_traffic_class_is_looked_at_too() -> None:
    requests = egress_requests(Egress(rate_bps=1e9, mtu=9000, buffer_bytes=10_000))
    filters = [request.after for request in requests if b"u32\0" in request.after]
    four = [b"\x00\xfc\x00\x00\x00" + field + b"\x00\x00" for field in (b"\xb8", b"\xc0")]
    six = [b"\x0f\xc0\x00\x00" + field + b"\x00\x00" for field in (b"\x0b\x80", b"\x0c\x00")]
    assert all(mask in body for mask, body in zip(four + six, filters, strict=True))


def test_netem_stands_above_the_queues_when_it_delays() -> None:
    plain = egress_requests(Egress(rate_bps=1e9, mtu=9000, buffer_bytes=10_000))
    delayed = egress_requests(Egress(rate_bps=1e9, mtu=9000, buffer_bytes=10_000, delay_ns=600_000))
    assert len(delayed) == len(plain) + 1
    assert b"netem\0" in delayed[0].after
    assert (600_000).to_bytes(8, "little") in delayed[0].after


# --- Mininet -----------------------------------------------------------------------------------


def test_it_is_a_mininet_network(lab: LabFactory) -> None:
    small = lab()
    net = small.fabric
    assert isinstance(net, Fabric)
    gpu = net["h0g0"]
    assert gpu.IP() == "10.0.1.2"
    assert "10.0.1.2/24" in gpu.cmd("ip -o addr show eth0")
    assert net.ping([net["h0g0"], net["h1g1"]], timeout="5") == 0
    out, err, status = gpu.pexec("sh", "-c", "echo out; exit 3")
    assert (out, err, status) == ("out\n", "", 3)
    assert net["rail0"].cmd("cat /proc/sys/net/ipv4/ip_forward").strip() == "1"


def test_commands_can_wait_be_fed_and_be_interrupted(lab: LabFactory) -> None:
    small = lab()
    assert small.fabric is not None
    gpu = small.fabric["h0g0"]
    gpu.sendCmd("cat")
    gpu.write("hello\n")
    text = ""
    while "hello" not in text:
        text += gpu.monitor(timeoutms=5000)
    gpu.sendInt()
    gpu.waitOutput()
    assert gpu.cmd("exit 5") == ""
    assert gpu.cmd("echo again") == "again\n"


def test_a_background_job_does_not_hold_up_the_next_command(lab: LabFactory) -> None:
    small = lab()
    assert small.fabric is not None
    gpu = small.fabric["h0g0"]
    gpu.cmd("sleep 600 &")
    job = gpu.lastPid
    assert job is not None
    # the shell's child takes a moment to become what it was told to be
    within(60, lambda: gpu.cmd(f"cat /proc/{job}/comm") == "sleep\n", "the job runs")


def test_without_a_controller_or_shell_a_node_costs_no_process(lab: LabFactory) -> None:
    small = lab()
    found = small.exec("h0g0", ["ip", "netns", "pids", small.netns("h0g0").name]).stdout.split()
    # the listing itself is there
    assert len(found) <= 1


# --- two labs ----------------------------------------------------------------------------------


def test_two_labs_with_the_same_addresses_do_not_meet(lab: LabFactory) -> None:
    one, two = lab(), lab()
    assert set(pings(one, [("h0g0", "10.0.2.3")]).values()) == {0}
    assert all(row.rx_packets == 0 for row in two.counters().values())
    one.close()
    assert set(pings(two, [("h0g0", "10.0.2.3")]).values()) == {0}


def test_a_socket_opened_inside_stays_inside(lab: LabFactory) -> None:
    small = lab()
    kernel = small.inside("h1g0", RouteSocket)
    try:
        assert read_ports(kernel).keys() == {"eth0"}
    finally:
        kernel.close()


def test_large_batches_are_split(lab: LabFactory) -> None:
    """A rail of 40 hosts sends more requests to its switch than fit one message."""
    wide = lab("rail_clos:hosts=40,gpus_per_host=1,uplinks_per_spine=4")
    rows = shown(wide, "rail0", "ip", "-j", "neigh")
    assert len(rows) == 40 + 8
