"""The states of a PDC (UES 3.5.8)."""

from __future__ import annotations

import enum


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
