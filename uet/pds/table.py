"""The PDCs of an endpoint: create, find, close (UES 3.5.8)."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from uet.congestion.spraying.paths import SinglePath
from uet.pds.pdc import Endpoint, Pdc, PdcIdentity, PdcState
from uet.pds.window import MASK, START_END, START_FIRST, after, distance
from uet.peer import Peer
from uet.tss.secure_domain import SealError

#: Start_PSN lies at least 2^16 from the last PSN used under the same id (UES 3.5.8).
_START_DISTANCE: Final = 1 << 16
#: Closed targets remembered.
_MOST_CLOSED: Final = 4_096

#: What an initiator's PDC must agree in to carry a message (UES Table 3-26).
_Way = tuple[bytes, bool, "int | None", bool]  # peer, ordered, SDI, whether it is a second one


@dataclass(frozen=True, slots=True)
class ClosedTarget:
    """The remains of a closed target: enough to recognise its late packets (UES 3.5.8, closing).

    A copy of a SYN packet that the network has kept back must not make the PDC, and carry out
    the request, a second time.  ``closed_by`` is the PSN of the CLOSE, ``None`` after an error.
    """

    id: int
    start_psn: int
    closed_by: int | None

    def is_beyond(self, psn: int) -> bool:
        """Return whether ``psn`` was sent after the CLOSE, or answered never."""
        return self.closed_by is None or after(psn, self.closed_by)


class PdcTable:
    """The PDCs of one endpoint, by the identifiers of arriving packets."""

    def __init__(self, endpoint: Endpoint, rng: random.Random) -> None:
        self.by_id: dict[int, Pdc] = {}
        self._endpoint = endpoint
        self._rng = rng
        self._initiators: dict[_Way, Pdc] = {}
        self._targets: dict[tuple[bytes, int], Pdc] = {}  # by (peer, its id)
        config = endpoint.config
        self._limit = config.max_pdcs
        self._reserved = config.reserved_pdcs
        # Half of the pool is for targets: were it all taken by initiators here and at the peers,
        # each would wait for all others.
        self._most_initiators = self._limit - self._limit // 2
        self._plenty = self._most_initiators // 2 - 1  # so many leave room for second ones
        self._initiating = 0
        self._last_id = config.last_pdcid
        self._newest_id = rng.randrange(self._last_id)
        self._last_psn: dict[int, int] = {}
        self._quarantine: dict[int, int] = {}  # id -> when it may be used again (ns)
        self._closed: dict[tuple[bytes, int], ClosedTarget] = {}  # by (peer, its id), oldest first
        self._next_look = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def initiator(
        self, peer: Peer, now: int, *, ordered: bool = False, sdi: int | None = None
    ) -> Pdc | None:
        """The PDC that new messages of this kind go to, made if need be; ``None`` without room."""
        return self._initiator(peer, now, ordered=ordered, sdi=sdi, second=False)

    def second(self, first: Pdc, now: int) -> Pdc | None:
        """A second PDC beside ``first``; ``None`` if there is none, or it cannot be had cheaply.

        One is made once the peer has shown that it is there, and while PDCs are not scarce here.
        Where the peer had no room for it, ``first`` carries everything.
        """
        way = (first.peer.key, first.ordered, first.sdi, True)
        pdc = self._initiators.get(way)
        if pdc is None or not pdc.takes_messages:
            if first.state is not PdcState.ESTABLISHED or self._initiating > self._plenty:
                return None
        elif pdc.refused and pdc.state is PdcState.CREATING:
            return None
        return self._initiator(first.peer, now, ordered=first.ordered, sdi=first.sdi, second=True)

    def _initiator(
        self, peer: Peer, now: int, *, ordered: bool, sdi: int | None, second: bool
    ) -> Pdc | None:
        way = (peer.key, ordered, sdi, second)
        pdc = self._initiators.get(way)
        if pdc is None or not pdc.takes_messages:
            pdc = self._create(
                peer, now, peer_id=0, start_psn=None, initiator=True, ordered=ordered, sdi=sdi
            )
            if pdc is None:
                return None
            pdc.second = second
        else:
            del self._initiators[way]
        self._initiators[way] = pdc  # the most recently used stands last
        return pdc

    def find_target(self, peer_key: bytes, peer_id: int) -> Pdc | None:
        """Return the PDC of a SYN packet, by its source and never by dpdcid."""
        return self._targets.get((peer_key, peer_id))

    def accept(
        self,
        peer: Peer,
        peer_id: int,
        start_psn: int,
        now: int,
        *,
        ordered: bool = False,
        sdi: int | None = None,
        reserved: bool = False,
    ) -> Pdc | None:
        """A PDC for a SYN packet that belongs to none; ``None`` without room.

        ``reserved``: it may take one of the PDCs reserved for requests with that flag.
        """
        pdc = self._create(
            peer,
            now,
            peer_id=peer_id,
            start_psn=start_psn,
            initiator=False,
            ordered=ordered,
            sdi=sdi,
            reserved=reserved,
        )
        if pdc is not None:
            self._targets[peer.key, peer_id] = pdc
        return pdc

    def _create(
        self,
        peer: Peer,
        now: int,
        *,
        peer_id: int,
        start_psn: int | None,
        initiator: bool,
        ordered: bool,
        sdi: int | None,
        reserved: bool = False,
    ) -> Pdc | None:
        if initiator:
            reserved = self._endpoint.config.use_reserved_pdcs
        room = self._limit if reserved else self._limit - self._reserved
        if len(self.by_id) >= room:
            return None
        if initiator and self._initiating >= self._most_initiators:
            return None
        local_id = self._free_id(now)
        if local_id is None:
            return None
        if start_psn is None:
            expected = self._endpoint.secure.next_start(peer.key, sdi)
            start_psn = self._start_psn(local_id) if expected is None else expected
        pdc = Pdc(
            self._endpoint,
            peer,
            PdcIdentity(
                local_id=local_id,
                peer_id=peer_id,
                start_psn=start_psn,
                initiator=initiator,
                ordered=ordered,
                sdi=sdi,
                reserved=reserved,
            ),
            self._endpoint.ports.steer(SinglePath(self._rng)) if ordered else peer.congestion.paths,
        )
        self.by_id[local_id] = pdc
        self._initiating += initiator
        return pdc

    def _free_id(self, now: int) -> int | None:
        """Ids are used in turn, so that one is free for as long as can be before it comes again.

        One whose SYN was sent more than once waits for Syn_Retx_Safety_Time (UES 1.0.3, 3.5.8).
        """
        for _ in range(self._last_id):
            self._newest_id = local_id = self._newest_id % self._last_id + 1
            if local_id in self.by_id or self._quarantine.get(local_id, now) > now:
                continue
            self._quarantine.pop(local_id, None)
            return local_id
        return None

    def _start_psn(self, local_id: int) -> int:
        last = self._last_psn.get(local_id)
        while True:
            start = self._rng.randrange(START_FIRST, START_END)
            if last is None or abs(distance(start, last)) >= _START_DISTANCE:
                return start

    def remove(self, pdc: Pdc, now: int) -> None:
        """Forget a closed PDC, all but its last PSN (UES 3.5.8)."""
        if self.by_id.pop(pdc.id, None) is None:
            return
        if pdc.initiator:
            self._initiating -= 1
            self._last_psn[pdc.id] = (pdc.source.window.next - 1) & MASK
            if pdc.source.syn_resent:
                self._quarantine[pdc.id] = now + self._endpoint.config.syn_retx_safety_time
            way = (pdc.peer.key, pdc.ordered, pdc.sdi, pdc.second)
            if self._initiators.get(way) is pdc:
                del self._initiators[way]
            return
        key = pdc.peer.key, pdc.peer_id
        del self._targets[key]
        self._closed.pop(key, None)
        self._closed[key] = ClosedTarget(pdc.id, pdc.start_psn, pdc.closed_by)
        if len(self._closed) > _MOST_CLOSED:
            del self._closed[next(iter(self._closed))]

    def find_closed(self, peer_key: bytes, peer_id: int) -> ClosedTarget | None:
        """Return the newest closed target whose id at the peer was ``peer_id``."""
        return self._closed.get((peer_key, peer_id))

    # -- when there is no room ----------------------------------------------------------------

    def reclaim(self, now: int) -> list[Pdc]:
        """Begin to close what is not in use, to make room for one more (UES 3.5.8).

        That is an initiator without work, the least recently used first; else a target where
        nothing has arrived for Close_REQ_Time, whose initiator then gets a CLOSE_REQ. PDCs that
        have something to send now are returned.
        """
        if now < self._next_look:
            return []
        self._next_look = now + self._endpoint.config.close_req_time
        for pdc in self._initiators.values():
            if pdc.state is PdcState.ESTABLISHED and not pdc.in_use:
                pdc.quiesce()
                return [pdc]
        quiet = now - self._endpoint.config.close_req_time
        for pdc in self.by_id.values():
            if (
                not pdc.initiator
                and not pdc.in_use
                and pdc.destination.quiet_since(now) <= quiet
                and pdc.close_due is None
            ):
                with suppress(SealError):  # counted; it ends for that when it has its turn
                    self._endpoint.control.append(pdc.ask_to_close(now))
                return [pdc]
        return []

    def quiesce(self) -> None:
        """Begin to close every PDC that this endpoint has initiated."""
        for pdc in [p for p in self.by_id.values() if p.initiator]:
            pdc.quiesce()

    @property
    def open_initiators(self) -> int:
        return self._initiating
