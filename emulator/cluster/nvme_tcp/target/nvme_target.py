"""The target: its subsystems, controllers and connections, without sockets.

::

    octets --PduReader--> capsule --NvmeTarget--> Answer ----------------> CapsuleResp
                                                  Transmission --pieces--> C2HData ...
                                                  Collection --R2T--> host --H2CData--> store
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from emulator.cluster.nvme_tcp.target import commands
from emulator.cluster.nvme_tcp.target.commands import (
    ConnectRequest,
    LocalEnd,
    identify,
    invalid_parameter,
    log_page,
)
from emulator.cluster.nvme_tcp.target.controller import (
    Answer,
    Collection,
    ConnectedHost,
    NvmeController,
    NvmeSubsystem,
    Outcome,
    TargetSettings,
    Transmission,
    refused,
)
from emulator.cluster.nvme_tcp.wire import layouts
from emulator.cluster.nvme_tcp.wire import layouts as nvme
from emulator.cluster.nvme_tcp.wire import pdu as wire

#: Data that a capsule of the Admin queue may bring (NVMe/TCP, in-capsule data).
ADMIN_IN_CAPSULE = 8192
#: Entries of a queue before its Connect command has stated them.
_FIRST_ENTRIES = 32
#: R2Ts that are outstanding for one command, where the host allows as many.
_MOST_R2TS = 4


class _Stream:
    __slots__ = ("command", "sent", "what")

    def __init__(self, command: nvme.NvmeCommand, what: Transmission) -> None:
        self.command = command
        self.what = what
        self.sent = 0


class _Intake:
    """A collection under way: how far R2Ts have requested it, how much has come."""

    __slots__ = ("asked", "came", "command", "failed", "granted", "what")

    def __init__(self, command: nvme.NvmeCommand, what: Collection) -> None:
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

    def __init__(self, target: NvmeTarget, settings: TargetSettings) -> None:
        self._target = target
        self._settings = settings
        limits = {
            wire.PduType.IC_REQ: 0,
            wire.PduType.H2C_TERM_REQ: 0,
            wire.PduType.CAPSULE_CMD: max(ADMIN_IN_CAPSULE, settings.in_capsule),
            wire.PduType.H2C_DATA: settings.maxh2cdata,
        }
        self._reader = wire.PduReader(limits)
        self._writer = wire.PduWriter()
        self._initialized = False
        self._closing = False
        self._most_r2ts = 1
        self._pending: dict[int, nvme.NvmeCommand] = {}
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
        except wire.PduError as error:
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
            self._target.ended(self)

    # -- PDUs that arrive --------------------------------------------------------------------------

    def _dispatch(self, pdu: wire.Pdu, now_ns: int) -> None:
        if pdu.kind is wire.PduType.H2C_TERM_REQ:
            self._target.count("rx_termination_requests")
            self.fault = "the host has requested termination"
            self.close()
        elif pdu.kind is wire.PduType.IC_REQ:
            self._initialize(pdu)
        elif not self._initialized:
            raise wire.PduError(
                wire.FatalError.SEQUENCE_ERROR, 0, pdu.header, "no ICReq came first"
            )
        elif pdu.kind is wire.PduType.CAPSULE_CMD:
            self._capsule(pdu, now_ns)
        else:
            self._host_data(pdu)

    def _initialize(self, pdu: wire.Pdu) -> None:
        """Answer ICReq (NVMe/TCP, 3.6.2.2): digests, alignment and outstanding R2Ts."""
        if self._initialized:
            raise wire.PduError(wire.FatalError.SEQUENCE_ERROR, 0, pdu.header, "a second ICReq")
        *_, version, alignment, digests, most_r2ts = wire.INITIALIZE.unpack(pdu.header)
        unsupported = wire.FatalError.UNSUPPORTED_PARAMETER
        if version:
            raise wire.PduError(unsupported, wire.AT_PFV, pdu.header, f"PFV {version}")
        if alignment > wire.MOST_ALIGNMENT:
            raise wire.PduError(
                wire.FatalError.INVALID_HEADER_FIELD,
                wire.AT_ALIGNMENT,
                pdu.header,
                f"HPDA {alignment}",
            )
        if digests & ~(wire.HEADER_DIGEST | wire.DATA_DIGEST):
            raise wire.PduError(
                wire.FatalError.INVALID_HEADER_FIELD, wire.AT_DGST, pdu.header, f"DGST {digests:#x}"
            )
        settings = self._settings
        header = bool(digests & wire.HEADER_DIGEST and settings.header_digest)
        data = bool(digests & wire.DATA_DIGEST and settings.data_digest)
        agreed = (wire.HEADER_DIGEST if header else 0) | (wire.DATA_DIGEST if data else 0)
        answer = self._writer.initialize(
            wire.PduType.IC_RESP, settings.alignment, agreed, settings.maxh2cdata
        )
        self._ready.append([answer])
        self._reader.header_digest = self._writer.header_digest = header
        self._reader.data_digest = self._writer.data_digest = data
        self._reader.alignment, self._writer.alignment = settings.alignment, alignment
        self._most_r2ts = min(most_r2ts + 1, _MOST_R2TS)
        self._initialized = True

    def _capsule(self, pdu: wire.Pdu, now_ns: int) -> None:
        command = layouts.entry_of(pdu.header, wire.COMMON.size)
        self.sqhd = (self.sqhd + 1) % self.entries
        if len(self._pending) >= self.entries:
            raise wire.PduError(
                wire.FatalError.SEQUENCE_ERROR, 0, pdu.header, "more commands than entries"
            )
        if command.cid in self._pending:
            self._ready.append(self._capsule_of(command, refused(nvme.NvmeStatus.ID_CONFLICT)))
            return
        self._pending[command.cid] = command
        if command.flags & layouts.PSDT_MASK != layouts.USES_SGL and command.opcode != nvme.FABRICS:
            outcome: Outcome = refused(nvme.NvmeStatus.INVALID_FIELD)
        elif command.flags & 3:  # no fused operations
            outcome = refused(nvme.NvmeStatus.INVALID_FIELD)
        else:
            outcome = self._begun(command, pdu, now_ns)
        if isinstance(outcome, Answer):
            self.answer(command.cid, outcome)
        elif isinstance(outcome, Transmission):
            self._begin_transmission(command, outcome)
        elif isinstance(outcome, Collection):
            self._begin_collection(command, outcome, pdu)

    def _begun(self, command: nvme.NvmeCommand, pdu: wire.Pdu, now_ns: int) -> Outcome:
        if not pdu.data_intact:
            self._target.count("data_digest_errors")
            return Answer(nvme.NvmeStatus.TRANSIENT_TRANSPORT_ERROR)
        try:
            return self._target.execute(self, command, pdu.header[wire.COMMON.size :], now_ns)
        except OSError:
            self._target.count("store_errors")
            return refused(nvme.NvmeStatus.INTERNAL_ERROR)

    # -- data to the host --------------------------------------------------------------------------

    def _begin_transmission(self, command: nvme.NvmeCommand, what: Transmission) -> None:
        if command.descriptor != layouts.IN_TRANSPORT:
            self.answer(command.cid, refused(nvme.NvmeStatus.DESCRIPTOR_TYPE_INVALID))
        elif command.length != what.length:
            self.answer(command.cid, refused(nvme.NvmeStatus.DATA_LENGTH_INVALID))
        else:
            self._streams.append(_Stream(command, what))

    def _next_piece(self, stream: _Stream) -> list[bytes]:
        """Return the next C2HData of a transmission, and its response behind the last one."""
        command, what, at = stream.command, stream.what, stream.sent
        size = min(self._settings.c2h_octets, what.length - at)
        try:
            octets = what.read(at, size)
        except OSError:
            self._target.count("store_errors")
            return self._response(command, refused(nvme.NvmeStatus.INTERNAL_ERROR))
        stream.sent += size
        if stream.sent < what.length:
            self._streams.append(stream)
            return self._writer.data(wire.PduType.C2H_DATA, 0, command.cid, 0, at, octets)
        if self._settings.success_flag and not self.flow_control:
            del self._pending[command.cid]
            self._target.completed(self, command, nvme.NvmeStatus.SUCCESS)
            flags = wire.LAST_PDU | wire.SUCCESS
            return self._writer.data(wire.PduType.C2H_DATA, flags, command.cid, 0, at, octets)
        pdu = self._writer.data(wire.PduType.C2H_DATA, wire.LAST_PDU, command.cid, 0, at, octets)
        return pdu + self._response(command, Answer())

    # -- data from the host ------------------------------------------------------------------------

    def _begin_collection(self, command: nvme.NvmeCommand, what: Collection, pdu: wire.Pdu) -> None:
        if command.length != what.length:
            self.answer(command.cid, refused(nvme.NvmeStatus.DATA_LENGTH_INVALID))
            return
        intake = _Intake(command, what)
        if command.descriptor == layouts.IN_TRANSPORT:
            self._grant(intake)
        elif command.descriptor != layouts.IN_CAPSULE:
            self.answer(command.cid, refused(nvme.NvmeStatus.DESCRIPTOR_TYPE_INVALID))
        elif command.address + command.length > len(pdu.data):
            self.answer(command.cid, refused(nvme.NvmeStatus.SGL_OFFSET_INVALID))
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
            self._target.count("tx_r2ts")
            self._ready.append(
                self._writer.ready_to_transfer(intake.command.cid, ttag, start, size)
            )

    def _host_data(self, pdu: wire.Pdu) -> None:
        """Take H2CData, in order within its R2T (NVMe/TCP, 3.6.2.8)."""
        _, flags, _, _, _, cccid, ttag, offset, length = wire.DATA.unpack(pdu.header)
        grant = self._grants.get(ttag)
        invalid = wire.FatalError.INVALID_HEADER_FIELD
        if grant is None:
            raise wire.PduError(invalid, wire.AT_TTAG, pdu.header, f"no R2T has TTAG {ttag}")
        intake = grant.intake
        if cccid != intake.command.cid:
            raise wire.PduError(
                invalid, wire.AT_CCCID, pdu.header, f"CCCID {cccid} is not that of the R2T"
            )
        if length != len(pdu.data):
            raise wire.PduError(
                invalid, wire.AT_LENGTH, pdu.header, f"DATAL {length} is not that of PLEN"
            )
        end = offset + length
        if offset != grant.next or end > grant.end:
            raise wire.PduError(
                wire.FatalError.DATA_OUT_OF_RANGE, 0, pdu.header, f"data from {offset} to {end}"
            )
        if bool(flags & wire.LAST_PDU) != (end == grant.end):
            raise wire.PduError(invalid, wire.AT_FLAGS, pdu.header, "the LAST_PDU flag")
        grant.next = end
        if not pdu.data_intact:
            self._target.count("data_digest_errors")
            intake.failed = nvme.NvmeStatus.TRANSIENT_TRANSPORT_ERROR
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
                self._target.count("store_errors")
                intake.failed = refused(nvme.NvmeStatus.INTERNAL_ERROR).status

    def _settle(self, intake: _Intake) -> None:
        if intake.failed is not None:
            self.answer(intake.command.cid, Answer(intake.failed))
            return
        try:
            answer = intake.what.finish()
        except OSError:
            self._target.count("store_errors")
            answer = refused(nvme.NvmeStatus.INTERNAL_ERROR)
        self.answer(intake.command.cid, answer)

    # -- completions and ends ----------------------------------------------------------------------

    def answer(self, cid: int, answer: Answer) -> None:
        """Complete a command that is pending; nothing where it is none."""
        command = self._pending.get(cid)
        if command is not None and not self._closing:
            self._ready.append(self._response(command, answer))

    def _response(self, command: nvme.NvmeCommand, answer: Answer) -> list[bytes]:
        del self._pending[command.cid]
        self._target.completed(self, command, answer.status)
        return self._capsule_of(command, answer)

    def _capsule_of(self, command: nvme.NvmeCommand, answer: Answer) -> list[bytes]:
        sqhd = self.sqhd if self.flow_control else layouts.NO_FLOW_CONTROL
        entry = layouts.CQE.pack(
            answer.result, sqhd, self.qid or 0, command.cid, answer.status << 1
        )
        return self._writer.capsule(wire.PduType.CAPSULE_RESP, entry)

    def _terminate(self, error: wire.PduError) -> None:
        """Request termination, and close behind it (NVMe/TCP, 3.6.2.5)."""
        self._target.count("bad_pdus")
        if error.status == wire.FatalError.HEADER_DIGEST_ERROR:
            self._target.count("header_digest_errors")
        self.fault = f"{error.status.name.lower()}: {error}"
        self._ready.append([self._writer.terminate(wire.PduType.C2H_TERM_REQ, error)])
        self._closing = True
        self._forget()
        self._target.ended(self)

    def _forget(self) -> None:
        self._pending.clear()
        self._streams.clear()
        self._grants.clear()


#: The only offered record format of Connect (Base 2.0, 6.3).
_RECORD_FORMAT = 0
_LAST_CNTLID = 0xFFEF


@dataclass(slots=True)
class _Link:
    """A connection's local end, deadline and controller."""

    local: LocalEnd
    deadline_ns: int | None
    controller: NvmeController | None = None


@dataclass
class _Association:
    """A controller, and the connection of each of its queues."""

    controller: NvmeController
    queues: dict[int, TargetConnection] = field(default_factory=dict)


class NvmeTarget:
    """Serve subsystems to all connections, without sockets; times are of one clock, in ns."""

    def __init__(
        self, subsystems: Iterable[NvmeSubsystem], settings: TargetSettings | None = None
    ) -> None:
        self.subsystems = {subsystem.nqn: subsystem for subsystem in subsystems}
        self.settings = settings or TargetSettings()
        self.counters: Counter[str] = Counter()
        self._links: dict[TargetConnection, _Link] = {}
        self._associations: dict[int, _Association] = {}
        self._last_cntlid = 0
        self._disturbed: set[TargetConnection] = set()
        #: A deadline was set: :meth:`next_deadline` may be earlier than before.
        self.rescheduled = False

    # -- what the runner calls ---------------------------------------------------------------------

    def accept(self, local: LocalEnd, now_ns: int) -> TargetConnection | None:
        """Return a connection for a host that has connected, or None: there are too many."""
        if len(self._links) >= self.settings.connections:
            self.counters["refused_connections"] += 1
            return None
        self.counters["connections"] += 1
        connection = TargetConnection(self, self.settings)
        self._links[connection] = _Link(local, now_ns + self.settings.connect_ns)
        self.rescheduled = True
        return connection

    def next_deadline(self) -> int | None:
        """Return the time at which to call :meth:`handle_timer`, or None."""
        connects = (link.deadline_ns for link in self._links.values())
        silences = (one.controller.deadline_ns for one in self._associations.values())
        return min((at for at in (*connects, *silences) if at is not None), default=None)

    def handle_timer(self, now_ns: int) -> None:
        """End what was silent for too long: controllers by KATO, connections before Connect."""
        for association in tuple(self._associations.values()):
            deadline = association.controller.deadline_ns
            if deadline is not None and deadline <= now_ns:
                self.counters["keep_alive_timeouts"] += 1
                association.controller.expire()
                self._dissolve(association)
        for connection, link in tuple(self._links.items()):
            if link.deadline_ns is not None and link.deadline_ns <= now_ns:
                self.counters["connect_timeouts"] += 1
                self._end(connection, "no Connect command came in time")

    def take_disturbed(self) -> set[TargetConnection]:
        """Return connections that another one, or a timer, has closed or made send."""
        disturbed, self._disturbed = self._disturbed, set()
        return disturbed

    def controllers(self) -> list[NvmeController]:
        return [association.controller for association in self._associations.values()]

    # -- what a connection calls -------------------------------------------------------------------

    def count(self, name: str, number: int = 1) -> None:
        self.counters[name] += number

    def completed(
        self, connection: TargetConnection, command: nvme.NvmeCommand, status: int
    ) -> None:
        """Count a command, and put it into the error log where it has failed."""
        self.counters["commands"] += 1
        if status:
            self.counters["failed_commands"] += 1
            link = self._links.get(connection)
            if link is not None and link.controller is not None:
                link.controller.record_error(
                    connection.qid or 0, command, status & ~nvme.DO_NOT_RETRY
                )

    def ended(self, connection: TargetConnection) -> None:
        """Forget a connection; the end of the Admin queue's is the end of its controller."""
        link = self._links.pop(connection, None)
        if link is None or link.controller is None or connection.qid is None:
            return
        association = self._associations.get(link.controller.cntlid)
        if association is None or association.queues.get(connection.qid) is not connection:
            return
        del association.queues[connection.qid]
        if connection.qid == 0:
            self._dissolve(association)

    def execute(
        self, connection: TargetConnection, command: nvme.NvmeCommand, header: bytes, now_ns: int
    ) -> Outcome:
        link = self._links[connection]
        controller = link.controller
        if command.opcode == nvme.FABRICS:
            return self._fabrics(connection, link, header, now_ns)
        if controller is None or not controller.enabled:
            return refused(nvme.NvmeStatus.SEQUENCE_ERROR)
        if connection.qid:
            return commands.execute_io(controller, command)
        return self._admin(link, controller, command, now_ns)

    # -- commands ----------------------------------------------------------------------------------

    def _admin(
        self, link: _Link, controller: NvmeController, command: nvme.NvmeCommand, now_ns: int
    ) -> Outcome:
        match command.opcode:
            case nvme.AdminOpcode.IDENTIFY:
                return identify(controller, command)
            case nvme.AdminOpcode.GET_LOG_PAGE:
                return log_page(controller, command, self.subsystems.values(), link.local)
            case nvme.AdminOpcode.SET_FEATURES:
                self.rescheduled = True  # the command may set KATO
                return commands.set_features(controller, command, now_ns)
            case nvme.AdminOpcode.GET_FEATURES:
                return commands.get_features(controller, command)
            case nvme.AdminOpcode.ASYNC_EVENT_REQUEST:
                return commands.async_event_request(controller, command)
            case nvme.AdminOpcode.KEEP_ALIVE:
                self.counters["keep_alives"] += 1
                return commands.keep_alive(controller, now_ns)
            case nvme.AdminOpcode.ABORT:
                return self._abort(controller, command)
        return refused(nvme.NvmeStatus.INVALID_OPCODE)

    def _abort(self, controller: NvmeController, command: nvme.NvmeCommand) -> Outcome:
        """Abort an Async Event Request (Base 2.0, 5.1); nothing else waits long."""
        sqid, cid = command.cdw10 & 0xFFFF, command.cdw10 >> 16
        admin = self._associations[controller.cntlid].queues.get(0)
        if sqid or admin is None or cid not in controller.event_requests:
            return Answer(result=1)  # not aborted
        controller.event_requests.remove(cid)
        admin.answer(cid, Answer(nvme.NvmeStatus.ABORT_REQUESTED))
        return Answer(result=0)

    def _fabrics(
        self, connection: TargetConnection, link: _Link, entry: bytes, now_ns: int
    ) -> Outcome:
        kind = entry[nvme.AT_FCTYPE]
        if kind == nvme.FabricsType.CONNECT:
            if connection.qid is not None:
                return refused(nvme.NvmeStatus.SEQUENCE_ERROR)
            data = bytearray(nvme.CONNECT_DATA.size)

            def take(offset: int, octets: bytes) -> None:
                data[offset : offset + len(octets)] = octets

            def finish() -> Answer:
                request = commands.connect_request(entry, bytes(data))
                return self._connect(connection, link, request, now_ns)

            return Collection(nvme.CONNECT_DATA.size, take, finish)
        if link.controller is None or connection.qid:
            return refused(nvme.NvmeStatus.SEQUENCE_ERROR)
        if kind == nvme.FabricsType.PROPERTY_GET:
            return commands.property_get(link.controller, entry)
        if kind == nvme.FabricsType.PROPERTY_SET:
            return self._property_set(link.controller, entry)
        return refused(nvme.NvmeStatus.INVALID_FIELD)

    def _property_set(self, controller: NvmeController, entry: bytes) -> Outcome:
        """Set a property; a reset (CC.EN from 1 to 0) ends I/O queues and what waits."""
        before = controller.enabled
        outcome = commands.property_set(controller, entry)
        if before and not controller.enabled:
            queues = self._associations[controller.cntlid].queues
            while controller.event_requests:
                cid = controller.event_requests.popleft()
                queues[0].answer(cid, Answer(nvme.NvmeStatus.ABORT_REQUESTED))
            for qid in [qid for qid in queues if qid]:
                self._end(queues[qid], "the controller was reset")
        return outcome

    # -- Connect (Base 2.0, 6.3) -------------------------------------------------------------------

    def _connect(
        self, connection: TargetConnection, link: _Link, request: ConnectRequest, now_ns: int
    ) -> Answer:
        if request.record_format != _RECORD_FORMAT:
            return refused(nvme.NvmeStatus.CONNECT_INCOMPATIBLE_FORMAT)
        if not 1 <= request.sqsize < self.settings.queue_entries:
            return invalid_parameter("sqsize")
        if not request.host:
            return invalid_parameter("hostnqn")
        subsystem = self.subsystems.get(request.subsystem)
        if subsystem is None and request.subsystem != nvme.DISCOVERY_NQN:
            return invalid_parameter("subnqn")
        if subsystem is not None and subsystem.hosts and request.host not in subsystem.hosts:
            return refused(nvme.NvmeStatus.CONNECT_INVALID_HOST)
        if request.qid:
            answer = self._join(connection, link, request)
        else:
            answer = self._create(link, request, subsystem, now_ns)
        if answer.status == nvme.NvmeStatus.SUCCESS:
            connection.qid = request.qid
            connection.entries = request.sqsize + 1
            connection.flow_control = request.flow_control
            connection.sqhd = 1 % connection.entries  # Connect was the first entry
            self._associations[answer.result].queues[request.qid] = connection
            link.deadline_ns = None
        return answer

    def _create(
        self, link: _Link, request: ConnectRequest, subsystem: NvmeSubsystem | None, now_ns: int
    ) -> Answer:
        """Make a controller for the host: the dynamic controller model."""
        if request.cntlid != nvme.ANY_CONTROLLER:
            return invalid_parameter("cntlid")
        if len(self._associations) >= self.settings.controllers:
            return Answer(nvme.NvmeStatus.CONNECT_CONTROLLER_BUSY)
        while True:
            self._last_cntlid = self._last_cntlid % _LAST_CNTLID + 1
            if self._last_cntlid not in self._associations:
                break
        host = ConnectedHost(request.host, request.host_identifier)
        controller = NvmeController(self._last_cntlid, subsystem, host, self.settings)
        controller.set_keep_alive(request.keep_alive_ms, now_ns)
        self._associations[controller.cntlid] = _Association(controller)
        link.controller = controller
        self.rescheduled = True
        self.counters["controllers"] += 1
        return Answer(result=controller.cntlid)

    def _join(self, connection: TargetConnection, link: _Link, request: ConnectRequest) -> Answer:
        """Add an I/O queue to the host's controller."""
        association = self._associations.get(request.cntlid)
        if association is None:
            return invalid_parameter("cntlid")
        controller = association.controller
        if controller.subsystem is None or controller.subsystem.nqn != request.subsystem:
            return invalid_parameter("subnqn")
        if controller.host.nqn != request.host:
            return invalid_parameter("hostnqn")
        if controller.host.identifier != request.host_identifier:
            return invalid_parameter("hostid")
        if request.qid > self.settings.queues:
            return invalid_parameter("qid")
        if not controller.enabled or request.qid in association.queues:
            return refused(nvme.NvmeStatus.SEQUENCE_ERROR)
        link.controller = controller
        return Answer(result=controller.cntlid)

    def _dissolve(self, association: _Association) -> None:
        """End a controller, and the connections of its queues."""
        self._associations.pop(association.controller.cntlid, None)
        shut_down = association.controller.csts & nvme.SHUTDOWN_COMPLETE
        for connection in tuple(association.queues.values()):
            self._end(connection, None if shut_down else "the controller has ended")

    def _end(self, connection: TargetConnection, reason: str | None) -> None:
        connection.fault = connection.fault or reason
        connection.close()
        self._disturbed.add(connection)
