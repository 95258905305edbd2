"""The NIC of a GPU: one raw packet socket on its port, moving whole Ethernet frames.

Sending is ``sendmsg`` of header and payload, so payload is never copied in Python.  The socket's
send buffer is kept to a few frames: when the port's own queue is full the socket says so
(``EAGAIN``) and the frame waits here, where nothing is lost, instead of being dropped there.

Receiving is a ring that kernel and process share (``PACKET_RX_RING``): a frame costs no system
call, carries the kernel's own arrival time, and can stay in its slot while it is held for the
delay of its path.  That arrival time, not the moment at which a busy agent got round to it, is
what propagation delay is counted from.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from emulator.endpoint.clock import Clock
from emulator.endpoint.delay_line import DelayLine, PathDelay
from emulator.endpoint.frame_filter import TransportFrames
from uet.transport import Frame

# linux/if_packet.h, asm-generic/socket.h, asm-generic/ioctls.h
_ETH_P_ALL = 0x0003
_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION = 5, 6, 10
_PACKET_IGNORE_OUTGOING = 23
_TPACKET_V2 = 1
_SO_ATTACH_FILTER = 26
_SO_SNDBUFFORCE = 32
_SIOCOUTQ = 0x5411
_WHOLE_FRAME = 0x0004_0000

_KERNEL, _USER = 0, 1
_BLOCK_OCTETS = 1 << 16
#: Where the kernel puts the frame in a slot: struct tpacket2_hdr and sockaddr_ll, aligned.
_FRAME_AT = 66
_ETHERNET_HEADER = 14
#: status, length, captured, frame at, network header at, seconds, nanoseconds; then of the
#: frame itself its EtherType and (of an IPv4 packet) the source address.
_SLOT = struct.Struct(f"=IIIHHII{_FRAME_AT + 12 - 24}xH12xI")
_IPV4_ETHERTYPE = socket.htons(0x0800)
_REALTIME_CHECK_NS = 1_000_000_000
_LINK_ERRORS = frozenset({errno.ENETDOWN, errno.ENXIO, errno.ENODEV})

_BELOW_THE_SOCKET = 640  # what the kernel accounts for a frame besides its octets, about


class Nic:
    """The raw socket of ``interface`` in the current network namespace.

    ``frame_octets`` is the longest frame (Ethernet header included), ``slots`` the number of
    received frames that fit before the kernel must drop, ``queue_frames`` how many full frames
    may wait in the port's own queue.  ``path_delays`` maps source addresses to what is added to
    the time of their frames (see :mod:`emulator.endpoint.delay_line`); empty adds nothing.
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
    ) -> None:
        self._clock = clock
        self._pending: deque[Frame] = deque()
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
            self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            _attach(self._socket, frames)
            # The kernel doubles the value and reports writable below half of that.
            self._frame_charge = _charge(frame_octets)
            self._socket.setsockopt(
                socket.SOL_SOCKET, _SO_SNDBUFFORCE, queue_frames * self._frame_charge // 2
            )
            self._send_room = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            self._socket.bind((interface, _ETH_P_ALL))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._queue_frames = queue_frames
        self._realtime_checked = -_REALTIME_CHECK_NS
        self._realtime_at_zero = 0
        self._counters = dict.fromkeys(
            ("frames_out", "octets_out", "frames_in", "octets_in", "send_retries"), 0
        )
        self._counters |= dict.fromkeys(("send_refused", "link_down", "socket_drops"), 0)
        self._counters |= dict.fromkeys(("oversized", "ring_full"), 0)

    def _make_ring(self, frame_octets: int, slots: int) -> None:
        stride = -(-(_FRAME_AT + frame_octets) // 16) * 16
        block = max(_BLOCK_OCTETS, 1 << (stride - 1).bit_length())
        per_block = block // stride
        blocks = -(-slots // per_block)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
        request = struct.pack("=IIII", block, blocks, stride, blocks * per_block)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
        self._ring = mmap.mmap(self._socket.fileno(), block * blocks)
        self._octets = memoryview(self._ring)
        self._words = self._octets.cast("I")
        self._slots = tuple(
            index // per_block * block + index % per_block * stride
            for index in range(blocks * per_block)
        )
        self._head = 0
        self._taken = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    # Sending

    def room(self) -> int:
        """How many full frames the port's queue takes now (0: wait until it is writable)."""
        if self._pending:
            return 0
        (queued,) = struct.unpack("=i", fcntl.ioctl(self._socket, _SIOCOUTQ, b"\0\0\0\0"))
        if queued == 0:
            return self._queue_frames
        return max(0, (self._send_room - queued) // self._frame_charge)

    @property
    def backlog(self) -> int:
        """Frames that wait here because the port's queue is full."""
        return len(self._pending)

    def send(self, frames: Sequence[Frame]) -> int:
        """Send ``frames`` after those still pending; returns how many went out now."""
        if self._pending:
            self._pending.extend(frames)
            frames = tuple(self._pending)
            self._pending.clear()
        send = self._socket.sendmsg
        sent = octets = 0
        for frame in frames:
            try:
                octets += send(frame)
            except BlockingIOError:
                self._pending.extend(frames[sent:])
                self._counters["send_retries"] += 1
                break
            except OSError as failure:
                self._refused(failure, frame)
            sent += 1
        self._counters["frames_out"] += sent
        self._counters["octets_out"] += octets
        return sent

    def _refused(self, failure: OSError, frame: Frame) -> None:
        """A frame that the port did not take is lost as on a dead cable, and counted."""
        if failure.errno == errno.ENOBUFS:
            self._counters["send_refused"] += 1
        elif failure.errno in _LINK_ERRORS:
            self._counters["link_down"] += 1
        elif failure.errno == errno.EMSGSIZE:
            length = len(frame[0]) + len(frame[1])
            raise ValueError(
                f"a frame of {length} octets exceeds the MTU of its port; lower the transport's"
                " payload size or raise the MTU of the links"
            ) from failure
        else:
            raise failure

    # Receiving

    def receive(self, now: int, limit: int = 64) -> list[memoryview]:
        """At most ``limit`` frames whose path delay is over, valid until the next call.

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
        self._hold(limit)
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
            if captured < length or frame_at != _FRAME_AT:
                self._counters["oversized"] += 1
                continue
            octets += length
            if not out:
                self.lateness = self._age(at)
            at += _FRAME_AT
            out.append(ring[at : at + length])
        self._head = head
        self._counters["frames_in"] += len(out)
        self._counters["octets_in"] += octets
        return out

    def _hold(self, limit: int) -> None:
        """Move what has arrived into the delay line, with the kernel's arrival times."""
        delay = self._delay
        assert delay is not None
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
            if captured < length or frame_at != _FRAME_AT:
                self._counters["oversized"] += 1
                words[at >> 2] = _KERNEL
                continue
            self._taken += 1
            octets += length
            view = ring[at + _FRAME_AT : at + _FRAME_AT + length]
            if kind != _IPV4_ETHERTYPE:
                source = bytes(view[22:38])
            arrived = seconds * 1_000_000_000 + nanoseconds - host_zero
            delay.hold(source, from_host(min(arrived, host_now)), length, (view, at >> 2))
        self._head = head
        self._counters["frames_in"] += frames
        self._counters["octets_in"] += octets

    def _age(self, at: int) -> int:
        """How long ago (ns of fabric time) the frame in the slot at ``at`` arrived."""
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
        """Whether waiting for the socket to become readable makes sense.

        While frames are held, their slots make the kernel report it readable all the time; then
        :meth:`next_deadline` bounds the sleep so that no arrival is seen too late.
        """
        return self._delay is None or not self._delay.held

    def next_deadline(self, now: int) -> int | None:
        """When :meth:`receive` must be called even if the socket stays silent (ns), or ``None``."""
        if self._delay is None or not self._delay.held:
            return None
        due = self._delay.next_due()
        return None if due is None else min(due, now + self._delay.shortest_ns)

    def acknowledge_error(self) -> int:
        """Consume the socket's pending error (the link went down), which would keep it readable."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def counters(self) -> dict[str, int]:
        """Frames, octets and drops since the start.

        ``socket_drops`` and ``send_refused`` are losses outside the modelled queues.
        """
        statistics = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self._counters["socket_drops"] += struct.unpack("=II", statistics)[1]
        now = dict(self._counters)
        now["pending"] = len(self._pending)
        now["held"] = self._delay.held if self._delay else 0
        now["unknown_sources"] = self._delay.unknown_sources if self._delay else 0
        return now

    def close(self) -> None:
        """Leave the interface.  Frames handed out before are not valid any more."""
        self._socket.close()


def _charge(frame_octets: int) -> int:
    """What the kernel accounts for one queued frame: whole pages of data, and its descriptor."""
    page = mmap.PAGESIZE
    return -(-(frame_octets - _ETHERNET_HEADER) // page) * page + _BELOW_THE_SOCKET


def _source_key(address: str) -> int | bytes:
    """The source address as :meth:`Nic._hold` finds it in a slot."""
    packed = ip_address(address).packed
    if len(packed) == 4:
        return int(struct.unpack("=I", packed)[0])
    return packed


def _attach(raw: socket.socket, frames: TransportFrames) -> None:
    program = b"".join(frames.program(matching=_WHOLE_FRAME, other=0, only_for_us=True))
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    raw.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
