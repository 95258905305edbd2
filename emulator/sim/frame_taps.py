"""Tagged frames at the boundary of the fabric: when each leaves a NIC, and when it reaches one.

::

    NIC --departs--> [cable] switch [cable] ... switch [cable] --arrives--> NIC
         first octet                                          last octet

A frame of data is known at both ends by what no switch changes of it: addresses, UDP header, and
the first octets of the transport's header.  A trimmed frame has another length, and is another
frame.  Which frames are tagged follows from these octets, so that both ends decide alike, whichever
workers they are of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from google_crc32c import extend

from emulator.sim.line import Line, PortWatch
from emulator.sim.network import Network
from topologies.model import CableEnd, Topology
from uet.wire import codes
from uet.wire.codes import NATIVE_PROTOCOL, REQUEST_TYPES, PacketType

_UDP = 17
_VLAN, _IPV4, _IPV6 = b"\x81\x00", b"\x08\x00", b"\x86\xdd"
_OCTET = 256
#: Octets of a transport's header that stand in a tag: PDC and PSN, or queue pair and PSN, and more.
_TAGGED_OCTETS = 16
#: The type of a PDS header is the first five bits (UES Table 3-32).
_TYPE_SHIFT = 3
_UET_DATA = {*REQUEST_TYPES, PacketType.RUDI_REQ, PacketType.UUD_REQ, PacketType.TSS}
#: Of a BTH's opcode (IBA Table 38): that of a CNP, the bits of the operation, and the operations
#: without data: acknowledgements, one of an atomic, the request of a read.
_CNP, _OPERATION, _NO_DATA = 0x81, 0x1F, {0x11, 0x12, 0x0C}
_ROCEV2_PORT = 4791

#: Whether a packet is one of data, by the first octet of its transport header.
_UET = bytes(first >> _TYPE_SHIFT in _UET_DATA for first in range(_OCTET))
_ROCEV2 = bytes(first != _CNP and first & _OPERATION not in _NO_DATA for first in range(_OCTET))
_BY_PORT: Mapping[bytes, bytes] = {
    codes.UDP_PORT.to_bytes(2, "big"): _UET,
    _ROCEV2_PORT.to_bytes(2, "big"): _ROCEV2,
}


class TaggedFrame(NamedTuple):
    """A tagged frame at port number ``port`` at a time: it leaves there, or ``arrives``.

    ``octets`` are those from the Ethernet header on, without FCS.
    """

    when_ps: int
    arrives: bool
    tag: bytes
    port: int
    octets: int


def tag_of(frame: bytes) -> bytes | None:
    """Return what tells a frame of data from all others; None for what is no data.

    Encrypted packets count as data, whatever is in them (UES 3.7).
    """
    kind, at = frame[12:14], 14
    if kind == _VLAN:
        kind, at = frame[16:18], 18
    if kind == _IPV4:
        protocol, addresses, behind = frame[at + 9], at + 12, at + 20
    elif kind == _IPV6:
        protocol, addresses, behind = frame[at + 6], at + 8, at + 40
    else:
        return None
    if protocol == _UDP:
        is_data, first = _BY_PORT.get(frame[behind + 2 : behind + 4]), behind + 8
    elif protocol == NATIVE_PROTOCOL:
        is_data, first = _UET, behind + 4
    else:
        return None
    if is_data is None or len(frame) <= first or not is_data[frame[first]]:
        return None
    return frame[addresses : first + _TAGGED_OCTETS]


def boundary(topology: Topology) -> list[CableEnd]:
    """Return the ports where the fabric ends: those of NICs, or of GPUs, that face a switch."""
    return [
        one
        for link in topology.links
        for one, other in (link.ends, link.ends[::-1])
        if topology.node(other.node).is_switch and not topology.node(one.node).is_switch
    ]


class BoundaryTaps:
    """Notes every tagged frame at those of the ports ``ends`` that ``network``'s worker owns.

    About one frame of ``every`` is tagged; all of them if that is 1.
    """

    def __init__(self, ends: Sequence[CableEnd], network: Network, every: int) -> None:
        self._frames: list[TaggedFrame] = []
        for number, end in enumerate(ends):
            if network.owns(end.node):
                out, into = network.lines[end], network.lines[network.topology.far_end(end)]
                _watch_departures(out, _Side(self._frames, number, every, arrives=False))
                _watch_arrivals(into, _Side(self._frames, number, every, arrives=True))

    def take(self) -> list[TaggedFrame]:
        """Return all frames since the last call."""
        taken = self._frames[:]
        self._frames.clear()
        return taken


class _Side:
    """One direction of a port."""

    __slots__ = ("_arrives", "_every", "_frames", "_port")

    def __init__(self, frames: list[TaggedFrame], port: int, every: int, *, arrives: bool) -> None:
        self._frames, self._port, self._every, self._arrives = frames, port, every, arrives

    def frame(self, when_ps: int, frame: bytes) -> None:
        """Note ``frame`` if it is tagged."""
        tag = tag_of(frame)
        if tag is None or (self._every > 1 and extend(0, tag) % self._every):
            return
        self._frames.append(TaggedFrame(when_ps, self._arrives, tag, self._port, len(frame)))


class _Both:
    """Two watches of one port's direction."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: PortWatch, second: PortWatch) -> None:
        self._first, self._second = first, second

    def frame(self, when_ps: int, frame: bytes) -> None:
        self._first.frame(when_ps, frame)
        self._second.frame(when_ps, frame)


def _watch_departures(line: Line, watch: PortWatch) -> None:
    line.departing = watch if line.departing is None else _Both(line.departing, watch)


def _watch_arrivals(line: Line, watch: PortWatch) -> None:
    line.arriving = watch if line.arriving is None else _Both(line.arriving, watch)
