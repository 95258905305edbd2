"""PROBEs of a PDC: questions about the peer's window and the path (UES 3.6.13.7)."""

from __future__ import annotations

from uet.congestion.signals import NO_SAMPLE, rtt_sample
from uet.pds.pdc.pdc_parts import PdcParts
from uet.pds.psn import MASK
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codes import ControlType, PacketType

_ACK_CC = headers.ACK_CC_NSCC
_PLAIN_ACK, _ACK_CCX = int(PacketType.ACK), int(PacketType.ACK_CCX)


class PdcProbes:
    """Writes the PROBEs of one end of a PDC, and takes the answer to the newest."""

    __slots__ = ("_counts", "_peer", "_probed_at", "_probes", "_source", "_writer")

    def __init__(self, parts: PdcParts) -> None:
        self._counts = parts.counts
        self._peer = parts.peer
        self._source = parts.source
        self._writer = parts.writer
        self._probes = 0
        self._probed_at = 0

    def probe(self, now: int, *, with_data: bool = False) -> Frame:
        """Request the state of the peer's window, and measure the path (UES 3.6.13.7).

        The answer shows 64 PSNs: those from the oldest on of which nothing is known.

        ``with_data``: behind what was sent, so that its delay separates waiting from lost packets.
        """
        self._probes += 1
        self._probed_at = now
        return self._writer.control(
            ControlType.PROBE,
            psn=0,
            ar=True,
            payload=self._source.requests.oldest_in_flight(),
            opaque=self._probes & 0xFFFF,
            syn=False,
            with_data=with_data,
        )

    def on_answer(
        self, packet: memoryview, at: int, kind: int, opaque: int, cack: int, now: int
    ) -> None:
        """Take the answer to a PROBE, which is about the window and about no PSN."""
        if not self._probes or opaque != self._probes & 0xFFFF:
            self._counts["rx_drop_unexpected_probe_ack"] += 1
            return
        if self._source.acks.is_invalid(cack):
            self._counts["rx_drop_ack_of_unsent"] += 1
            return
        self._counts["rx_probe_acks"] += 1
        if kind == _PLAIN_ACK or len(packet) < at + _ACK_CC.size:
            return  # it shows that the PDC is there, and no more
        *_, cc, sack_offset, bitmap, service, state, _ = _ACK_CC.unpack_from(packet, at)
        counter: int | None = state & 0xFF_FFFF
        if kind == _ACK_CCX or cc >> 12:
            service, counter = 0, None
        rtt = rtt_sample(now, self._probed_at, 1, 0, service)
        if rtt != NO_SAMPLE and self._peer.congestion.window is not None:
            self._peer.congestion.window.on_probe(rtt)
        source = self._source
        source.recovery.timed(rtt, now)
        base = (cack + sack_offset) & MASK
        source.acks.on_sack(base, bitmap)
        source.acks.reported(counter, now)
        source.recovery.infer_loss(now)
        source.recovery.infer_overdue(base, bitmap, now)
