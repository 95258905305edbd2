"""The target: its subsystems, controllers and connections, and which command goes where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from emulator.cluster.nvme_tcp.target import admin_commands, fabrics_commands, io_commands
from emulator.cluster.nvme_tcp.target.command_outcomes import Answer, Collection, Outcome, refused
from emulator.cluster.nvme_tcp.target.fabrics_commands import ConnectRequest, invalid_parameter
from emulator.cluster.nvme_tcp.target.identify_pages import identify
from emulator.cluster.nvme_tcp.target.log_pages import LocalEnd, log_page
from emulator.cluster.nvme_tcp.target.nvme_controller import ConnectedHost, NvmeController
from emulator.cluster.nvme_tcp.target.subsystem_model import NvmeSubsystem
from emulator.cluster.nvme_tcp.target.target_connection import TargetConnection
from emulator.cluster.nvme_tcp.target.target_settings import TargetSettings
from emulator.cluster.nvme_tcp.wire.layouts import (
    ANY_CONTROLLER,
    AT_FCTYPE,
    CONNECT_DATA,
    DISCOVERY_NQN,
    DO_NOT_RETRY,
    FABRICS,
    SHUTDOWN_COMPLETE,
    AdminOpcode,
    FabricsType,
    NvmeCommand,
    NvmeStatus,
)

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
        """Return the controllers that hosts have at present."""
        return [association.controller for association in self._associations.values()]

    # -- what a connection calls -------------------------------------------------------------------

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] += number

    def completed(self, connection: TargetConnection, command: NvmeCommand, status: int) -> None:
        """Count a command, and put it into the error log where it has failed."""
        self.counters["commands"] += 1
        if status:
            self.counters["failed_commands"] += 1
            link = self._links.get(connection)
            if link is not None and link.controller is not None:
                link.controller.record_error(connection.qid or 0, command, status & ~DO_NOT_RETRY)

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
        self, connection: TargetConnection, command: NvmeCommand, header: bytes, now_ns: int
    ) -> Outcome:
        """Begin a command of a connection's queue."""
        link = self._links[connection]
        controller = link.controller
        if command.opcode == FABRICS:
            return self._fabrics(connection, link, header, now_ns)
        if controller is None or not controller.enabled:
            return refused(NvmeStatus.SEQUENCE_ERROR)
        if connection.qid:
            return io_commands.execute(controller, command)
        return self._admin(link, controller, command, now_ns)

    # -- commands ----------------------------------------------------------------------------------

    def _admin(
        self, link: _Link, controller: NvmeController, command: NvmeCommand, now_ns: int
    ) -> Outcome:
        match command.opcode:
            case AdminOpcode.IDENTIFY:
                return identify(controller, command)
            case AdminOpcode.GET_LOG_PAGE:
                return log_page(controller, command, self.subsystems.values(), link.local)
            case AdminOpcode.SET_FEATURES:
                self.rescheduled = True  # the command may set KATO
                return admin_commands.set_features(controller, command, now_ns)
            case AdminOpcode.GET_FEATURES:
                return admin_commands.get_features(controller, command)
            case AdminOpcode.ASYNC_EVENT_REQUEST:
                return admin_commands.async_event_request(controller, command)
            case AdminOpcode.KEEP_ALIVE:
                self.counters["keep_alives"] += 1
                return admin_commands.keep_alive(controller, now_ns)
            case AdminOpcode.ABORT:
                return self._abort(controller, command)
        return refused(NvmeStatus.INVALID_OPCODE)

    def _abort(self, controller: NvmeController, command: NvmeCommand) -> Outcome:
        """Abort an Async Event Request (Base 2.0, 5.1); nothing else waits long."""
        sqid, cid = command.cdw10 & 0xFFFF, command.cdw10 >> 16
        admin = self._associations[controller.cntlid].queues.get(0)
        if sqid or admin is None or cid not in controller.event_requests:
            return Answer(result=1)  # not aborted
        controller.event_requests.remove(cid)
        admin.answer(cid, Answer(NvmeStatus.ABORT_REQUESTED))
        return Answer(result=0)

    def _fabrics(
        self, connection: TargetConnection, link: _Link, entry: bytes, now_ns: int
    ) -> Outcome:
        kind = entry[AT_FCTYPE]
        if kind == FabricsType.CONNECT:
            if connection.qid is not None:
                return refused(NvmeStatus.SEQUENCE_ERROR)
            data = bytearray(CONNECT_DATA.size)

            def take(offset: int, octets: bytes) -> None:
                data[offset : offset + len(octets)] = octets

            def finish() -> Answer:
                request = fabrics_commands.connect_request(entry, bytes(data))
                return self._connect(connection, link, request, now_ns)

            return Collection(CONNECT_DATA.size, take, finish)
        if link.controller is None or connection.qid:
            return refused(NvmeStatus.SEQUENCE_ERROR)
        if kind == FabricsType.PROPERTY_GET:
            return fabrics_commands.property_get(link.controller, entry)
        if kind == FabricsType.PROPERTY_SET:
            return self._property_set(link.controller, entry)
        return refused(NvmeStatus.INVALID_FIELD)

    def _property_set(self, controller: NvmeController, entry: bytes) -> Outcome:
        """Set a property; a reset (CC.EN from 1 to 0) ends I/O queues and what waits."""
        before = controller.enabled
        outcome = fabrics_commands.property_set(controller, entry)
        if before and not controller.enabled:
            queues = self._associations[controller.cntlid].queues
            while controller.event_requests:
                cid = controller.event_requests.popleft()
                queues[0].answer(cid, Answer(NvmeStatus.ABORT_REQUESTED))
            for qid in [qid for qid in queues if qid]:
                self._end(queues[qid], "the controller was reset")
        return outcome

    # -- Connect (Base 2.0, 6.3) -------------------------------------------------------------------

    def _connect(
        self, connection: TargetConnection, link: _Link, request: ConnectRequest, now_ns: int
    ) -> Answer:
        if request.record_format != _RECORD_FORMAT:
            return refused(NvmeStatus.CONNECT_INCOMPATIBLE_FORMAT)
        if not 1 <= request.sqsize < self.settings.queue_entries:
            return invalid_parameter("sqsize")
        if not request.host:
            return invalid_parameter("hostnqn")
        subsystem = self.subsystems.get(request.subsystem)
        if subsystem is None and request.subsystem != DISCOVERY_NQN:
            return invalid_parameter("subnqn")
        if subsystem is not None and subsystem.hosts and request.host not in subsystem.hosts:
            return refused(NvmeStatus.CONNECT_INVALID_HOST)
        if request.qid:
            answer = self._join(connection, link, request)
        else:
            answer = self._create(link, request, subsystem, now_ns)
        if answer.status == NvmeStatus.SUCCESS:
            assert link.controller is not None
            connection.qid = request.qid
            connection.entries = request.sqsize + 1
            connection.flow_control = request.flow_control
            connection.sqhd = 1 % connection.entries  # Connect was the first entry
            self._associations[link.controller.cntlid].queues[request.qid] = connection
            link.deadline_ns = None
        return answer

    def _create(
        self, link: _Link, request: ConnectRequest, subsystem: NvmeSubsystem | None, now_ns: int
    ) -> Answer:
        """Make a controller for the host: the dynamic controller model."""
        if request.cntlid != ANY_CONTROLLER:
            return invalid_parameter("cntlid")
        if len(self._associations) >= self.settings.controllers:
            return Answer(NvmeStatus.CONNECT_CONTROLLER_BUSY)
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
            return refused(NvmeStatus.SEQUENCE_ERROR)
        link.controller = controller
        return Answer(result=controller.cntlid)

    def _dissolve(self, association: _Association) -> None:
        """End a controller, and the connections of its queues."""
        self._associations.pop(association.controller.cntlid, None)
        shut_down = association.controller.csts & SHUTDOWN_COMPLETE
        for connection in tuple(association.queues.values()):
            self._end(connection, None if shut_down else "the controller has ended")

    def _end(self, connection: TargetConnection, reason: str | None) -> None:
        connection.fault = connection.fault or reason
        connection.close()
        self._disturbed.add(connection)
