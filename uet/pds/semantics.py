"""The interface of the delivery (PDS) and semantic (SES) sublayers (UES 3.5.2).

PDS carries :class:`Outbound` messages packet by packet and gives what arrives to
:class:`Semantics`, which answers each request once.  Neither looks into the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from uet.pds.nacks import REISSUED
from uet.wire.codes import NextHeader

#: Errors after which a message that may be carried out twice may be sent on another PDC.
REISSUABLE_ERRORS: Final = frozenset(code.name for code in REISSUED)

#: SES took the request and has nothing to return but the default response, which is not stored.
ACCEPTED: Final = 0
#: SES has no room for a message now: the packet is refused (NACK NO_SES_MSG_AVAIL), not taken.
NO_ROOM: Final = -1
#: SES answers later, through :meth:`Context.respond`; until then the request counts as busy.
LATER: Final = -2


class Response:
    """A SES response (UES Tables 3-11 to 3-13), header and data.

    A guaranteed one is kept until the source confirms it (CLEAR; UES 3.5.20.2); ``known`` is called
    then.
    """

    __slots__ = ("guaranteed", "known", "next_header", "octets")

    def __init__(
        self,
        octets: bytes,
        *,
        next_header: int = NextHeader.RESPONSE,
        guaranteed: bool = True,
        known: Callable[[], None] | None = None,
    ) -> None:
        self.octets = octets
        self.known = known
        self.next_header = int(next_header)
        self.guaranteed = guaranteed


#: ACCEPTED, NO_ROOM or LATER, or what to answer with.
Answer = int | Response


class Outbound:
    """A message on its way out.  PDS reads and writes the counts, and nothing else of it."""

    __slots__ = (
        "acknowledged",
        "error",
        "id",
        "next_header",
        "packets",
        "psn",
        "ready",
        "sent",
    )

    #: 1..65535, or 0 where the header has none (small and medium requests)
    id: int
    #: how many packets it has (a message that is cancelled may shrink)
    packets: int
    #: how many of them may leave as yet; at least ``packets`` for one that need not be paced
    ready: int
    #: packets handed to the wire at least once
    sent: int
    #: packets whose response is known
    acknowledged: int
    #: the SES header of its packets (UES Table 3-16)
    next_header: int
    #: name of the error that ended it, or ``None``
    error: str | None
    #: PSN of the packet of a small or medium request, which has no id: return data names it by
    #: that.  PDS writes it whenever it numbers the packet.
    psn: int

    def __init__(self, message_id: int, next_header: int, packets: int) -> None:
        self.id = message_id
        self.next_header = next_header
        self.packets = self.ready = packets
        self.sent = 0
        self.acknowledged = 0
        self.psn = -1
        self.error = None

    def packet(self, index: int) -> tuple[bytes, memoryview | bytes]:
        """SES header and payload of packet ``index``, the same at every transmission."""
        raise NotImplementedError

    def answered(self, index: int, next_header: int, response: memoryview) -> None:
        """Packet ``index`` drew a response that is more than the default one.

        ``response`` begins with the SES header and ends where its data does; it is valid during
        the call only.
        """
        raise NotImplementedError


class Context(Protocol):
    """The PDC that a request came on, as SES sees it."""

    #: requests whose data is still to come by the return direction; no CLOSE before it is 0
    locks: int

    @property
    def failure(self) -> str | None:
        """Name of the error that it ended with, if any."""
        ...

    @property
    def id(self) -> int:
        """Return the PDC's identifier at this end; 0 where there is no PDC (RUDI, UUD)."""
        ...

    @property
    def address(self) -> str:
        """The peer's fabric address."""
        ...

    @property
    def ordered(self) -> bool:
        """Return whether the PDC is a ROD one."""
        ...

    @property
    def backlog(self) -> int:
        """Messages posted here of which nothing has left yet."""
        ...

    def post(self, message: Outbound) -> None:
        """Send a message on this PDC: requests of an initiator, return data of a target."""
        ...

    def respond(self, psn: int, response: Answer) -> None:
        """The answer to the request ``psn`` that was answered LATER."""
        ...


class Semantics(Protocol):
    """The calls that PDS makes to SES."""

    def deliver(
        self, pdc: Context, psn: int, next_header: int, packet: memoryview, at: int
    ) -> Answer:
        """Take the request whose SES header begins at ``at``; it came to a PDC's target.

        Called once per PSN, with ``packet`` ending where its payload does.  Anything may be
        wrong with it, its length too.
        """
        ...

    def deliver_data(
        self, pdc: Context, psn: int, next_header: int, packet: memoryview, at: int
    ) -> Answer:
        """Take return data, which came to a PDC's initiator; otherwise as :meth:`deliver`."""
        ...

    def message_end(self, pdc: Context, message: Outbound, now: int) -> None:
        """End a message: every packet is answered, or ``message.error`` gives the reason."""
        ...

    def message_unsent(self, message: Outbound) -> None:
        """Take back a message whose PDC ended before the target executed any packet of it.

        If some had left, ``message.error`` names the reason of their refusal.
        """
        ...

    def pdc_closed(self, pdc: Context) -> None:
        """Nothing more comes from this PDC, and nothing can be sent on it."""
        ...
