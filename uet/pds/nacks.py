"""A source's reaction to each NACK code (UES Tables 3-58 to 3-61).

==========================  ==================================================================
TRIMMED, TRIMMED_LASTHOP    resend at once, as often as it takes
RCVR_INFER_LOSS             resend at once
TRIMMED_ACK                 reserved since 1.0.3; resend at once for older peers
ROD_OOO                     go back to the PSN in the payload, once for each loss
NEW_START_PSN               renumber everything and resend it, while the PDC is being made
RCVD_SES_PROCG              nothing: the ACK comes, or the timer runs out
PSN_OOR_WINDOW              resend after NACK_Retx_Time what lies beyond CACK, ignore the rest
other NORMAL and PDC_ERR    resend after NACK_Retx_Time, twice as long each time
PDC_FATAL                   the PDC ends, and fails what may have been carried out; the rest is
                            issued again on a new PDC, unless the code forbids it
==========================  ==================================================================
"""

from __future__ import annotations

import enum
from typing import Final

from uet.wire.codes import ErrorClass, NackCode


class Reaction(enum.Enum):
    """The reaction to a NACK."""

    RESEND = enum.auto()
    RESEND_AT_ONCE = enum.auto()
    RESEND_AFTER_ACK = enum.auto()
    GO_BACK = enum.auto()
    RENUMBER = enum.auto()
    IGNORE = enum.auto()
    END = enum.auto()


_REACTIONS: Final = {
    NackCode.TRIMMED: Reaction.RESEND_AT_ONCE,
    NackCode.TRIMMED_LASTHOP: Reaction.RESEND_AT_ONCE,
    NackCode.RCVR_INFER_LOSS: Reaction.RESEND_AT_ONCE,
    NackCode.TRIMMED_ACK: Reaction.IGNORE,
    NackCode.PSN_OOR_WINDOW: Reaction.RESEND_AFTER_ACK,
    NackCode.ROD_OOO: Reaction.GO_BACK,
    NackCode.NEW_START_PSN: Reaction.RENUMBER,
    NackCode.RCVD_SES_PROCG: Reaction.IGNORE,
}

#: Fatal codes of a target that has no such PDC: there is none to close.
TARGET_IS_GONE: Final = frozenset(
    {NackCode.INV_DPDCID, NackCode.PDC_HDR_MISMATCH, NackCode.CLOSING}
)

#: Fatal codes after which requests that were not carried out go to a new PDC.
REISSUED: Final = frozenset(
    {
        NackCode.INV_DPDCID,
        NackCode.PDC_HDR_MISMATCH,
        NackCode.CLOSING,
        NackCode.INVALID_SYN,
        NackCode.PDC_MODE_MISMATCH,
        NackCode.UNEXP_EVENT,
    }
)
#: Those that do not report whether the request was carried out.
PROVES_NOTHING: Final = frozenset({NackCode.UNEXP_EVENT})
#: Refusals of a target that has nothing left to make a PDC of.
NO_ROOM_FOR_A_PDC: Final = frozenset(
    {NackCode.NO_PDC_AVAIL, NackCode.NO_CCC_AVAIL, NackCode.NO_BITMAP, NackCode.NO_RESOURCE}
)


def reaction(code: NackCode, *, trimmed_ack: bool) -> Reaction:
    """The required reaction; ``trimmed_ack`` gives TRIMMED_ACK its meaning before UES 1.0.3."""
    if code is NackCode.TRIMMED_ACK and trimmed_ack:
        return Reaction.RESEND_AT_ONCE
    if code.error_class is ErrorClass.PDC_FATAL:
        return Reaction.END
    return _REACTIONS.get(code, Reaction.RESEND)
