"""The life of a packet delivery context: its states, and how it closes (UES 3.5.8)."""

from __future__ import annotations

from uet.pds.nacks import TARGET_IS_GONE
from uet.pds.pdc.condemned import Condemned
from uet.pds.pdc.pdc_parts import PdcParts
from uet.pds.pdc.pdc_state import PdcState
from uet.transport import Frame
from uet.wire.codes import ControlType, NackCode


class PdcLife:
    """Decides when one end of a PDC takes messages, and when and how it ends."""

    __slots__ = (
        "_clear",
        "_config",
        "_counts",
        "_destination",
        "_initiator",
        "_octets_when_asked",
        "_ordered",
        "_owner",
        "_peer",
        "_sdi",
        "_source",
        "_writer",
        "close_due",
        "closed_by",
        "condemned",
        "failure",
        "locks",
        "refused",
        "second",
        "state",
    )

    def __init__(self, parts: PdcParts) -> None:
        identity = parts.identity
        #: changed by this class alone
        self.state = PdcState.CREATING if identity.initiator else PdcState.ESTABLISHED
        #: a second one for short messages, and whether its target had no room for it
        self.second = False
        self.refused = False
        #: requests whose data is still to come by the return direction
        self.locks = 0
        #: target: the PSN of the CLOSE
        self.closed_by: int | None = None
        #: target: when its CLOSE_REQ counts as refused (ns), once it has requested a close
        self.close_due: int | None = None
        #: name of the error that it ended with, if any
        self.failure: str | None = None
        #: initiator: refused for good, and soon to end
        self.condemned: Condemned | None = None
        self._octets_when_asked = 0
        self._owner = parts.owner
        self._config = parts.config
        self._counts = parts.counts
        self._peer = parts.peer
        self._initiator = identity.initiator
        self._ordered = identity.ordered
        self._sdi = identity.sdi
        self._writer = parts.writer
        self._source = parts.source
        self._destination = parts.destination
        self._clear = parts.clear

    def enter(self, state: PdcState) -> None:
        """Take another state, and report it."""
        if state is not self.state:
            self.state = state
            self._owner.changed()

    def established(self, peer_id: int) -> None:
        """Take the target's identifier, which its first packet names."""
        self._writer.peer_id = peer_id
        if self.state is PdcState.CREATING:
            self.enter(PdcState.ESTABLISHED)

    @property
    def takes_messages(self) -> bool:
        """Return whether messages are accepted: not once a close has begun (UES 3.5.8.3)."""
        return self.state in (PdcState.CREATING, PdcState.ESTABLISHED)

    @property
    def in_use(self) -> bool:
        """Return whether something is queued, unanswered or still to come."""
        return not self._source.idle or self.locks > 0 or bool(self._destination.busy)

    def quiesce(self) -> None:
        """Close once everything posted is answered."""
        if self.takes_messages:
            if self.state is PdcState.CREATING and self._source.idle:
                self.closed()  # the target has no record of it
            else:
                self.enter(PdcState.QUIESCE)

    def wear_out(self) -> None:
        """Close the PDC before it has used 2^31 PSNs, with Limit_PSN_Range (UES Table 3-28).

        On a secured one that is a rule: replay protection rests on it.
        """
        if self._config.limit_psn_range or self._sdi is not None:
            self._counts["pdcs_worn_out"] += 1
            self.quiesce()
            for message in self._source.messages.take_back():
                self._owner.message_unsent(message)

    def ask_to_close(self, now: int) -> Frame:
        """Return a CLOSE_REQ, which requests the initiator to close in time (UES 3.5.16)."""
        self.close_due = now + self._config.close_req_time
        self._octets_when_asked = self._destination.received_octets
        self._writer.asks_to_close = True
        return self._source.send_control(ControlType.CLOSE_REQ, now)

    def close_is_missing(self, now: int) -> None:
        """Fail the PDC, as Close_REQ_Time is over; an initiator that still sends gets more time."""
        octets = self._destination.received_octets
        if octets == self._octets_when_asked:
            self.fail("CLOSE_REQ_TIMEOUT", now)
        else:
            self.close_due = now + self._config.close_req_time
            self._octets_when_asked = octets

    def condemn(self, code: NackCode, psn: int, now: int) -> None:
        """Give away what may go elsewhere: the target has refused ``psn``, and takes nothing more.

        What was on its way is waited for, but no longer than an RTO.
        """
        if self.condemned is None:
            self.condemned = Condemned(
                code, self._source, now + self._config.rto_init_time, ordered=self._ordered
            )
            if self.state in (PdcState.CREATING, PdcState.ESTABLISHED):
                self.enter(PdcState.QUIESCE)
            self._source.requests.discard_all()
            for message in self._source.messages.take_back():
                self._owner.message_unsent(message)
        self.condemned.refuse(psn, code)
        if self.condemned.is_decided:
            self.conclude(now)

    def conclude(self, now: int) -> None:
        """End a condemned PDC, of which all that could be learnt is known."""
        condemned = self.condemned
        assert condemned is not None
        self.fail(
            condemned.code.name,
            now,
            notify=condemned.code not in TARGET_IS_GONE,
            untouched=condemned.untouched(),
        )

    def fail(
        self,
        error: str,
        now: int,
        *,
        notify: bool = True,
        untouched: frozenset[int] = frozenset(),
    ) -> None:
        """Fail the PDC, and every unfinished message but the ``untouched`` ones, with ``error``.

        An initiator still sends a CLOSE if the target can be expected to have the PDC. So the
        target need not keep it (UES 3.5.8, closing in error).
        """
        self.condemned = None
        self.failure = error
        self._owner.event("failed", error=error)
        self._peer.congestion.restart_credit()
        if self.state is PdcState.CLOSING:
            self._counts["pdcs_closed_unanswered"] += 1
            notify = False
        else:
            self._counts["pdc_errors"] += 1
        notify = notify and self._initiator and bool(self._writer.peer_id)
        if notify:
            self.enter(PdcState.QUIESCE)  # takes no more messages, least of all those that fail
        elif self.state is not PdcState.CLOSED:
            self.state = PdcState.QUIESCE
        self._source.abandon(error, now, untouched)
        self._clear.due = None
        self.locks = 0
        if not notify:
            self.closed()

    def closed(self) -> None:
        """End the PDC: nothing of it is in flight, and nothing more comes."""
        self._source.closed()
        self.enter(PdcState.CLOSED)

    def leave_it_to_the_first(self) -> None:
        """Give what was not sent to the first PDC: the target has no room for a second one."""
        self.refused = True
        for message in self._source.messages.take_back():
            self._owner.message_unsent(message)
