"""The start of a secured PDC, which a replayed SYN cannot cause (UES 3.5.8, 3.7).

A target keeps one Expected_PSN for each secure domain, beyond every Start_PSN it has accepted.
With ``"0rtt"`` it takes a SYN that begins there or later at once; otherwise, and with ``"1rtt"``
always, it names a first PSN and waits until the initiator begins there.

A target that has just started has no record of what it accepted before under the same keys, unless
``expected_psn`` is configured.  It names first PSNs at random, as ``"1rtt"``, until one of these
PDCs has closed; from then on it has that domain's Expected_PSN.  What began later than that may
still be of an earlier life. So from then on it takes at once what begins at Expected_PSN exactly,
and names that to all others.  A recorded PDC is then accepted only if its Start_PSN meets a random
one: once in 2^31 times, as with ``"1rtt"``.
"""

from __future__ import annotations

import random
from typing import Final

from uet.config import FepConfig
from uet.pds.window import HALF, MASK, START_END, START_FIRST
from uet.timekeeper import Timekeeper

#: Half-open PDCs remembered; beyond that, a new one takes the place of the oldest.
_MOST_PENDING: Final = 1_024
_HalfOpen = tuple[bytes, int, int]  # peer, its PDC id, SDI


class SecureStarts:
    """Keeps the first PSNs of secured PDCs, accepted here and opened at peers."""

    def __init__(
        self, config: FepConfig, counts: dict[str, int], rng: random.Random, time: Timekeeper
    ) -> None:
        self._keeper = time
        time.watch(self.next_deadline)
        self._zero_rtt = config.secure_start == "0rtt"
        self._time = config.new_pdc_time
        self._counts = counts
        self._rng = rng
        self._knows_past = config.expected_psn is not None
        self._expected: dict[int, int] = {}  # by SDI
        if config.expected_psn is not None:
            self._expected = {domain.sdi: config.expected_psn for domain in config.domains}
        self._reported: dict[tuple[bytes, int], int] = {}  # by (peer, SDI)
        # (first PSN named, until when); the oldest first
        self._pending: dict[_HalfOpen, tuple[int, int]] = {}

    # -- the target's side ---------------------------------------------------------------------

    def refuse(self, peer_key: bytes, peer_id: int, sdi: int, start: int, now: int) -> int | None:
        """Return the first PSN to demand in place of ``start``, or ``None`` to accept it.

        A demand stands until :meth:`opened`: what meets it may find no room for a PDC, and comes
        again.
        """
        key = (peer_key, peer_id, sdi)
        self.expire(now)
        pending = self._pending.get(key)
        if pending is not None:
            requested = pending[0]
            if start != requested:
                return requested
            self._forget(key)
            self._demand(key, requested, now)  # who meets it has New_PDC_Time anew
            return None
        expected = self._expected.get(sdi)
        if self._zero_rtt and expected is not None:
            beyond = (start - expected) & MASK
            if not beyond or (self._knows_past and beyond < HALF):
                return None
            requested = expected
        else:
            requested = self._rng.randrange(START_FIRST, START_END)
        if len(self._pending) >= _MOST_PENDING:
            self._forget(next(iter(self._pending)))
            self._counts["pending_pdcs_expired"] += 1
        self._demand(key, requested, now)
        return requested

    def opened(self, peer_key: bytes, peer_id: int, sdi: int) -> None:
        """Forget what was demanded of a PDC, which is there now."""
        key = (peer_key, peer_id, sdi)
        if key in self._pending:
            self._forget(key)

    def _demand(self, key: _HalfOpen, requested: int, now: int) -> None:
        self._pending[key] = (requested, now + self._time)
        self._keeper.started(now + self._time)

    def _forget(self, key: _HalfOpen) -> None:
        del self._pending[key]
        self._keeper.stopped()

    def ended(self, sdi: int | None, start: int) -> int | None:
        """Return the domain's Expected_PSN, as a secured PDC that began at ``start`` ends."""
        if sdi is None:
            return None
        after = (start + 1) & MASK
        expected = self._expected.get(sdi)
        if expected is None or ((after - expected) & MASK) < HALF:
            self._expected[sdi] = expected = after
        return expected

    def expire(self, now: int) -> None:
        """Forget what has been half open for New_PDC_Time."""
        while self._pending:
            key = next(iter(self._pending))
            if self._pending[key][1] > now:
                return
            self._forget(key)
            self._counts["pending_pdcs_expired"] += 1

    def next_deadline(self) -> int | None:
        """Return when the oldest half-open PDC is forgotten (ns)."""
        return next(iter(self._pending.values()))[1] if self._pending else None

    # -- the initiator's side ------------------------------------------------------------------

    def reported(self, peer_key: bytes, sdi: int | None, psn: int) -> None:
        """Store the first PSN that a target requires of the next PDC, from its close."""
        if sdi is None:
            return
        known = self._reported.get((peer_key, sdi))
        if known is None or 0 < ((psn - known) & MASK) < HALF:
            self._reported[peer_key, sdi] = psn

    def next_start(self, peer_key: bytes, sdi: int | None) -> int | None:
        """Return the first PSN that the target requires of the next secured PDC, if it gave one."""
        return None if sdi is None else self._reported.get((peer_key, sdi))
