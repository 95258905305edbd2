"""Which PDCs an endpoint has: create, find, close (UES 3.5.8)."""

from __future__ import annotations

import random

from uet.congestion.spraying import ObliviousSpraying
from uet.pds.pdc import Pdc, State, Surroundings
from uet.pds.psn import MASK, distance
from uet.peer import Peer

#: PDCID 0 is never assigned (UES 3.5.8.2).
LAST_ID = 0xFFFF
#: Start_PSN lies in [2^16, 2^31), and at least 2^16 from the last PSN used under the same id.
_START_FIRST, _START_END, _START_DISTANCE = 1 << 16, 1 << 31, 1 << 16


class PdcTable:
    """All PDCs of one endpoint, by the ids packets are found with."""

    def __init__(self, around: Surroundings, rng: random.Random) -> None:
        self.by_id: dict[int, Pdc] = {}
        self._around = around
        self._rng = rng
        self._initiators: dict[int, Pdc] = {}  # by peer
        self._targets: dict[tuple[int, int], Pdc] = {}  # by (peer, its id)
        self._limit = around.config.max_pdcs
        self._newest_id = rng.randrange(LAST_ID)
        self._last_psn: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def initiator(self, peer: Peer) -> Pdc | None:
        """The PDC that new messages to ``peer`` go to, made if need be; ``None`` without room."""
        pdc = self._initiators.get(peer.key)
        if pdc is None or not pdc.takes_messages:
            pdc = self._create(peer, peer_id=0, start_psn=None, initiator=True)
            if pdc is not None:
                self._initiators[peer.key] = pdc
        return pdc

    def find_target(self, peer_key: int, peer_id: int) -> Pdc | None:
        """The PDC that a SYN packet belongs to: found by its source, never by dpdcid."""
        return self._targets.get((peer_key, peer_id))

    def accept(self, peer: Peer, peer_id: int, start_psn: int) -> Pdc | None:
        """A PDC for a SYN packet that belongs to none; ``None`` without room."""
        pdc = self._create(peer, peer_id=peer_id, start_psn=start_psn, initiator=False)
        if pdc is not None:
            self._targets[peer.key, peer_id] = pdc
        return pdc

    def _create(
        self, peer: Peer, *, peer_id: int, start_psn: int | None, initiator: bool
    ) -> Pdc | None:
        if len(self.by_id) >= self._limit:
            return None
        # Ids are used in turn, so that one is free for as long as can be before it comes again.
        local_id = self._newest_id % LAST_ID + 1
        while local_id in self.by_id:
            local_id = local_id % LAST_ID + 1
        self._newest_id = local_id
        if start_psn is None:
            start_psn = self._start_psn(local_id)
        pdc = Pdc(
            self._around,
            peer,
            local_id=local_id,
            peer_id=peer_id,
            start_psn=start_psn,
            initiator=initiator,
            spraying=ObliviousSpraying(self._rng),
        )
        self.by_id[local_id] = pdc
        return pdc

    def _start_psn(self, local_id: int) -> int:
        last = self._last_psn.get(local_id)
        while True:
            start = self._rng.randrange(_START_FIRST, _START_END)
            if last is None or abs(distance(start, last)) >= _START_DISTANCE:
                return start

    def remove(self, pdc: Pdc) -> None:
        """Forget a closed PDC, all but its last PSN (UES 3.5.8)."""
        del self.by_id[pdc.id]
        if pdc.initiator:
            self._last_psn[pdc.id] = (pdc.source.window.next - 1) & MASK
            if self._initiators.get(pdc.peer.key) is pdc:
                del self._initiators[pdc.peer.key]
        else:
            del self._targets[pdc.peer.key, pdc.peer_id]

    def quiesce(self) -> None:
        """Begin to close every PDC that this endpoint has initiated."""
        for pdc in [p for p in self.by_id.values() if p.initiator]:
            pdc.quiesce()

    @property
    def open_initiators(self) -> int:
        return sum(1 for p in self.by_id.values() if p.initiator and p.state is not State.CLOSED)
