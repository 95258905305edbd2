"""A person at the cables: sees what leaves ports of a lab with a virtual clock, sends into them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address

from emulator.fabric import namespaces
from emulator.lab import Lab
from topologies.model import End

ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
UET_PORT = 4793


class WireTap:
    """Packet sockets in the namespace of the wires: one hears all ends, the others send."""

    def __init__(self, lab: Lab) -> None:
        assert lab.wires is not None
        self._wires = lab.wires
        self._path = lab.wires_namespace
        self._ear = self._socket(socket.htons(ETH_P_ALL))
        self._ear.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self._ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._ear.setblocking(False)
        self._mouths: dict[End, socket.socket] = {}

    def _socket(self, protocol: int = 0) -> socket.socket:
        return namespaces.visitor().inside(
            self._path, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, protocol)
        )

    def send(self, end: End, frame: bytes) -> list[tuple[End, bytes]]:
        """Send on the inner end of ``end``; what has come out elsewhere when ``send`` returns."""
        if end not in self._mouths:
            self._mouths[end] = self._socket()
            self._mouths[end].bind((self._wires.name(end), 0))
        assert self._mouths[end].send(frame) == len(frame)
        return self.heard()

    def heard(self) -> list[tuple[End, bytes]]:
        """What has come to inner ends since this was last asked."""
        found = []
        while True:
            try:
                octets, (name, *_) = self._ear.recvfrom(65536)
            except BlockingIOError:
                return found
            index = namespaces.visitor().inside(self._path, lambda n=name: socket.if_nametoindex(n))
            found.append((self._wires.end_of(index), octets))

    def close(self) -> None:
        for each in (self._ear, *self._mouths.values()):
            each.close()


@contextmanager
def tapped(lab: Lab) -> Iterator[WireTap]:
    tap = WireTap(lab)
    try:
        yield tap
    finally:
        tap.close()


def datagram(
    lab: Lab, source: str, destination: str, *, port: int = UET_PORT, octets: int = 64
) -> bytes:
    """A UDP frame from the GPU ``source`` to ``destination`` as its kernel would address it."""
    sender, receiver = lab.topology.node(source), lab.topology.node(destination)
    ours, theirs = sender.ports[0], receiver.ports[0]
    assert ours.address is not None
    assert theirs.address is not None
    near = theirs.address.ip in ours.address.network
    gateway = lab.topology.gateway_of(End(source, ours.name))
    assert gateway is not None
    mac = theirs.mac if near else gateway.mac
    ethernet = _mac(mac) + _mac(ours.mac) + b"\x08\x00"
    return ethernet + ip_udp(ours.address.ip, theirs.address.ip, port, octets)


def ip_udp(source: IPv4Address, destination: IPv4Address, port: int, octets: int) -> bytes:
    """An IPv4 packet without options with UDP to ``port`` and ``octets`` of payload."""
    total = 28 + octets
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, total, 0, 0, 64, 17, 0, source.packed, destination.packed
    )
    words = sum(struct.unpack("!10H", header))
    words = (words & 0xFFFF) + (words >> 16)
    words += words >> 16
    header = header[:10] + struct.pack("!H", ~words & 0xFFFF) + header[12:]
    return header + struct.pack("!4H", 49152, port, 8 + octets, 0) + bytes(octets)


def _mac(written: str) -> bytes:
    return bytes.fromhex(written.replace(":", ""))
