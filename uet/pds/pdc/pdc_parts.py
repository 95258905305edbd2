"""The parts of one end of a PDC: its names, the halves that do the work, what they share.

What the PDC's life, its turns and what arrives for it have in common is put together once; each of
them binds what it needs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from uet.config import FepConfig
from uet.pds.destination import RequestDestination
from uet.pds.pdc.clear import ClearDuty
from uet.pds.pds_packets import PacketWriter
from uet.pds.source.outbound_messages import MessageEnds
from uet.pds.source.source import RequestSource
from uet.peer import Peer
from uet.transport import Frame


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


class PdcOwner(MessageEnds, Protocol):
    """The PDC as its parts see it: their reports to it, and their requests to the endpoint."""

    def changed(self) -> None:
        """Note that the state of the PDC has changed; CLOSED is the last."""
        ...

    def activate(self) -> None:
        """Note that the PDC has, or may have, something to send."""
        ...

    def credit_requested(self, state: int, entropy: int, now: int) -> None:
        """Take a CREDIT_REQ: context of the peer (8 bits) and requested credit (24 bits)."""
        ...

    def expected_psn(self) -> int | None:
        """Return where the next secured PDC must begin, at least: a target's, as this one ends."""
        ...

    def expect_psn(self, psn: int) -> None:
        """Store where the next secured PDC must begin, from its target."""
        ...


@dataclass(frozen=True, slots=True)
class PdcParts:
    """Hold what the life, the turns and the arrivals of one end of a PDC share."""

    owner: PdcOwner
    identity: PdcIdentity
    peer: Peer
    config: FepConfig
    counts: Counter[str]
    #: ACKs, NACKs and control packets waiting to leave
    control: list[Frame]
    writer: PacketWriter
    source: RequestSource
    destination: RequestDestination
    clear: ClearDuty
