"""Taps hear what leaves the ports of a lab with a virtual clock, and send into them."""

import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address
from typing import Any

from emulator.dataplane.control_plane.control_plane_choice import chosen
from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.inner.passage import ring_filter
from emulator.dataplane.lab import Lab
from tests.system.conftest import LabFactory
from topologies import catalogue
from topologies.model import CableEnd, Topology

ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
UET_PORT = 4793
VXLAN_PORT = 4789
SYNCHRONOUS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 5)
LATE_S = 0.3


class WireTap:
    """Packet sockets in the namespace of the wires: one hears all ends, the others send.

    Of a ``worker`` it hears what that worker's ring does, else everything.
    """

    def __init__(self, lab: Lab, worker: int | None = None) -> None:
        assert lab.wires is not None
        self._wires = lab.wires
        self._path = lab.wires_namespace
        self._ear = self._socket(socket.htons(ETH_P_ALL))
        self._ear.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self._ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        if worker is not None:
            ring_filter(self._ear, lab.wires, worker)
        self._ear.setblocking(False)
        self._mouths: dict[CableEnd, socket.socket] = {}
        self.heard()  # what came before the filter was there

    def _socket(self, protocol: int = 0) -> socket.socket:
        return namespaces.visitor().inside(
            self._path, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, protocol)
        )

    def send(self, end: CableEnd, frame: bytes) -> list[tuple[CableEnd, bytes]]:
        """Send on the inner end of ``end``; return what is out elsewhere when ``send`` returns.

        Kernels before 6.5 hand a softirq to ksoftirqd while that runs: there, what is out soon.
        """
        if end not in self._mouths:
            self._mouths[end] = self._socket()
            self._mouths[end].bind((self._wires.name(end), 0))
        assert self._mouths[end].send(frame) == len(frame)
        found = self.heard()
        if not found and not SYNCHRONOUS and self.hears_within(LATE_S):
            found = self.heard()
        return found

    def heard(self) -> list[tuple[CableEnd, bytes]]:
        """Return the frames that came to inner ends since the last call."""
        found: list[tuple[CableEnd, bytes]] = []
        while True:
            try:
                octets, (name, *_) = self._ear.recvfrom(65536)
            except BlockingIOError:
                return found
            index = namespaces.visitor().inside(self._path, partial(socket.if_nametoindex, name))
            found.append((self._wires.end_of(index), octets))

    def hears_within(self, seconds: float) -> bool:
        """Whether a frame comes to an inner end within so many seconds of the host."""
        return bool(select.select([self._ear], [], [], seconds)[0])

    def close(self) -> None:
        for each in (self._ear, *self._mouths.values()):
            each.close()


def tunnelled(spec: str) -> Topology:
    """Return a fabric of stretched rails without BFD, whose sessions take seconds to begin."""
    return chosen(catalogue.load(spec), "evpn:bfd=off")


def virtual(lab: LabFactory, spec: str | Topology, **settings: Any) -> Lab:
    """A lab of that fabric with a virtual clock."""
    return lab(spec, dilation=1, clock="virtual", **settings)


def ear(lab: Lab, end: CableEnd) -> socket.socket:
    """A packet socket on the port ``end``, in its node, that hears what arrives there."""

    def bound() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        made.bind((end.port, ETH_P_ALL))
        made.setblocking(False)
        return made

    return lab.inside(end.node, bound)


def received(ear: socket.socket) -> list[bytes]:
    """Return the frames that arrived since the last call."""
    found = []
    while True:
        try:
            found.append(ear.recv(65536))
        except BlockingIOError:
            return found


@contextmanager
def tapped(lab: Lab, worker: int | None = None) -> Iterator[WireTap]:
    tap = WireTap(lab, worker)
    try:
        yield tap
    finally:
        tap.close()


def carried(tap: WireTap, lab: Lab, sender: str, frame: bytes) -> tuple[list[CableEnd], bytes]:
    """Pass a frame of the GPU ``sender`` from cable to cable until it is at a GPU.

    Return the far ends of the cables behind the first, and the frame as it arrives.
    """
    end, path = lab.topology.far_end(CableEnd(sender, "eth0")), []
    while lab.topology.node(end.node).is_switch:
        ((port, frame),) = tap.send(end, frame)
        assert port.node == end.node
        end = lab.topology.far_end(port)
        path.append(end)
    return path, frame


def datagram(
    lab: Dataplane, source: str, destination: str, *, port: int = UET_PORT, octets: int = 64
) -> bytes:
    """A UDP frame from the GPU ``source`` to ``destination`` as its kernel would address it."""
    sender, receiver = lab.topology.node(source), lab.topology.node(destination)
    ours, theirs = sender.ports[0], receiver.ports[0]
    assert ours.address is not None
    assert theirs.address is not None
    near = theirs.address.ip in ours.address.network
    gateway = lab.topology.gateway_of(CableEnd(source, ours.name))
    assert gateway is not None
    mac = theirs.mac if near else gateway.mac
    ethernet = _mac(mac) + _mac(ours.mac) + b"\x08\x00"
    return ethernet + ip_udp(ours.address.ip, theirs.address.ip, port, bytes(octets))


def ip_udp(
    source: IPv4Address, destination: IPv4Address, port: int, payload: bytes, *, options: int = 0
) -> bytes:
    """An IPv4 packet with UDP to ``port``, and so many octets of ``options`` (of no operation)."""
    datagram = struct.pack("!4H", 49152, port, 8 + len(payload), 0) + payload
    return ip(source, destination, 17, datagram, options=options)


def ip(
    source: IPv4Address,
    destination: IPv4Address,
    protocol: int,
    payload: bytes,
    *,
    options: int = 0,
    fragment: int = 0,
) -> bytes:
    """An IPv4 packet of ``protocol``; ``fragment`` is its offset in units of eight octets."""
    length = 20 + options
    first = 0x40 | length // 4
    total = length + len(payload)
    header = struct.pack("!BBHHHBBH", first, 0, total, 0, fragment, 64, protocol, 0)
    header += source.packed + destination.packed + b"\x01" * options
    words = ones_complement(header)
    return header[:10] + struct.pack("!H", ~words & 0xFFFF) + header[12:] + payload


def with_source_port(frame: bytes, port: int) -> bytes:
    """``frame``, of UDP without checksum over IPv4 without options, from another port."""
    return frame[:34] + port.to_bytes(2, "big") + frame[36:]


def ones_complement(octets: bytes) -> int:
    """The sum of octets with their checksum, 0xFFFF if that is right (RFC 1071)."""
    octets += bytes(len(octets) % 2)
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _mac(written: str) -> bytes:
    return bytes.fromhex(written.replace(":", ""))
