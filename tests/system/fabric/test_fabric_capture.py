"""Captures: which ports, what is kept, and that nothing is lost when somebody dies."""

import contextlib
import ctypes
import os
import pty
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
from scapy.utils import RawPcapNgReader

from emulator.dataplane import lab_record
from emulator.dataplane.capture.fabric_capture import (
    SNAPLEN_FULL,
    SNAPLEN_HEADERS,
    Capture,
    Tap,
    buffer_mib,
    describe,
    parse_snaplen,
    ports_of,
    salvage,
    select,
)
from emulator.dataplane.settings import FabricSettings
from emulator.errors import UserError
from tests.harness.lab.traffic import within
from topologies.model import CableEnd, Link, Node, Port, Role, Server, Topology

root = pytest.mark.root

PORTS = {
    "h0g0": ("eth0",),
    "h1g0": ("eth0",),
    "rail0": ("down0", "down1", "up0", "up1"),
    "spine0": ("down0",),
}


# --- which ports -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("none", []),
        ("all", [Tap(node, ports) for node, ports in PORTS.items()]),
        ("h0g0", [Tap("h0g0", ("eth0",))]),
        ("rail0:up*", [Tap("rail0", ("up0", "up1"))]),
        ("rail0:up1, h0g0 ,rail0:down0", [Tap("h0g0", ("eth0",)), Tap("rail0", ("down0", "up1"))]),
        ("h?g0,h0*", [Tap("h0g0", ("eth0",)), Tap("h1g0", ("eth0",))]),
        ("*:down0", [Tap("rail0", ("down0",)), Tap("spine0", ("down0",))]),
        ("rail0:up[1-9]", [Tap("rail0", ("up1",))]),
    ],
)
def test_selection(selection: str, expected: list[Tap]) -> None:
    assert select(selection, PORTS) == expected


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        ("rial0", "there is no node 'rial0'; did you mean rail0"),
        ("x*", "there is no node 'x.'; the nodes are h0g0, h1g0, rail0, spine0"),
        ("rail0:upp0", "rail0 has no port 'upp0'; its ports are down0, down1, up0, up1"),
        ("h0g0:x9", "h0g0 has no port 'x9'; its ports are eth0"),
        ("h0g0,", "empty part"),
        ("", "empty part"),
        ("h0g0:", "empty part"),
        ("h0g0,none", "'none' stands alone"),
    ],
)
def test_selection_refusals_say_what_exists(selection: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        select(selection, PORTS)


def small_topology() -> Topology:
    """h0g0:eth0 - up0:rail0:up1 - eth0:h1g0, a subnet for each cable."""

    def port(name: str, subnet: int, host: int) -> Port:
        address = IPv4Interface(f"10.0.{subnet}.{host}/24")
        return Port(name=name, mac=f"02:00:00:00:{subnet:02x}:{host:02x}", address=address)

    gpus = [Node(name=f"h{n}g0", role=Role.GPU, ports=(port("eth0", n, 2),)) for n in (0, 1)]
    rail = Node(name="rail0", role=Role.RAIL, ports=(port("up0", 0, 1), port("up1", 1, 1)))
    cables = [
        Link(
            a=CableEnd(f"h{n}g0", "eth0"),
            b=CableEnd("rail0", f"up{n}"),
            rate_bps=10**9,
            delay_ns=0,
            mtu=1500,
            buffer_bytes=10**6,
        )
        for n in (0, 1)
    ]
    return Topology(
        name="small",
        parameters={},
        servers=(Server(name="h0", gpus=("h0g0",)), Server(name="h1", gpus=("h1g0",))),
        nodes=(rail, *gpus),
        links=tuple(cables),
    )


def test_ports_of_a_topology() -> None:
    ports = {"rail0": ("up0", "up1"), "h0g0": ("eth0",), "h1g0": ("eth0",)}
    assert ports_of(small_topology()) == ports


def test_comment_relates_wall_time_to_fabric_time() -> None:
    assert "1 us of fabric time = 10 ms" in describe("x", 10_000)
    assert "1 us of fabric time = 250 us" in describe("x", 250)
    assert "dilation 2.5: times are" in describe("x", 2.5)
    assert "1 us of fabric time = 0.5 us" in describe("x", 0.5)
    assert "times are fabric time" in describe("x", 1)


def test_snap_length() -> None:
    assert parse_snaplen("headers") == SNAPLEN_HEADERS >= 14 + 4 + 40 + 8 + 16 + 16 + 80
    assert parse_snaplen("full") == SNAPLEN_FULL
    assert parse_snaplen("96") == 96
    for bad in ("", "-1", "13", "1e3", "1000000"):
        with pytest.raises(UserError, match="snap length"):
            parse_snaplen(bad)


def test_kernel_buffers_stay_within_their_budget() -> None:
    assert [buffer_mib(ports) for ports in (1, 8, 16, 128, 1000)] == [32, 32, 16, 2, 2]


# --- a small network of our own ----------------------------------------------------------------

MAC = bytes.fromhex("020000000001")
ETHERTYPE = 0x88B5  # IEEE 802 local experimental


@dataclass
class Network:
    """rail0:up0 = h0g0:eth0 and rail0:up1 = h1g0:eth0, nothing but our frames on them."""

    lab: str
    sockets: dict[str, socket.socket] = field(default_factory=dict)

    def namespace(self, node: str) -> str:
        return f"uetemu.{self.lab}.{node}"

    def ip(self, node: str, *arguments: str) -> None:
        subprocess.run(["ip", "-n", self.namespace(node), *arguments], check=True)

    def send(self, port: str, count: int, length: int = 1000) -> None:
        """Send numbered frames out of ``port``, given as node:port."""
        if port not in self.sockets:
            self.sockets[port] = self._open(*port.split(":"))
        head = MAC + MAC + ETHERTYPE.to_bytes(2, "big")
        for number in range(count):
            self.sockets[port].send(head + number.to_bytes(4, "big") + bytes(length - 18))

    def _open(self, node: str, port: str) -> socket.socket:
        made: list[socket.socket] = []

        def inside() -> None:
            with open(f"/run/netns/{self.namespace(node)}") as target:
                assert ctypes.CDLL(None).setns(target.fileno(), 0x40000000) == 0
            made.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            made[0].bind((port, 0))

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        return made[0]

    def taps(self, node: str) -> int:
        """Packet sockets in the namespace of ``node``, those of this test apart."""
        listing = subprocess.run(
            ["ip", "netns", "exec", self.namespace(node), "cat", "/proc/net/packet"],
            check=True,
            capture_output=True,
            text=True,
        )
        ours = sum(port.startswith(f"{node}:") for port in self.sockets)
        return len(listing.stdout.splitlines()) - 1 - ours


@pytest.fixture
def network() -> Iterator[Network]:
    net = Network(f"cap-{secrets.token_hex(4)}")
    nodes = ("rail0", "h0g0", "h1g0")
    with contextlib.ExitStack() as undo:
        for node in nodes:
            name = net.namespace(node)
            subprocess.run(["ip", "netns", "add", name], check=True)
            undo.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
            quiet = "echo 1 | tee /proc/sys/net/ipv6/conf/*/disable_ipv6"
            subprocess.run(
                ["ip", "netns", "exec", name, "sh", "-c", quiet],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        for number in (0, 1):
            peer = ("netns", net.namespace(f"h{number}g0"))
            net.ip("rail0", "link", "add", f"up{number}", "type", "veth", *("peer", "eth0"), *peer)
            net.ip("rail0", "link", "set", f"up{number}", "up")
            net.ip(f"h{number}g0", "link", "set", "eth0", "up")
        yield net
        for sock in net.sockets.values():
            sock.close()


def open_capture(net: Network, folder: Path, selection: str, snaplen: int = 192) -> Capture:
    ports = {"h0g0": ("eth0",), "h1g0": ("eth0",), "rail0": ("up0", "up1")}
    return Capture(
        select(selection, ports),
        namespace=net.namespace,
        folder=folder,
        snaplen=snaplen,
        comment=describe(net.lab, 10_000),
    )


def tshark(path: Path, *fields: str) -> list[tuple[str, ...]]:
    columns = [word for name in fields for word in ("-e", name)]
    done = subprocess.run(
        ["tshark", "-r", str(path), "-T", "fields", *columns],
        check=True,
        capture_output=True,
        text=True,
    )
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def frames_by_port(path: Path) -> Counter[str]:
    return Counter(row[0] for row in tshark(path, "frame.interface_name"))


# --- captures ----------------------------------------------------------------------------------


@root
def test_every_frame_is_there_under_the_name_of_its_port(network: Network, tmp_path: Path) -> None:
    capture = open_capture(network, tmp_path, "all")
    capture.start()
    network.send("rail0:up0", 30)
    network.send("h0g0:eth0", 20)
    network.send("h1g0:eth0", 7, length=60)
    record = capture.stop()

    assert record.errors == record.warnings == ()
    assert record.path == tmp_path / "capture.pcapng"
    assert list(tmp_path.iterdir()) == [record.path]
    seen = {"h0g0:eth0": 50, "rail0:up0": 50, "h1g0:eth0": 7, "rail0:up1": 7}
    assert {count.port: count.received for count in record.ports} == seen
    rows = tshark(record.path, "frame.interface_name", "frame.len", "frame.cap_len")
    assert Counter(name for name, _, _ in rows) == seen
    assert {row[1:] for row in rows} == {("1000", "192"), ("60", "60")}
    times = [float(row[0]) for row in tshark(record.path, "frame.time_epoch")]
    assert times == sorted(times)

    with RawPcapNgReader(str(record.path)) as reader:
        packets = list(reader)
    assert len(packets) == 114
    assert {meta.ifname.decode() for _, meta in packets} == set(seen)

    summary = subprocess.run(
        ["capinfos", str(record.path)], check=True, capture_output=True, text=True
    ).stdout
    assert f"uetemu lab {network.lab}, dilation 10000" in summary
    assert "nanoseconds" in summary


@root
def test_whole_frames_on_request(network: Network, tmp_path: Path) -> None:
    capture = open_capture(network, tmp_path, "h0g0", snaplen=parse_snaplen("full"))
    capture.start()
    network.send("rail0:up0", 3, length=1400)
    record = capture.stop()
    assert record.path is not None
    assert tshark(record.path, "frame.cap_len") == [("1400",)] * 3


@root
def test_a_burst_just_before_the_end_is_complete_and_in_order(
    network: Network, tmp_path: Path
) -> None:
    capture = open_capture(network, tmp_path, "rail0")
    capture.start()
    senders = [
        threading.Thread(target=network.send, args=(port, 20_000))
        for port in ("h0g0:eth0", "h1g0:eth0")
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    record = capture.stop()

    assert record.errors == ()
    assert record.path is not None
    counted = {count.port: count.received + count.dropped for count in record.ports}
    assert counted == {"rail0:up0": 20_000, "rail0:up1": 20_000}
    # Nothing disappears uncounted, whatever the machine was able to keep up with.
    assert frames_by_port(record.path) == {c.port: c.received for c in record.ports}
    times = [float(row[0]) for row in tshark(record.path, "frame.time_epoch")]
    assert times == sorted(times)


@root
def test_a_capture_without_frames_is_a_file_too(network: Network, tmp_path: Path) -> None:
    capture = open_capture(network, tmp_path, "rail0,h0g0")
    capture.start()
    record = capture.stop()
    assert record.errors == ()
    assert record.path is not None
    assert tshark(record.path, "frame.number") == []
    summary = subprocess.run(
        ["capinfos", str(record.path)], check=True, capture_output=True, text=True
    ).stdout
    assert all(name in summary for name in ("h0g0:eth0", "rail0:up0", "rail0:up1"))


def test_no_ports_no_file(tmp_path: Path) -> None:
    capture = Capture([], namespace=str, folder=tmp_path)
    capture.start()
    assert capture.stop().path is None
    assert list(tmp_path.iterdir()) == []


@root
def test_a_killed_sniffer_is_reported_and_the_rest_is_kept(
    network: Network, tmp_path: Path
) -> None:
    capture = open_capture(network, tmp_path, "rail0,h1g0")
    capture.start()
    victim = dict(capture.sniffers)["h1g0:eth0"]
    os.kill(victim.pid, signal.SIGKILL)
    within(10, lambda: not victim.running, "the sniffer is dead")
    network.send("h0g0:eth0", 11)
    record = capture.stop()
    assert len(record.errors) == 1
    assert "the capture of h1g0:eth0 ended before the run did" in record.errors[0]
    assert "SIGKILL" in record.errors[0]
    assert record.path is not None
    assert frames_by_port(record.path) == {"rail0:up0": 11}


@root
def test_a_vanished_port_is_reported(network: Network, tmp_path: Path) -> None:
    capture = open_capture(network, tmp_path, "rail0")
    capture.start()
    network.send("h0g0:eth0", 5)
    sniffer = capture.sniffers[0][1]
    assert sniffer.drain(time.monotonic_ns())
    network.ip("rail0", "link", "del", "up1")
    within(10, lambda: not sniffer.running, "dumpcap has noticed")
    record = capture.stop()
    assert "no longer attached" in record.errors[0]
    assert record.path is not None
    assert frames_by_port(record.path) == {"rail0:up0": 5}


@root
def test_a_link_flap_does_not_end_the_capture(network: Network, tmp_path: Path) -> None:
    capture = open_capture(network, tmp_path, "rail0:up0")
    capture.start()
    network.send("h0g0:eth0", 5)
    network.ip("rail0", "link", "set", "up0", "down")
    network.ip("rail0", "link", "set", "up0", "up")
    network.send("h0g0:eth0", 6)
    record = capture.stop()
    assert record.errors == ()
    assert [count.received for count in record.ports] == [11]


@root
def test_parts_cut_by_force_give_what_they_have(network: Network, tmp_path: Path) -> None:
    capture = open_capture(network, tmp_path, "h0g0,rail0")
    capture.start()
    network.send("h0g0:eth0", 40)
    network.send("h1g0:eth0", 10)
    for _, sniffer in capture.sniffers:
        sniffer.drain(time.monotonic_ns())
        sniffer.interrupt()
        sniffer.wait()
    part = tmp_path / "capture.parts" / "h0g0.pcapng"
    os.truncate(part, part.stat().st_size // 2 + 3)  # in the middle of a block

    path = salvage(tmp_path, "cut")
    assert path is not None
    seen = frames_by_port(path)
    assert seen["rail0:up0"] == 40
    assert seen["rail0:up1"] == 10
    assert 10 < seen["h0g0:eth0"] < 30
    assert not part.exists()
    assert salvage(tmp_path, "again") is None
    capture.abort()


RUNNER = """
import sys, signal
from pathlib import Path
from emulator.dataplane.capture.fabric_capture import Capture, select
lab, folder = sys.argv[1:]
capture = Capture(
    select("rail0", {"rail0": ("up0", "up1")}),
    namespace=lambda node: f"uetemu.{lab}.{node}",
    folder=Path(folder),
)
capture.start()
print(capture.sniffers[0][1].pid, flush=True)
signal.pause()
"""


@root
def test_sniffers_die_with_a_killed_runner_and_leave_a_whole_file(
    network: Network, tmp_path: Path
) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, network.lab, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    sniffer = int(runner.stdout.readline())
    assert os.getsid(sniffer) == sniffer, "Ctrl-C at the terminal would reach the sniffer"
    network.send("h0g0:eth0", 25)
    part = tmp_path / "capture.parts" / "rail0.pcapng"
    within(10, lambda: part.stat().st_size > 25 * 192, "dumpcap has written the frames")
    runner.kill()
    runner.wait()
    runner.stdout.close()
    within(10, lambda: network.taps("rail0") == 0, "dumpcap is gone")
    path = salvage(tmp_path, "killed")
    assert path is not None
    assert frames_by_port(path) == {"rail0:up0": 25}


@root
@pytest.mark.parametrize("broken", ["missing", "down", "namespace"])
def test_a_port_that_cannot_be_captured_stops_the_start(
    network: Network, tmp_path: Path, broken: str
) -> None:
    taps = [Tap("h0g0", ("eth0",)), Tap("rail0", ("up0", "up1"))]
    if broken == "missing":
        taps[1] = Tap("rail0", ("up0", "up9"))
    elif broken == "down":
        network.ip("rail0", "link", "set", "up1", "down")
    else:
        taps[1] = Tap("rail7", ("up0",))
    capture = Capture(taps, namespace=network.namespace, folder=tmp_path)
    with pytest.raises(UserError, match=r"rail\d:.*could not start: dumpcap"):
        capture.start()
    assert list(tmp_path.iterdir()) == []
    assert network.taps("h0g0") == 0


@root
def test_tcpdump_stands_in_for_dumpcap(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "dumpcap" else which(tool))
    capture = open_capture(network, tmp_path, "rail0,h0g0")
    capture.start()
    network.send("h0g0:eth0", 12)
    network.send("rail0:up1", 5)
    record = capture.stop()
    assert record.errors == record.warnings == ()
    assert record.path is not None
    seen = {"h0g0:eth0": 12, "rail0:up0": 12, "rail0:up1": 5}
    assert {count.port: count.received for count in record.ports} == seen
    assert frames_by_port(record.path) == seen
    rows = tshark(record.path, "frame.time_epoch", "frame.cap_len", "frame.len")
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert {row[1:] for row in rows} == {("192", "1000")}


# --- the verb ----------------------------------------------------------------------------------


@pytest.fixture
def lab(network: Network) -> Iterator[Network]:
    """The network as a lab that ``uetemu`` finds."""
    with recorded(network.lab):
        yield network


@contextmanager
def recorded(lab: str) -> Iterator[str]:
    """A record of the network under the name ``lab``."""
    record = lab_record.LabRecord(
        lab=lab,
        identity=lab,
        phase=lab_record.Phase.UP,
        settings=FabricSettings(spec="small", seed=1, dilation=2000, persistent=True),
        owner=lab_record.this_process(),
        created=lab_record.now(),
        nodes=("rail0", "h0g0", "h1g0"),
    )
    lab_record.register(record, small_topology()).release()
    try:
        yield lab
    finally:
        lab_record.erase(lab)


UETEMU = [sys.executable, "-c", "from emulator.cli.main import main; main()"]


def start_verb(
    net: Network, *arguments: str, stdout: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    return start(*arguments, "--lab", net.lab, stdout=stdout)


def start(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*UETEMU, "capture", *arguments], stdout=stdout, stderr=subprocess.PIPE)


def wait_capturing(process: subprocess.Popen[bytes]) -> None:
    """The verb says when every frame from now on is in its stream."""
    assert process.stderr is not None
    stated = process.stderr.readline().decode()
    assert stated.startswith("capturing on "), stated


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, complaint = process.communicate(timeout=60)
    return process.returncode, complaint.decode()


@root
@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("h0g0", {"h0g0:eth0"}),
        ("rail0:up*", {"rail0:up0", "rail0:up1"}),
        ("h?g0,rail0", {"h0g0:eth0", "h1g0:eth0", "rail0:up0", "rail0:up1"}),
    ],
)
def test_stream_into_tshark(lab: Network, selection: str, names: set[str]) -> None:
    verb = start_verb(lab, selection)
    reader = subprocess.Popen(
        ["tshark", "-l", "-r", "-", "-T", "fields", "-e", "frame.interface_name"],
        stdin=verb.stdout,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert verb.stdout is not None
    assert reader.stdout is not None
    verb.stdout.close()
    wait_capturing(verb)
    lab.send("h0g0:eth0", 4)
    lab.send("h1g0:eth0", 4)
    live = Counter(reader.stdout.readline().strip() for _ in range(4 * len(names)))
    assert live == dict.fromkeys(names, 4), "the frames came while the capture was still running"
    verb.send_signal(signal.SIGINT)
    status, stated = ended(verb)
    assert (status, reader.communicate(timeout=60)[0]) == (0, "")
    assert f"{4 * len(names)} packets captured, none missed" in stated
    assert all(lab.taps(node) == 0 for node in ("h0g0", "h1g0", "rail0"))


@root
@pytest.mark.parametrize("selection", ["h0g0", "rail0,h0g0"])
def test_stream_ends_after_count(lab: Network, tmp_path: Path, selection: str) -> None:
    target = tmp_path / "some.pcapng"
    arguments = (selection, "--count", "5", "--snaplen", "full", "-w", str(target))
    verb = start_verb(lab, *arguments, stdout=subprocess.DEVNULL)
    wait_capturing(verb)

    def send_and_look() -> bool:
        lab.send("h0g0:eth0", 3, length=1200)
        return verb.poll() is not None

    within(30, send_and_look, "the capture has its five packets")
    assert ended(verb)[0] == 0
    assert tshark(target, "frame.cap_len") == [("1200",)] * 5


@root
def test_stream_ends_when_nobody_reads_even_without_traffic(lab: Network) -> None:
    verb = start_verb(lab, "h0g0")
    wait_capturing(verb)
    assert verb.stdout is not None
    verb.stdout.close()
    verb.stdout = None
    assert ended(verb)[0] == 0
    assert lab.taps("h0g0") == 0


@root
def test_stream_ends_after_duration_with_all_that_passed(lab: Network, tmp_path: Path) -> None:
    target = tmp_path / "some.pcapng"
    verb = start_verb(lab, "h0g0", "--duration", "1.5", "-w", str(target))
    wait_capturing(verb)
    lab.send("h0g0:eth0", 9)
    assert ended(verb)[0] == 0
    assert len(tshark(target, "frame.number")) == 9
    assert f"uetemu lab {lab.lab}, dilation 2000".encode() in target.read_bytes()


@root
def test_stream_reports_a_vanished_port(lab: Network, tmp_path: Path) -> None:
    verb = start_verb(lab, "rail0:up0", "-w", str(tmp_path / "some.pcapng"))
    wait_capturing(verb)
    lab.ip("rail0", "link", "del", "up0")
    status, stated = ended(verb)
    assert status == 1
    assert stated.startswith("uetemu: the capture has ended: dumpcap says: ")


@root
def test_stream_reports_that_the_lab_went_down(lab: Network, tmp_path: Path) -> None:
    verb = start_verb(lab, "rail0,h0g0", "-w", str(tmp_path / "some.pcapng"))
    wait_capturing(verb)
    inside = subprocess.run(
        ["ip", "netns", "pids", lab.namespace("h0g0")], check=True, capture_output=True, text=True
    )
    os.kill(int(inside.stdout), signal.SIGTERM)  # as uetemu down does
    status, stated = ended(verb)
    assert status == 1
    assert "was the lab taken down?" in stated
    assert tshark(tmp_path / "some.pcapng", "frame.number") == []


@root
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("h0g9",), "there is no node 'h0g9'; did you mean h0g0"),
        (("rail0:down*",), "its ports are up0, up1"),
        (("none",), "nothing to capture"),
        (("h0g0", "--snaplen", "short"), "snap length 'short'"),
        (("h0g0", "-w", "/nowhere/x"), "cannot write /nowhere/x"),
    ],
)
def test_stream_refusals(lab: Network, arguments: tuple[str, ...], says: str) -> None:
    status, stated = ended(start_verb(lab, *arguments))
    assert status == 1
    assert stated.startswith("uetemu: ")
    assert says in stated
    assert stated.count("\n") == 1


@root
@pytest.mark.parametrize("selection", ["{}:h0g0:eth0", "{}:h0g0", "{}:h?g0:*", "{}:all"])
def test_ports_are_called_by_their_lab_where_several_are_up(
    lab: Network, tmp_path: Path, selection: str
) -> None:
    with recorded(f"{lab.lab}-2"):
        target = str(tmp_path / "some.pcapng")
        verb = start(selection.format(lab.lab), "--count", "3", "-w", target)
        wait_capturing(verb)
        lab.send("h0g0:eth0", 3)
        assert ended(verb)[0] == 0
        stated = f"uetemu lab {lab.lab}, dilation 2000".encode()
        assert stated in (tmp_path / "some.pcapng").read_bytes()


@root
def test_a_lab_that_is_said_once_is_that_of_all_ports(lab: Network, tmp_path: Path) -> None:
    with recorded(f"{lab.lab}-2"):
        verb = start(f"h0g0,{lab.lab}:rail0:up0", "-w", str(tmp_path / "some.pcapng"))
        assert verb.stderr is not None
        reported = verb.stderr.readline().decode()
        verb.send_signal(signal.SIGINT)
        assert ended(verb)[0] == 0
    assert reported == "capturing on rail0:up0, h0g0:eth0; Ctrl-C ends\n"


@root
def test_a_lab_may_have_the_name_of_a_node(lab: Network, tmp_path: Path) -> None:
    """What reads as NODE:PORT of the lab is that, and three parts are never anything else."""
    with recorded("rail0"):
        verb = start_verb(lab, "rail0:up0", "-w", str(tmp_path / "some.pcapng"))
        wait_capturing(verb)
        verb.send_signal(signal.SIGINT)
        assert ended(verb)[0] == 0
        reported = f"uetemu lab {lab.lab}, dilation 2000".encode()
        assert reported in (tmp_path / "some.pcapng").read_bytes()
        status, stated = ended(start("rail0:rail0:nothing"))
        assert status == 1
        assert "its ports are up0, up1" in stated


@root
def test_one_capture_is_of_one_lab(lab: Network) -> None:
    other = f"{lab.lab}-2"
    with recorded(other):
        for arguments, says in (
            (("h0g0",), "say which lab, as LAB:NODE:PORT or with --lab (running: "),
            (
                (f"{lab.lab}:h0g0:eth0,{other}:h1g0:eth0",),
                f"{lab.lab}:h0g0:eth0 and {other}:h1g0:eth0 name different labs",
            ),
            (
                (f"{other}:h0g0", "--lab", lab.lab),
                f"--lab {lab.lab} and {other}:h0g0 name different labs",
            ),
            (("no-such-lab:h0g0:eth0",), "there is no lab 'no-such-lab'; running: "),
            ((f"{lab.lab}:h0g9",), "there is no node 'h0g9'; did you mean h0g0"),
            ((":h0g0:eth0", "--lab", lab.lab), "has an empty part"),
        ):
            status, stated = ended(start(*arguments))
            assert status == 1
            assert says in stated


@root
def test_stream_of_an_unknown_lab() -> None:
    done = subprocess.run(
        [*UETEMU, "capture", "h0g0", "--lab", "no-such-lab"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "there is no lab 'no-such-lab'; running: " in done.stderr


def test_a_terminal_is_no_place_for_a_capture() -> None:
    control, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [*UETEMU, "capture", "h0g0"], stdout=terminal, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(control)
        os.close(terminal)
    assert done.returncode == 1
    assert "standard output is a terminal" in done.stderr
    assert "wireshark -k -i -" in done.stderr
