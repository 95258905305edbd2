"""A NIC with several ports, each to a switch of its own, under one address.

::

                   +-- eth0 --> rail switch of the first plane
    transport -- NIC
                   +-- eth1 --> rail switch of the second plane

All ports have the fabric address (FA), and whichever a frame comes in by, it is ours.  A frame
leaves through the port that its entropy value chooses: the two octets behind the IP header, where
the UDP source port is, and the entropy header where UET stands in IP itself.  So one flow of RoCEv2
keeps to one port, and a transport that sprays uses all of them alike. What it learns of an entropy
value (REPS) it learns of the port.  As an acknowledgement of UET carries the entropy value of what
it acknowledges, it takes the port of the same plane back.

A port without carrier is left alone: what it would get, and what still waits for it, goes over the
others.  What is lost farther on, the NIC cannot see; that is the transport's to find out.

Where each port has a fabric endpoint of its own (``fep_per_port``), each of
:attr:`MultiPortNic.ports` is a NIC for itself.  Nothing moves from one to another then: what waits
at a port that has lost its carrier is discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from emulator.endpoint.clock import Clock
from emulator.endpoint.nic.delay_line import PathDelay
from emulator.endpoint.nic.packet_nic import Nic
from emulator.endpoint.nic.port_carrier import CarrierWatch
from emulator.kernel.frame_filter import TransportFrames
from uet.congestion.spraying.port_entropy import remaining
from uet.transport import Frame

_IPV4 = 4
_VERSION_AT = 14
_MACS = 12
#: Where the entropy value stands in a frame: behind the IP header, which has no options.
_ENTROPY4_AT, _ENTROPY6_AT = 34, 54


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSpec:
    """One port: its interface, its MAC, its gateway's MAC, and the delays of paths by source."""

    interface: str
    mac: str
    gateway_mac: str
    path_delays: Mapping[str, PathDelay] = field(default_factory=dict)

    @property
    def macs(self) -> bytes:
        """Return what a frame that leaves here begins with."""
        return bytes.fromhex((self.gateway_mac + self.mac).replace(":", ""))


def hash_of(header: bytes) -> int:
    """Return the hash of a frame's entropy value.

    See :func:`uet.congestion.spraying.port_entropy.hash_of`.
    """
    at = _ENTROPY4_AT if header[_VERSION_AT] >> 4 == _IPV4 else _ENTROPY6_AT
    return header[at] ^ header[at + 1]


class MultiPortNic:
    """The raw sockets of ``ports`` in the current network namespace; shows the face of a `Nic`.

    The first port is the one whose MACs frames have already.  The other arguments are those of
    :class:`~emulator.endpoint.nic.packet_nic.Nic`.
    """

    def __init__(
        self,
        ports: Sequence[PortSpec],
        clock: Clock,
        *,
        frames: TransportFrames,
        frame_octets: int = 4608,
        slots: int = 512,
        queue_frames: int = 8,
        by_class: bool = False,
        fep_per_port: bool = False,
    ) -> None:
        self.lateness = 0
        self.by_class = by_class
        self._ports: list[Nic] = []
        self._fep_per_port = fep_per_port
        self._macs = [port.macs for port in ports]
        self._carrier = CarrierWatch([port.interface for port in ports])
        self._moved = self._discarded = 0
        try:
            for port in ports:
                self._ports.append(
                    Nic(
                        port.interface,
                        clock,
                        frames=frames,
                        frame_octets=frame_octets,
                        slots=slots,
                        queue_frames=queue_frames,
                        path_delays=port.path_delays,
                        by_class=by_class,
                    )
                )
        except BaseException:
            self.close()
            raise
        self.handles: Sequence[int] = tuple(port.fileno() for port in self._ports)
        self.events: Sequence[int] = (self._carrier.fileno(),)
        self._look_at_carrier()

    def _look_at_carrier(self) -> None:
        up = [number for number, carrier in enumerate(self._carrier.look()) if carrier]
        self.usable: Sequence[int] = up or list(range(len(self._ports)))
        self._choice = remaining(len(self._ports), self.usable)
        for number, port in enumerate(self._ports):
            if number in self.usable or not port.backlog:
                continue
            if self._fep_per_port:
                self._discarded += len(port.recall())
            else:
                first = self._macs[0]  # as frames come from the transport
                stranded = [(first + header[_MACS:], rest) for header, rest in port.recall()]
                self._moved += len(stranded)
                self.send(stranded)

    @property
    def ports(self) -> Sequence[Nic]:
        """The NIC of each port."""
        return self._ports

    # Sending

    def room(self) -> int:
        """Return how many full frames of data the ports' queues take now, whichever they choose."""
        ports = [self._ports[number] for number in self.usable]
        return max(0, sum(port.room() for port in ports) - sum(port.backlog for port in ports))

    @property
    def backlog(self) -> int:
        """Frames that wait here because the queue of their port is full."""
        return sum(port.backlog for port in self._ports)

    @property
    def blocked(self) -> list[int]:
        """The sockets to be waited for until they are writable again."""
        return [handle for number in self.usable for handle in self._ports[number].blocked]

    def send(self, frames: Sequence[Frame]) -> int:
        """Send ``frames`` after those still pending; returns how many went out now."""
        choice, macs = self._choice, self._macs
        outs: list[list[Frame]] = [[] for _ in macs]
        for frame in frames:
            header = frame[0]
            number = choice[hash_of(header)]
            if number:
                frame = macs[number] + header[_MACS:], frame[1]
            outs[number].append(frame)
        return sum(
            port.send(out)
            for port, out in zip(self._ports, outs, strict=True)
            if out or port.backlog
        )

    # Receiving

    def receive(self, now: int, limit: int = 64) -> list[memoryview]:
        """Return at most ``limit`` frames of each port (:meth:`Nic.receive`)."""
        out: list[memoryview] = []
        self.lateness = 0
        for port in self._ports:
            frames = port.receive(now, limit)
            if frames:
                out += frames
                if port.lateness > self.lateness:
                    self.lateness = port.lateness
        return out

    # Waiting

    @property
    def pollable(self) -> bool:
        """Return the descriptors to poll for all ports (:attr:`Nic.pollable`)."""
        return all(port.pollable for port in self._ports)

    def next_deadline(self, now: int) -> int | None:
        """Return the earliest deadline of all ports (:meth:`Nic.next_deadline`)."""
        deadlines = [port.next_deadline(now) for port in self._ports]
        held = [when for when in deadlines if when is not None]
        if not held:
            return None
        return min(*held, now + min(port.shortest_ns for port in self._ports))

    def acknowledge(self, handle: int) -> None:
        """Whatever made ``handle`` readable, and is no frame, has been seen."""
        if handle == self._carrier.fileno():
            self._look_at_carrier()
        for port in self._ports:
            if handle == port.fileno():
                port.acknowledge_error()

    def counters(self) -> dict[str, int]:
        """Return the counters of the ports added up, and frames in and out of each.

        ``moved`` counts frames that waited at a port when it lost its carrier and left through
        another, ``discarded`` those that left through none.
        """
        each = [port.counters() for port in self._ports]
        now = {name: sum(counters[name] for counters in each) for name in each[0]}
        for number, counters in enumerate(each):
            for name in ("frames_in", "frames_out"):
                now[f"port{number}_{name}"] = counters[name]
        now["moved"], now["discarded"] = self._moved, self._discarded
        return now

    def close(self) -> None:
        """Leave the interfaces.  Frames handed out before are not valid any more."""
        self._carrier.close()
        for port in self._ports:
            port.close()
