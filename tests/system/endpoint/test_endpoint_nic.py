"""The NIC on real interfaces: frames in and out, filter, delay, back-pressure, link down."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from emulator.dataplane.clock import Clock
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.icmp_guard import guard_interface
from emulator.dataplane.lab import Lab
from emulator.sim.endpoint.nic.delay_line import PathDelay
from emulator.sim.endpoint.nic.packet_nic import Nic
from tests.harness.lab.endpoint_lab import UET_PORT, small_lab
from tests.harness.lab.traffic import within

pytestmark = pytest.mark.root

SIZE = 4096


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with small_lab() as lab:
        yield lab


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_nic(
    lab: Lab, node: str, stack: ExitStack, *, clock: Clock | None = None, **options: Any
) -> Nic:
    clock = clock or Clock.start(lab.dilation)
    nic = lab.inside(
        node,
        lambda: Nic(
            "eth0",
            clock,
            **{"frames": TransportFrames(), "frame_octets": 9014, **options},
        ),
    )
    stack.callback(nic.close)
    return nic


def header(
    lab: Lab, source: str, target: str, payload: int, *, port: int = UET_PORT, protocol: int = 17
) -> bytes:
    a, b = (lab.topology.node(name).ports[0] for name in (source, target))
    assert a.address is not None
    assert b.address is not None
    mac = bytes.fromhex((b.mac + a.mac).replace(":", ""))
    ip = struct.pack(
        "!BBHHHBBH4s4s",
        0x45, 0, 28 + payload, 0, 0x4000, 64, protocol, 0, a.address.ip.packed, b.address.ip.packed,
    )  # fmt: skip
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    udp = struct.pack("!HHHH", 50_000, port, 8 + payload, 0)
    return mac + b"\x08\x00" + ip + udp


def collect(nic: Nic, count: int, lab: Lab) -> list[bytes]:
    got: list[bytes] = []

    def more() -> bool:
        got.extend(bytes(frame) for frame in nic.receive(Clock.start(1).now()))
        return len(got) >= count

    within(5, more, f"{count} frames received")
    return got


def test_frames_arrive_whole_and_in_order(lab: Lab, stack: ExitStack) -> None:
    a, b = open_nic(lab, "h0g0", stack), open_nic(lab, "h1g0", stack)
    head = header(lab, "h0g0", "h1g0", SIZE)
    payloads = [bytes([number % 251]) * SIZE for number in range(100)]
    got: list[bytes] = []
    for payload in payloads:
        a.send([(head, memoryview(payload))])
        within(5, lambda: a.send([]) >= 0 and a.backlog == 0, "frame sent")
        got += collect(b, 1, lab)
    assert got == [head + payload for payload in payloads]
    assert b.counters()["frames_in"] == a.counters()["frames_out"] == 100
    assert a.counters()["frames_in"] == 0  # its own frames are not its business
    assert b.counters()["socket_drops"] == 0


def test_short_and_empty_payloads(lab: Lab, stack: ExitStack) -> None:
    a, b = open_nic(lab, "h0g0", stack), open_nic(lab, "h1g0", stack)
    head = header(lab, "h0g0", "h1g0", 0)
    a.send([(head, b""), (head, b"xyz")])
    assert collect(b, 2, lab) == [head, head + b"xyz"]


def test_only_transport_frames_pass_the_filter(lab: Lab, stack: ExitStack) -> None:
    a, b = open_nic(lab, "h0g0", stack), open_nic(lab, "h1g0", stack)
    others = [
        header(lab, "h0g0", "h1g0", 4, port=UET_PORT + 1),
        header(lab, "h0g0", "h1g0", 4, protocol=6),
        b"\xff" * 6 + b"\x02" * 6 + b"\x08\x06" + bytes(46),
        header(lab, "h0g0", "h1g0", 4)[:20] + b"\x00\x10" + header(lab, "h0g0", "h1g0", 4)[22:],
    ]
    native = header(lab, "h0g0", "h1g0", 4, protocol=253)
    for frame in others:
        a.send([(frame, b"abcd")])
    a.send([(native, b"last")])
    assert collect(b, 1, lab) == [native + b"last"]
    assert b.counters()["frames_in"] == 1


def test_views_stay_until_the_next_call_and_slots_come_round(lab: Lab, stack: ExitStack) -> None:
    a, b = open_nic(lab, "h0g0", stack), open_nic(lab, "h1g0", stack, slots=14)
    head = header(lab, "h0g0", "h1g0", 8)
    clock = Clock.start(1)
    seen: list[int] = []
    for number in range(200):
        a.send([(head, struct.pack("!Q", number))])
        views: list[memoryview] = []

        def arrived(views: list[memoryview] = views) -> bool:
            views.extend(b.receive(clock.now()))
            return bool(views)

        within(5, arrived, "frame received")
        seen.append(struct.unpack("!Q", views[0][-8:])[0])
    assert seen == list(range(200))
    assert b.counters()["socket_drops"] == 0


def test_ring_that_is_not_emptied_drops_and_counts(lab: Lab, stack: ExitStack) -> None:
    a, b = open_nic(lab, "h0g0", stack), open_nic(lab, "h1g0", stack, slots=7)
    head = header(lab, "h0g0", "h1g0", 8)
    sent = 0
    dropped = 0

    def overflow() -> bool:
        nonlocal sent, dropped
        sent += a.send([(head, struct.pack("!Q", sent))])
        dropped += b.counters()["socket_drops"] - dropped
        return dropped > 0

    within(5, overflow, "a drop is counted")
    first = [struct.unpack("!Q", frame[-8:])[0] for frame in b.receive(0)]
    assert first == list(range(len(first)))  # the newest are lost, not the ones that wait


def test_frames_are_held_for_their_path(lab: Lab, stack: ExitStack) -> None:
    delay_ns = 5_000_000  # of fabric time; five seconds of this machine's
    source = "10.0.1.2"
    a = open_nic(lab, "h0g0", stack)
    clock = Clock.start(lab.dilation)
    b = open_nic(lab, "h1g0", stack, clock=clock, path_delays={source: PathDelay(delay_ns)})
    head = header(lab, "h0g0", "h1g0", 8)
    sent_from = clock.now()
    for number in range(20):
        a.send([(head, struct.pack("!Q", number))])
    within(5, lambda: not b.receive(clock.now()) and b.counters()["held"] == 20, "20 frames held")
    sent_until = clock.now()
    assert not b.pollable
    now = clock.now()
    due = b.next_deadline(now)
    assert due is not None
    assert sent_from + delay_ns <= due <= sent_until + delay_ns
    assert b.receive(due - 1) == []
    # The fake clock goes on; the frames come out in order, none before its time.
    out = [struct.unpack("!Q", frame[-8:])[0] for frame in b.receive(sent_until + delay_ns)]
    assert out == list(range(20))
    assert b.receive(sent_until + delay_ns) == []
    assert b.pollable


def test_held_frames_are_not_overwritten(lab: Lab, stack: ExitStack) -> None:
    a = open_nic(lab, "h0g0", stack)
    clock = Clock.start(lab.dilation)
    delays = {"10.0.1.2": PathDelay(1 << 40)}
    b = open_nic(lab, "h1g0", stack, clock=clock, slots=7, path_delays=delays)
    head = header(lab, "h0g0", "h1g0", 8)

    def filled() -> bool:
        a.send([(head, struct.pack("!Q", a.counters()["frames_out"]))])
        b.receive(clock.now())
        return b.counters()["socket_drops"] > 3

    within(5, filled, "the ring is full of held frames")
    held = b.counters()["held"]
    out = [struct.unpack("!Q", frame[-8:])[0] for frame in b.receive(1 << 62)]
    assert out == list(range(held))


def test_back_pressure_instead_of_loss(stack: ExitStack) -> None:
    with small_lab("rail_clos:hosts=2,gpus_per_host=1,buffer=64KiB", dilation=200_000.0) as slow:
        a = open_nic(slow, "h0g0", stack, queue_frames=4)
        b = open_nic(slow, "h1g0", stack)
        head = header(slow, "h0g0", "h1g0", SIZE)
        frames = [(head, memoryview(struct.pack("!Q", n) + bytes(SIZE - 8))) for n in range(40)]
        a.send(frames)
        assert a.backlog > 0
        assert a.room() == 0
        got: list[int] = []

        def all_arrived() -> bool:
            a.send([])
            got.extend(struct.unpack("!Q", f[42:50])[0] for f in b.receive(0))
            return len(got) == len(frames)

        within(20, all_arrived, "every frame arrived")
        assert got == list(range(40))
        counters = a.counters()
        assert counters["send_retries"] > 0
        assert counters["send_refused"] == 0
        assert counters["pending"] == 0
        # No more waits in the port's queue than it was asked to hold.
        assert slow.counters()["h0g0:eth0"].data.drops == 0


def test_frame_beyond_the_mtu_names_the_way_out(lab: Lab, stack: ExitStack) -> None:
    a = open_nic(lab, "h0g0", stack)
    with pytest.raises(ValueError, match="raise the MTU"):
        a.send([(header(lab, "h0g0", "h1g0", 10_000), bytes(10_000))])


def test_link_down_loses_frames_and_is_survived(stack: ExitStack) -> None:
    with small_lab() as lab:
        a, b = open_nic(lab, "h0g0", stack), open_nic(lab, "h1g0", stack)
        head = header(lab, "h0g0", "h1g0", 4)
        lab.exec("h0g0", ["ip", "link", "set", "eth0", "down"]).check_returncode()
        a.send([(head, b"lost")])
        assert a.receive(0) == []
        a.acknowledge_error()
        a.send([(head, b"lost")])
        assert a.counters()["link_down"] >= 1
        lab.exec("h0g0", ["ip", "link", "set", "eth0", "up"]).check_returncode()
        got: list[bytes] = []

        def through() -> bool:
            a.send([(head, b"back")])
            got.extend(bytes(frame[-4:]) for frame in b.receive(0))
            return bool(got)

        within(5, through, "frames pass again")
        assert set(got) == {b"back"}


@pytest.mark.parametrize("mechanism", ["clsact", "nftables"])
def test_kernel_stays_silent_and_ping_works(
    mechanism: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_lab() as lab:
        if mechanism == "nftables":
            # What a kernel without the classifier would answer.
            def refuse(*_: object, **__: Any) -> None:
                raise OSError(2, "no such classifier")

            monkeypatch.setattr("emulator.dataplane.kernel.icmp_guard._request", refuse)
        a = open_nic(lab, "h0g0", stack)
        answers = lab.inside("h0g0", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        stack.callback(answers.close)
        answers.bind(("eth0", 0x0003))
        answers.settimeout(5)
        head = header(lab, "h0g0", "h1g0", 4)
        native = header(lab, "h0g0", "h1g0", 4, protocol=253)

        def icmp_errors() -> int:
            """Return what came back before the answer to a probe that the kernel always answers."""
            probe = header(lab, "h0g0", "h1g0", 4, port=9)
            a.send([(head, b"uet!"), (native, b"uet!"), (probe, b"end!")])
            errors = 0
            while True:
                frame = answers.recv(2000)
                if frame[6:12] == a_mac or frame[12:14] != b"\x08\x00" or frame[23] != 1:
                    continue
                if frame[34] == 3:
                    quoted = frame[42:]
                    if quoted[9] == 17 and quoted[22:24] == b"\x00\x09":
                        return errors
                    errors += 1

        a_mac = bytes.fromhex(lab.topology.node("h0g0").ports[0].mac.replace(":", ""))
        # An endpoint of another transport was here before; its frames are not those of this one.
        other = TransportFrames(udp_ports=(4791,), ip_protocols=())
        assert lab.inside("h1g0", lambda: guard_interface("eth0", other)) == mechanism
        assert icmp_errors() == 2
        b = open_nic(lab, "h1g0", stack)
        assert lab.inside("h1g0", lambda: guard_interface("eth0", TransportFrames())) == mechanism
        assert lab.inside("h1g0", lambda: guard_interface("eth0", TransportFrames())) == mechanism
        assert icmp_errors() == 0
        assert [frame[-4:] for frame in collect(b, 2, lab)] == [b"uet!", b"uet!"]
        assert lab.exec("h0g0", ["ping", "-c1", "-W2", "10.0.1.3"]).returncode == 0
