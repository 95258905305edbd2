"""The states of a PDC, and what never changes about it (UES 3.5.8)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PdcState(enum.Enum):
    """The state of one end of a PDC (UES 3.5.8).

    An initiator passes the states in order, a target begins in ESTABLISHED.

    In QUIESCE no new message is taken and the last requests are waited for (UES: QUIESCE and
    ACK_WAIT).
    """

    CREATING = enum.auto()
    ESTABLISHED = enum.auto()
    QUIESCE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


@dataclass(frozen=True, slots=True)
class PdcIdentity:
    """Name one end of a PDC, and what never changes about it."""

    local_id: int
    #: the peer's identifier; 0 where this end opens the PDC, until the peer answers
    peer_id: int
    #: the first PSN of both directions
    start_psn: int
    initiator: bool
    #: ROD, not RUD
    ordered: bool
    #: secure domain, or ``None``
    sdi: int | None
    #: it may take one of the PDCs that a target keeps back for requests that need one
    reserved: bool
