"""A queue pair: its states, and what they let it do (IBA 10.3.1, 11.2.5.2).

::

    RESET -> INIT -> RTR -> RTS          any -> ERR        any -> RESET
                            RTS <-> SQE  (UC and UD only)
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from emulator.rocev2.congestion.pacing import Notifier, Pacer
from emulator.rocev2.connection.requester import Requester
from emulator.rocev2.connection.responder import Responder
from emulator.rocev2.connection.unreliable import UnreliableRequester, UnreliableResponder
from emulator.rocev2.connection.work import FLUSHED, WorkError, WorkRequest, Workshop
from emulator.rocev2.connections import Connection
from emulator.rocev2.wire.codes import Service, pkeys_match
from emulator.rocev2.wire.packets import Frames, HcaPeer
from uet.peer import traffic_class
from uet.transport import Frame, Request

if TYPE_CHECKING:
    from emulator.rocev2.hca import HostChannelAdapter


class QpState(Enum):
    """States of a queue pair (IBA 10.3.1)."""

    RESET = "RESET"
    INIT = "INIT"
    RTR = "RTR"
    RTS = "RTS"
    SQE = "SQE"
    ERR = "ERR"


_NEXT: Final[dict[QpState, frozenset[QpState]]] = {
    QpState.RESET: frozenset({QpState.INIT}),
    QpState.INIT: frozenset({QpState.INIT, QpState.RTR, QpState.ERR}),
    QpState.RTR: frozenset({QpState.RTS, QpState.ERR}),
    QpState.RTS: frozenset({QpState.RTS, QpState.SQE, QpState.ERR}),
    QpState.SQE: frozenset({QpState.RTS, QpState.ERR}),
    QpState.ERR: frozenset({QpState.ERR}),
}
_RECEIVING: Final = frozenset({QpState.RTR, QpState.RTS, QpState.SQE})


class QueuePairError(ValueError):
    """A queue pair cannot do this in its state."""


class QueuePair:
    """One end of a connection.  It begins in RESET."""

    def __init__(
        self,
        host: HostChannelAdapter,
        qpn: int,
        service: Service,
        *,
        pacer: Pacer | None = None,
        notification: Notifier | None = None,
    ) -> None:
        config = host.config
        self.host = host
        self.qpn = qpn
        self.service = service
        self.pkey = config.pkey
        self.state = QpState.RESET
        self.receives = self.sends = False
        self.pacer = pacer
        self.notification = notification
        self.data_class = traffic_class(config.dscp_data, ecn_capable=config.ecn_capable)
        ack = config.dscp_data if config.dscp_ack is None else config.dscp_ack
        self.ack_class = traffic_class(ack, ecn_capable=config.ecn_capable)
        #: when the endpoint will look at its timers (ns), the next time last
        self.scheduled: list[int] = []
        self._workshop = Workshop(
            service,
            migreq=config.migreq,
            solicited=config.solicited,
            direct=config.placement == "direct",
        )
        self._requests_first = True
        self.peer = ""
        self.peer_key = b""
        self.remote_qpn = 0
        self.frames: Frames
        self.requester: Requester | UnreliableRequester | None = None
        self.responder: Responder | UnreliableResponder | None = None

    # -- states --------------------------------------------------------------------------------

    def _enter(self, state: QpState) -> None:
        if state not in _NEXT[self.state]:
            raise QueuePairError(
                f"QP {self.qpn:#x} is in state {self.state.value}, from which {state.value} cannot"
                " be reached"
            )
        self.state = state
        self.receives = state in _RECEIVING
        self.sends = state is QpState.RTS

    def to_init(self) -> None:
        """RESET to INIT: receives may be posted."""
        self._enter(QpState.INIT)

    def to_rtr(self, peer: HcaPeer, remote_qpn: int, expected_psn: int) -> None:
        """INIT to RTR: ready to receive from that queue pair of the peer, and to answer."""
        self._enter(QpState.RTR)
        self.peer, self.peer_key, self.remote_qpn = peer.address, peer.key, remote_qpn
        self.frames = peer.frames(self.qpn, remote_qpn, self.pkey)
        if self.service is Service.RC:
            self.responder = Responder(self, expected_psn)
        else:
            self.responder = UnreliableResponder(self, expected_psn)

    def to_rts(self, first_psn: int) -> None:
        """RTR to RTS: ready to send."""
        self._enter(QpState.RTS)
        if self.service is Service.RC:
            self.requester = Requester(self, first_psn)
        else:
            self.requester = UnreliableRequester(self, first_psn)

    def connect(self, peer: HcaPeer, connection: Connection) -> None:
        """Take the queue pair from RESET to RTS at once."""
        self.to_init()
        self.to_rtr(peer, connection.remote_qpn, connection.expected_psn)
        self.to_rts(connection.first_psn)

    def fail(self) -> None:
        """Any state to ERR: what is to be done ends as flushed, what arrives is dropped."""
        if self.state is QpState.RESET:
            raise QueuePairError(f"QP {self.qpn:#x} is in state RESET, where nothing can fail")
        if self.state is QpState.ERR:
            return
        self._enter(QpState.ERR)
        if self.responder is not None:
            self.responder.stop()
        if self.requester is not None:
            self.requester.flush()

    def reset(self) -> None:
        """Any state to RESET: everything is forgotten, without completions."""
        self.state = QpState.RESET
        self.receives = self.sends = False
        self.requester = self.responder = None
        self.peer, self.peer_key = "", b""

    # -- the application's side ----------------------------------------------------------------

    def prepare(self, request: Request) -> WorkRequest:
        """The work of a request; ``WorkError`` if it cannot be done."""
        if self.state is QpState.ERR:  # flushed at once, as it would be from the queue
            return self._workshop.make(request)
        if not self.sends:
            raise WorkError(
                f"QP {self.qpn:#x} is in state {self.state.value}; bring it to RTS before posting"
            )
        return self._workshop.make(request)

    def post(self, work: WorkRequest) -> None:
        """Queue work that :meth:`prepare` made."""
        if not self.sends or self.requester is None:
            self.host.complete(work.completion(FLUSHED))
            return
        self.requester.post(work)
        self.host.activate(self)

    # -- what leaves ---------------------------------------------------------------------------

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Data of READs and requests, until ``out`` has ``limit`` frames.

        They take turns at being first: neither waits until the other has nothing more to send.
        """
        self._requests_first = requests_first = not self._requests_first
        if requests_first:
            self._transmit_requests(out, now, limit)
        if self.responder is not None and self.responder.reading and len(out) < limit:
            self.responder.transmit_reads(out, now, limit)
        if not requests_first:
            self._transmit_requests(out, now, limit)

    def _transmit_requests(self, out: list[Frame], now: int, limit: int) -> None:
        if self.sends and self.requester is not None and len(out) < limit:
            self.requester.transmit(out, now, limit)

    @property
    def idle(self) -> bool:
        """Nothing of its own is open."""
        return self.requester is None or self.requester.idle

    # -- timers --------------------------------------------------------------------------------

    def next_deadline(self, now: int) -> int | None:
        """The earliest timer (ns)."""
        earliest = None if self.requester is None else self.requester.next_deadline()
        pacer = self.pacer
        if pacer is not None:
            if pacer.next > now and self._wants_to_send and (
                earliest is None or pacer.next < earliest
            ):  # fmt: skip
                earliest = pacer.next
            due = pacer.next_deadline()
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        return earliest

    @property
    def _wants_to_send(self) -> bool:
        reading = self.responder is not None and self.responder.reading
        return reading or not self.idle

    def on_timer(self, now: int) -> None:
        """Run the timers that are due."""
        pacer = self.pacer
        if pacer is not None:
            due = pacer.next_deadline()
            if due is not None and due <= now:
                pacer.advance(now)
        if self.requester is not None:
            self.requester.on_timer(now)

    def takes(self, pkey: int) -> bool:
        """Return whether a packet with this P_Key is for its partition."""
        return pkeys_match(pkey, self.pkey)
