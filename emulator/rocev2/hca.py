"""The host channel adapter: the whole RoCEv2 stack behind one sans-IO face.

In order: what an application does, what leaves, what arrives, and the services that queue pairs
call.  See :mod:`uet.transport` for the contract.  Queue pairs toward the configured connections are
made, and brought to RTS, when first needed; the exchange that would have done so is out of band.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from emulator.rocev2.arrivals import HcaArrivals
from emulator.rocev2.config import HcaConfig
from emulator.rocev2.congestion.pacing import Notifier, Pacer
from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS
from emulator.rocev2.connection.queue_pair import QueuePair
from emulator.rocev2.connection.work import QpReceiveQueue, WorkError
from emulator.rocev2.connections import Connection, ConnectionBook
from emulator.rocev2.datagrams import Datagrams
from emulator.rocev2.memory import HcaMemoryRegion, RKeyTable
from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import CNP_OPCODE, CNP_RESERVED, Service
from emulator.rocev2.wire.packets import HcaPeer, encapsulation
from uet.addresses import ip_of
from uet.peer import Peers, traffic_class
from uet.transport import Completion, Frame, ReceiveRequest, Request, SendRequest

_SERVICES: Final = {"rc": Service.RC, "uc": Service.UC}
_CNP_DATA: Final = bytes(CNP_RESERVED)
#: Frames that a queue pair sends before the next one has its turn.
_TURN: Final = 16


class HostChannelAdapter:
    """One endpoint.  ``seed`` is every transport's; nothing is random in this one."""

    def __init__(self, config: HcaConfig, *, seed: int = 0) -> None:
        self.config = config
        # none so far, which is not the same as not being counted
        self.counts: Counter[str] = Counter(rx_message_octets=0)
        self._rate_control = RATE_CONTROLS[config.cc]
        self._rate_parameters = self._rate_control.tuned(config)
        if self._rate_control.notifies:
            self.counts["tx_cnps"] = 0
        self.memory = RKeyTable()
        self.encapsulation = encapsulation(config.address, config.mac, config.ttl)
        self.peers = Peers(self._meet)
        self._named: dict[str, HcaPeer] = {}  # those met, by address as the configuration spells it
        self._agreed = ConnectionBook(config.connections)
        self._turns: Counter[tuple[bytes, str]] = Counter()
        self._qps: dict[int, QueuePair] = {}
        self._done: list[Completion] = []
        self._receives = QpReceiveQueue(self._done.append, endless=config.endless_receives)
        self._datagrams = Datagrams(config, self._done.append, self.counts)
        self._arrivals = HcaArrivals(self, self.encapsulation, self._datagrams)
        self._cnp_class = traffic_class(config.dscp_cnp, ecn_capable=config.ecn_capable)
        migreq = headers.BTH.mask("migreq") if config.migreq else 0
        self._cnp_word = headers.BTH.word(opcode=CNP_OPCODE) | migreq
        self._now = 0
        self._cnps: list[QueuePair] = []  # that owe their peer one
        self._answering: dict[int, QueuePair] = {}
        self._sending: QueuePair | None = None  # whose turn it is
        self._ready: dict[int, QueuePair] = {}  # may have something to send
        self._timers: list[tuple[int, int]] = []  # when to look at a QP; it may be too early
        self._waited_until = 0
        self._closing = False
        self.peers.expect(config.neighbours, self.encapsulation)

    # -- the application's side ----------------------------------------------------------------

    def add_peer(self, address: str, mac: str) -> None:
        """Learn how to reach ``address``; ``EncapsulationError`` if that cannot be."""
        peer = self._meet(address, mac)
        self.peers[peer.key] = peer

    def _meet(self, address: str, mac: str) -> HcaPeer:
        """Make a peer."""
        peer = self._named[address] = HcaPeer(self.encapsulation, address, mac)
        return peer

    def connect(self, address: str, connection: Connection) -> None:
        """Agree to a connection with a peer that is known when the first packet is due."""
        self._agreed.add(address, connection)

    def add_queue_pair(self, qpn: int, service: Service = Service.RC) -> QueuePair:
        """A queue pair in RESET, for the caller to bring up; ``ValueError`` if it is there."""
        if qpn in self._qps or qpn in self._agreed:
            raise ValueError(f"there is a QP {qpn:#x} already; choose another number")
        pacer, notification = self._congestion(self._now)
        qp = QueuePair(self, qpn, service, pacer=pacer, notification=notification)
        self._qps[qpn] = qp
        return qp

    def register(
        self,
        memory: memoryview,
        *,
        key: int,
        writable: bool = True,
        readable: bool = True,
        address: int = 0,
    ) -> None:
        """Let peers reach ``memory``; ``MemoryRegionError`` for a bad key.

        Its first octet has the virtual address ``address``.
        """
        self.memory.register(HcaMemoryRegion(memory, key, writable, readable, address))

    def unregister(self, key: int) -> None:
        """Let nobody reach the region any more; ``MemoryRegionError`` if there is none.

        A WRITE that is arriving ends in NAK 0x62; READs that were accepted are still answered.
        """
        self.memory.unregister(key)
        for qp in self._qps.values():
            if qp.responder is not None:
                qp.responder.withdraw(key)

    def post(self, request: Request) -> None:
        """Queue a request; ``WorkError`` for one that could never be carried out.

        With several queue pairs to a peer, messages take them in turn.  ``offset`` of a request is
        the virtual address.
        """
        if self._closing:
            raise WorkError("the endpoint is closing and takes no more requests")
        peer = self._named.get(request.peer)
        if peer is None:
            try:
                peer = self.peers.meet(ip_of(request.peer).packed)
            except ValueError:
                peer = None
            if peer is None:
                raise WorkError(f"{request.peer} is not among the configured neighbours")
            request = replace(request, peer=peer.address)  # IPv6 has several spellings
        delivery = request.delivery or "rc"
        if delivery == "ud":
            if not isinstance(request, SendRequest):
                raise WorkError("a datagram carries a send and nothing else")
            self._datagrams.post(request, peer)
            return
        key = peer.key, delivery
        queues = self._agreed.numbers(*key)
        qp = self.queue_pair(queues[self._turns[key] % len(queues)]) if queues else None
        if qp is None:
            known = ", ".join(self._agreed.services(peer.key))
            raise WorkError(
                f"there is no queue pair for delivery {delivery!r} to {request.peer}; it has "
                f"{known or 'none'}, and ud"
            )
        work = qp.prepare(request)
        self._turns[key] += 1
        qp.post(work)

    def post_receive(self, receive: ReceiveRequest, *, datagram: bool = False) -> None:
        """Offer memory to sends, or to datagrams (whose first 40 octets are not theirs)."""
        if datagram:
            self._datagrams.post_receive(receive)
        else:
            self._receives.post(receive)

    def completions(self) -> list[Completion]:
        """Completions since the last call."""
        if not self._done:
            return []
        done = self._done[:]
        self._done.clear()
        return done

    def close(self) -> None:
        """Finish what was posted; RoCEv2 has no packet that ends a connection."""
        self._closing = True

    @property
    def closed(self) -> bool:
        """Return whether nothing of this endpoint is open.

        Peers may still need answers.
        """
        return self._closing and not self._datagrams.queue and all(
            qp.idle for qp in self._qps.values()
        )  # fmt: skip

    def _congestion(self, now: int) -> tuple[Pacer | None, Notifier | None]:
        """Return the two sides of congestion control for a new queue pair."""
        return self._rate_control.open(self._rate_parameters, self.config, now)

    def counters(self) -> Mapping[str, int]:
        """Counters by name."""
        return {**self.counts, "qps_open": len(self._qps)}

    def queue_pair(self, qpn: int) -> QueuePair | None:
        """Return the queue pair with this number; one of a connection is made at first access."""
        qp = self._qps.get(qpn)
        if qp is not None:
            return qp
        agreed = self._agreed.find(qpn)
        if agreed is not None:
            key, connection = agreed
            pacer, notification = self._congestion(self._now)
            service = _SERVICES[connection.service]
            qp = QueuePair(self, qpn, service, pacer=pacer, notification=notification)
            self._qps[qpn] = qp
            qp.connect(self.peers[key], connection)
        return qp

    # -- what leaves ---------------------------------------------------------------------------

    def transmit(self, now: int, limit: int) -> list[Frame]:
        """Every answer that is due, then at most ``limit`` more frames, queue pairs in turn."""
        self._now = now
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, qpn = heapq.heappop(timers)
            qp = self._qps.get(qpn)
            if qp is not None:
                self._sending = qp
                qp.scheduled.pop()
                qp.on_timer(now)
                self._ready[qpn] = qp
        out: list[Frame] = []
        if self._cnps:
            self._notify(out)
        if self._answering:
            for qp in self._answering.values():
                if qp.responder is not None:
                    self._sending = qp
                    qp.responder.transmit_answers(out)
            self._answering.clear()
        limit += len(out)
        datagrams = self._datagrams.queue
        while datagrams and len(out) < limit:
            out.append(datagrams.popleft())
            self.counts["tx_data_packets"] += 1
        ready = self._ready
        while ready and len(out) < limit:
            qpn = next(iter(ready))
            qp = ready.pop(qpn)
            self._sending = qp
            stop = min(limit, len(out) + _TURN)
            qp.transmit(out, now, stop)
            if len(out) >= stop:
                ready[qpn] = qp  # behind the others
            self._schedule(qp, now)
        return out

    def _schedule(self, qp: QueuePair, now: int) -> None:
        """Schedule the timers of a queue pair; a later deadline shows when the old one is due."""
        due = qp.next_deadline(now)
        if due is not None and (not qp.scheduled or due < qp.scheduled[-1]):
            qp.scheduled.append(due)
            heapq.heappush(self._timers, (due, qp.qpn))

    def _notify(self, out: list[Frame]) -> None:
        """The congestion notification packets that are due."""
        for qp in self._cnps:
            self.counts["tx_cnps"] += 1
            out.append(qp.frames.frame(self._cnp_class, self._cnp_word, 0, _CNP_DATA, becn=1))
        self._cnps.clear()

    def use_ports(self, working: Sequence[int]) -> None:
        """Nothing: a flow keeps its UDP source port, and the NIC moves it to a port that works."""

    def next_deadline(self) -> int | None:
        """The earliest timer (ns); perhaps somewhat early."""
        if self._ready:
            return self._now
        return self._timers[0][0] if self._timers else None

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take whole Ethernet frames.  What is not for this endpoint, or hostile, is counted."""
        self._now = now
        self._arrivals.receive(frames, now)

    def contain_error(self, *, sending: bool) -> bool:
        """Count an error of this stack and end its queue pair; whether it can go on.

        That is the queue pair of the newest frame, or, ``sending``, the one whose turn it was.
        """
        self.counts["internal_error"] += 1
        qp, self._sending = self._sending if sending else self._arrivals.queue_pair, None
        if qp is not None:
            self._answering.pop(qp.qpn, None)
            qp.fail()
        return qp is not None or not sending

    # -- what queue pairs call of it -----------------------------------------------------------

    def complete(self, completion: Completion) -> None:
        self._done.append(completion)

    def owe_cnp(self, qp: QueuePair) -> None:
        """Note that the peer of ``qp`` must receive a CNP with what leaves next."""
        self._cnps.append(qp)

    def activate(self, qp: QueuePair) -> None:
        self._ready[qp.qpn] = qp

    def waited(self, since: int, now: int) -> None:
        """Count time that queue pairs waited for a retry timer, together or by themselves."""
        self.counts["rto_wait_ns"] += now - max(since, self._waited_until)
        self._waited_until = now

    def answers(self, qp: QueuePair) -> None:
        self._answering[qp.qpn] = qp

    def take_receive(self) -> ReceiveRequest | None:
        return self._receives.take()

    def return_receive(self, receive: ReceiveRequest) -> None:
        self._receives.put_back(receive)

    def take_immediate(self) -> bool:
        return self._receives.take_immediate()
