"""ACKs at the source half of a PDC: which requests are answered, and how the path fares.

ACK, SACK and maximum PSN range are those of UES 3.5.11 and 3.5.12.  For each packet with an ACK the
PDC calls, in this order, :meth:`SourceAcks.sample`, :meth:`SourceAcks.on_ack`,
:meth:`SourceAcks.on_sack` and :meth:`SourceAcks.acknowledged`.
"""

from __future__ import annotations

from collections.abc import Callable

from uet.congestion.signals import NO_SAMPLE, rtt_sample
from uet.pds.recovery.open_requests import RING, OpenRequests
from uet.pds.recovery.repair import LossRecovery, TailLoss
from uet.pds.semantics import Outbound
from uet.pds.window import MASK, after
from uet.wire.codes import MPR_UNIT

#: So far behind the newest PSN an ACK may lie that others have overtaken: as far as the 16 bits of
#: its ack_psn_offset reach, and much further than packets are in flight.
_REACH = 1 << 16


class SourceAcks:
    """Settles the open requests of one source, as the peer's ACKs report them.

    ``finished`` takes a message whose packets are all answered, ``drained`` is called when
    everything sent is.
    """

    __slots__ = (
        "_arrived",
        "_behind",
        "_controls",
        "_copies",
        "_drained",
        "_finished",
        "_flow",
        "_follow",
        "_heard",
        "_index",
        "_message",
        "_requests",
        "_settled",
        "_size",
        "_timed",
        "_timer",
        "_window",
    )

    def __init__(
        self,
        requests: OpenRequests,
        recovery: LossRecovery,
        tail: TailLoss,
        *,
        finished: Callable[[Outbound, int], None],
        drained: Callable[[], None],
    ) -> None:
        self._requests = requests
        self._window = requests.window
        self._timer = requests.timer
        self._flow = requests.flow
        self._controls = requests.controls
        self._message = requests.message
        self._index = requests.index
        self._size = requests.size
        self._copies = requests.copies
        self._behind = recovery.behind
        self._follow = recovery.follow
        self._timed = recovery.timed
        inference = recovery.inference
        self._arrived = None if inference is None else inference.arrived
        self._heard = tail.heard
        self._finished = finished
        self._drained = drained
        self._settled = 0  # octets that the present ACK has settled

    def is_invalid(self, psn: int) -> bool:
        """Return whether an ACK names a PSN that was not sent, or long ago (UES 3.5.12).

        What passes lies close to the PSNs in flight, wherever they are in the number space.
        """
        return ((self._window.next - 1 - psn) & MASK) >= _REACH

    def on_range(self, mpr: int, cack: int) -> None:
        """Take the maximum PSN range of an ACK that none has overtaken; 0 is none (UES 3.5.11)."""
        requests = self._requests
        if mpr and not after(requests.max_cack, cack):
            requests.peer_range = min(mpr * MPR_UNIT, RING)

    def sample(self, psn: int, cack: int, resent: int, service_time: int, now: int) -> int:
        """Return the RTT that the ACK caused by ``psn`` shows (ns), before it is settled.

        Where ``cack`` passes the first open PSN, that packet was missing until now: none that has
        arrived took longer, whoever caused the ACK.
        """
        window, sent_at = self._window, self._timer.sent_at
        base = window.base
        slot = base & self._requests.slot_mask
        is_passed = ((cack - base) & MASK) < ((window.next - base) & MASK)
        if base != psn and is_passed and not window.is_delivered(base):
            copies = self._copies[slot]
            self._timed(rtt_sample(now, sent_at[slot], copies, 0, service_time), now)
        if psn in self._controls or not window.is_open(psn):
            return NO_SAMPLE
        slot = psn & self._requests.slot_mask
        rtt = rtt_sample(now, sent_at[slot], self._copies[slot], resent, service_time)
        self._timed(rtt, now)
        return rtt

    def on_ack(
        self, ack_psn: int, cack: int, next_header: int, response: memoryview | None, now: int
    ) -> None:
        """Settle ``ack_psn`` and everything up to ``cack``.

        ``response`` is the SES response to ``ack_psn`` where it is more than the default.
        """
        window, requests = self._window, self._requests
        first = window.base
        if window.is_open(ack_psn):
            self._settle(ack_psn, next_header, response, now)
            window.finish(ack_psn)
            if self._arrived is not None:
                self._arrived(ack_psn)
        if after(cack, requests.max_cack):
            requests.max_cack = cack
        psn = window.base
        ahead = ((cack - psn) & MASK) + 1
        if ahead <= (window.next - psn) & MASK:
            done = window.done
            for _ in range(ahead):
                if not done & 1:
                    self._settle(psn, 0, None, now)
                done >>= 1
                psn = (psn + 1) & MASK
            window.finish_through(cack)
        if self._behind and window.base != first:
            self._follow(now)

    def on_sack(self, base: int, bitmap: int) -> None:
        """Take a SACK: a set bit means received; a clear bit means nothing (UES 3.5.12)."""
        news = self._window.sacked(base, bitmap)
        first, slot_mask = self._window.base, self._requests.slot_mask
        if news and self._arrived is not None:
            self._arrived((first + news.bit_length() - 1) & MASK)
        while news:
            low = news & -news
            slot = (first + low.bit_length() - 1) & slot_mask
            self._settled += self._size[slot]
            self._size[slot] = 0
            news ^= low

    def acknowledged(
        self,
        counter: int | None,
        entropy: int,
        marked: bool,
        rtt: int,
        now: int,
        penalty: int,
        restore: bool,
    ) -> None:
        """Pass an ACK to congestion control, after all that it reports about PSNs."""
        self._heard(now)
        settled, self._settled = self._settled, 0
        self._flow.on_ack(counter, settled, entropy, marked, rtt, now, penalty, restore)
        if self._window.base == self._window.next:
            self._drained()

    def reported(self, counter: int | None, now: int) -> None:
        """Pass the answer to a PROBE to congestion control."""
        self._heard(now)
        settled, self._settled = self._settled, 0
        self._flow.on_report(counter, settled)
        if self._window.base == self._window.next:
            self._drained()

    def _settle(self, psn: int, next_header: int, response: memoryview | None, now: int) -> None:
        """Record that the response of ``psn`` is known."""
        slot = psn & self._requests.slot_mask
        size = self._size[slot]
        if size:
            self._settled += size
            self._size[slot] = 0
        message = self._message[slot]
        if message is None:
            self._controls.pop(psn, None)
            return
        self._message[slot] = None
        message.acknowledged += 1
        if response is not None:
            message.answered(self._index[slot], next_header, response)
        if message.acknowledged == message.packets:
            self._finished(message, now)
