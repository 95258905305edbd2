"""Where our endpoint does otherwise than the captured one, and why it may.

Everything that is not in here must be the same.  Numbers count the packets of one side, in the
role of the initiator those of one kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.replay.conversation import Canonical
from uet.wire.codes import ReturnCode


@dataclass(frozen=True, kw_only=True)
class Departure:
    """Ours has other values in some ``fields`` of some ``packets``."""

    packets: Iterable[int]
    fields: Mapping[str, object]
    reason: str
    #: the packets come in addition, like the captured one of this number
    besides: int | None = None


_RETX = "an ACK repeats RETX of what it answers (UES 3.5.12); the provider's never says it"
_DSCP = "the code point of RUDI responses is the operator's choice; ours is that of ACKs"
_CLEAR = "CLEAR_PSN is the newest in a resend, too; the provider sends the octets of the first time"
_ID = "every attempt is a message with an id of its own; the provider uses the first one again"
_AR = "ACK_REQ asks for an ACK with or without AR; UES does not say which"
_ACK_REQ = "ACK_REQ below CACK is answered, for the ACK may have been lost; the provider is silent"
_CLEAR_NACK = "NACKs without a PDC are secured like all else; the provider sends them in clear"

#: By capture, what our target answers otherwise.
OF_TARGET: dict[str, tuple[Departure, ...]] = {
    "rud_write_ackloss": (Departure(packets=(0, 1), fields={"pds.flags.retx": 1}, reason=_RETX),),
    "rud_write_loss": (Departure(packets=(5,), fields={"pds.flags.retx": 1}, reason=_RETX),),
    "rud_write_loss_ackcc": (
        Departure(packets=(22,), fields={"pds.flags.retx": 1}, reason=_RETX),
        *(
            Departure(
                packets=(23 + i,),
                besides=22,
                fields={
                    "pds.flags.retx": 0,
                    "ack_psn": psn,
                    "ev": 16962,
                    "ses.return_code": ReturnCode.NULL,
                    "ses.modified_length": 0,
                },
                reason=_ACK_REQ,
            )
            for i, psn in enumerate((32, 33, 34, 35, 37, 38))
        ),
    ),
    "rudi_read_2500": (Departure(packets=range(3), fields={"dscp": 46}, reason=_DSCP),),
    "rudi_write_2500": (Departure(packets=range(3), fields={"dscp": 46}, reason=_DSCP),),
    "tss_cluster_1rtt": (Departure(packets=(0, 1), fields={"secured": True}, reason=_CLEAR_NACK),),
}

#: By capture, what our initiator requests otherwise.
OF_INITIATOR: dict[str, tuple[Departure, ...]] = {
    "rod_send_nomatch": tuple(
        Departure(
            packets=range(3 * attempt, 3 * attempt + 3),
            fields={"ses.message_id": attempt},
            reason=_ID,
        )
        for attempt in range(1, 4)
    ),
    "rud_dsend_10000_rtr": (
        Departure(packets=range(10, 20), fields={"ses.message_id": 1}, reason=_ID),
    ),
    "rud_write_loss": (Departure(packets=(5,), fields={"clear_psn": 1}, reason=_CLEAR),),
    "rud_write_loss_ackcc": (
        Departure(packets=(39,), fields={"clear_psn": 30}, reason=_CLEAR),
        Departure(packets=range(40, 46), fields={"pds.flags.ar": 1}, reason=_AR),
    ),
}


def departed(forms: list[Canonical], departures: Iterable[Departure]) -> list[Canonical]:
    """What ours must be, from what was captured."""
    result = [dict(form) for form in forms]
    for departure in departures:
        for number in departure.packets:
            if departure.besides is not None:
                assert number == len(result)
                result.append(dict(result[departure.besides]))
            before = result[number]
            changed = {name: before[name] for name in departure.fields}
            assert changed != departure.fields, f"{number}: {departure.reason}: there is none"
            before.update(departure.fields)
    return result
