"""Define where our endpoint does otherwise than the captured one, and why it may.

Everything that is not in here must be the same.  Numbers count the packets of one side, in the
role of the initiator those of one kind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.harness.replay.conversation import Canonical


@dataclass(frozen=True, kw_only=True)
class Departure:
    """Ours has other values in some ``fields`` of some ``packets``."""

    packets: Iterable[int]
    fields: Mapping[str, object]
    reason: str
    #: the packets come in addition, like the captured one of this number
    besides: int | None = None


_CLEAR = "CLEAR_PSN is the newest in a resend, too; the provider sends the octets of the first time"
_ID = "every attempt is a message with an id of its own; the provider uses the first one again"

#: By capture, what our target answers otherwise.
OF_TARGET: dict[str, tuple[Departure, ...]] = {}

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
    "rud_write_loss_ackcc": (Departure(packets=(39,), fields={"clear_psn": 30}, reason=_CLEAR),),
}


def departed(forms: list[Canonical], departures: Iterable[Departure]) -> list[Canonical]:
    """Return what ours must be, from what was captured."""
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
