"""Receiver-credit congestion control: nobody sends what its receiver has not granted (UES 3.6.14).

The source (:class:`CreditSource`) reports how much credit it needs by now. The receiver
(:class:`CreditPacer`, one for a port) reports how much it has granted.  Both numbers are
cumulative, modulo 2^24 in units of 256 octets, so one that is lost is repaired by the next.
Retransmissions spend credit too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from uet.congestion.congestion_parameters import RcccParameters
from uet.congestion.signals import COUNT_MASK, ahead, units
from uet.timekeeper import NEVER
from uet.wire.codes import BYTE_COUNT_UNIT

_UNIT: Final = BYTE_COUNT_UNIT

#: So many windows may a counter be ahead of the other end's; both may not have the same window.
_SANE_WINDOWS: Final = 4

#: Between two CREDIT_REQs lie at most so many RTTs, as a power of two.
_MOST_DOUBLINGS: Final = 3

#: Who requests credit: its peer and ccc_id.
K = TypeVar("K", bound=Hashable)


class CreditSource:
    """The credit of a source for one destination.

    It begins with a window of credit that nobody granted, for otherwise every message would wait
    for a round trip; whatever is left of that is void with the first answer.
    """

    __slots__ = (
        "_base_rtt",
        "_mtu",
        "_requested_at",
        "_requests",
        "credit",
        "granted",
        "max_wnd",
        "parameters",
        "speculative",
        "waits_since",
    )

    def __init__(self, parameters: RcccParameters) -> None:
        self.parameters = parameters
        self._mtu = parameters.mtu
        self.max_wnd = parameters.max_wnd
        self._base_rtt = parameters.base_rtt
        self._requested_at = -NEVER
        self._requests = 0  # CREDIT_REQs since data or credit
        #: octets; the last packet may make it negative
        self.credit = parameters.max_wnd
        #: newest cumulative credit, as on the wire
        self.granted = 0
        self.speculative = True
        #: when the first CREDIT_REQ left that no CREDIT of this account has answered (ns)
        self.waits_since: int | None = None

    def room(self) -> int:
        """Positive while a packet may leave."""
        return self.credit

    def on_send(self, size: int) -> None:
        """A packet, new or retransmitted, goes out."""
        self.credit -= size

    def on_answer(self) -> None:
        """An ACK or NACK has come: what the receiver did not grant is void."""
        if self.speculative:
            self.speculative = False
            self.credit = min(self.credit, 0)

    def on_refusal(self, size: int) -> None:
        """Remove a refused request packet, which was sent without credit, from what is owed."""
        if self.credit < 0:
            self.credit = min(self.credit + size, 0)

    def on_credit(self, granted: int) -> int:
        """Cumulative credit from the wire; how many octets it adds.

        0 for an old one, and for one that no receiver can have granted: requested credit is a
        window ahead at most, what is granted in advance another.  Believing it would make all that
        follow old.
        """
        news = ahead(granted, self.granted)
        if news * _UNIT > _SANE_WINDOWS * self.max_wnd:
            return 0
        self.on_answer()
        if news < 0:
            return 0
        self.waits_since = None
        if not news:
            return 0
        self.granted = granted
        self._requests = 0
        before = self.credit
        self.credit = min(before + news * _UNIT, self.max_wnd)
        return self.credit - before

    def target(self, backlog: int, window: int | None = None) -> int:
        """Return the cumulative credit to request, as on the wire (credit_target).

        ``backlog``: octets that wait, those to be sent again among them.  ``window``: that of NSCC
        where it runs as well.
        """
        needed = backlog
        if window is not None:
            needed = min(needed, window + self._mtu)
        needed = min(needed, self.max_wnd) - self.credit
        if self.speculative and backlog and needed < self._mtu:
            needed = self._mtu
        if needed <= 0:
            return self.granted
        return (self.granted - (-needed // _UNIT)) & COUNT_MASK

    def request_at(self) -> int | None:
        """Return when a source with a backlog and without credit requests some (ns).

        That is an RTT after its last request, then twice as long each time. Its turn comes by
        itself, and requests share the link with data.
        """
        if self.credit > 0:
            return None
        return self._requested_at + (self._base_rtt << min(self._requests, _MOST_DOUBLINGS))

    def requested(self, now: int, *, alone: bool = False) -> None:
        """Count a request for credit with data, or ``alone`` in a CREDIT_REQ."""
        self._requested_at = now
        self._requests = self._requests + 1 if alone else 0
        if alone and self.waits_since is None:
            self.waits_since = now


class _Grantee(Generic[K]):
    """A source, as its receiver sees it."""

    __slots__ = ("granted", "key", "reported_at", "target", "unused")

    def __init__(self, key: K) -> None:
        self.key = key
        self.target = 0  # highest credit_target
        self.granted = 0  # cumulative
        self.unused = 0  # octets granted for which nothing has arrived
        self.reported_at = -NEVER


class CreditPacer(Generic[K]):
    """Grants credit in turn to all requesting sources, as much as the receiving port can take.

    Without requests, earlier senders get a window's worth of credit in advance (``speculate``). So
    their next message need not wait.  ``key`` names a source: its peer and ccc_id.
    """

    __slots__ = (
        "_active",
        "_base_rtt",
        "_grant",
        "_idle",
        "_least",
        "_max_wnd",
        "_next",
        "_ns_per_unit",
        "_repeats",
        "_resting",
        "_sources",
        "_speculate",
    )

    def __init__(self, parameters: RcccParameters, *, speculate: bool = True) -> None:
        self._grant = max(parameters.grant_mtus * parameters.mtu // _UNIT, 1)
        self._least = -(-parameters.least_grant // _UNIT)
        self._max_wnd = parameters.max_wnd
        self._base_rtt = parameters.base_rtt
        self._ns_per_unit = _UNIT / (parameters.octets_per_ns * parameters.pacer_share)
        self._speculate = speculate
        self._sources: dict[K, _Grantee[K]] = {}
        # Whose turn comes when: those that need credit, and the others.  A source is in one of
        # the two at most.
        self._active: OrderedDict[K, _Grantee[K]] = OrderedDict()
        self._idle: OrderedDict[K, _Grantee[K]] = OrderedDict()
        self._repeats: OrderedDict[K, _Grantee[K]] = OrderedDict()
        self._next = 0.0  # when the port can take more than what has been granted
        self._resting = True  # nobody needed credit at the last tick

    def on_target(self, key: K, target: int) -> None:
        """``credit_target`` of a data packet, whether it was trimmed or not.

        One that no source can have is not believed, see :meth:`CreditSource.on_credit`.
        """
        source = self._source(key)
        sane = ahead(target, source.granted) * _UNIT <= _SANE_WINDOWS * self._max_wnd
        if sane and ahead(target, source.target) > 0:
            source.target = target
        self._queue(source)

    def on_request(self, key: K, target: int, now: int) -> None:
        """A CREDIT_REQ: a source that has no credit.  What it was granted may have been lost."""
        self.on_target(key, target)
        source = self._sources[key]
        if now - source.reported_at >= self._base_rtt:
            self._repeats[key] = source

    def on_arrival(self, key: K, octets: int) -> None:
        """Count octets of data that have arrived, of one packet or several."""
        source = self._source(key)
        source.unused = max(source.unused - octets, 0)
        self._queue(source)

    def on_trim(self, key: K, octets: int) -> None:
        """A packet of so many octets arrived without its payload: it needs credit once more."""
        source = self._source(key)
        source.unused = max(source.unused - octets, 0)
        source.target = (source.target + units(octets)) & COUNT_MASK
        self._queue(source)

    def rest(self, key: K) -> None:
        """Hold the grants of a source that cannot be reached until a packet of it arrives.

        What it was granted is remembered, as the counters go on where they were.
        """
        for sources in (self._active, self._idle, self._repeats):
            sources.pop(key, None)

    def grants(self, now: int) -> list[tuple[K, int]]:
        """The CREDITs that are due: (source, its cumulative credit).

        One that comes late makes up for a base RTT at most: what was not granted before that is
        lost, as a burst of it would only fill a queue.
        """
        due: list[tuple[K, int]] = []
        if self._resting:
            self._next = max(self._next, now)  # an idle port saves nothing up
        else:
            self._next = max(self._next, now - self._base_rtt)
        while self._next <= now:
            turn = self._turn()
            if turn is None:
                break
            source, grant = turn
            source.granted = (source.granted + grant) & COUNT_MASK
            source.unused += grant * _UNIT
            source.reported_at = now
            self._queue(source)
            self._next += max(grant, self._least) * self._ns_per_unit
            due.append((source.key, source.granted))
        self._resting = not self._active and not self._idle
        while self._repeats:
            _, source = self._repeats.popitem(last=False)
            if source.reported_at != now:
                source.reported_at = now
                due.append((source.key, source.granted))
        return due

    def next_deadline(self) -> int | None:
        """Return when :meth:`grants` is due, or ``None`` if no source requests credit."""
        if self._repeats:
            return 0
        if self._active or self._idle:
            return int(self._next) + 1
        return None

    def _source(self, key: K) -> _Grantee[K]:
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Grantee(key)
        return source

    def _queue(self, source: _Grantee[K]) -> None:
        """Put a source into its list; an idle one moves up when it requests credit."""
        key = source.key
        if key in self._active:
            return
        if ahead(source.target, source.granted) > 0:
            self._idle.pop(key, None)
            self._active[key] = source
        elif self._speculate and source.unused < self._max_wnd:
            self._idle.setdefault(key, source)

    def _turn(self) -> tuple[_Grantee[K], int] | None:
        """Return whose turn it is, taken off its list, and how many units it gets."""
        if self._active:
            _, source = self._active.popitem(last=False)
            return source, min(self._grant, ahead(source.target, source.granted))
        if self._idle:
            _, source = self._idle.popitem(last=False)
            return source, self._grant
        return None
