"""A port under test: two namespaces without names, a cable, and raw sockets at both ends.

::

    near (program on egress of port 11) ------- far (port 12)

They end with the sockets that hold them.  Where a test sets a rate of nearly nothing, the modelled
queue never drains and the outcome does not depend on time.
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.port_counters import ports_not_ready
from emulator.dataplane.kernel.shaping import Egress, egress_requests
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf.switch_program import SwitchProgram
from emulator.dataplane.switch.switch_counters import AsicCounters, read
from emulator.dataplane.switch.switch_profile import CodePoints, Profile, named, port_settings

T = TypeVar("T")


NEAR, FAR = 11, 12
NEAR_MAC, FAR_MAC = "02:00:00:00:00:0b", "02:00:00:00:00:0c"
MTU = 4500
ETH_P_ALL, LOCAL_EXPERIMENT = 0x0003, 0x88B5
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
SO_RCVBUFFORCE = 33
BUDGET_S = 20.0
LAST = b"\x02\0\0\0\0\x0c\x02\0\0\0\0\x0b" + struct.pack("!H", LOCAL_EXPERIMENT) + bytes(46)
POINTS = CodePoints(data=0, retransmission=8, control=46, trimmed=10, trimmed_last_hop=12)
#: UES 4.1 counts on the wire: Ethernet header 14, preamble, FCS and gap 24
WIRE = 38


def profile(name: str = "shallow", *, bdp: int = 100_000, **changes: Any) -> Profile:
    """A profile with :data:`POINTS`; ``data__kmin_bytes`` stands for ``data.kmin_bytes``."""
    renamed = {key.replace("__", "."): value for key, value in changes.items()}
    return named(name, bdp_bytes=bdp, mtu=MTU, code_points=POINTS, changes=renamed)


def udp(
    payload: int, *, dscp: int = 0, ecn: int = 2, sport: int = 7, version: int = 4, fill: int = 0
) -> bytes:
    """A frame from near to far: UDP with ``payload`` octets, checksum 0 as UES 3.2 has it."""
    traffic = dscp << 2 | ecn
    ip: Packet
    if version == 4:
        ip = IP(src="10.0.0.1", dst="10.0.0.2", tos=traffic, ttl=61, flags="DF", id=77)
    else:
        ip = IPv6(src="fd00::1", dst="fd00::2", tc=traffic, hlim=61, fl=0xABCDE)
    octets = bytes((fill + n) & 0xFF for n in range(payload))
    udp_header = UDP(sport=sport, dport=4793, chksum=0)
    return bytes(Ether(src=NEAR_MAC, dst=FAR_MAC) / ip / udp_header / Raw(octets))


def numbered(count: int, payload: int, **fields: Any) -> list[bytes]:
    """:func:`udp` frames that :func:`number_of` tells apart, by their source port."""
    frame = udp(payload, **fields)  # building one takes longer than sending it
    return [frame[:34] + struct.pack("!H", n) + frame[36:] for n in range(count)]


def number_of(frame: bytes) -> int:
    return int.from_bytes(frame[34:36], "big")


def native(payload: int, *, dscp: int = 0, ecn: int = 2, entropy: int = 7) -> bytes:
    """A frame of native encapsulation: an entropy header and ``payload`` octets."""
    ip = IP(src="10.0.0.1", dst="10.0.0.2", tos=dscp << 2 | ecn, ttl=61, flags="DF", proto=253)
    octets = struct.pack("!HH", entropy, 0) + bytes(n & 0xFF for n in range(payload))
    return bytes(Ether(src=NEAR_MAC, dst=FAR_MAC) / ip / Raw(octets))


def at_a_standstill(settings: bytes) -> bytes:
    """``settings`` with the smallest rate there is: one octet in 17 ms."""
    return struct.pack("=Q", 1) + settings[8:]


class Namespace:
    """A network namespace that lives as long as this object is open."""

    def __init__(self) -> None:
        self.handle, self.kernel = namespaces.visitor().run(self._make)

    def _make(self) -> tuple[int, RouteSocket]:
        namespaces.leave_for_unnamed()
        # or the kernel's own neighbour discovery would be among the frames
        for place in ("default", "all"):
            Path(f"/proc/sys/net/ipv6/conf/{place}/disable_ipv6").write_text("1")
        return os.open(namespaces.OWN, os.O_RDONLY | os.O_CLOEXEC), RouteSocket()

    def inside(self, work: Callable[[], T]) -> T:
        return namespaces.visitor().inside(Path(f"/proc/self/fd/{self.handle}"), work)

    def sysctl(self, name: str, value: str) -> None:
        self.inside(lambda: Path(f"/proc/sys/net/{name}").write_text(value))

    def raw(self, index: int) -> socket.socket:
        """A packet socket on interface ``index``; it hears what arrives, not what it sends."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            made.bind((socket.if_indextoname(index), ETH_P_ALL))
            made.settimeout(BUDGET_S)
            return made

        return self.inside(make)

    def close(self) -> None:
        self.kernel.close()
        os.close(self.handle)


def cable(near: Namespace, far: Namespace, index: int, far_index: int) -> None:
    """A veth pair, ends named by their indices and up; returns when both can send."""
    kernel_object.veth(
        near.kernel,
        (f"p{index}", index, _mac(index)),
        (f"p{far_index}", far_index, _mac(far_index)),
        far_namespace=far.handle,
        mtu=MTU,
        subject="cable",
    )
    near.kernel.flush()
    for namespace, end in ((near, index), (far, far_index)):
        kernel_object.raise_link(namespace.kernel, end, subject="port")
        namespace.kernel.flush()
    for namespace in (near, far):
        await_ports(namespace)


def await_ports(namespace: Namespace) -> None:
    """Return when every interface of ``namespace`` can send."""
    within(lambda: not ports_not_ready(namespace.kernel), "ports ready")


def shape(namespace: Namespace, index: int, rate_bps: float, buffer_bytes: int = 64 << 20) -> None:
    """Put the fabric's own HTB below the program."""
    egress = Egress(rate_bps=rate_bps, mtu=MTU, buffer_bytes=buffer_bytes)
    for request in egress_requests(egress):
        namespace.kernel.queue(request.kind, request.flags, request.body(index), "htb")
    namespace.kernel.flush()


def _mac(index: int) -> str:
    return f"02:00:00:00:00:{index:02x}"


def within(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BUDGET_S
    while not condition():
        assert time.monotonic() < deadline, f"after {BUDGET_S} s still not: {what}"
        time.sleep(0.002)


class Bench:
    """The port, its far end, and the program."""

    def __init__(self, program: SwitchProgram, stack: ExitStack) -> None:
        self.program = program
        self.near, self.far = Namespace(), Namespace()
        stack.callback(self.near.close)
        stack.callback(self.far.close)
        cable(self.near, self.far, NEAR, FAR)
        self.out = stack.enter_context(self.near.raw(NEAR))
        self.heard = stack.enter_context(self.far.raw(FAR))
        ports.attach(self.near.kernel, NEAR, program, subject="near")
        self.near.kernel.flush()

    def configure(self, rules: Profile, **settings: Any) -> None:
        """``settings`` are those of :func:`port_settings`; without a rate, the link stands."""
        defaults: dict[str, Any] = {"rate_bps": 1e9, "dilation": 1, "seed": 1}
        packed = port_settings(rules, **defaults | settings)
        ports.configure(
            self.program, NEAR, packed if "rate_bps" in settings else at_a_standstill(packed)
        )

    def exchange(self, frames: Iterable[bytes]) -> list[bytes]:
        """Send ``frames``; what arrived of them, in order, up to a last frame of our own."""
        for frame in frames:
            self.out.send(frame)
        self.out.send(LAST)
        arrived = []
        while (frame := self.heard.recv(65536)) != LAST:
            arrived.append(frame)
        return arrived

    def counters(self) -> AsicCounters:
        return read(self.program, NEAR)
