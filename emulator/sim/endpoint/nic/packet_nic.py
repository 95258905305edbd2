"""The NIC of a GPU: one raw packet socket on its port, moving whole Ethernet frames.

Sending is ``sendmsg`` of header and payload, so payload is never copied in Python.  What the port
does not take yet waits in an :class:`~emulator.sim.endpoint.nic.outbox.Outbox`.

Receiving is a ring that kernel and process share (``PACKET_RX_RING``): a frame costs no system call
and carries the kernel's own arrival time. It can stay in its slot while it is held for the delay of
its path.  That arrival time, not the moment at which a busy endpoint got round to it, is what
propagation delay is counted from.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from emulator.dataplane.clock import Clock
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.programs.classic_bpf import WHOLE_FRAME, attach
from emulator.dataplane.kernel.receive_ring import (
    FRAME_AT,
    PACKET_IGNORE_OUTGOING,
    PACKET_STATISTICS,
    SOL_PACKET,
    map_ring,
)
from emulator.sim.endpoint.nic.delay_line import DelayLine, PathDelay
from emulator.sim.endpoint.nic.outbox import Outbox, is_control
from uet.transport import Frame

# linux/if_packet.h, asm-generic/socket.h, asm-generic/ioctls.h
_ETH_P_ALL = 0x0003

_KERNEL, _USER = 0, 1
#: status, length, captured, frame at, network header at, seconds, nanoseconds; then of the
#: frame itself its EtherType and (of an IPv4 packet) the source address.
_SLOT = struct.Struct(f"=IIIHHII{FRAME_AT + 12 - 24}xH12xI")
_IPV4_ETHERTYPE = socket.htons(0x0800)
_REALTIME_CHECK_NS = 1_000_000_000


class Nic:
    """The raw socket of ``interface`` in the current network namespace.

    ``frame_octets`` is the longest frame, Ethernet header included. ``slots`` is the number of
    received frames that fit before the kernel must drop. ``queue_frames`` is how many full frames
    may wait in the port's own queue.  ``path_delays`` maps source addresses to what is added to the
    time of their frames (see :mod:`emulator.sim.endpoint.nic.delay_line`); empty adds nothing.
    ``by_class``: control has a socket of its own, and leaves while data are paused (PFC).
    """

    def __init__(
        self,
        interface: str,
        clock: Clock,
        *,
        frames: TransportFrames,
        frame_octets: int = 4608,
        slots: int = 512,
        queue_frames: int = 8,
        path_delays: Mapping[str, PathDelay] | None = None,
        by_class: bool = False,
    ) -> None:
        self._clock = clock
        self._lent: list[int] = []
        #: How late (ns of fabric time) the last batch's most overdue frame was handed out.
        self.lateness = 0
        delays = {_source_key(address): delay for address, delay in (path_delays or {}).items()}
        self._delay: DelayLine[int | bytes, tuple[memoryview, int]] | None = (
            DelayLine(delays) if any(any(delay) for delay in delays.values()) else None
        )
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # deaf until bound
        try:
            self._make_ring(frame_octets, slots)
            self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            only_those = frames.program(matching=WHOLE_FRAME, other=0, only_for_us=True)
            attach(self._socket, only_those)
            self._data = Outbox(self._socket, frame_octets, queue_frames)
            self._control: Outbox | None = None
            if by_class:
                self._control = Outbox(_deaf(interface), frame_octets, queue_frames)
            self._socket.bind((interface, _ETH_P_ALL))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._realtime_checked = -_REALTIME_CHECK_NS
        self._realtime_at_zero = 0
        self._counters = dict.fromkeys(
            ("frames_in", "octets_in", "socket_drops", "oversized", "ring_full"), 0
        )

    def _make_ring(self, frame_octets: int, slots: int) -> None:
        self._ring, self._slots = map_ring(self._socket, frame_octets, slots)
        self._octets = memoryview(self._ring)
        self._words = self._octets.cast("I")
        self._head = 0
        self._taken = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def handles(self) -> Sequence[int]:
        """Return what becomes readable when frames have come in, or when the link has gone down."""
        return (self._socket.fileno(),)

    @property
    def events(self) -> Sequence[int]:
        """Return what else is to be waited for, whether or not frames are held."""
        return ()

    # Sending

    def room(self) -> int:
        """Return the number of full data frames that the port's queue takes now.

        0 means to wait until :attr:`blocked` is writable.
        """
        return self._data.room()

    @property
    def backlog(self) -> int:
        """Frames that wait here because the port's queue is full."""
        return self._data.backlog + (self._control.backlog if self._control else 0)

    @property
    def blocked(self) -> list[int]:
        """The sockets to be waited for until they are writable again."""
        waiting = [] if self._data.room() else [self._data.fileno()]
        if self._control is not None and self._control.backlog:
            waiting.append(self._control.fileno())
        return waiting

    @property
    def by_class(self) -> bool:
        """Return whether control leaves while data cannot."""
        return self._control is not None

    def send(self, frames: Sequence[Frame]) -> int:
        """Send ``frames`` after those still pending; returns how many went out now."""
        if self._control is None:
            return self._data.send(frames)
        control = [frame for frame in frames if is_control(frame)]
        if len(control) < len(frames):
            frames = [frame for frame in frames if not is_control(frame)]
        else:
            frames = ()
        return self._control.send(control) + self._data.send(frames)

    def recall(self) -> list[Frame]:
        """Take back what waits here, so that it can leave through another port."""
        return self._data.recall() + (self._control.recall() if self._control else [])

    # Receiving

    def receive(self, now: int, limit: int = 64) -> list[memoryview]:
        """Return at most ``limit`` frames whose path delay is over, valid until the next call.

        Frames are views into the ring.  The slots of the previous call's frames go back to the
        kernel first.
        """
        words = self._words
        if self._lent:
            for at in self._lent:
                words[at] = _KERNEL
            self._taken -= len(self._lent)
            self._lent = []
        if self._delay is None:
            return self._take(limit)
        self._hold(self._delay, limit)
        if not self._delay.held:
            return []
        released = self._delay.release(now, limit)
        self.lateness = self._delay.lateness
        self._lent = [at for _, at in released]
        return [view for view, _ in released]

    def _take(self, limit: int) -> list[memoryview]:
        slots, ring, head, lent = self._slots, self._octets, self._head, self._lent
        count = len(slots)
        out: list[memoryview] = []
        octets = 0
        while len(out) < limit and self._taken < count:
            at = slots[head]
            status, length, captured, frame_at, *_ = _SLOT.unpack_from(ring, at)
            if not status & _USER:
                break
            head = head + 1 if head + 1 < count else 0
            self._taken += 1
            lent.append(at >> 2)
            if captured < length or frame_at != FRAME_AT:
                self._counters["oversized"] += 1
                continue
            octets += length
            if not out:
                self.lateness = self._age(at)
            at += FRAME_AT
            out.append(ring[at : at + length])
        self._head = head
        self._counters["frames_in"] += len(out)
        self._counters["octets_in"] += octets
        return out

    def _hold(self, delay: DelayLine[int | bytes, tuple[memoryview, int]], limit: int) -> None:
        """Move what has arrived into the delay line, with the kernel's arrival times."""
        slots, ring, words, head = self._slots, self._octets, self._words, self._head
        count = len(slots)
        unpack = _SLOT.unpack_from
        host_now = time.monotonic_ns()
        host_zero = self._monotonic_zero(host_now)
        from_host = self._clock.from_host
        frames = octets = 0
        while frames < limit:
            at = slots[head]
            status, length, captured, frame_at, _, seconds, nanoseconds, kind, source = unpack(
                ring, at
            )
            if not status & _USER:
                break
            if self._taken == count:  # the ring has come round to a frame that is still held
                self._counters["ring_full"] += 1
                break
            head = head + 1 if head + 1 < count else 0
            frames += 1
            if captured < length or frame_at != FRAME_AT:
                self._counters["oversized"] += 1
                words[at >> 2] = _KERNEL
                continue
            self._taken += 1
            octets += length
            view = ring[at + FRAME_AT : at + FRAME_AT + length]
            if kind != _IPV4_ETHERTYPE:
                source = bytes(view[22:38])
            arrived = seconds * 1_000_000_000 + nanoseconds - host_zero
            delay.hold(source, from_host(min(arrived, host_now)), length, (view, at >> 2))
        self._head = head
        self._counters["frames_in"] += frames
        self._counters["octets_in"] += octets

    def _age(self, at: int) -> int:
        """Return how long ago (ns of fabric time) the frame in the slot at ``at`` arrived."""
        host_now = time.monotonic_ns()
        *_, seconds, nanoseconds, _, _ = _SLOT.unpack_from(self._octets, at)
        arrived = seconds * 1_000_000_000 + nanoseconds - self._monotonic_zero(host_now)
        return self._clock.fabric_duration(max(0, host_now - arrived))

    def _monotonic_zero(self, host_now: int) -> int:
        """The time of day, by which the kernel stamps frames, when the monotonic clock was 0."""
        if host_now - self._realtime_checked > _REALTIME_CHECK_NS:
            self._realtime_at_zero = time.time_ns() - time.monotonic_ns()
            self._realtime_checked = host_now
        return self._realtime_at_zero

    # Waiting

    @property
    def pollable(self) -> bool:
        """Return whether waiting for the socket to become readable makes sense.

        While frames are held, their slots make the kernel report it readable all the time; then
        :meth:`next_deadline` bounds the sleep so that no arrival is seen too late.
        """
        return self._delay is None or not self._delay.held

    def next_deadline(self, now: int) -> int | None:
        """Return when :meth:`receive` is due even if the socket stays silent (ns), or ``None``."""
        if self._delay is None or not self._delay.held:
            return None
        due = self._delay.next_due()
        return None if due is None else min(due, now + self._delay.shortest_ns)

    @property
    def shortest_ns(self) -> int:
        """Return how long every frame is held at least."""
        return self._delay.shortest_ns if self._delay else 0

    def acknowledge(self, handle: int) -> None:
        """Whatever made ``handle`` readable, and is no frame, has been seen."""
        self.acknowledge_error()

    def acknowledge_error(self) -> int:
        """Consume the socket's pending error (the link went down), which would keep it readable."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def counters(self) -> dict[str, int]:
        """Frames, octets and drops since the start.

        ``socket_drops`` and ``send_refused`` are losses outside the modelled queues.
        """
        statistics = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        self._counters["socket_drops"] += struct.unpack("=II", statistics)[1]
        now = dict(self._counters)
        for outbox in filter(None, (self._data, self._control)):
            for name, count in outbox.counters.items():
                now[name] = now.get(name, 0) + count
        now["pending"] = self.backlog
        now["held"] = self._delay.held if self._delay else 0
        now["unknown_sources"] = self._delay.unknown_sources if self._delay else 0
        return now

    def close(self) -> None:
        """Leave the interface.  Frames handed out before are not valid any more."""
        self._socket.close()
        if self._control is not None:
            self._control.close()


def _deaf(interface: str) -> socket.socket:
    """Return a socket that sends and receives nothing."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.bind((interface, 0))
    made.setblocking(False)
    return made


def _source_key(address: str) -> int | bytes:
    """The source address as :meth:`Nic._hold` finds it in a slot."""
    packed = ip_address(address).packed
    if len(packed) == 4:
        return int(struct.unpack("=I", packed)[0])
    return packed
