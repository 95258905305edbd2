"""The calls that the initiator side of SES makes to the endpoint below it."""

from __future__ import annotations

from typing import Protocol

from uet.pds.semantics import Context, Outbound


class Carrier(Protocol):
    """Finds the PDC, or the connectionless sender, for a message."""

    def carry(self, message: Outbound, peer: str, delivery: str) -> Context | None:
        """Queue ``message`` to ``peer`` in a delivery mode (``"rud"``, ``"rod"``, ...).

        ``None``: no PDC is free now; nothing was queued, and the endpoint signals when to try again
        (:meth:`uet.ses.initiator.initiator.Initiator.start_waiting`).
        """
        ...
