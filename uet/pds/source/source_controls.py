"""Control packets of the source half of a PDC (UES 3.5.16).

NOOP, NEGOTIATION, CLOSE and CLOSE_REQ take a PSN, and are acknowledged and sent again as requests
are; CLEAR and ACK_REQ are about PSNs that others have taken.
"""

from __future__ import annotations

from uet.pds.pds_packets import PacketWriter
from uet.pds.psn import MASK
from uet.pds.recovery.open_requests import OpenRequests
from uet.transport import Frame
from uet.wire.codes import ControlType


class SourceControls:
    """Writes the control packets of one source; ``negotiation`` is what a NEGOTIATION carries."""

    __slots__ = ("_counters", "_negotiation", "_requests", "_writer", "close_psn")

    def __init__(
        self,
        requests: OpenRequests,
        *,
        writer: PacketWriter,
        negotiation: bytes,
        counters: dict[str, int],
    ) -> None:
        #: the PSN of the newest CLOSE or CLOSE_REQ
        self.close_psn: int | None = None
        self._requests = requests
        self._writer = writer
        self._negotiation = negotiation
        self._counters = counters

    def renumber(self, shift: int) -> None:
        """Move the PSN of a CLOSE by ``shift``, as all PSNs of the PDC move."""
        if self.close_psn is not None:
            self.close_psn = (self.close_psn + shift) & MASK

    def send(self, kind: ControlType, now: int) -> Frame:
        """Return a control packet that takes the next PSN and is tracked like a request."""
        requests = self._requests
        requests.make_rings()
        window = requests.window
        if window.outstanding > requests.slot_mask:
            requests.grow()
        psn = window.next
        window.next = (psn + 1) & MASK
        requests.controls[psn] = kind
        if kind in (ControlType.CLOSE_CMD, ControlType.CLOSE_REQ):
            requests.clear_sent = (psn - 1) & MASK  # which a CLOSE implies
            self.close_psn = psn
        slot = psn & requests.slot_mask
        requests.message[slot] = None
        requests.size[slot] = requests.nacks[slot] = requests.copies[slot] = 0
        requests.timer.sent(psn, now)
        return self.write(kind, psn, again=False)

    def write(self, kind: ControlType, psn: int, *, again: bool) -> Frame:
        """Return a control packet that has taken ``psn``, for the first time or ``again``."""
        more = self._negotiation if kind is ControlType.NEGOTIATION else b""
        return self._writer.control(
            kind,
            psn=psn,
            ar=True,
            retx=again,
            payload=int.from_bytes(more[:4], "big"),
            more=more[4:],
        )

    def ask_again(self, psn: int, message_id: int = 0) -> Frame:
        """Return an ACK_REQ: the response to ``psn`` is missing (UES 3.5.16)."""
        self._counters["tx_ack_requests"] += 1
        return self._writer.control(ControlType.ACK_REQ, psn=psn, ar=True, payload=message_id)

    def clear(self, psn: int) -> Frame:
        """Return a CLEAR: all responses up to ``psn`` are known."""
        return self._writer.control(ControlType.CLEAR_CMD, psn=0, payload=psn)
