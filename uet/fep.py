"""The fabric endpoint (FEP): the whole Ultra Ethernet stack behind one sans-IO face.

In order: what an application does (register, post, completions), what leaves, and the services that
SES and PDS call.  What arrives is sorted by :mod:`uet.arrivals`.  See :mod:`uet.transport` for the
contract.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from uet.addresses import ip_of
from uet.arrivals import FepArrivals
from uet.carrier_codec import PeerEnvelope
from uet.config import FepConfig
from uet.config_checks import ConfigurationError
from uet.congestion.spraying.port_entropy import Ports
from uet.counts import Counts
from uet.encapsulation_choice import Encapsulation
from uet.pds.connectionless import ConnectionlessPds
from uet.pds.credit_granter import CreditGranter
from uet.pds.pdc import Pdc, PdcState
from uet.pds.scheduler import PdcScheduler
from uet.pds.secure_starts import SecureStarts
from uet.pds.semantics import Context, Outbound, Semantics
from uet.pds.table import PdcTable
from uet.peer import NOMINAL_OVERHEAD, Peer, Peers
from uet.ses.address import Address
from uet.ses.facilities import Facilities
from uet.ses.initiator.initiator import Initiator
from uet.ses.initiator.requests import MessageError
from uet.ses.matching import Watcher
from uet.ses.memory.registered_memory import MemoryTable, RegisteredRegion
from uet.ses.target.rma_target import Guard, ReturnData
from uet.ses.target.target import Target
from uet.timekeeper import NEVER, Timekeeper
from uet.transport import Completion, Frame, ReceiveRequest, Request
from uet.tss.secure_domain import SealError
from uet.wire import headers
from uet.wire.codes import CRC_SIZE, ControlType

if TYPE_CHECKING:
    from uet.tss.record import SecureDomains

#: Bits of the number that, with a peer's address, seeds the random generator of that peer.
_SEED_BITS: Final = 64
#: PDS and SES headers of the largest request.
_HEADERS: Final = headers.RUD_REQ.size + headers.REQ_CC_STATE.size + headers.SES_STD_SOM.size


@mypyc_attr(allow_interpreted_subclasses=True)
class FabricEndpoint:
    """One FEP; it begins with one resource index of one process.

    ``seed`` decides everything that is random here: first PSNs, PDC ids, entropy, waiting times. By
    default it comes from the operating system.  Give one only where all endpoints begin together,
    as in a simulation: a peer may still have the PDCs of an earlier life with the same seed. It
    takes the first requests for copies, and answers them without carrying them out.

    An endpoint with secure domains needs ``first_counter``, below 2^47 and beyond every packet
    counter that was used with these keys under this address before: 0 for new keys, else the time
    in a unit in which fewer than one packet is sent, or what was stored.
    Raises :class:`ConfigurationError` without it.
    """

    def __init__(
        self, config: FepConfig, *, seed: int | None = None, first_counter: int | None = None
    ) -> None:
        self.config = config
        self.counts = Counts()
        self.control: list[Frame] = []
        rng = random.Random(secrets.randbits(128) if seed is None else seed)
        self.time = Timekeeper()
        self._completions: list[Completion] = []
        self.domains: SecureDomains | None = None
        if config.domains:
            if first_counter is None:
                raise ConfigurationError(
                    "an endpoint with secure domains needs first_counter: 0 for keys that were"
                    " never sent with, else a number beyond every counter used with them"
                )
            from uet.tss.record import SecureDomains  # with its library of ciphers

            self.domains = SecureDomains(config.domains, self.counts, first_counter=first_counter)
        encapsulation = Encapsulation(
            address=config.address,
            mac=config.mac,
            native=config.native,
            protocol=config.ip_protocol,
            udp_port=config.udp_port,
            crc=config.crc,
            ttl=config.ttl,
        )
        self._encapsulation = encapsulation
        self.full_size = (
            config.payload_mtu
            + _HEADERS
            + encapsulation.overhead
            + NOMINAL_OVERHEAD
            + (CRC_SIZE if config.crc else 0)
            + max((records.overhead for records in self.domains or ()), default=0)
        )
        self._congestion = config.congestion(self.full_size)
        self._began = self.time.now
        self._peer_seed = rng.getrandbits(_SEED_BITS)
        self.ports = Ports(config.ports)
        self.credits = CreditGranter(self._congestion.granting, self.full_size)
        self.peers = Peers(self._meet)
        self._named: dict[str, Peer] = {}  # those met, by address as the configuration spells it
        self.peers.expect(config.neighbours, encapsulation)
        self.memory = MemoryTable(region_bits=config.region_bits)
        facilities = Facilities(
            config=config,
            memory=self.memory,
            complete=self._completions.append,
            counters=self.counts,
            rng=rng,
            time=self.time,
        )
        self.initiator = Initiator(facilities, self)
        self.target = Target(facilities, self.initiator)
        self.semantics: Semantics = self
        self.deliver = self.target.deliver
        self.deliver_data = self.initiator.deliver_data
        self.table: PdcTable = PdcTable(self, rng)
        self.secure = SecureStarts(config, self.counts, rng, self.time)
        self.connectionless = ConnectionlessPds(
            config, self, self.counts, rng, self.ports, self.time
        )
        self._arrivals = FepArrivals(self, encapsulation)
        self.scheduler = PdcScheduler(self.full_size)
        self._short = config.second_pdc_packets
        self._closing = False
        self._quiesced = False
        self._connectionless_used = False
        self.retry_at: int | None = None  # when to try again to give a request a PDC

    # -- the application's side ----------------------------------------------------------------

    def add_peer(self, address: str, mac: str) -> None:
        """Learn how to reach ``address``; ``ValueError`` if that cannot be."""
        peer = self._peer_at(address, mac, self.time.now)
        self.peers[peer.key] = peer

    def _meet(self, address: str, mac: str) -> Peer:
        """Make a configured neighbour, as it would be if it had been there from the start."""
        return self._peer_at(address, mac, self._began)

    def _peer_at(self, address: str, mac: str, began: int) -> Peer:
        """Make a peer whose congestion control began at that time.

        What is drawn for it depends on the seed and its address only, not on traffic to others.
        """
        domains = {records.domain.sdi: records for records in self.domains or ()}
        envelope = PeerEnvelope(self._encapsulation, address, mac)
        rng = random.Random(int(ip_of(address)) << _SEED_BITS | self._peer_seed)
        congestion = self._congestion.open(rng, began, ports=self.ports)
        peer = Peer(address, envelope, congestion, domains)
        self._named[address] = peer
        return peer

    def register(
        self, memory: memoryview, *, key: int, writable: bool = True, readable: bool = True
    ) -> None:
        """Let peers of the job reach ``memory``; ``MemoryRegionError`` for a bad key."""
        self.memory.register(
            RegisteredRegion(
                memory=memory,
                key=key,
                writable=writable,
                readable=readable,
                job_id=self.config.job_id,
            )
        )

    def unregister(self, key: int) -> None:
        """Let nobody reach the region any more; ``MemoryRegionError`` if there is none."""
        self.memory.unregister(key)
        self.target.withdraw(key)

    def add_resource(self, address: Address) -> None:
        """Another process or resource index of this endpoint, beside the configured one."""
        self.target.add_resource(address)

    def post(self, request: Request) -> None:
        """Queue a request; ``MessageError`` for one that could never be carried out."""
        if self._closing:
            raise MessageError("the endpoint is closing and takes no more requests")
        peer = self._peer(request.peer)
        if peer is None:
            raise MessageError(f"{request.peer} is not among the configured neighbours")
        if peer.address != request.peer:  # IPv6 has several spellings
            request = replace(request, peer=peer.address)
        self.initiator.post(request)

    def _peer(self, address: str) -> Peer | None:
        """The neighbour with this address, however that is spelled."""
        if address in self._named:
            return self._named[address]
        try:
            return self.peers.meet(ip_of(address).packed)
        except ValueError:
            return None

    def post_receive(self, receive: ReceiveRequest) -> None:
        """Offer memory for a message; ``MessageError`` for one that nothing could match."""
        peer = None if receive.peer is None else self._peer(receive.peer)
        if peer is not None and peer.address != receive.peer:
            receive = replace(receive, peer=peer.address)
        self.target.post_receive(receive)

    def watch_receives(self, watcher: Watcher) -> None:
        """Notify ``watcher`` of what happens to posted receives."""
        self.target.watch_receives(watcher)

    def guard_writes(self, guard: Guard) -> None:
        """Let ``guard`` decide at the start of each write where its octets go."""
        self.target.guard_writes(guard)

    def divert(self, peer: str, key: int) -> None:
        """Accept what ``peer`` writes under ``key`` and discard it."""
        pdcs = {pdc.id for pdc in self.table.by_id.values() if pdc.address == peer}
        self.target.divert(key, pdcs)

    def withdraw_receive(self, context: object) -> None:
        """Take a posted receive back without a completion."""
        self.target.withdraw_receive(context)

    def abandon(self, error: str, peer: str | None = None) -> None:
        """End all requests here, or those of ``peer``, with ``error`` at once: the path is dead."""
        for pdc in list(self.table.by_id.values()):
            if pdc.initiator and peer in (None, pdc.address):
                pdc.fail(error, self.time.now, notify=False)
        self.initiator.abandon(error, peer)

    def completions(self) -> list[Completion]:
        """Completions since the last call."""
        if not self._completions:
            return []
        done = self._completions[:]
        self._completions.clear()
        return done

    def probe(self, peer: str) -> bool:
        """Send a PROBE on an open PDC to ``peer``; whether there is one (UES 3.5.16)."""
        for pdc in self.table.by_id.values():
            if pdc.initiator and pdc.address == peer and pdc.peer_id:
                try:
                    self.control.append(pdc.probe(self.time.now))
                except SealError:
                    return False
                return True
        return False

    def open_pdc(self, peer: str, *, ordered: bool = False, negotiate: bool = False) -> Pdc | None:
        """Make a PDC without a request, by NOOP or NEGOTIATION; return it if there was room."""
        kind = ControlType.NEGOTIATION if negotiate else ControlType.NOOP
        pdc = self.table.initiator(
            self.peers[ip_of(peer).packed], self.time.now, ordered=ordered, sdi=self.config.sdi
        )
        if pdc is None or pdc.source.is_full:
            return None
        try:
            self.control.append(pdc.source.send_control(kind, self.time.now))
        except SealError as error:
            pdc.fail(error.reason.upper(), self.time.now, notify=False)
            return None
        self.scheduler.wake(pdc)
        return pdc

    def close(self) -> None:
        """Finish what was posted, then close every PDC initiated here, with its handshake."""
        self._closing = True
        if not self.initiator.open_messages and self.connectionless.idle:
            self.table.quiesce()
            self._quiesced = True  # until another PDC is made

    @property
    def closed(self) -> bool:
        """Return whether nothing of this endpoint is open.

        Peers may still need answers.
        """
        return (
            self._closing
            and not self.initiator.open_messages
            and not self.table.open_initiators
            and self.connectionless.idle
        )

    def counters(self) -> Mapping[str, int]:
        """Counters by name."""
        return {**self.counts, "pdcs_open": len(self.table)}

    # -- what leaves and arrives ---------------------------------------------------------------

    def transmit(self, now: int, limit: int) -> list[Frame]:
        """Every answer that is due, then at most ``limit`` more frames, PDCs in turn."""
        time = self.time
        time.now = now
        if time.earliest <= now:
            self._run_timers(now)
        if self.credits.asked:
            self.credits.transmit(self.control, now)
        if self.retry_at is not None:
            self._retry(now)
        if self._closing and not self._quiesced:
            self.close()
        out: list[Frame] = []
        if self.control:
            out += self.control
            self.control.clear()
            limit += len(out)
        if self._connectionless_used and not self.connectionless.idle:
            self.connectionless.transmit(out, now, limit)
        self.scheduler.serve(out, now, limit)
        while self.retry_at is not None and self.retry_at <= now:
            # A PDC has failed just now: what it had not sent leaves on another one.
            self._retry(now)
            self.scheduler.serve(out, now, limit)
        return out

    def _run_timers(self, now: int) -> None:
        """The timers of SES, and those of secured PDCs that are half open."""
        for side in (self.initiator, self.target):
            due = side.next_deadline()
            if due is not None and due <= now:
                side.on_timer(now)
        self.secure.expire(now)
        self.time.review()

    def _retry(self, now: int) -> None:
        """Give those a PDC that wait for one, or make room."""
        self.retry_at = None
        self.initiator.start_waiting()
        if self._must_retry():  # compiled code takes a checked attribute for None for good
            for pdc in self.table.reclaim(now):
                self.scheduler.wake(pdc)
            self.retry_at = now + self.config.close_req_time

    def _must_retry(self) -> bool:
        return self.retry_at is not None

    def use_ports(self, working: Sequence[int]) -> None:
        """Ports numbered ``working`` take frames now: no new packet has an EV of another one."""
        self.ports.use(working)

    def next_deadline(self) -> int | None:
        """The earliest timer (ns)."""
        time, scheduler = self.time, self.scheduler
        earliest = time.review() if time.is_stale else time.earliest
        if scheduler.woken or scheduler.timers:
            due = scheduler.next_deadline()
            if due is not None and due < earliest:
                earliest = due
        if self.retry_at is not None and self.retry_at < earliest:
            earliest = self.retry_at
        if self.credits.asked:
            due = self.credits.next_deadline()
            if due is not None and due < earliest:
                earliest = due
        return earliest if earliest < NEVER else None

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take whole Ethernet frames.  What is not for this endpoint, or hostile, is counted."""
        self.time.now = now
        arrivals = self._arrivals
        for frame in frames:
            try:
                arrivals.receive(frame, now)
            except SealError:
                continue  # counted: its answer must not leave without a fresh counter

    def contain_error(self, *, sending: bool) -> bool:
        """Count an error of this stack and end the PDC that it was for; whether it can go on.

        That is the PDC of the newest frame, or, ``sending``, the one whose turn it was; an error of
        no PDC would come again.
        """
        self.counts["internal_error"] += 1
        pdc, self.scheduler.raised = self.scheduler.raised if sending else self._arrivals.pdc, None
        if pdc is not None and pdc.state is not PdcState.CLOSED:
            pdc.fail("INTERNAL_ERROR", self.time.now, notify=False)
        return pdc is not None or not sending

    # -- what SES calls of PDS -----------------------------------------------------------------

    def carry(self, message: Outbound, peer: str, delivery: str) -> Context | None:
        """Queue a message on a PDC of its kind, or without one (:class:`Carrier`)."""
        to = self._named[peer]
        if delivery in ("rudi", "uud"):
            self._connectionless_used = True
            return self.connectionless.post(message, to, reliable=delivery == "rudi")
        ordered = delivery == "rod"
        pdc = self.table.initiator(to, self.time.now, ordered=ordered, sdi=self.config.sdi)
        if pdc is None:
            self.counts["post_waits_for_pdc"] += 1
            if self.retry_at is None:
                self.retry_at = self.time.now
            return None
        if message.packets <= self._short and not ordered and pdc.source.messages.long_unsent:
            pdc = self.table.second(pdc, self.time.now) or pdc
        self._quiesced = False
        pdc.post(message)
        return pdc

    # -- what PDS calls of SES -----------------------------------------------------------------

    def message_end(self, pdc: Context, message: Outbound, now: int) -> None:
        if isinstance(message, ReturnData):
            self.target.message_end(pdc, message, now)
        else:
            self.initiator.message_end(pdc, message, now)

    def message_unsent(self, message: Outbound) -> None:
        if not isinstance(message, ReturnData):  # data for a PDC that is gone goes nowhere
            self.initiator.message_unsent(message)
            self.retry_at = self.time.now

    def pdc_closed(self, pdc: Context) -> None:
        self.initiator.pdc_closed(pdc)
        self.target.forget(pdc.id)

    # -- what PDCs call of their endpoint ------------------------------------------------------

    def activate(self, pdc: Pdc) -> None:
        """Note that ``pdc`` has, or may have, something to send."""
        self.scheduler.wake(pdc)

    def pdc_changed(self, pdc: Pdc) -> None:
        self.scheduler.wake(pdc)
        if pdc.state is PdcState.CLOSED:
            if not pdc.initiator:
                self.secure.ended(pdc.sdi, pdc.start_psn)
            self.table.remove(pdc, self.time.now)
            self.credits.forget(pdc)
            self.scheduler.forget(pdc)
            self.pdc_closed(pdc)

    def pdc_event(self, pdc: Pdc, name: str, **data: object) -> None:
        """Nobody watches."""

    def pressure(self) -> int:
        return self.target.pressure()
