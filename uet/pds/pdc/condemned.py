"""Requests that may go to another PDC after their target has refused their PDC for good.

A fatal NACK reports that a request was not carried out, and that the target will take none that
follows. The reaction is to close, and to issue again on a new PDC (UES Tables 3-58 to 3-61).  What
may have been carried out before must not be issued a second time.  So the PDC sends nothing more,
and waits a while for what becomes of its other requests.
"""

from __future__ import annotations

from collections import Counter

from uet.pds.nacks import PROVES_NOTHING
from uet.pds.psn import MASK
from uet.pds.source.source import RequestSource
from uet.wire.codes import NackCode


class Condemned:
    """Follows the end of a PDC, from the first fatal NACK until ``due`` (ns) at the latest.

    ``ordered``: its target carries requests out in the order of their PSNs.
    """

    __slots__ = ("_answered", "_never", "_ordered", "_source", "code", "due")

    def __init__(self, code: NackCode, source: RequestSource, due: int, *, ordered: bool) -> None:
        self.code = code
        self.due = due
        self._source = source
        self._ordered = ordered
        self._answered: set[int] = set()  # PSNs that have drawn a fatal NACK
        self._never: set[int] = set()  # those of them that were not carried out

    def refuse(self, psn: int, code: NackCode) -> None:
        """Record a fatal NACK of ``psn``, which was not carried out if there was no other copy."""
        self._answered.add(psn)
        if code not in PROVES_NOTHING and self._source.requests.was_sent_once(psn):
            self._never.add(psn)

    @property
    def is_decided(self) -> bool:
        """Return whether nothing is left to wait for."""
        window = self._source.window
        if self._ordered and window.base in self._never:
            return True
        refused = sum(window.is_open(psn) for psn in self._answered)
        return refused >= window.outstanding - window.done.bit_count()

    def untouched(self) -> frozenset[int]:
        """Return the messages, by ``id()``, of which the target has surely executed nothing."""
        source, window = self._source, self._source.window
        sent: Counter[int] = Counter()
        behind = False  # on an ordered PDC, what follows one that was not carried out
        psn = window.base
        while psn != window.next:
            behind = behind or (self._ordered and psn in self._never)
            if window.is_open(psn) and (behind or psn in self._never):
                sent[id(source.requests.message_of(psn))] += 1
            psn = (psn + 1) & MASK
        return frozenset(
            name
            for name, message in source.open.items()
            if not message.acknowledged and sent[name] == message.sent
        )
