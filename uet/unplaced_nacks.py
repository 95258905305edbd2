"""NACKs for packets that belong to no PDC of an endpoint (UES 3.5.12, 3.5.22)."""

from __future__ import annotations

from collections import Counter

from uet.config import FepConfig
from uet.pds.destination import Reception
from uet.pds.packets import nack_packet
from uet.peer import traffic_class
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codes import NackCode, RequestFlag

_RETX = int(RequestFlag.RETX)


class UnplacedNacks:
    """Appends NACKs to the control packets of one endpoint."""

    def __init__(self, config: FepConfig, control: list[Frame], counts: Counter[str]) -> None:
        self._control = control
        self._counts = counts
        self._class = traffic_class(config.dscp_control, ecn_capable=False)
        self._in_clear = config.compatibility.clear_nack_without_pdc

    def refuse(self, reception: Reception, code: NackCode, *, payload: int = 0) -> None:
        """Refuse a packet that belongs to no PDC here: the NACK's spdcid is 0 (UES 3.5.12)."""
        self._counts["tx_nacks"] += 1
        nack = nack_packet(
            code,
            reception.psn,
            0,
            reception.spdcid,
            resent=bool(reception.word & _RETX),
            marked=reception.marked,
            payload=payload,
        )
        wrap, _ = reception.peer.way(None if self._in_clear else reception.sdi)
        self._control.append(wrap(self._class, reception.entropy, nack, b""))

    def refuse_rudi(self, reception: Reception, code: NackCode, packet_id: int) -> None:
        """Refuse a RUDI request, which its packet id names (UES 3.5.22)."""
        self._counts["tx_nacks"] += 1
        nack = headers.NACK_RUDI.encode(
            m=int(reception.marked),
            retx=int(bool(reception.word & _RETX)),
            nack_code=code,
            nack_pkt_id=packet_id,
        )
        wrap, _ = reception.peer.way(reception.sdi)
        self._control.append(wrap(self._class, reception.entropy, nack, b""))
