"""Receiver side of RCCC: the sources that request credit, and their CREDIT packets (UES 3.6.14).

One granter serves all PDCs of an endpoint, since they share its port. Each source decides whether
it uses RCCC: others never request credit.
"""

from __future__ import annotations

from uet.congestion.congestion_parameters import RcccParameters
from uet.congestion.receiver_credit import CreditPacer
from uet.pds.pdc import Pdc
from uet.transport import Frame
from uet.tss.secure_domain import SealError

Key = tuple[bytes, int]  # a peer and its ccc_id


class CreditGranter:
    """Grants credit that sources request, through a :class:`CreditPacer`.

    ``full`` is the nominal size of a full packet: what a trimmed one is taken to have been, as
    nothing vouches for what is left of it.
    """

    def __init__(self, parameters: RcccParameters, full: int) -> None:
        self._full = full
        #: somebody has requested credit
        self.asked = False
        self._pacer: CreditPacer[Key] = CreditPacer(parameters)
        self._ways: dict[Key, tuple[Pdc, int]] = {}  # the newest PDC of each, and its path

    def on_data(self, pdc: Pdc, state: int, octets: int, entropy: int) -> None:
        """A request with congestion control state (RUD_CC_REQ, ROD_CC_REQ) has arrived.

        ``state`` is its ccc_id (8 bits) and credit_target (24), ``octets`` its nominal size.
        """
        pacer = self._asked(pdc, state, entropy)
        if pacer is not None:
            pacer.on_arrival((pdc.peer.key, state >> 24), octets)

    def on_trimmed(self, pdc: Pdc, state: int, entropy: int) -> None:
        """Only the headers of a request have arrived: its payload needs credit once more."""
        pacer = self._asked(pdc, state, entropy)
        if pacer is not None:
            pacer.on_trim((pdc.peer.key, state >> 24), self._full)

    def on_request(self, pdc: Pdc, state: int, entropy: int, now: int) -> None:
        """A CREDIT_REQ: a source that has data and no credit."""
        pacer = self._asked(pdc, state, entropy)
        if pacer is not None:
            pacer.on_request((pdc.peer.key, state >> 24), state & 0xFF_FFFF, now)

    def _asked(self, pdc: Pdc, state: int, entropy: int) -> CreditPacer[Key] | None:
        """Record the credit that a context requests; ``None`` for one that has begun anew since."""
        self.asked = True
        key = (pdc.peer.key, state >> 24)
        if key not in self._ways and not self._is_new(pdc, key):
            return None
        self._ways[key] = (pdc, entropy)
        self._pacer.on_target(key, state & 0xFF_FFFF)
        return self._pacer

    def _is_new(self, pdc: Pdc, key: Key) -> bool:
        """Return whether ``key`` is newer than the PDC's last one, which requests nothing more.

        A context that begins anew takes the next ccc_id.
        """
        for other in [other for other, (way, _) in self._ways.items() if way is pdc]:
            if (key[1] - other[1]) & 0xFF >= 128:
                return False
            del self._ways[other]
            self._pacer.rest(other)
        return True

    def forget(self, pdc: Pdc) -> None:
        """A PDC is gone; what its context was granted stands, should it come on another one."""
        for key in [key for key, (way, _) in self._ways.items() if way is pdc]:
            del self._ways[key]
            self._pacer.rest(key)

    def transmit(self, out: list[Frame], now: int) -> None:
        """Append the CREDITs that are due."""
        if not self.asked:
            return
        for key, granted in self._pacer.grants(now):
            pdc, entropy = self._ways[key]
            try:
                out.append(pdc.credit(key[1] << 24 | granted, entropy))
            except SealError:
                continue  # counted; the source requests again

    def next_deadline(self) -> int | None:
        """Return when a CREDIT is due, or ``None`` if no source requests credit."""
        return self._pacer.next_deadline() if self.asked else None
