"""The answering side of a reliable connection (IBA 9.7.4, 9.7.5).

Requests are carried out in the order of their PSNs; :mod:`emulator.rocev2.connection.answers` leave
in the same order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from emulator.rocev2.connection.answers import Answers, ReadJob, ResponderAnswer
from emulator.rocev2.connection.connection_end import ConnectionEnd
from emulator.rocev2.connection.inbound_message import Inbound
from emulator.rocev2.connection.selective_repeat import Early
from emulator.rocev2.connection.work import FLUSHED
from emulator.rocev2.wire import rocev2_headers as headers
from emulator.rocev2.wire.psn24 import unwrap
from emulator.rocev2.wire.rocev2_codes import (
    ACK_UNLIMITED,
    MAX_MESSAGE,
    PSN_MASK,
    SHAPES,
    BthOperation,
    Syndrome,
)
from uet.transport import Frame

_O = BthOperation
_MSN_SHIFT = headers.AETH.shift("syndrome")
_ATOMICS = frozenset({_O.COMPARE_SWAP, _O.FETCH_ADD})
_ATOMIC_OCTETS = 8
_UINT64 = (1 << 64) - 1
_INVALID = int(Syndrome.NAK_INVALID_REQUEST)
_ACCESS = int(Syndrome.NAK_REMOTE_ACCESS_ERROR)
_NOTHING = memoryview(b"")
_ONLY = frozenset({_O.WRITE_ONLY, _O.WRITE_ONLY_IMM})


@dataclass(slots=True)
class _Executed:
    """The record of a READ or atomic operation for its repetition."""

    first: int
    end: int
    address: int
    original: int | None = None


class Responder:
    """Carries out the requests that arrive on one queue pair, and answers them."""

    def __init__(self, qp: ConnectionEnd, expected_psn: int) -> None:
        config = qp.host.config
        self._qp = qp
        self._host = qp.host
        self._counts = qp.host.counts
        self._mtu = config.mtu
        self._inbound = Inbound(qp)
        self.expected = expected_psn
        self.msn = 0
        self._nak_sent = False
        self._refused = False  # a request, for good
        self._answers = Answers(qp)
        self._executed: deque[_Executed] = deque(maxlen=config.max_dest_rd_atomic)
        self._early: Early | None = None
        if config.recovery == "selective_repeat":
            self._early = Early(config.reorder_window, config.reorder_tolerance)
        self._tolerant = config.reorder_tolerance > 0
        self._direct = config.placement == "direct"

    # -- what arrives --------------------------------------------------------------------------

    def on_request(
        self,
        operation: int,
        psn24: int,
        asks: bool,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
    ) -> None:
        """A request packet, whatever its PSN."""
        self._counts["rx_data_packets"] += 1
        expected = self.expected
        if psn24 == expected & PSN_MASK:
            self._nak_sent = False
            self._execute(operation, asks, frame, extensions_at, at, end)
            early = self._early
            if early is not None and early.highest >= expected:
                self._continue(early, expected)
                if asks and self._tolerant and self.expected > expected + 1:
                    # a requester that has timed out sends again where acknowledgements stop
                    self._answers.acknowledge(self.expected - 1, self.msn)
            return
        psn = unwrap(psn24, expected)
        if psn < expected:
            self._counts["rx_duplicates"] += 1
            self._repeat(operation, psn, frame, extensions_at)
        else:
            self._counts["rx_out_of_order"] += 1
            self._gap(operation, psn, asks, frame, extensions_at, at, end)

    def _gap(
        self,
        operation: int,
        psn: int,
        asks: bool,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
    ) -> None:
        """Something before this packet is missing."""
        early = self._early
        if early is None:
            if not self._nak_sent:
                self._nak_sent = True
                self._nak(Syndrome.NAK_SEQUENCE_ERROR, self.expected)
            self._counts["rx_drop_out_of_order"] += 1
            return
        early.filled(psn)
        if not early.fits(self.expected, psn):
            self._counts["rx_drop_beyond_window"] += 1
            return
        placed = self._direct and operation in _ONLY and self._inbound.place(
            frame, extensions_at, at, end
        )  # fmt: skip
        octets = bytes(frame[extensions_at : at if placed else end])
        early.keep(psn, (operation, asks, octets, at - extensions_at, placed))
        for missing in early.lost(self.expected):
            self._nak(Syndrome.NAK_SEQUENCE_ERROR, missing)

    def _continue(self, early: Early, filled: int) -> None:
        """A gap has been filled: carry out what came early behind it."""
        early.filled(filled)
        early.skip(filled + 1, self.expected)
        while self._qp.receives:
            kept = early.pop(self.expected)
            if kept is None:
                break
            operation, asks, octets, at, placed = kept
            before = self.expected
            end = len(octets)
            self._execute(operation, asks, memoryview(octets), 0, at, end, placed=placed)
            if self.expected == before:
                break  # refused for now: it comes again
            early.skip(before + 1, self.expected)
        for missing in early.lost(self.expected):
            self._nak(Syndrome.NAK_SEQUENCE_ERROR, missing)

    def _execute(
        self,
        operation: int,
        asks: bool,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
        *,
        placed: bool = False,
    ) -> None:
        """The request that is expected; its data may have been ``placed`` when it came early."""
        shape = SHAPES.get(operation)
        if shape is not None:
            inbound = self._inbound
            if placed:
                refused = inbound.take_placed(shape, frame)
            else:
                refused = inbound.take(shape, frame, extensions_at, at, end)
            if refused is not None:
                self._refuse(refused)
                return
            if shape.ends:
                self.msn += 1
            psn = self.expected
            self.expected = psn + 1
            if asks:
                self._answers.acknowledge(psn, self.msn)
        elif self._inbound.open or end != at:
            self._refuse(_INVALID)
        elif operation == _O.READ_REQUEST:
            self._read(frame, extensions_at)
        elif operation in _ATOMICS:
            self._atomic(operation, frame, extensions_at)
        else:
            self._refuse(_INVALID)

    # -- READ and atomics ----------------------------------------------------------------------

    def _read(self, frame: memoryview, extensions_at: int) -> None:
        address, key, length = headers.RETH.unpack_from(frame, extensions_at)
        if (
            "read" not in self._host.config.remote_access
            or length > MAX_MESSAGE
            or self._too_many_fetches
        ):
            self._refuse(_INVALID)
            return
        data = self._reach(key, address, length)
        if data is None:
            self._refuse(_ACCESS)
            return
        first = self.expected
        self.expected = first + max(1, -(-length // self._mtu))
        self.msn += 1
        self._executed.append(_Executed(first, self.expected, address))
        self._answer_read(first, self.expected, data)

    @property
    def _too_many_fetches(self) -> bool:
        """The requester has more READs and atomics outstanding than was agreed upon."""
        return self._answers.owed >= self._host.config.max_dest_rd_atomic

    def _reach(self, key: int, address: int, length: int) -> memoryview | None:
        if not length:
            return _NOTHING
        return self._host.memory.reach(key, address, length, read=True)

    def _answer_read(self, first: int, end: int, data: memoryview) -> None:
        self._answers.read(first, end, data, self.msn)

    def _atomic(self, operation: int, frame: memoryview, extensions_at: int) -> None:
        address, key, operand, compare = headers.ATOMIC_ETH.unpack_from(frame, extensions_at)
        if (
            "atomic" not in self._host.config.remote_access
            or address % _ATOMIC_OCTETS
            or self._too_many_fetches
        ):
            self._refuse(_INVALID)
            return
        target = self._host.memory.reach(key, address, _ATOMIC_OCTETS, write=True, read=True)
        if target is None:
            self._refuse(_ACCESS)
            return
        original = int.from_bytes(target, "little")
        if operation == _O.FETCH_ADD:
            target[:] = (original + operand & _UINT64).to_bytes(_ATOMIC_OCTETS, "little")
        elif original == compare:
            target[:] = operand.to_bytes(_ATOMIC_OCTETS, "little")
        psn = self.expected
        self.expected = psn + 1
        self.msn += 1
        self._executed.append(_Executed(psn, psn + 1, address, original))
        self._answers.add(ResponderAnswer(psn, self._aeth(ACK_UNLIMITED), original))

    # -- repetitions ---------------------------------------------------------------------------

    def _repeat(self, operation: int, psn: int, frame: memoryview, extensions_at: int) -> None:
        """A request that has been carried out already."""
        if operation in SHAPES:
            self._answers.acknowledge(self.expected - 1, self.msn)
            return
        known = next((e for e in self._executed if e.first <= psn < e.end), None)
        if known is None:
            self._counts["rx_drop_forgotten_duplicate"] += 1
        elif operation in _ATOMICS and known.original is not None:
            self._answers.repeat(ResponderAnswer(psn, self._aeth(ACK_UNLIMITED), known.original), 0)
        elif operation == _O.READ_REQUEST and known.original is None:
            address, key, length = headers.RETH.unpack_from(frame, extensions_at)
            end = psn + max(1, -(-length // self._mtu))
            data = self._reach(key, address, length)
            skipped = (psn - known.first) * self._mtu
            limit = self._host.config.max_dest_rd_atomic
            if (
                data is None
                or end > known.end
                or address != known.address + skipped
                or not self._answers.repeat(ReadJob(psn, psn, end, data, self.msn), limit)
            ):
                self._counts["rx_drop_other_duplicate"] += 1
        else:
            self._counts["rx_drop_other_duplicate"] += 1

    # -- answers -------------------------------------------------------------------------------

    def _aeth(self, syndrome: int) -> int:
        return syndrome << _MSN_SHIFT | self.msn & PSN_MASK

    def _nak(self, syndrome: int, psn: int) -> None:
        self._counts["tx_naks"] += 1
        self._answers.add(ResponderAnswer(psn, self._aeth(syndrome)))

    def _refuse(self, syndrome: int) -> None:
        """The expected request cannot be carried out: not yet, or never."""
        if syndrome == Syndrome.RNR_NAK:
            self._counts["tx_naks_rnr"] += 1
            self._nak_sent = True  # what is behind it will come again as well
            self._nak(Syndrome.RNR_NAK | self._host.config.min_rnr_timer, self.expected)
            return
        self._nak(syndrome, self.expected)
        self._counts["qp_errors"] += 1
        self._refused = True
        self._qp.fail()

    def withdraw(self, key: int) -> None:
        """The region has been taken away."""
        self._inbound.withdraw(key)

    def stop(self) -> None:
        """Carry out nothing more; what is to be answered still is.

        READs are if they stand before a request that was refused: that has its NAK behind their
        data, or it would take the blame for them.
        """
        self._inbound.abandon(FLUSHED)
        if not self._refused:
            self._answers.forget_reads()

    # -- what leaves ---------------------------------------------------------------------------

    @property
    def reading(self) -> bool:
        """There are responses to READs to send."""
        return self._answers.reads > 0

    def transmit_answers(self, out: list[Frame]) -> None:
        """Everything that is not behind a READ's data."""
        self._answers.transmit(out)

    def transmit_reads(self, out: list[Frame], now: int, limit: int) -> None:
        """Data of READs, and the answers behind it, until ``out`` has ``limit`` frames."""
        self._answers.transmit_reads(out, now, limit)
