"""A run's writes over Ultra Ethernet's services without a PDC: RUDI and UUD (UES 3.5.3, 3.5.22).

A write of a run tells its receiver when all is there, which neither service can: RUDI repeats what
it carries, so it must be idempotent, and a datagram is never answered.  So data and notice part.

- RUDI: the data are writes without header data, which may be carried out any number of times.  When
  all have been answered, a send over RUD says so.
- UUD: the data are datagrams of one packet, each with its place.  A round trip after the last has
  left, a send over RUD says that no more come.  What is not there by then is lost.

The notice states the checksum of what the receiver has: whether that is what was sent, the run
finds out in the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct

import numpy as np

from emulator.sim.endpoint.operations.gpu_memory import crc32c
from uet.fep import FabricEndpoint
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import (
    Completion,
    Frame,
    ReceiveRequest,
    Request,
    SendRequest,
    WriteRequest,
)

#: Header data, offset and length of the write.
_NOTICE = Struct("!QQQ")
_TAG = 1
#: Receives that an endpoint has posted, for notices and for datagrams.
_RECEIVES = 512
_CRC = 0xFFFF_FFFF
#: Of a datagram's header data; the octet above it is that of the execution.
_OFFSET = (1 << 56) - 1


def _place(header_data: int, offset: int) -> int:
    """Return the header data of a datagram of the write with ``header_data``."""
    return header_data & ~_OFFSET | offset


@dataclass(frozen=True, slots=True)
class _Data:
    """A write whose data are under way; ``left`` packets of it have not left."""

    write: WriteRequest
    left: list[int]


@dataclass(frozen=True, slots=True)
class _Notice:
    write: WriteRequest


@dataclass(frozen=True, slots=True)
class _Slot:
    """Memory of a posted receive, for a notice or a datagram."""

    memory: memoryview
    notice: bool


class ConnectionlessWrites:
    """``endpoint``, whose writes go by its configured delivery, RUDI or UUD."""

    def __init__(self, endpoint: FabricEndpoint) -> None:
        self._fep = endpoint
        self._datagrams = endpoint.config.delivery == "uud"
        self._memory = memoryview(b"")
        self._out: list[Completion] = []
        #: UUD: when the notices of writes whose datagrams have all left are due
        self._held: deque[tuple[int, WriteRequest]] = deque()
        #: UUD: places of datagrams whose writes are over: one that comes later is lost
        self._over: set[int] = set()
        self._now = 0
        self._octets = 0
        for notice, octets in ((True, _NOTICE.size), (False, endpoint.config.payload_mtu)):
            if notice or self._datagrams:
                room = memoryview(bytearray(octets * _RECEIVES))
                for place in range(0, len(room), octets):
                    self._offer(_Slot(room[place : place + octets], notice))

    def register(
        self, memory: memoryview, *, key: int, writable: bool = True, readable: bool = True
    ) -> None:
        """Let peers reach ``memory`` under ``key``, and under the key that RUDI asks for."""
        self._memory = memory
        for one in (key, key | IDEMPOTENT_SAFE):
            self._fep.register(memory, key=one, writable=writable, readable=readable)

    def post(self, request: Request) -> None:
        """Queue a request; a write goes without a PDC."""
        if not isinstance(request, WriteRequest):
            self._fep.post(request)
            return
        if not self._datagrams:
            data = replace(
                request,
                key=request.key | IDEMPOTENT_SAFE,
                header_data=None,
                context=_Data(request, [1]),
            )
            self._fep.post(data)
            return
        unit = self._fep.config.payload_mtu
        places = range(0, request.payload.nbytes, unit)
        whole = _Data(request, [len(places)])
        for place in places:
            self._fep.post(
                SendRequest(
                    peer=request.peer,
                    payload=request.payload[place : place + unit],
                    header_data=_place(request.header_data or 0, request.offset + place),
                    context=whole,
                )
            )

    def post_receive(self, receive: ReceiveRequest) -> None:
        """Offer memory to peers' sends."""
        self._fep.post_receive(receive)

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take frames, and post the notices that they let go."""
        self._fep.receive(frames, now)
        self._now = now
        self._take()

    def transmit(self, now: int, limit: int) -> list[Frame]:
        """Return frames that may leave; notices that are due are posted before."""
        while self._held and self._held[0][0] <= now:
            self._notify(self._held.popleft()[1])
        frames = self._fep.transmit(now, limit)
        self._now = now
        self._take()
        return frames

    def use_ports(self, working: Sequence[int]) -> None:
        """Use the NIC's ports with these numbers."""
        self._fep.use_ports(working)

    def next_deadline(self) -> int | None:
        """Return when a timer or a notice is due."""
        due = self._fep.next_deadline()
        if not self._held:
            return due
        return self._held[0][0] if due is None else min(due, self._held[0][0])

    def completions(self) -> list[Completion]:
        """Return the completions of writes, here and from peers."""
        self._take()
        found, self._out = self._out, []
        return found

    def counters(self) -> Mapping[str, int]:
        """Return the endpoint's; octets that arrived are those of writes, notices left out."""
        return {**self._fep.counters(), "rx_message_octets": self._octets}

    def close(self) -> None:
        """Begin to close."""
        self._fep.close()

    @property
    def closed(self) -> bool:
        """Return whether nothing is sent any more."""
        return self._fep.closed and not self._held

    def _take(self) -> None:
        for one in self._fep.completions():
            context = one.context
            if isinstance(context, _Slot):
                self._received(one, context)
            elif isinstance(context, _Data):
                self._left(one, context)
            elif isinstance(context, _Notice):
                write = context.write
                self._out.append(
                    one._replace(kind="write", context=write.context, length=write.payload.nbytes)
                )
            else:
                self._out.append(one)

    def _left(self, one: Completion, data: _Data) -> None:
        data.left[0] -= 1
        if one.error is not None:
            self._out.append(one._replace(kind="write", context=data.write.context))
        elif not data.left[0] and self._datagrams:
            self._held.append((self._now + self._fep.config.base_rtt, data.write))
        elif not data.left[0]:
            self._notify(data.write)

    def _notify(self, write: WriteRequest) -> None:
        stated = _NOTICE.pack(write.header_data or 0, write.offset, write.payload.nbytes)
        self._fep.post(
            SendRequest(
                peer=write.peer,
                payload=memoryview(stated),
                tag=_TAG,
                delivery="rud",
                context=_Notice(write),
            )
        )

    def _received(self, one: Completion, slot: _Slot) -> None:
        if slot.notice:
            header, offset, length = _NOTICE.unpack(slot.memory)
            there = np.frombuffer(self._memory, np.uint8, length, offset)
            if self._datagrams:
                ends = range(offset, offset + length, self._fep.config.payload_mtu)
                self._over.update(_place(header, end) for end in ends)
            else:
                self._octets += length
            self._out.append(
                Completion(
                    "remote_write",
                    one.peer,
                    length,
                    header_data=header & ~_CRC | crc32c(there),
                    offset=offset,
                )
            )
        else:
            self._put(one, slot)
        self._offer(slot)

    def _put(self, one: Completion, slot: _Slot) -> None:
        """Put a datagram where it belongs, unless its write is over."""
        place = one.header_data or 0
        at = place & _OFFSET
        if place not in self._over:
            self._memory[at : at + one.length] = slot.memory[: one.length]
            self._octets += one.length

    def _offer(self, slot: _Slot) -> None:
        self._fep.post_receive(
            ReceiveRequest(memory=slot.memory, tag=_TAG if slot.notice else None, context=slot)
        )
