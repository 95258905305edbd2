"""A target's connection takes PDUs, carries out commands and sends PDUs (NVMe/TCP).

::

    octets --PduReader--> capsule --QueueCommands--> Answer ----------------> CapsuleResp
                                                     Transmission --pieces--> C2HData ...
                                                     Collection --R2T--> host --H2CData--> store
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from emulator.cluster.nvme_tcp.target.command_outcomes import (
    Answer,
    Collection,
    Outcome,
    Transmission,
    refused,
)
from emulator.cluster.nvme_tcp.target.target_settings import TargetSettings
from emulator.cluster.nvme_tcp.wire.layouts import (
    CQE,
    FABRICS,
    IN_CAPSULE,
    IN_TRANSPORT,
    NO_FLOW_CONTROL,
    PSDT_MASK,
    USES_SGL,
    NvmeCommand,
    NvmeStatus,
    entry_of,
)
from emulator.cluster.nvme_tcp.wire.pdu import (
    AT_ALIGNMENT,
    AT_CCCID,
    AT_DGST,
    AT_FLAGS,
    AT_LENGTH,
    AT_PFV,
    AT_TTAG,
    COMMON,
    DATA,
    DATA_DIGEST,
    HEADER_DIGEST,
    INITIALIZE,
    LAST_PDU,
    MOST_ALIGNMENT,
    SUCCESS,
    FatalError,
    Pdu,
    PduError,
    PduReader,
    PduType,
    PduWriter,
)

#: Data that a capsule of the Admin queue may bring (NVMe/TCP, in-capsule data).
ADMIN_IN_CAPSULE = 8192
#: Entries of a queue before its Connect command has stated them.
_FIRST_ENTRIES = 32
#: R2Ts that are outstanding for one command, where the host allows as many.
_MOST_R2TS = 4


class QueueCommands(Protocol):
    """Carry out the commands of one queue."""

    def execute(
        self, connection: TargetConnection, command: NvmeCommand, header: bytes, now_ns: int
    ) -> Outcome:
        """Begin a command; raises ``OSError`` where a store does."""

    def completed(self, connection: TargetConnection, command: NvmeCommand, status: int) -> None:
        """Take note of a command's status."""

    def ended(self, connection: TargetConnection) -> None:
        """Take note of the end of the connection."""

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter of the target."""


class _Stream:
    """A transmission under way."""

    __slots__ = ("command", "sent", "what")

    def __init__(self, command: NvmeCommand, what: Transmission) -> None:
        self.command = command
        self.what = what
        self.sent = 0


class _Intake:
    """A collection under way: how far R2Ts have requested it, how much has come."""

    __slots__ = ("asked", "came", "command", "failed", "granted", "what")

    def __init__(self, command: NvmeCommand, what: Collection) -> None:
        self.command = command
        self.what = what
        self.asked = 0
        self.came = 0
        self.granted = 0
        self.failed: int | None = None


@dataclass(slots=True)
class _Grant:
    """An R2T: the next octet that it is to bring, and its end."""

    intake: _Intake
    next: int
    end: int


class TargetConnection:
    """Serve one queue of one host, without a socket.

    Feed octets to :meth:`receive`; send what :meth:`octets_to_send` returns; close the connection
    when :attr:`finished` is true.
    """

    def __init__(self, commands: QueueCommands, settings: TargetSettings) -> None:
        self._commands = commands
        self._settings = settings
        limits = {
            PduType.IC_REQ: 0,
            PduType.H2C_TERM_REQ: 0,
            PduType.CAPSULE_CMD: max(ADMIN_IN_CAPSULE, settings.in_capsule),
            PduType.H2C_DATA: settings.maxh2cdata,
        }
        self._reader = PduReader(limits)
        self._writer = PduWriter()
        self._initialized = False
        self._closing = False
        self._most_r2ts = 1
        self._pending: dict[int, NvmeCommand] = {}
        self._ready: deque[list[bytes]] = deque()
        self._streams: deque[_Stream] = deque()
        self._grants: dict[int, _Grant] = {}
        self._ttag = 0
        #: The queue, once Connect has made it one: None before.
        self.qid: int | None = None
        self.entries = _FIRST_ENTRIES
        self.flow_control = True
        self.sqhd = 0
        #: Words on the PDU that ended the connection.
        self.fault: str | None = None

    # -- what the runner calls ---------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Tell whether to close the TCP connection: nothing more will be sent or understood."""
        return self._closing and not self._ready

    @property
    def busy(self) -> bool:
        """Tell whether there is something for :meth:`octets_to_send`."""
        return bool(self._ready or (self._streams and not self._closing))

    def receive(self, octets: bytes | memoryview, now_ns: int) -> None:
        """Take octets of the TCP connection; never raises on what they are."""
        if self._closing:
            return
        try:
            self._reader.feed(octets)
            while not self._closing and (pdu := self._reader.next_pdu()) is not None:
                self._dispatch(pdu, now_ns)
        except PduError as error:
            self._terminate(error)

    def octets_to_send(self, most: int) -> list[bytes]:
        """Return PDUs to send, some ``most`` octets of them; reads take turns, piece by piece."""
        parts: list[bytes] = []
        size = 0
        while size < most:
            if self._ready:
                pdu = self._ready.popleft()
            elif self._streams and not self._closing:
                pdu = self._next_piece(self._streams.popleft())
            else:
                break
            parts += pdu
            size += sum(map(len, pdu))
        return parts

    def close(self) -> None:
        """End the connection: the peer has gone, or the controller has."""
        if not self._closing:
            self._closing = True
            self._forget()
            self._commands.ended(self)

    # -- PDUs that arrive --------------------------------------------------------------------------

    def _dispatch(self, pdu: Pdu, now_ns: int) -> None:
        if pdu.kind is PduType.H2C_TERM_REQ:
            self._commands.count("rx_termination_requests")
            self.fault = "the host has requested termination"
            self.close()
        elif pdu.kind is PduType.IC_REQ:
            self._initialize(pdu)
        elif not self._initialized:
            raise PduError(FatalError.SEQUENCE_ERROR, 0, pdu.header, "no ICReq came first")
        elif pdu.kind is PduType.CAPSULE_CMD:
            self._capsule(pdu, now_ns)
        else:
            self._host_data(pdu)

    def _initialize(self, pdu: Pdu) -> None:
        """Answer ICReq (NVMe/TCP, 3.6.2.2): digests, alignment and outstanding R2Ts."""
        if self._initialized:
            raise PduError(FatalError.SEQUENCE_ERROR, 0, pdu.header, "a second ICReq")
        *_, version, alignment, digests, most_r2ts = INITIALIZE.unpack(pdu.header)
        unsupported = FatalError.UNSUPPORTED_PARAMETER
        if version:
            raise PduError(unsupported, AT_PFV, pdu.header, f"PFV {version}")
        if alignment > MOST_ALIGNMENT:
            raise PduError(
                FatalError.INVALID_HEADER_FIELD, AT_ALIGNMENT, pdu.header, f"HPDA {alignment}"
            )
        if digests & ~(HEADER_DIGEST | DATA_DIGEST):
            raise PduError(
                FatalError.INVALID_HEADER_FIELD, AT_DGST, pdu.header, f"DGST {digests:#x}"
            )
        settings = self._settings
        header = bool(digests & HEADER_DIGEST and settings.header_digest)
        data = bool(digests & DATA_DIGEST and settings.data_digest)
        agreed = (HEADER_DIGEST if header else 0) | (DATA_DIGEST if data else 0)
        answer = self._writer.initialize(
            PduType.IC_RESP, settings.alignment, agreed, settings.maxh2cdata
        )
        self._ready.append([answer])
        self._reader.header_digest = self._writer.header_digest = header
        self._reader.data_digest = self._writer.data_digest = data
        self._reader.alignment, self._writer.alignment = settings.alignment, alignment
        self._most_r2ts = min(most_r2ts + 1, _MOST_R2TS)
        self._initialized = True

    def _capsule(self, pdu: Pdu, now_ns: int) -> None:
        command = entry_of(pdu.header, COMMON.size)
        self.sqhd = (self.sqhd + 1) % self.entries
        if len(self._pending) >= self.entries:
            raise PduError(FatalError.SEQUENCE_ERROR, 0, pdu.header, "more commands than entries")
        if command.cid in self._pending:
            self._ready.append(self._capsule_of(command, refused(NvmeStatus.ID_CONFLICT)))
            return
        self._pending[command.cid] = command
        if command.flags & PSDT_MASK != USES_SGL and command.opcode != FABRICS:
            outcome: Outcome = refused(NvmeStatus.INVALID_FIELD)
        elif command.flags & 3:  # no fused operations
            outcome = refused(NvmeStatus.INVALID_FIELD)
        else:
            outcome = self._begun(command, pdu, now_ns)
        if isinstance(outcome, Answer):
            self.answer(command.cid, outcome)
        elif isinstance(outcome, Transmission):
            self._begin_transmission(command, outcome)
        elif isinstance(outcome, Collection):
            self._begin_collection(command, outcome, pdu)

    def _begun(self, command: NvmeCommand, pdu: Pdu, now_ns: int) -> Outcome:
        if not pdu.data_intact:
            self._commands.count("data_digest_errors")
            return Answer(NvmeStatus.TRANSIENT_TRANSPORT_ERROR)
        try:
            return self._commands.execute(self, command, pdu.header[COMMON.size :], now_ns)
        except OSError:
            self._commands.count("store_errors")
            return refused(NvmeStatus.INTERNAL_ERROR)

    # -- data to the host --------------------------------------------------------------------------

    def _begin_transmission(self, command: NvmeCommand, what: Transmission) -> None:
        if command.descriptor != IN_TRANSPORT:
            self.answer(command.cid, refused(NvmeStatus.DESCRIPTOR_TYPE_INVALID))
        elif command.length != what.length:
            self.answer(command.cid, refused(NvmeStatus.DATA_LENGTH_INVALID))
        else:
            self._streams.append(_Stream(command, what))

    def _next_piece(self, stream: _Stream) -> list[bytes]:
        """Return the next C2HData of a transmission, and its response behind the last one."""
        command, what, at = stream.command, stream.what, stream.sent
        size = min(self._settings.c2h_octets, what.length - at)
        try:
            octets = what.read(at, size)
        except OSError:
            self._commands.count("store_errors")
            return self._response(command, refused(NvmeStatus.INTERNAL_ERROR))
        stream.sent += size
        if stream.sent < what.length:
            self._streams.append(stream)
            return self._writer.data(PduType.C2H_DATA, 0, command.cid, 0, at, octets)
        if self._settings.success_flag and not self.flow_control:
            del self._pending[command.cid]
            self._commands.completed(self, command, NvmeStatus.SUCCESS)
            flags = LAST_PDU | SUCCESS
            return self._writer.data(PduType.C2H_DATA, flags, command.cid, 0, at, octets)
        pdu = self._writer.data(PduType.C2H_DATA, LAST_PDU, command.cid, 0, at, octets)
        return pdu + self._response(command, Answer())

    # -- data from the host ------------------------------------------------------------------------

    def _begin_collection(self, command: NvmeCommand, what: Collection, pdu: Pdu) -> None:
        if command.length != what.length:
            self.answer(command.cid, refused(NvmeStatus.DATA_LENGTH_INVALID))
            return
        intake = _Intake(command, what)
        if command.descriptor == IN_TRANSPORT:
            self._grant(intake)
        elif command.descriptor != IN_CAPSULE:
            self.answer(command.cid, refused(NvmeStatus.DESCRIPTOR_TYPE_INVALID))
        elif command.address + command.length > len(pdu.data):
            self.answer(command.cid, refused(NvmeStatus.SGL_OFFSET_INVALID))
        else:
            at = command.address
            self._take(intake, 0, pdu.data[at : at + command.length] if at else pdu.data)
            self._settle(intake)

    def _grant(self, intake: _Intake) -> None:
        """Request data by R2Ts, as many as the host allows at a time."""
        while intake.asked < intake.what.length and intake.granted < self._most_r2ts:
            size = min(self._settings.r2t_octets, intake.what.length - intake.asked)
            while self._ttag in self._grants:
                self._ttag = (self._ttag + 1) & 0xFFFF
            ttag, start = self._ttag, intake.asked
            self._ttag = (ttag + 1) & 0xFFFF
            self._grants[ttag] = _Grant(intake, start, start + size)
            intake.asked += size
            intake.granted += 1
            self._commands.count("tx_r2ts")
            self._ready.append(
                self._writer.ready_to_transfer(intake.command.cid, ttag, start, size)
            )

    def _host_data(self, pdu: Pdu) -> None:
        """Take H2CData, in order within its R2T (NVMe/TCP, 3.6.2.8)."""
        _, flags, _, _, _, cccid, ttag, offset, length = DATA.unpack(pdu.header)
        grant = self._grants.get(ttag)
        invalid = FatalError.INVALID_HEADER_FIELD
        if grant is None:
            raise PduError(invalid, AT_TTAG, pdu.header, f"no R2T has TTAG {ttag}")
        intake = grant.intake
        if cccid != intake.command.cid:
            raise PduError(invalid, AT_CCCID, pdu.header, f"CCCID {cccid} is not that of the R2T")
        if length != len(pdu.data):
            raise PduError(invalid, AT_LENGTH, pdu.header, f"DATAL {length} is not that of PLEN")
        end = offset + length
        if offset != grant.next or end > grant.end:
            raise PduError(
                FatalError.DATA_OUT_OF_RANGE, 0, pdu.header, f"data from {offset} to {end}"
            )
        if bool(flags & LAST_PDU) != (end == grant.end):
            raise PduError(invalid, AT_FLAGS, pdu.header, "the LAST_PDU flag")
        grant.next = end
        if not pdu.data_intact:
            self._commands.count("data_digest_errors")
            intake.failed = NvmeStatus.TRANSIENT_TRANSPORT_ERROR
        self._take(intake, offset, pdu.data)
        intake.came += length
        if end == grant.end:
            del self._grants[ttag]
            intake.granted -= 1
            if intake.came == intake.what.length:
                self._settle(intake)
            else:
                self._grant(intake)

    def _take(self, intake: _Intake, offset: int, octets: bytes) -> None:
        if intake.failed is None:
            try:
                intake.what.take(offset, octets)
            except OSError:
                self._commands.count("store_errors")
                intake.failed = refused(NvmeStatus.INTERNAL_ERROR).status

    def _settle(self, intake: _Intake) -> None:
        if intake.failed is not None:
            self.answer(intake.command.cid, Answer(intake.failed))
            return
        try:
            answer = intake.what.finish()
        except OSError:
            self._commands.count("store_errors")
            answer = refused(NvmeStatus.INTERNAL_ERROR)
        self.answer(intake.command.cid, answer)

    # -- completions and ends ----------------------------------------------------------------------

    def answer(self, cid: int, answer: Answer) -> None:
        """Complete a command that is pending; nothing where it is none."""
        command = self._pending.get(cid)
        if command is not None and not self._closing:
            self._ready.append(self._response(command, answer))

    def _response(self, command: NvmeCommand, answer: Answer) -> list[bytes]:
        del self._pending[command.cid]
        self._commands.completed(self, command, answer.status)
        return self._capsule_of(command, answer)

    def _capsule_of(self, command: NvmeCommand, answer: Answer) -> list[bytes]:
        sqhd = self.sqhd if self.flow_control else NO_FLOW_CONTROL
        entry = CQE.pack(answer.result, sqhd, self.qid or 0, command.cid, answer.status << 1)
        return self._writer.capsule(PduType.CAPSULE_RESP, entry)

    def _terminate(self, error: PduError) -> None:
        """Request termination, and close behind it (NVMe/TCP, 3.6.2.5)."""
        self._commands.count("bad_pdus")
        if error.status == FatalError.HEADER_DIGEST_ERROR:
            self._commands.count("header_digest_errors")
        self.fault = f"{error.status.name.lower()}: {error}"
        self._ready.append([self._writer.terminate(PduType.C2H_TERM_REQ, error)])
        self._closing = True
        self._forget()
        self._commands.ended(self)

    def _forget(self) -> None:
        self._pending.clear()
        self._streams.clear()
        self._grants.clear()
