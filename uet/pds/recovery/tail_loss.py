"""Tail loss: a PROBE queries what is in flight, once nothing has arrived for a while.

Nothing newer follows the last packets of a message, so that no ACK shows their loss. Without a
PROBE only the RTO would (compare TCP's tail loss probe, RFC 8985 section 7).
"""

from __future__ import annotations

from uet.congestion.spraying.paths import TIMEOUT
from uet.pds.pds_packets import PacketWriter
from uet.pds.recovery.open_requests import OpenRequests
from uet.pds.recovery.repair import RecoverySettings


class TailLoss:
    """Decides when a PROBE is due because nothing has arrived."""

    __slots__ = (
        "_context",
        "_counters",
        "_flow",
        "_most",
        "_probes",
        "_reported",
        "_requests",
        "_retransmit",
        "_time",
        "_window",
        "_writer",
        "heard_at",
    )

    def __init__(
        self,
        requests: OpenRequests,
        settings: RecoverySettings,
        *,
        writer: PacketWriter,
        counters: dict[str, int],
    ) -> None:
        #: when something last arrived, or began to be expected (ns)
        self.heard_at = 0
        self._probes = 0  # since something arrived
        self._reported = True  # something arrived since the last PROBE
        self._time = settings.tail_loss_time
        self._most = settings.max_tail_loss_retx
        self._requests = requests
        self._window = requests.window
        self._retransmit = requests.retransmit
        self._flow = requests.flow
        self._context = requests.flow.context
        self._writer = writer
        self._counters = counters

    def heard(self, now: int) -> None:
        """Note that the peer has answered something."""
        self._reported = True
        self._probes = 0
        self.heard_at = now

    def deadline(self) -> int | None:
        """Return when a PROBE queries what is in flight, if nothing arrives before (ns)."""
        window = self._window
        if (
            not self._time
            or window.base == window.next
            or self._probes >= self._most
            or (self._flow.unsettled <= 0 and window.base in self._retransmit)
        ):
            return None  # who waits to send has nothing to expect
        return self.heard_at + self._time

    def probed(self, now: int) -> None:
        """Note that the deadline has come, and that the peer is probed.

        If it is not the first time, the question before was lost, and so is the next on the same
        path.
        """
        if self._probes:
            self._flow.paths.on_feedback(self._writer.asked_on, TIMEOUT, now)
        self._probes += 1
        self.heard_at = now
        self._reported = False
        self._counters["tx_tail_loss_probes"] += 1

    def window_is_stuck(self) -> bool:
        """Return whether packets wait for a window that no request opens.

        Packets that requested an ACK were refused or lost. The window has shrunk below what else is
        in flight, and that is too little to be acknowledged by itself.
        """
        if not self._reported or self._flow.unsettled <= 0 or self._context.room() > 0:
            return False
        requests = self._requests
        asked = requests.asked
        if asked is None or not self._window.is_open(asked):
            return True
        return not requests.size[asked & requests.slot_mask]

    def asked(self) -> None:
        """Note that a PROBE leaves: one is enough until something arrives."""
        self._reported = False
