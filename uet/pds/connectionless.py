"""Delivery without a PDC: idempotent requests (RUDI) and datagrams (UUD); UES 3.5.22, 3.5.3.

A RUDI request is sent again until its response comes; the target keeps no state, carries out
every copy and answers each.  A datagram is sent once and forgotten.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from typing import Final

from uet.config import FepConfig
from uet.congestion.spraying.paths import ObliviousSpraying
from uet.congestion.spraying.port_entropy import Ports
from uet.pds.rto import UNLIMITED_NACK, UNLIMITED_RTO, nack_delay, rto_interval
from uet.pds.semantics import Outbound, Response, Semantics
from uet.pds.window import MASK
from uet.peer import Peer, traffic_class
from uet.timekeeper import Timekeeper
from uet.transport import Frame
from uet.tss.secure_domain import SealError
from uet.wire import headers
from uet.wire.codes import NackCode, PacketType, RudiFlag

_REQ: Final = headers.RUDI_REQ
_RESP: Final = headers.RUDI_RESP
_UUD: Final = headers.UUD_REQ
_REQ_WORD: Final = _REQ.word(type=PacketType.RUDI_REQ, next_hdr=0)
_RESP_WORD: Final = _RESP.word(type=PacketType.RUDI_RESP, next_hdr=0)
_UUD_WORD: Final = _UUD.word(type=PacketType.UUD_REQ, next_hdr=0)
_NEXT_SHIFT: Final = _REQ.shift("next_hdr")
_UUD_SHIFT: Final = _UUD.shift("next_hdr")
_NOT_RUNNING: Final = -1
_M: Final = int(RudiFlag.M)
_RETX: Final = int(RudiFlag.RETX)
_TRIMMED: Final = frozenset({int(NackCode.TRIMMED), int(NackCode.TRIMMED_LASTHOP)})

#: RUDI requests on their way: RUDI has no window, and its packets must not flood those of RUD and
#: ROD (UES 3.5.22).  One whose timer has run out is on its way no longer.
MOST_OUTSTANDING: Final = 256
#: RUDI requests toward one peer that wait for their responses, on their way or not: one that does
#: not answer leaves room for the others.
MOST_OUTSTANDING_OF_A_PEER: Final = 128


#: Times that a request is sent again at once because it was trimmed; later ones wait and count as
#: any refusal does.
MOST_TRIMS: Final = 64


class _Pending:
    """A RUDI request whose response is missing."""

    __slots__ = (
        "deadline",
        "index",
        "message",
        "on_its_way",
        "peer",
        "queued",
        "refusals",
        "refused",
        "timeouts",
        "trims",
    )

    def __init__(self, message: Outbound, index: int, peer: Peer, deadline: int) -> None:
        self.message = message
        self.index = index
        self.peer = peer
        self.deadline = deadline
        self.timeouts = 0
        self.refusals = 0
        self.refused = False  # and not sent again since
        self.on_its_way = True  # neither answered nor timed out
        self.trims = 0
        self.queued = False  # to be sent again


class _PeerQueue:
    """The RUDI messages toward one peer, and how many of its requests wait for responses."""

    __slots__ = ("messages", "waiting")

    def __init__(self) -> None:
        self.messages: deque[Outbound] = deque()
        self.waiting = 0


class Anywhere:
    """Stands for the PDC that a connectionless message does not have."""

    id = 0
    ordered = False
    failure: str | None = None
    backlog = 0

    def __init__(self, address: str) -> None:
        self.locks = 0
        self.address = address

    def post(self, message: Outbound) -> None:
        raise RuntimeError("there is no PDC to post to")

    def respond(self, psn: int, response: int | Response) -> None:
        raise RuntimeError("there is no PDC to respond on")


class ConnectionlessPds:
    """RUDI and UUD of one endpoint."""

    def __init__(
        self,
        config: FepConfig,
        semantics: Semantics,
        counts: dict[str, int],
        rng: random.Random,
        ports: Ports,
        time: Timekeeper,
    ) -> None:
        self._time = time
        time.watch(self.next_deadline)
        self._config = config
        self._semantics = semantics
        self._counts = counts
        self._entropy = ports.steer(ObliviousSpraying(rng))
        self._data_class = traffic_class(config.dscp_data, ecn_capable=config.ecn_capable)
        self._control_class = traffic_class(config.dscp_control, ecn_capable=False)
        self._newest = rng.getrandbits(32)
        self._rudi: dict[Peer, _PeerQueue] = {}  # those with something to do; the next one first
        self.outstanding = 0
        self._datagrams: deque[tuple[Outbound, Peer]] = deque()
        self._pending: dict[int, _Pending] = {}
        self._timers: list[tuple[int, int]] = []  # (deadline, packet id)
        self._again: deque[int] = deque()

    def post(self, message: Outbound, peer: Peer, *, reliable: bool) -> Anywhere:
        """Queue a message: RUDI if ``reliable``, else a datagram."""
        if not reliable:
            self._datagrams.append((message, peer))
        else:
            self._rudi.setdefault(peer, _PeerQueue()).messages.append(message)
        return Anywhere(peer.address)

    @property
    def idle(self) -> bool:
        """Nothing to send, and no response missing."""
        return not (self._rudi or self._datagrams)

    # -- what leaves ---------------------------------------------------------------------------

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Append what may leave now, at most until ``out`` has ``limit`` frames."""
        while self._timers and self._timers[0][0] <= now:
            deadline, packet_id = heapq.heappop(self._timers)
            pending = self._pending.get(packet_id)
            if pending is not None and pending.deadline == deadline:
                self._expired(packet_id, pending, now)
        while self._again and len(out) < limit:
            packet_id = self._again.popleft()
            pending = self._pending.get(packet_id)
            if pending is not None:
                pending.queued = False
                self._send(out, packet_id, pending, now, again=True)
        while self._datagrams and len(out) < limit:
            message, peer = self._datagrams.popleft()
            self._send_datagram(out, message, peer, now)
        for message, peer, index in self._new(limit - len(out)):
            self._newest = packet_id = self._newest + 1 & MASK
            pending = _Pending(message, index, peer, 0)
            self._pending[packet_id] = pending
            self.outstanding += 1
            self._rudi[peer].waiting += 1
            self._send(out, packet_id, pending, now, again=False)

    def _new(self, room: int) -> Iterator[tuple[Outbound, Peer, int]]:
        """Packets that have not been sent yet, one of each peer in turn, as far as may be."""
        turns = len(self._rudi)  # without a packet
        while turns > 0 and room > 0 and self.outstanding < MOST_OUTSTANDING:
            peer = next(iter(self._rudi))
            queue = self._rudi[peer] = self._rudi.pop(peer)
            turns -= 1
            if not queue.messages or queue.waiting >= MOST_OUTSTANDING_OF_A_PEER:
                continue
            message = queue.messages[0]
            if message.sent >= message.packets:
                queue.messages.popleft()
                turns += 1
                continue
            index = message.sent
            message.sent = index + 1
            if message.sent >= message.packets:
                queue.messages.popleft()
            room -= 1
            turns = len(self._rudi)
            yield message, peer, index

    def _settle(self, packet_id: int) -> None:
        """Nothing more is expected of a request."""
        pending = self._pending.pop(packet_id)
        self._time.stopped()
        self.outstanding -= pending.on_its_way
        queue = self._rudi[pending.peer]
        queue.waiting -= 1
        if not queue.waiting and not queue.messages:
            del self._rudi[pending.peer]

    def _send(
        self, out: list[Frame], packet_id: int, pending: _Pending, now: int, *, again: bool
    ) -> None:
        message, peer = pending.message, pending.peer
        word = _REQ_WORD | message.next_header << _NEXT_SHIFT
        if again and not self._config.compatibility.rudi_without_retx:
            word |= _RETX
        ses, payload = message.packet(pending.index)
        wrap, _ = peer.way(self._config.sdi)
        header = _REQ.pack(word, 0, packet_id)
        try:
            out.append(wrap(self._data_class, self._entropy.pick(), header + ses, payload))
        except SealError as error:
            self._give_up(message, peer, error.reason.upper(), now)
            return
        self._counts["tx_retransmitted_packets" if again else "tx_data_packets"] += 1
        if again:
            self._counts["tx_retransmitted_octets"] += sum(map(len, out[-1]))
        pending.deadline = now + rto_interval(
            self._config.rto_init_time,
            pending.timeouts,
            constant=self._config.compatibility.constant_rto,
        )
        self._start_timer(packet_id, pending)

    def _start_timer(self, packet_id: int, pending: _Pending) -> None:
        heapq.heappush(self._timers, (pending.deadline, packet_id))
        self._time.stopped()  # one that ran before
        self._time.started(pending.deadline)

    def _expired(self, packet_id: int, pending: _Pending, now: int) -> None:
        self._time.stopped()
        pending.deadline = _NOT_RUNNING  # an older timer may have the same one
        if pending.refused:
            pending.refused = False
            self._send_again(packet_id, pending)
            return
        pending.timeouts += 1
        self.outstanding -= pending.on_its_way
        pending.on_its_way = False
        self._counts["rto_expirations"] += 1
        limit = self._config.max_rto_retx_cnt
        if pending.timeouts > limit != UNLIMITED_RTO:
            self._give_up(pending.message, pending.peer, "RTO_RETRIES_EXHAUSTED", now)
        else:
            self._send_again(packet_id, pending)

    def _send_again(self, packet_id: int, pending: _Pending) -> None:
        if not pending.queued:
            pending.queued = True
            self._again.append(packet_id)

    def _give_up(self, message: Outbound, peer: Peer, error: str, now: int) -> None:
        """One packet without an answer fails its whole message."""
        queue = self._rudi[peer]
        if queue.messages and queue.messages[0] is message:
            queue.messages.popleft()  # the rest is not sent
        for packet_id in [i for i, p in self._pending.items() if p.message is message]:
            self._settle(packet_id)
        message.packets = message.sent
        message.error = message.error or error
        self._semantics.message_end(Anywhere(peer.address), message, now)

    def _send_datagram(self, out: list[Frame], message: Outbound, peer: Peer, now: int) -> None:
        ses, payload = message.packet(0)
        wrap, _ = peer.way(self._config.sdi)
        word = _UUD_WORD | message.next_header << _UUD_SHIFT
        header = _UUD.pack(word, 0)
        try:
            out.append(wrap(self._data_class, self._entropy.pick(), header + ses, payload))
            self._counts["tx_data_packets"] += 1
        except SealError as error:
            message.error = error.reason.upper()
        message.sent = message.acknowledged = 1
        self._semantics.message_end(Anywhere(peer.address), message, now)

    def next_deadline(self) -> int | None:
        """The earliest retransmission timer (ns)."""
        while self._timers:
            deadline, packet_id = self._timers[0]
            pending = self._pending.get(packet_id)
            if pending is not None and pending.deadline == deadline:
                return deadline
            heapq.heappop(self._timers)
        return None

    # -- what arrives --------------------------------------------------------------------------

    def on_response(
        self, packet: memoryview, at: int, peer: Peer, sdi: int | None, now: int
    ) -> None:
        """Take a RUDI response, matched by packet id and by the peer that got the request."""
        word, _, packet_id = _RESP.unpack_from(packet, at)
        pending = self._pending.get(packet_id)
        if pending is None or pending.peer is not peer or sdi != self._config.sdi:
            self._counts["rx_drop_unexpected_rudi_response"] += 1
            return
        next_header = word >> _NEXT_SHIFT & 0xF
        end = at + _RESP.size
        if len(packet) < end + headers.SES_RESPONSE.size or not next_header:
            self._counts["rx_drop_truncated"] += 1
            return
        self._settle(packet_id)
        message = pending.message
        message.acknowledged += 1
        message.answered(pending.index, next_header, packet[end:])
        if message.acknowledged >= message.packets:
            self._semantics.message_end(Anywhere(peer.address), message, now)

    def on_nack(self, packet_id: int, code: int, peer: Peer, sdi: int | None, now: int) -> None:
        """A NACK of RUDI: the target could not take it, send it again (UES 3.5.22).

        What was trimmed is sent again at once, :data:`MOST_TRIMS` times at most, all else later.
        ``sdi`` is that of the requests also for one that came in clear, if the domain allows it.
        """
        pending = self._pending.get(packet_id)
        if pending is None or pending.peer is not peer or sdi != self._config.sdi:
            self._counts["rx_nacks_of_settled_psn"] += 1
            return
        if code in _TRIMMED and pending.trims < MOST_TRIMS:
            pending.trims += 1
            pending.refused = False
            self._send_again(packet_id, pending)
            return
        pending.refusals += 1
        if pending.refusals > self._config.max_nack_retx_cnt != UNLIMITED_NACK:
            self._give_up(pending.message, peer, "NACK_RETRIES_EXHAUSTED", now)
            return
        pending.refused = True
        pending.deadline = now + nack_delay(self._config.nack_retx_time, pending.refusals)
        self._start_timer(packet_id, pending)

    def answer(
        self,
        peer: Peer,
        sdi: int | None,
        packet_id: int,
        response: Response,
        *,
        marked: bool,
        entropy: int,
    ) -> Frame:
        """The RUDI response to the request ``packet_id``, in the secure domain that it came in."""
        word = _RESP_WORD | response.next_header << _NEXT_SHIFT | (_M if marked else 0)
        wrap, _ = peer.way(sdi)
        big = len(response.octets) > self._config.trimmable_ack_size
        big = big or self._config.compatibility.rudi_responses_as_data
        kind = self._data_class if big else self._control_class
        return wrap(kind, entropy, _RESP.pack(word, 0, packet_id) + response.octets, b"")
