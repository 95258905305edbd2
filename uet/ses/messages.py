"""Messages in flight: cut into packets at the source, put together again at the target.

Every packet of a message but the last carries exactly one payload MTU, and repeats the
addressing, so that the target can place any packet without having seen the first (UES 3.4.1).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass

from uet.ses.memory import MemoryRegion
from uet.transport import Write
from uet.wire import headers
from uet.wire.codes import MPR_UNIT, Opcode

MAX_MESSAGE = 2**32 - 2  # octets, as the UEC reference provider bounds it
MESSAGE_IDS = 0xFFFF  # 1..65535: id 0 belongs to UUD

#: Each gap in a message waits for a packet of the receive window, which has at most so many.
MOST_GAPS = 255 * MPR_UNIT

_OFFSET_AT = headers.SES_STD_NOSOM.field("message_offset").offset // 8
_OFFSET = struct.Struct(">I")
_LENGTH_AT = headers.SES_STD_NOSOM.field("request_length").offset // 8


class MessageError(ValueError):
    """A request cannot be carried out as posted."""


def check(request: Write) -> None:
    """Raise :class:`MessageError` for a write that no packet could carry."""
    payload = request.payload
    if payload.ndim != 1 or payload.itemsize != 1 or not payload.contiguous:
        raise MessageError("a payload must be a flat view of octets: use .cast('B')")
    if payload.nbytes > MAX_MESSAGE:
        raise MessageError(f"{payload.nbytes} octets exceed the largest message of {MAX_MESSAGE}")
    for name in ("key", "offset", "header_data"):
        value = getattr(request, name)
        if value is not None and not 0 <= value < 1 << 64:
            raise MessageError(f"{name} is {value}; it must fit into 64 bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where in a peer a message goes (UES 3.4.1): relative addressing within a job."""

    job_id: int
    pid_on_fep: int
    resource_index: int
    initiator_id: int
    ri_generation: int = 0


class OutboundMessage:
    """A write on its way out, packet by packet."""

    __slots__ = (
        "_after",
        "_before",
        "_cancelled",
        "_head",
        "_mtu",
        "_tail",
        "_to",
        "acknowledged",
        "error",
        "id",
        "length",
        "packets",
        "request",
        "sent",
    )

    def __init__(self, request: Write, message_id: int, to: Address, mtu: int) -> None:
        length = request.payload.nbytes
        self.request = request
        self.id = message_id
        self.length = length
        self.packets = max(1, -(-length // mtu))
        self.sent = 0  # packets handed to the wire at least once
        self.acknowledged = 0  # packets whose response is known
        self.error: str | None = None
        self._cancelled = False
        self._mtu = mtu
        self._to = to
        last = self.packets - 1
        self._head = self._header(0, eom=not last)
        self._tail = self._header(last, eom=True) if last else b""
        # The packets between differ in their message_offset only.
        middle = self._header(1, eom=False) if last > 1 else b""
        self._before, self._after = middle[:_OFFSET_AT], middle[_LENGTH_AT:]

    def _header(self, index: int, *, eom: bool, error: bool = False) -> bytes:
        request, to = self.request, self._to
        offset = index * self._mtu
        fields = {
            "opcode": Opcode.MSG_ERROR if error else Opcode.WRITE,
            "rel": 1,
            "eom": int(eom),
            "message_id": self.id,
            "ri_generation": to.ri_generation,
            "job_id": to.job_id,
            "pid_on_fep": to.pid_on_fep,
            "resource_index": to.resource_index,
            "buffer_offset": request.offset,
            "initiator": to.initiator_id,
            "match_bits": request.key,
            "request_length": self.length,
        }
        if not index and not error:
            data = request.header_data
            hd = 0 if data is None else 1
            return headers.SES_STD_SOM.encode(som=1, hd=hd, header_data=data or 0, **fields)
        return headers.SES_STD_NOSOM.encode(
            som=0,
            message_offset=offset,
            payload_length=0 if error else min(self._mtu, self.length - offset),
            **fields,
        )

    def packet(self, index: int) -> tuple[bytes, memoryview]:
        """SES header and payload of packet ``index``, the same at every transmission."""
        mtu = self._mtu
        offset = index * mtu
        if not index:
            return self._head, self.request.payload[:mtu]
        if index == self.packets - 1:
            end = 0 if self._cancelled else offset + mtu
            return self._tail, self.request.payload[offset:end]
        header = self._before + _OFFSET.pack(offset) + self._after
        return header, self.request.payload[offset : offset + mtu]

    def cancel(self) -> None:
        """Send no more of it: one MSG_ERROR tells the target, unless all has been sent."""
        if self.sent < self.packets and not self._cancelled:
            self._cancelled = True
            self.packets = self.sent + 1
            self._tail = self._header(self.sent, eom=True, error=True)


class InboundMessage:
    """A write being received.  Octets may come in any order, each of them once.

    ``_starts`` and ``_ends`` are the sorted, disjoint pieces that have been placed; with packets
    nearly in order that is one piece.
    """

    __slots__ = (
        "_ends",
        "_memory",
        "_starts",
        "header_data",
        "length",
        "offset",
        "placed",
        "region",
        "touched",
    )

    def __init__(self, region: MemoryRegion, offset: int, length: int) -> None:
        self.region = region
        self.offset = offset
        self.length = length
        self.placed = 0
        self.touched = 0
        self.header_data: int | None = None
        self._memory = region.memory[offset : offset + length]
        self._starts: list[int] = []
        self._ends: list[int] = []

    def place(self, offset: int, octets: memoryview) -> bool:
        """Put a packet's payload in its place.

        False if any of it was there already, or if it leaves more gaps than a window has PSNs.
        """
        end = offset + len(octets)
        starts, ends = self._starts, self._ends
        at = bisect_left(starts, offset)
        joins_left = at > 0 and ends[at - 1] == offset
        if (at > 0 and ends[at - 1] > offset) or (at < len(starts) and starts[at] < end):
            return False
        joins_right = at < len(starts) and starts[at] == end
        if joins_left and joins_right:
            ends[at - 1] = ends.pop(at)
            starts.pop(at)
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = offset
        elif len(starts) > MOST_GAPS:
            return False
        else:
            starts.insert(at, offset)
            ends.insert(at, end)
        self._memory[offset:end] = octets
        self.placed += end - offset
        return True
