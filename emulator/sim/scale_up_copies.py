"""The scale-up network (NVLink) in virtual time: the ports of one GPU, and what reaches it.

Rates, latency and the shared ingress are those of :mod:`emulator.sim.endpoint.operations.nvlink`. A
notice is an event at the peer when the first octet of a copy arrives there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mypy_extensions import i64

from emulator.sim.endpoint.operations.nvlink import CopyNotice, Ingress, Pace, ScaleUpLink
from emulator.sim.event_queue import PS, EventQueue, Source

#: Hands a notice to rank's ports at a time (ps), in the order of the sender's events.
Send = Callable[[int, int, int, CopyNotice], None]


class ScaleUpCopies:
    """The scale-up ports of ``rank``, in virtual time.

    ``send(peer, when_ps, order, notice)`` brings a notice to the peer's :meth:`arrive`; ``hear`` is
    called with the notices that come here.
    """

    def __init__(
        self,
        rank: int,
        link: ScaleUpLink,
        events: EventQueue,
        source: Source,
        *,
        send: Send,
        hear: Callable[[CopyNotice], None],
    ) -> None:
        self._rank, self._link = rank, link
        #: where rates change: by peer, and of all others (None)
        self._paces: dict[int | None, Pace] = {}
        self._events, self._source = events, source
        self._send, self._hear = send, hear
        self._egress_free: dict[int | None, int] = {}  # by peer; None: of all; ps of Pace
        self._ingress = Ingress() if link.shared else None
        self._gone: dict[int, int] = {}  # when the last octet of a dead peer's copy may come (ns)
        self.copies_lost = 0
        self.copies_out = self.copies_in = self.octets_out = self.octets_in = 0

    def occupy(self, now: int, octets: int, peer: int, fan_out: int = 1) -> tuple[int, int]:
        """Take the egress to ``peer`` for ``octets``, of which the switch makes ``fan_out`` copies.

        Returns when it is free again, and when the peer has the data if nobody else copies there
        (ns).
        """
        link = self._link
        port = None if link.shared else peer
        pace = self._pace(peer)
        at: i64 = now
        begun: int = at * PS
        if pace is not None:
            begun = pace.done(begun)
        start = max(begun, self._egress_free.get(port, 0))
        end = start + link.octets_ps(octets)
        last = end if pace is None else pace.when(end)
        there = -(-last // PS) + link.latency_ns
        if fan_out > 1:
            end = start + link.octets_ps(-(-octets // fan_out))
            last = end if pace is None else pace.when(end)
        self._egress_free[port] = end
        self.copies_out += 1
        self.octets_out += octets
        return -(-last // PS), there

    def notify(self, peer: int, notice: CopyNotice) -> None:
        """Notify ``peer`` of a copy when its first octet is there.

        Raises ConnectionError if the peer is dead, whose ports are down.
        """
        if peer in self._gone:
            raise ConnectionError(f"rank {peer} has no scale-up port any more")
        link, there = self._link, notice.deliver_at
        pace = self._pace(peer)
        begins = there * PS - link.octets_ps(notice.carried)
        if pace is not None:
            left = pace.done((there - link.latency_ns) * PS)
            begins = pace.when(left - link.octets_ps(notice.carried)) + link.latency_ns * PS
        soonest = self._events.now + link.latency_ns * PS  # times above are whole ns
        self._send(peer, max(begins, soonest), self._source.next(), notice)

    def arrive(self, notice: CopyNotice) -> None:
        """Take a peer's copy, whose first octet is here now."""
        if self._gone and notice.deliver_at > self._gone.get(notice.sender, notice.deliver_at):
            self.copies_lost += 1
            return
        if self._ingress is not None:
            duration = self._link.octets_ps(notice.carried)
            there: i64 = notice.deliver_at
            ends: int = there * PS
            pace = self._pace(self._rank)
            if pace is None:
                end = self._ingress.admit(ends - duration, duration)
            else:  # the sender may be faster
                begins = max(pace.done(ends) - duration, pace.done(self._events.now))
                end = pace.when(self._ingress.admit(begins, duration))
            free = -(-end // PS)
            if free > notice.deliver_at:
                notice = notice._replace(deliver_at=free)
        self.copies_in += 1
        self.octets_in += notice.length
        self._hear(notice)

    def pace(self, steps: Sequence[tuple[int, Mapping[tuple[int, ...], float]]]) -> None:
        """From each time (ns) of ``steps`` on leave ranks, or links of two, shares of their rates.

        All others have their whole ones.  It is called before the first of these times.
        """
        self._paces.clear()
        struck = {rank for _, shares in steps for ranks in shares for rank in ranks}
        if self._rank in struck:
            self._paces[None] = self._slower(steps, self._rank)
        if not self._link.shared:
            for peer in struck:
                self._paces[peer] = self._slower(steps, peer)

    def _slower(
        self, steps: Sequence[tuple[int, Mapping[tuple[int, ...], float]]], peer: int
    ) -> Pace:
        """Return the pace of a link to ``peer``: that of the slowest of it and its ends."""
        of_link = (self._rank,), (peer,), tuple(sorted((self._rank, peer)))
        return Pace([(at * PS, min(left.get(one, 1.0) for one in of_link)) for at, left in steps])

    def _pace(self, peer: int) -> Pace | None:
        return self._paces.get(peer, self._paces.get(None)) if self._paces else None

    def lose(self, peers: Sequence[int], now: int) -> int:
        """Take from ``peers`` only what has left them whole at ``now`` (ns).

        Returns the time by which that has come.
        """
        last = now + self._link.latency_ns
        self._gone |= dict.fromkeys(peers, last)
        return last

    def hear_again(self, peers: Sequence[int]) -> None:
        """Take everything from ``peers`` again."""
        for peer in peers:
            self._gone.pop(peer, None)

    def counters(self) -> Mapping[str, int]:
        """Copies and octets, both ways."""
        return {
            "copies_out": self.copies_out,
            "octets_out": self.octets_out,
            "copies_in": self.copies_in,
            "octets_in": self.octets_in,
            "copies_lost": self.copies_lost,
        }
