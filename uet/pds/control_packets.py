"""Packets without payload: control packets and NACKs (UES Tables 3-38, 3-40)."""

from __future__ import annotations

from uet.pds.psn import MASK
from uet.wire import headers
from uet.wire.codes import ControlType

#: psn_offset of SYN packets has 12 bits: as many may leave before the first answer.
MAX_PSN_OFFSET = 4_095
#: Control packets that may open a PDC (UES 3.5.16).
OPENING = frozenset({ControlType.NOOP, ControlType.NEGOTIATION})


def control_packet(
    kind: ControlType,
    *,
    psn: int,
    spdcid: int,
    peer_id: int,
    start_psn: int,
    ordered: bool = False,
    ar: bool = False,
    retx: bool = False,
    payload: int = 0,
    opaque: int = 0,
) -> bytes:
    """A control packet; while ``peer_id`` is 0, that is unknown, one with SYN (UES Table 3-33).

    ``ordered`` sets the kind of PDC in packets that may open one.
    """
    header = headers.CP if peer_id else headers.CP_SYN
    offset = (psn - start_psn) & MASK & MAX_PSN_OFFSET
    return header.encode(
        ctl_type=kind,
        isrod=int(ordered and kind in OPENING),
        ar=int(ar),
        retx=int(retx),
        probe_opaque=opaque,
        psn=psn,
        spdcid=spdcid,
        payload_word=payload,
        **({"dpdcid": peer_id} if peer_id else {"psn_offset": offset}),
    )


def nack_packet(
    code: int,
    psn: int,
    spdcid: int,
    dpdcid: int,
    *,
    resent: bool,
    marked: bool,
    payload: int = 0,
) -> bytes:
    """A NACK of a RUD or ROD packet; ``spdcid`` 0 where there is no PDC."""
    return headers.NACK.encode(
        m=int(marked),
        retx=int(resent),
        nack_code=code,
        nack_psn=psn,
        spdcid=spdcid,
        dpdcid=dpdcid,
        payload_word=payload,
    )
