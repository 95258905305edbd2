"""The message that is arriving on a connected queue pair, packet by packet and in order.

Checks come in the order of IBA 9.7.4 and 9.9: the order of opcodes, the receive that is needed,
lengths, then the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import MAX_MESSAGE, Shape, Syndrome
from uet.transport import Completion, ReceiveRequest

if TYPE_CHECKING:
    from emulator.rocev2.connection.queue_pair import QueuePair

_INVALID: Final = int(Syndrome.NAK_INVALID_REQUEST)
_ACCESS: Final = int(Syndrome.NAK_REMOTE_ACCESS_ERROR)
_NOT_READY: Final = int(Syndrome.RNR_NAK)
_NOWHERE: Final = memoryview(bytearray())
#: Local error of a receive that was too short.
TOO_LONG: Final = "LOC_LEN_ERR"
_WITHDRAWN: Final = -1  # octets left: no packet fits


class Inbound:
    """The message that is arriving: the packets of two never mix on one queue pair."""

    __slots__ = (
        "_at", "_before", "_counts", "_direct", "_host", "_key", "_left", "_length", "_mtu",
        "_offset", "_qp", "_receive", "_send", "_target", "_writes", "open",
    )  # fmt: skip

    def __init__(self, qp: QueuePair) -> None:
        self._qp = qp
        self._host = qp.host
        self._counts = qp.host.counts
        self._mtu = qp.host.config.mtu
        self._writes = "write" in qp.host.config.remote_access
        #: a message has begun and not ended
        self.open = self._send = False
        self._target = _NOWHERE
        self._at = self._left = self._length = self._key = self._offset = 0
        self._receive: ReceiveRequest | None = None
        self._direct = qp.host.config.placement == "direct"
        #: key, offset and length of WRITE Only packets in a row that belong to one message
        self._before = (0, 0, 0)

    def take(
        self, shape: Shape, frame: memoryview, extensions_at: int, at: int, end: int
    ) -> int | None:
        """Place the data of one packet; ``None``, or the syndrome with which it is refused.

        A refused packet leaves everything as it was, for an RNR NAK to bring it again.
        """
        length = end - at
        if shape.starts:
            if self.open:
                return _INVALID
            refused = self._begin(shape, frame, extensions_at, length)
            if refused is not None:
                return refused
        elif not self.open or shape.send is not self._send:
            return _INVALID
        elif shape.ends:
            if not 1 <= length <= self._mtu or (not shape.send and length != self._left):
                return self._misfit
        elif length != self._mtu or (not shape.send and length >= self._left):
            return self._misfit
        placed = self._at
        if shape.send and placed + length > len(self._target):
            return self._overflow(length)
        if shape.invalidate:
            (key,) = headers.IETH.unpack_from(frame, extensions_at)
            if key not in self._host.memory:
                return _ACCESS
            self._host.unregister(key)
        if shape.immediate and not shape.send and not self._host.take_immediate():
            if shape.starts:
                self.open = False
            return _NOT_READY
        self._target[placed : placed + length] = frame[at:end]
        self._at = placed + length
        self._left -= length
        if shape.ends:
            self._finish(shape, frame, at)
        return None

    def place(self, frame: memoryview, extensions_at: int, at: int, end: int) -> bool:
        """Put the data of a WRITE Only that came early where they belong; false if that cannot be.

        What cannot be placed is refused when its turn has come.
        """
        address, key, total = headers.RETH.unpack_from(frame, extensions_at)
        if not self._writes or total != end - at or total > self._mtu:
            return False
        if total:
            target = self._host.memory.reach(key, address, total, write=True)
            if target is None:
                return False
            target[:] = frame[at:end]
        return True

    def take_placed(self, shape: Shape, extensions: memoryview) -> int | None:
        """Count in a packet whose turn has come, and whose data are in place; as :meth:`take`."""
        if self.open:
            return _INVALID
        if shape.immediate and not self._host.take_immediate():
            return _NOT_READY
        address, self._key, self._length = headers.RETH.unpack_from(extensions, 0)
        self._offset = address - (self._host.memory.address_of(self._key) or 0)
        self._send = False
        self._finish(shape, extensions, len(extensions))
        return None

    def _begin(
        self, shape: Shape, frame: memoryview, extensions_at: int, length: int
    ) -> int | None:
        """The first packet of a message."""
        if shape.ends:
            if length > self._mtu:
                return _INVALID
        elif length != self._mtu:
            return _INVALID
        if shape.send:
            receive = self._host.take_receive()
            if receive is None:
                return _NOT_READY
            self._receive = receive
            self._target = receive.memory
        else:
            if not self._writes:
                return _INVALID
            address, key, total = headers.RETH.unpack_from(frame, extensions_at)
            if (length != total) if shape.ends else (length >= total) or total > MAX_MESSAGE:
                return _INVALID
            target = self._host.memory.reach(key, address, total, write=True) if total else _NOWHERE
            if target is None:
                return _ACCESS
            self._target, self._left, self._length = target, total, total
            self._key = key
            self._offset = address - (self._host.memory.address_of(key) or 0)
        self.open, self._send, self._at = True, shape.send, 0
        return None

    def _overflow(self, length: int) -> int:
        """Fail a SEND longer than its receive's memory (IBA 9.9.3.1: both ends are notified)."""
        self.abandon(TOO_LONG)
        return _INVALID

    def _finish(self, shape: Shape, frame: memoryview, at: int) -> None:
        """The message is complete."""
        self.open = False
        immediate = None
        if shape.immediate:
            (immediate,) = headers.IMM_DT.unpack_from(frame, at - headers.IMM_DT.size)
        receive, self._receive = self._receive, None
        if receive is not None:
            self._counts["rx_message_octets"] += self._at
            self._host.complete(
                Completion(
                    kind="receive",
                    peer=self._qp.peer,
                    length=self._at,
                    context=receive.context,
                    header_data=immediate,
                    offset=0,
                )
            )
            return
        self._counts["rx_message_octets"] += self._length
        if self._direct:
            key, offset, length = self._before
            if key == self._key and offset + length == self._offset and length:
                self._offset, self._length = offset, length + self._length
            self._before = (0, 0, 0)
            if immediate is None:
                self._before = self._key, self._offset, self._length
        if immediate is not None:
            self._host.complete(
                Completion(
                    kind="remote_write",
                    peer=self._qp.peer,
                    length=self._length,
                    header_data=immediate,
                    key=self._key,
                    offset=self._offset,
                )
            )

    @property
    def _misfit(self) -> int:
        """Why a packet does not go on with the message: its length, unless the memory is gone."""
        return _ACCESS if self._left == _WITHDRAWN and not self._send else _INVALID

    def withdraw(self, key: int) -> None:
        """The region has been taken away: what a WRITE has still to bring goes nowhere."""
        if self.open and not self._send and key == self._key:
            self._left, self._target = _WITHDRAWN, _NOWHERE

    def abandon(self, error: str | None = None) -> None:
        """Forget the message; the receive it had ends with ``error``, or waits for another one."""
        receive, self._receive = self._receive, None
        self.open = False
        if receive is None:
            return
        if error is None:
            self._host.return_receive(receive)
            return
        self._host.complete(
            Completion(
                kind="receive",
                peer=self._qp.peer,
                length=0,
                context=receive.context,
                error=error,
            )
        )
