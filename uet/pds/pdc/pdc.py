"""A packet delivery context: two endpoints, one delivery mode, ids and a life (UES 3.5.8).

A :class:`Pdc` puts the parts of one end together, and is what the endpoint and SES hold: ``writer``
writes its packets (:mod:`uet.pds.pds_packets`). ``source`` and ``destination`` are the halves that
do the work (:mod:`uet.pds.source.source`, :mod:`uet.pds.destination`). ``life`` has its state and
closes it (:mod:`uet.pds.pdc.life`). ``sender`` is called in its turns
(:mod:`uet.pds.pdc.pdc_sender`). ``feedback`` takes ACKs and NACKs
(:mod:`uet.pds.pdc.pdc_feedback`), and ``controls`` takes control packets
(:mod:`uet.pds.pdc.pdc_controls`). ``probes`` are its PROBEs (:mod:`uet.pds.pdc.pdc_probes`).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Protocol

from uet.config import FepConfig
from uet.congestion.spraying.paths import PathSelection
from uet.congestion.spraying.port_entropy import Ports
from uet.pds.control_packets import MAX_PSN_OFFSET
from uet.pds.destination import RequestDestination
from uet.pds.pdc.clear import ClearDuty
from uet.pds.pdc.life import PdcLife
from uet.pds.pdc.pdc_controls import PdcControls
from uet.pds.pdc.pdc_feedback import PdcFeedback
from uet.pds.pdc.pdc_parts import PdcIdentity, PdcParts
from uet.pds.pdc.pdc_probes import PdcProbes
from uet.pds.pdc.pdc_sender import PdcSender, PdcTurn
from uet.pds.pdc.pdc_state import PdcState
from uet.pds.pds_packets import PacketWriter
from uet.pds.psn import MASK
from uet.pds.reception import Reception
from uet.pds.semantics import Answer, Outbound, Semantics
from uet.pds.source.source import RequestSource
from uet.pds.source.source_settings import SourceSettings
from uet.pds.window import PsnArrival
from uet.peer import Peer
from uet.transport import Frame
from uet.wire.codes import MPR_UNIT, ControlType, NackCode, NextHeader, RequestFlag

# A plain number: arithmetic on enum members is slow, and this is the data path.
_REQ_RETX = int(RequestFlag.RETX)
_RETURN_DATA = frozenset({int(NextHeader.RESPONSE_DATA), int(NextHeader.RESPONSE_DATA_SMALL)})


class PdcSurroundings(Protocol):
    """The parts of an endpoint that a PDC uses."""

    config: FepConfig
    counts: Counter[str]
    #: ACKs, NACKs and control packets waiting to leave
    control: list[Frame]
    semantics: Semantics
    #: nominal size of a full request (UES 3.6.12)
    full_size: int
    ports: Ports

    def activate(self, pdc: Pdc) -> None:
        """Note that ``pdc`` has, or may have, something to send."""
        ...

    def pdc_changed(self, pdc: Pdc) -> None:
        """Note that the state of ``pdc`` has changed; CLOSED is the last."""
        ...

    def pdc_event(self, pdc: Pdc, name: str, **data: object) -> None:
        """Report something rare that a trace may show."""
        ...

    def pressure(self) -> int:
        """Return how much the peers should hold back, as memory fills (rcv_cwnd_pend, 0 to 127)."""
        ...

    def credit_requested(self, pdc: Pdc, state: int, entropy: int, now: int) -> None:
        """Take a CREDIT_REQ: context of the peer (8 bits) and requested credit (24 bits)."""
        ...

    def next_start(self, peer: Peer, sdi: int | None) -> int | None:
        """Return the first PSN that the target requires of our next secured PDC; else ``None``."""
        ...

    def expected_psn(self, pdc: Pdc) -> int | None:
        """Return where the next secured PDC must begin, at least: a target's, as ``pdc`` ends."""
        ...

    def expect_psn(self, pdc: Pdc, psn: int) -> None:
        """Store where the next secured PDC must begin, from its target."""
        ...


class Pdc:
    """Puts one end of a PDC together.

    The initiator sends the forward requests, the target receives them.
    """

    def __init__(
        self,
        around: PdcSurroundings,
        peer: Peer,
        identity: PdcIdentity,
        entropy: PathSelection,
    ) -> None:
        config, semantics = around.config, around.semantics
        ordered = identity.ordered
        self.id = identity.local_id
        self.peer = peer
        self.initiator = identity.initiator
        self.ordered = ordered
        self.sdi = identity.sdi
        self.identity = identity
        self._around = around
        self._counts = around.counts
        wrap, overhead = peer.way(identity.sdi)
        self.writer = PacketWriter(
            config,
            ordered=ordered,
            local_id=identity.local_id,
            peer_id=identity.peer_id,
            start_psn=identity.start_psn,
            reserved=identity.reserved,
            wrap=wrap,
            nominal_overhead=overhead,
            entropy=entropy,
            # only unexpected messages are kept in memory of ours
            pressure=around.pressure if config.unexpected == "keep" else None,
            outbox=around.control,
            counts=around.counts,
        )
        self.source = RequestSource(
            # What a peer has reported on another PDC holds here until it reports anew.
            SourceSettings.of(config, ordered=ordered, full_size=around.full_size, mpr=peer.mpr),
            writer=self.writer,
            ends=self,
            start_psn=identity.start_psn,
            flow=peer.congestion.flow(entropy),
            counters=around.counts,
        )
        self.destination = RequestDestination(
            start_psn=identity.start_psn,
            psn_range=config.mpr * MPR_UNIT,
            overhead=self.writer.nominal_overhead,
            ordered=ordered,
            reorder=config.rod_reorder,
            infer_loss=config.infer_loss,
            ack_gen_trigger=config.ack_gen_trigger,
            ack_gen_min_pkt_add=config.ack_gen_min_pkt_add,
            ack_on_ecn=config.ack_on_ecn,
            drop_network_duplicates=config.drop_network_duplicates,
            lengths_in_default=config.compatibility.modified_length_in_default_response,
            null_to_duplicates=config.compatibility.null_response_to_duplicate,
            silent_below_cack=config.compatibility.ack_req_below_cack_is_ignored,
            deliver=partial(
                semantics.deliver_data if identity.initiator else semantics.deliver, self
            ),
            acknowledger=self,
            counters=around.counts,
        )
        parts = PdcParts(
            owner=self,
            identity=identity,
            peer=peer,
            config=config,
            counts=around.counts,
            control=around.control,
            writer=self.writer,
            source=self.source,
            destination=self.destination,
            clear=ClearDuty(
                source=self.source,
                clear_time=config.pds_clear_time,
                max_stalls=config.max_rto_retx_cnt,
            ),
        )
        self.turn = PdcTurn()
        self.life = PdcLife(parts)
        self.probes = PdcProbes(parts)
        self.sender = PdcSender(parts, self.life, self.probes, self.turn)
        self.feedback = PdcFeedback(parts, self.life, self.probes)
        self.controls = PdcControls(parts, self.life)
        self.event("created")

    @property
    def state(self) -> PdcState:
        """The state of this end (UES 3.5.8)."""
        return self.life.state

    @property
    def failure(self) -> str | None:
        """The name of the error that it ended with, if any."""
        return self.life.failure

    @property
    def peer_id(self) -> int:
        """The peer's identifier of the PDC; 0 until it is known."""
        return self.writer.peer_id

    @property
    def start_psn(self) -> int:
        """The first PSN of both directions."""
        return self.source.requests.start_psn

    @property
    def backlog(self) -> int:
        """The number of messages posted here of which nothing has left yet."""
        return len(self.source.queue)

    @property
    def address(self) -> str:
        """The peer's fabric address."""
        return self.peer.address

    @property
    def locks(self) -> int:
        """The number of requests whose data is still to come by the return direction."""
        return self.life.locks

    @locks.setter
    def locks(self, number: int) -> None:
        self.life.locks = number
        if self.life.state is PdcState.QUIESCE:
            self.activate()

    # -- what its parts call of the endpoint -------------------------------------------------

    def changed(self) -> None:
        """Note that the state has changed; CLOSED is the last."""
        self._around.pdc_changed(self)

    def activate(self) -> None:
        """Note that there is, or may be, something to send."""
        self._around.activate(self)

    def event(self, name: str, **data: object) -> None:
        """Report something rare that a trace may show."""
        self._around.pdc_event(self, name, **data)

    def message_end(self, message: Outbound, now: int) -> None:
        """End a message: every packet is answered, or ``message.error`` gives the reason."""
        self._around.semantics.message_end(self, message, now)

    def message_unsent(self, message: Outbound) -> None:
        """Take back a message: nothing of it was executed, and nothing of it leaves here."""
        self._around.semantics.message_unsent(message)

    def credit_requested(self, state: int, entropy: int, now: int) -> None:
        """Take a CREDIT_REQ: context of the peer (8 bits) and requested credit (24 bits)."""
        self._around.credit_requested(self, state, entropy, now)

    def expected_psn(self) -> int | None:
        """Return where the next secured PDC must begin, at least: a target's, as this one ends."""
        return self._around.expected_psn(self)

    def expect_psn(self, psn: int) -> None:
        """Store where the next secured PDC must begin, from its target."""
        self._around.expect_psn(self, psn)

    # -- messages and control packets --------------------------------------------------------

    def post(self, message: Outbound) -> None:
        """Queue a message: requests of an initiator, return data of a target."""
        if self.life.state is PdcState.CLOSED:
            self.message_unsent(message)
            return
        self.source.post(message)
        self.activate()

    def respond(self, psn: int, response: Answer) -> None:
        """Take SES's answer to a request that it had answered LATER."""
        if self.life.state is not PdcState.CLOSED:
            self.destination.respond(psn, response)
            if self.life.state is PdcState.QUIESCE:
                self.activate()

    def credit(self, granted: int, entropy: int) -> Frame:
        """Return a CREDIT: the peer's context (8 bits) is granted so much (24 bits, UES 3.6.14)."""
        self._counts["tx_credits"] += 1
        return self.writer.control(
            ControlType.CREDIT, psn=0, payload=granted, syn=False, ev=entropy
        )

    def send_tracked(self, kind: ControlType, now: int) -> Frame:
        """Return a NOOP or NEGOTIATION: it may make the PDC, takes a PSN, is acknowledged."""
        return self.source.send_control(kind, now)

    # -- answers --------------------------------------------------------------------------

    def ack(
        self, psn: int, answer: bytes, next_header: int, resent: int, entropy: int, marked: bool
    ) -> None:
        """Acknowledge ``psn`` with the SES response ``answer``."""
        self.writer.ack(
            psn,
            self.destination,
            answer,
            next_header,
            resent=resent,
            entropy=entropy,
            marked=marked,
        )

    def nack(
        self, code: int, psn: int, resent: int, entropy: int, marked: bool, payload: int = 0
    ) -> None:
        """Refuse ``psn``."""
        self.writer.nack(code, psn, resent=resent, entropy=entropy, marked=marked, payload=payload)

    # -- what a request does ------------------------------------------------------------------

    def contradicts(self, reception: Reception) -> bool:
        """Return whether a SYN packet names another beginning than that of this target's PDC.

        Its PSN names another packet here.  On a secured PDC it is left over from the time before
        NEW_START_PSN, and nobody's fault; else it is refused.
        """
        psn = reception.psn
        if (psn - (reception.dpdcid & MAX_PSN_OFFSET)) & MASK == self.start_psn:
            return False
        if self.sdi is not None and self.destination.window.classify(psn) is not PsnArrival.OUTSIDE:
            self._counts["rx_drop_syn_of_other_start"] += 1
        else:
            self._refuse(NackCode.INVALID_SYN, reception)
        return True

    def learns_peer(self, spdcid: int, psn: int, next_header: int) -> bool:
        """Return whether return data names the target, as it has overtaken the first ACK.

        The window is that of this PDC's own first PSN, so what is left over from an older PDC of
        this id lies outside.
        """
        if (
            self.life.state is not PdcState.CREATING
            or self.writer.peer_id
            or next_header not in _RETURN_DATA
            or not spdcid
            or self.destination.window.classify(psn) is not PsnArrival.NEW
        ):
            return False
        self.life.established(spdcid)
        return True

    def takes_return_data(self, reception: Reception) -> bool:
        """Return whether a request is return data of this initiator, while it is due.

        The return direction carries nothing else (UES 3.5.6); what it may not is refused.
        """
        if reception.next_header not in _RETURN_DATA:
            self._refuse(NackCode.PDC_HDR_MISMATCH, reception)
        elif self.life.state is PdcState.CLOSING:
            self._refuse(NackCode.CLOSING, reception)
        else:
            return True
        return False

    def _refuse(self, code: NackCode, reception: Reception) -> None:
        self.nack(
            code,
            reception.psn,
            reception.word & _REQ_RETX,
            reception.entropy,
            reception.marked,
        )
