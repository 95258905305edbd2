"""The egress of a port: a link of a given rate, two traffic classes, finite buffers.

::

    1:   HTB                                    (below netem 2: where the cable delay is netem's)
    1:1  rate = ceil = link rate
      1:10  control, served first          10: bfifo, limit = its control buffer
      1:20  data (default), what is left   20: bfifo, limit = the port's buffer
                                               (a tbf around it where data can be paused)
      1:30  takes nothing in               30: bfifo, limit = 0 (only there, too)

HTB serves a class inside its own rate before one that borrows, and among equals the one of higher
priority.  Data own a small share of the link (:data:`DATA_SHARE`) and control the rest; either may
borrow all of it.  So control goes first, except that data never starve under it: while control has
frames for the whole link, one frame in twenty is of data.  What either sends is charged to 1:1, so
that both together never exceed the link.  A frame is charged as on the wire: preamble, frame check
sequence and inter-packet gap included (IEEE 802.3).

Where a port obeys priority flow control, a token bucket stands around the data queue: open, it is
faster than any link; closed (:func:`gate_request`), it lets through no more than one full frame,
which its bucket holds whenever it is set anew.  After it has been opened somebody must knock: any
frame that the port is to send makes it look at its queues, and one of class 1:30 does so without
ever leaving.  Frames of priority :data:`PAST_THE_QUEUES` pass HTB at once.

netem has HTB for a child and hands it what has been delayed. So a frame passes its cable first, and
the queue to it afterwards.  The sum over a path is the same, and all frames that meet in a queue do
so later by the same amount.  The other order does not exist: what leaves HTB has left the port.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from emulator.dataplane.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_DELQDISC,
    RTM_DELTCLASS,
    RTM_NEWQDISC,
    RTM_NEWTCLASS,
    RTM_NEWTFILTER,
    U32,
    U64,
    attribute,
    nested,
    text,
)
from topologies.ethernet import (
    FRAMING_OCTETS,
    HEADER_OCTETS,
    PACKET_OVERHEAD_OCTETS,
    SHORTEST_OCTETS,
)
from uet.wire.codes import DSCP_CONTROL

CONTROL_BUFFER_BYTES = 256 * 1024
LARGEST_QUEUE_BYTES = 2**32 - 1  # the kernel's own counter has 32 bits
CATCH_UP_NS = 100_000  # host time: a timer may fire this late and the link loses no rate
DATA_SHARE, LARGEST_DATA_SHARE = 0.05, 0.5
#: DSCP CS6, which routing protocols have (RFC 4594)
DSCP_ROUTING = 48
DSFIELDS_CONTROL = (DSCP_CONTROL << 2, DSCP_ROUTING << 2)
DSCP_MASK = 0xFC

NEW = NLM_F_CREATE | NLM_F_EXCL
HTB, NETEM = 0x1_0000, 0x2_0000  # handles 1: and 2:
LINK_CLASS, CONTROL_CLASS, DATA_CLASS = HTB | 0x1, HTB | 0x10, HTB | 0x20
CONTROL_QUEUE, DATA_QUEUE = 0x10_0000, 0x20_0000  # handles 10: and 20:
KICK_CLASS, KICK_QUEUE = HTB | 0x30, 0x30_0000
PAST_THE_QUEUES = HTB  # the priority of frames that HTB does not queue ("direct")
OPEN_RATE, OPEN_BURST = 2**32 - 1, 1 << 24  # octets per second, octets: no link here is as fast
CLOSED_RATE = 1

TCMSG = struct.Struct("=BBHiIII")  # family, padding, padding, interface, handle, parent, info
TCA_KIND, TCA_OPTIONS = 1, 2
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64 = 1, 2, 6, 7
TCA_U32_CLASSID, TCA_U32_SEL = 1, 5
TCA_NETEM_LATENCY64 = 10
TCA_TBF_PARMS, TCA_TBF_BURST = 1, 6
TBF_TAIL = struct.Struct("=III")  # limit, buffer, mtu
TC_H_ROOT = 0xFFFFFFFF
TC_U32_TERMINAL = 1
RATESPEC = struct.Struct("=BBHhHI")  # cell log, link layer, overhead, cell align, mpu, rate
HTB_GLOBAL = struct.Struct("=IIIII")
HTB_CLASS_TAIL = struct.Struct("=IIIII")  # buffer, cell buffer, quantum, level, priority
NETEM_OPTIONS = struct.Struct("=IIIIII")
U32_SELECTOR = struct.Struct("=BBBxHHHHI")
TICK_NS = 64  # the kernel's unit for token buffers (PSCHED_SHIFT 6)
LINKLAYER_ETHERNET = 1
LARGEST_RATE32 = 2**32 - 1
ETH_P_IP, ETH_P_IPV6 = 0x0800, 0x86DD


@dataclass(frozen=True, slots=True)
class Egress:
    """A port's egress in host terms: ``rate_bps`` and ``delay_ns`` are dilated already.

    ``buffer_bytes`` is what the data queue holds, ``control_buffer_bytes`` the control queue.
    ``delay_ns`` is the cable delay that netem shall add, 0 for none.  ``data_share`` of the rate is
    what data own whatever control needs, 0 to :data:`LARGEST_DATA_SHARE`; with 0, control has
    strict priority.
    """

    rate_bps: float
    mtu: int
    buffer_bytes: int
    delay_ns: int = 0
    data_share: float = DATA_SHARE
    control_buffer_bytes: int = CONTROL_BUFFER_BYTES
    #: data can be paused (:func:`gate_request`)
    gated: bool = False


@dataclass(frozen=True, slots=True)
class TcRequest:
    """A traffic control request for some interface: type, flags, and its halves around it."""

    kind: int
    flags: int
    before: bytes
    after: bytes

    def body(self, index: int) -> bytes:
        return self.before + struct.pack("=i", index) + self.after


@lru_cache(maxsize=256)
def egress_requests(egress: Egress) -> tuple[TcRequest, ...]:
    """Return what configures the egress of any one port; links of a kind share one encoding."""
    return tuple(_requests(egress))


@lru_cache(maxsize=256)
def rate_requests(egress: Egress) -> tuple[TcRequest, ...]:
    """Return what gives a port that has its queues already the rate and the share of ``egress``.

    The classes are changed where they are: what waits in them stays. It leaves at the new rate as
    soon as the frame ahead of it has had its time at the old one.
    """
    return tuple(_classes(egress, flags=0))


@lru_cache(maxsize=256)
def size_requests(egress: Egress) -> tuple[TcRequest, ...]:
    """Return requests that give both queues of a port the size of ``egress`` and keep their frames.

    One that holds more than its new size lets nothing in until it holds less.
    """
    return tuple(_queues(egress, flags=0))


@lru_cache(maxsize=256)
def gate_request(egress: Egress, *, closed: bool) -> TcRequest:
    """Return what stops or lets go the data of a port that has a gate; what waits there stays."""
    return _gate(egress, closed=closed, flags=0)


@lru_cache(maxsize=256)
def gating_requests(egress: Egress) -> tuple[TcRequest, ...]:
    """Return requests that give the data queue of a port a gate, or remove it, by ``egress``.

    Data that wait are lost.
    """
    leave = TCMSG.pack(0, 0, 0, 0, DATA_QUEUE, DATA_CLASS, 0)
    requests = [TcRequest(RTM_DELQDISC, 0, leave[:4], leave[8:])]
    if egress.gated:
        return (*requests, *_kick_class(egress), _data_queue(egress, NEW))
    kick = TCMSG.pack(0, 0, 0, 0, KICK_CLASS, HTB, 0)
    requests += [TcRequest(RTM_DELTCLASS, 0, kick[:4], kick[8:])]
    return (*requests, _data_queue(egress, NEW))


def _requests(egress: Egress) -> Iterator[TcRequest]:
    root = TC_H_ROOT
    if egress.delay_ns:
        # netem above HTB: frames on the cable do not count against the port's buffer.
        options = NETEM_OPTIONS.pack(0, 1_000_000, 0, 0, 0, 0)
        latency = attribute(TCA_NETEM_LATENCY64, U64(egress.delay_ns))
        yield _request(
            RTM_NEWQDISC, NETEM, root, "netem", attribute(TCA_OPTIONS, options + latency)
        )
        root = NETEM | 1
    settings = HTB_GLOBAL.pack(3, 10, DATA_CLASS & 0xFFFF, 0, 0)
    yield _request(
        RTM_NEWQDISC, HTB, root, "htb", nested(TCA_OPTIONS, attribute(TCA_HTB_INIT, settings))
    )
    yield from _classes(egress, flags=NEW)
    yield from _queues(egress, flags=NEW)
    if egress.gated:
        yield from _kick_class(egress)
    # the DS field is octet 1 of IPv4 and bits 4..11 of IPv6
    order = 0
    for protocol, shift in ((ETH_P_IP, 16), (ETH_P_IPV6, 20)):
        for field in DSFIELDS_CONTROL:
            order += 1
            yield _filter(order, protocol, field << shift, DSCP_MASK << shift)


def _classes(egress: Egress, *, flags: int) -> Iterator[TcRequest]:
    rate = max(1, round(egress.rate_bps / 8))
    frame = egress.mtu + PACKET_OVERHEAD_OCTETS
    datas = max(1, round(rate * egress.data_share))  # HTB accepts no class that owns nothing
    for handle, parent, own, priority in (
        (LINK_CLASS, HTB, rate, 0),
        (CONTROL_CLASS, LINK_CLASS, max(1, rate - datas), 0),
        (DATA_CLASS, LINK_CLASS, datas, 1),
    ):
        options = _class_options(own, rate, frame, priority)
        yield _request(RTM_NEWTCLASS, handle, parent, "htb", options, flags=flags)


def _queues(egress: Egress, *, flags: int) -> Iterator[TcRequest]:
    yield _fifo(CONTROL_QUEUE, CONTROL_CLASS, egress.control_buffer_bytes, flags)
    yield _data_queue(egress, flags)


def _data_queue(egress: Egress, flags: int) -> TcRequest:
    if egress.gated:
        return _gate(egress, closed=False, flags=flags)
    return _fifo(DATA_QUEUE, DATA_CLASS, egress.buffer_bytes, flags)


def _fifo(handle: int, parent: int, limit: int, flags: int) -> TcRequest:
    options = attribute(TCA_OPTIONS, U32(min(limit, LARGEST_QUEUE_BYTES)))
    return _request(RTM_NEWQDISC, handle, parent, "bfifo", options, flags=flags)


def _gate(egress: Egress, *, closed: bool, flags: int) -> TcRequest:
    """The token bucket around the data queue."""
    # it drops what exceeds its burst, so that is a full frame even when nothing may pass
    rate, burst = OPEN_RATE, OPEN_BURST
    if closed:
        rate, burst = CLOSED_RATE, egress.mtu + HEADER_OCTETS
    limit = min(egress.buffer_bytes, LARGEST_QUEUE_BYTES)
    parameters = (
        RATESPEC.pack(0, LINKLAYER_ETHERNET, 0, 0, 0, rate)
        + bytes(RATESPEC.size)
        + TBF_TAIL.pack(limit, 0, 0)
    )
    options = nested(
        TCA_OPTIONS, attribute(TCA_TBF_PARMS, parameters), attribute(TCA_TBF_BURST, U32(burst))
    )
    return _request(RTM_NEWQDISC, DATA_QUEUE, DATA_CLASS, "tbf", options, flags=flags)


def _kick_class(egress: Egress) -> Iterator[TcRequest]:
    rate = max(1, round(egress.rate_bps / 8))
    options = _class_options(rate, rate, egress.mtu + HEADER_OCTETS, 7)
    yield _request(RTM_NEWTCLASS, KICK_CLASS, HTB, "htb", options)
    yield _fifo(KICK_QUEUE, KICK_CLASS, 0, NEW)


def _class_options(own: int, ceiling: int, frame: int, priority: int) -> bytes:
    """HTB class of rate ``own`` and ceiling ``ceiling``, in octets per second."""

    def specification(rate: int) -> bytes:
        return RATESPEC.pack(
            0,
            LINKLAYER_ETHERNET,
            FRAMING_OCTETS,
            0,
            SHORTEST_OCTETS,
            min(rate, LARGEST_RATE32),
        )

    # Tokens only for what the link carries while a timer is late.  A frame may overdraw them, so an
    # idle port does not save up for a burst that a real one of this rate could not send.
    burst = CATCH_UP_NS // TICK_NS
    parameters = (
        specification(own)
        + specification(ceiling)
        + HTB_CLASS_TAIL.pack(burst, burst, frame, 0, priority)
    )
    return nested(
        TCA_OPTIONS,
        attribute(TCA_HTB_PARMS, parameters),
        attribute(TCA_HTB_RATE64, U64(own)) if own > LARGEST_RATE32 else b"",
        attribute(TCA_HTB_CEIL64, U64(ceiling)) if ceiling > LARGEST_RATE32 else b"",
    )


def _filter(order: int, protocol: int, value: int, mask: int) -> TcRequest:
    """IP packets whose first word has ``value`` under ``mask`` go to the control class."""
    selector = U32_SELECTOR.pack(TC_U32_TERMINAL, 0, 1, 0, 0, 0, 0, 0)
    key = struct.pack(">II", mask, value) + struct.pack("=ii", 0, 0)
    options = nested(
        TCA_OPTIONS,
        attribute(TCA_U32_CLASSID, U32(CONTROL_CLASS)),
        attribute(TCA_U32_SEL, selector + key),
    )
    protocol_on_wire = int.from_bytes(protocol.to_bytes(2, "big"), "little")
    info = order << 16 | protocol_on_wire
    return _request(RTM_NEWTFILTER, 0, HTB, "u32", options, info)


def _request(
    kind: int,
    handle: int,
    parent: int,
    name: str,
    options: bytes,
    info: int = 0,
    *,
    flags: int = NEW,
) -> TcRequest:
    header = TCMSG.pack(0, 0, 0, 0, handle, parent, info)
    return TcRequest(kind, flags, header[:4], header[8:] + text(TCA_KIND, name) + options)
