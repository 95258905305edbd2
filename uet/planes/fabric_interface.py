"""The fabric interface (FI): the endpoints of one NIC, a fabric endpoint (FEP) in each plane.

::

                        +-- FEP 111 -- port of plane 1 -- FEP 122 --+
    requests --> FI ----+                                           +---- FI of the peer
                        +-- FEP 211 -- port of plane 2 -- FEP 222 --+

A FEP talks only to that of the peer in its own plane.  Which plane carries what is this library's
choice, and is that of libfabric's multi-rail provider and of NCCL with several NICs a GPU:

- a write or read of more than ``stripe_above`` octets is striped over all planes that work. Stripes
  are equal shares of whole packets, each a message of its own;
- whatever is shorter goes whole over the plane with the fewest octets unanswered;
- sends and atomic operations go whole, and so does all that is ordered, by one plane for each peer.

Posted receives are those of the interface: a message takes one by whichever plane it comes.

A plane dies at a carrier of the NIC's own (:meth:`FabricInterface.use_ports`), or towards one peer
by its silence (:mod:`uet.planes.liveness`), or when retransmission is exhausted.  New work leaves
it alone then.  Its unfinished writes and reads are issued again over another plane, once whatever
may still be on its way has arrived or is lost (``quarantine``).  A write that the target reports
has a number, by which it is placed and reported once (:mod:`uet.planes.numbered_writes`); other
writes are visible to nobody before they end.  Sends and atomic operations may have been carried
out: they keep a silent plane until retransmission is exhausted, and end with the error.  A NOOP
message probes a silent plane from time to time.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address

from uet.fep import FabricEndpoint
from uet.planes.liveness import COUNTERS as LIVENESS_COUNTERS
from uet.planes.liveness import Hearing, Liveness, PlaneProbe
from uet.planes.numbered_writes import COUNTERS as WRITE_COUNTERS
from uet.planes.numbered_writes import (
    MOST_STRIPES,
    NUMBER_BITS,
    ArrivedWrites,
    DividedWork,
    Label,
    Numbers,
    WorkPart,
    is_plain,
    size_of,
    stripes,
)
from uet.planes.plane import InterfaceConfig, Plane, Sharing
from uet.ses.initiator.initiator import MessageError
from uet.ses.memory.registered_memory import MemoryRegionError
from uet.transport import (
    Completion,
    Frame,
    NoOperationRequest,
    ReadRequest,
    ReceiveRequest,
    Request,
    WriteRequest,
)


class SharedReceive:
    """A posted receive: the first message that takes it, at any endpoint, has it.

    ``at`` are the endpoints where it is queued, by number.
    """

    __slots__ = ("at", "receive", "was_taken")

    def __init__(self, receive: ReceiveRequest) -> None:
        self.receive = receive
        self.at: set[int] = set()
        self.was_taken = False


class _Watch:
    """The events of receives at one endpoint (:class:`uet.ses.matching.Watcher`)."""

    __slots__ = ("_place", "_receives")

    def __init__(self, receives: SharedReceives, place: int) -> None:
        self._receives, self._place = receives, place

    def queued(self, context: object) -> None:
        if isinstance(context, SharedReceive):
            self._receives.queued(context, self._place)

    def taken(self, context: object) -> None:
        if isinstance(context, SharedReceive):
            self._receives.taken(context, self._place)


class SharedReceives:
    """The receives of ``feps``; ``address_at`` gives a peer's address at an endpoint."""

    def __init__(
        self, feps: Sequence[FabricEndpoint], address_at: Callable[[str, int], str]
    ) -> None:
        self._feps = feps
        self._address_at = address_at
        for place, fep in enumerate(feps):
            fep.watch_receives(_Watch(self, place))

    def post(self, receive: ReceiveRequest) -> None:
        """Offer memory for a message; ``MessageError`` for one that nothing could match."""
        if receive.least_space is not None:
            raise MessageError(
                "a fabric interface has no multi-receives, which several planes would fill at "
                "once; post a receive for each message"
            )
        self._offer(SharedReceive(receive), range(len(self._feps)))

    def _offer(self, shared: SharedReceive, places: Sequence[int]) -> None:
        """Queue a receive at ``places``, until a message that waits at one of them takes it."""
        receive = shared.receive
        for place in places:
            peer = None if receive.peer is None else self._address_at(receive.peer, place)
            self._feps[place].post_receive(replace(receive, peer=peer, context=shared))
            if place not in shared.at:
                return

    def queued(self, shared: SharedReceive, place: int) -> None:
        """A receive waits at ``place``; if a message gave it back, then soon at the others, too."""
        is_back = shared.was_taken and not shared.at
        shared.at.add(place)
        if is_back:
            shared.was_taken = False
            self._offer(shared, [each for each in range(len(self._feps)) if each != place])

    def taken(self, shared: SharedReceive, place: int) -> None:
        """A message has taken a receive at ``place``: it is there for no other."""
        others = shared.at - {place}
        shared.at.clear()
        shared.was_taken = True
        for other in others:
            self._feps[other].withdraw_receive(shared)


PORT_DOWN = "PORT_DOWN"
_SILENT = "RTO_RETRIES_EXHAUSTED"
#: Ends of a PDC that report nothing about the request that it carried.
_OF_THE_WAY = frozenset(
    {
        PORT_DOWN,
        _SILENT,
        "NACK_RETRIES_EXHAUSTED",
        "PDC_CLOSED",
        "INV_DPDCID",
        "PDC_HDR_MISMATCH",
        "CLOSING",
        "CLOSING_IN_ERR",
    }
)
#: A part is given up after so many failures for each plane.
_TRIES = 3
COUNTERS = ("tx_messages_striped", "tx_messages_issued_again")
_Route = tuple[str, ...]
_Place = tuple[str, int]  # a peer in a plane
_ALIVE = object()  # context of a NOOP message that only probes whether a peer lives


class FabricInterface:
    """The FEPs of one NIC behind one face (:class:`uet.transport.Transport`).

    ``feps`` are named, in the order of planes; each has its peers' FEPs in its own plane.  Peers
    are addressed by the first of their addresses, and named so in completions.
    """

    def __init__(
        self, feps: Sequence[tuple[str, FabricEndpoint]], config: InterfaceConfig, *, seed: int
    ) -> None:
        if not 2 <= len(feps) <= MOST_STRIPES:
            raise ValueError(f"a fabric interface has 2 to {MOST_STRIPES} endpoints")
        rng = random.Random(seed)
        self.now = 0
        self.counts: Counter[str] = Counter(
            dict.fromkeys((*COUNTERS, *WRITE_COUNTERS, *LIVENESS_COUNTERS), 0)
        )
        self.planes = tuple(
            Plane(name, fep, self, is_first=not place) for place, (name, fep) in enumerate(feps)
        )
        self._feps = [fep for _, fep in feps]
        self._config = config
        self._unit = min(fep.config.payload_mtu for fep in self._feps)
        self._delivery = self._feps[0].config.delivery
        self._by_address = {
            ip_address(fep.config.address).packed: place for place, fep in enumerate(self._feps)
        }
        self._routes: dict[str, _Route] = {}
        for route in config.peers:
            if len(route) != len(feps):
                raise ValueError(f"{route[0]} has {len(route)} addresses for {len(feps)} planes")
            self._routes[route[0]] = route
        self._names = {address: route[0] for route in config.peers for address in route}
        self._numbers = {peer: Numbers(rng.getrandbits(NUMBER_BITS)) for peer in self._routes}
        self._waiting: dict[str, deque[DividedWork]] = {}  # for a number
        self._liveness = Liveness(len(feps), self.counts, self._at, time_limit=config.time_limit)
        self.hearing = Hearing(self._routes, after=config.silence)
        self._writes = ArrivedWrites(self._feps, self._routes, self.counts)
        self._receives = SharedReceives(self._feps, self._address_at)
        self._sharing = Sharing(len(feps))
        self._serial = 0
        self._open: set[DividedWork] = set()
        # What is to be done at a time: by that, and in the order of posting.
        self._later: list[tuple[int, int, int, WorkPart | PlaneProbe | _Place | str]] = []
        self._sequence = 0
        self._held_until: dict[str, int] = {}  # what is ordered, by peer
        self._done: list[Completion] = []
        self._closing = False

    # -- the application's side ----------------------------------------------------------------

    def register(
        self, memory: memoryview, *, key: int, writable: bool = True, readable: bool = True
    ) -> None:
        """Let peers reach ``memory`` by every plane; ``MemoryRegionError`` for a bad key."""
        if not is_plain(key):
            raise MemoryRegionError(
                f"memory key {key:#x}: bits 24 to 55 are the fabric interface's own; take fewer"
            )
        for fep in self._feps:
            fep.register(memory, key=key, writable=writable, readable=readable)

    def unregister(self, key: int) -> None:
        """Let nobody reach the region any more; ``MemoryRegionError`` if there is none."""
        for fep in self._feps:
            fep.unregister(key)

    def post(self, request: Request) -> None:
        """Queue a request; ``MessageError`` for one that could never be carried out."""
        if self._closing:
            raise MessageError("the endpoint is closing and takes no more requests")
        peer = self._names.get(request.peer)
        if peer is None:
            raise MessageError(f"{request.peer} is not among the configured peers")
        if peer != request.peer:
            request = replace(request, peer=peer)
        if isinstance(request, WriteRequest | ReadRequest) and not is_plain(request.key):
            raise MessageError(
                f"memory key {request.key:#x}: bits 24 to 55 are the fabric interface's own"
            )
        self._serial += 1
        work = DividedWork(request, self._serial)
        waiting = self._waiting.get(peer)
        if waiting:
            self._open.add(work)
            waiting.append(work)
            return
        if self._is_numbered(request):
            work.number = self._numbers[peer].take()
            if work.number is None:
                self._open.add(work)
                self._waiting[peer] = deque([work])
                return
        self._start(work)

    def _is_numbered(self, request: Request) -> bool:
        return (
            isinstance(request, WriteRequest)
            and request.header_data is not None
            and (request.delivery or self._delivery) in ("rud", "rod")
        )

    def _start(self, work: DividedWork) -> None:
        """Give every part of ``work`` to a plane."""
        request = work.request
        delivery = request.delivery or self._delivery
        usable = self._liveness.usable(request.peer)
        length = size_of(request)
        shares = [(0, length)]
        if (
            len(usable) > 1
            and length > self._config.stripe_above
            and delivery == "rud"
            and isinstance(request, WriteRequest | ReadRequest)
            and self._is_safe(request)
        ):
            shares = list(stripes(length, len(usable), self._unit))
        count = len(shares)
        parts = [
            WorkPart(
                work,
                start,
                own,
                None if work.number is None else Label(work.number, place, count),
                is_whole=count == 1,
            )
            for place, (start, own) in enumerate(shares)
        ]
        work.left = count
        self._open.add(work)
        try:
            if delivery == "rod" and self._held_until.get(request.peer, -1) >= self.now:
                self._at(self._held_until[request.peer], parts[0])  # behind what is issued again
            elif count == 1:
                self._issue(parts[0], self._sharing.choose(request.peer, delivery, usable))
            else:
                self.counts["tx_messages_striped"] += 1
                for part, plane in zip(parts, usable, strict=False):
                    self._issue(part, plane)
        except ValueError:  # the first part shows what is wrong with all
            self._forget(work)
            raise

    def _issue(self, part: WorkPart, plane: int) -> None:
        work = part.work
        self._feps[plane].post(part.request(self._routes[work.request.peer][plane]))
        part.plane = plane
        self._sharing.begin(plane, part.length)
        peer, is_final = work.request.peer, not self._is_safe(work.request)
        if self.hearing.opened(peer, plane, self.now, is_final=is_final):
            self._at(self.now + self.hearing.after, (peer, plane))

    def post_receive(self, receive: ReceiveRequest) -> None:
        """Offer memory for a message; ``MessageError`` for one that nothing could match."""
        self._receives.post(receive)

    def completions(self) -> list[Completion]:
        """Completions since the last call."""
        for completion in self._of_feps():
            context = completion.context
            if isinstance(context, WorkPart):
                self._ended(context, completion)
            elif isinstance(context, PlaneProbe):
                if completion.error is None:
                    self._liveness.heard(context.peer, context.plane)
                else:
                    self._liveness.unanswered(context, self.now)
            elif completion.kind == "remote_write":
                self._done += self._writes.placed(completion)
            elif context is not _ALIVE:
                if isinstance(context, SharedReceive):
                    context = context.receive.context
                peer = self._names.get(completion.peer, completion.peer)
                self._done.append(completion._replace(peer=peer, context=context))
        if not self._done:
            return []
        done = self._done
        self._done = []
        return done

    def _of_feps(self) -> Iterator[Completion]:
        """Yield the completions of all FEPs; handling one may bring others."""
        for fep in self._feps:
            while found := fep.completions():
                yield from found

    # -- how work ends -------------------------------------------------------------------------

    def _ended(self, part: WorkPart, completion: Completion) -> None:
        work, plane = part.work, part.plane
        self._sharing.end(plane, part.length)
        error = completion.error
        peer = work.request.peer
        self.hearing.ended(peer, plane, is_final=not self._is_safe(work.request))
        if error is None:
            self._liveness.heard(peer, plane)
            work.moved += completion.length
            work.kind = completion.kind
        elif error == _SILENT:
            self._give_up(peer, plane)
        if (
            error in _OF_THE_WAY
            and work.error is None
            and self._is_safe(work.request)
            and part.failures < _TRIES * len(self._feps)
        ):
            part.failures += error != PORT_DOWN  # which is no evidence against the peer
            part.is_again = True
            due = self.now + self._config.quarantine
            self._held_until[peer] = due
            self._at(due, part)
            return
        self._end(part, error)

    def _end(self, part: WorkPart, error: str | None) -> None:
        work = part.work
        work.error = work.error or error
        work.left -= 1
        if not work.left:
            self._finish(work)

    def _is_safe(self, request: Request) -> bool:
        """Return whether it may be issued twice.

        An ordered write without header data may not: a write behind it may have announced it to the
        target.
        """
        delivery = request.delivery or self._delivery
        if delivery not in ("rud", "rod"):
            return False
        if isinstance(request, WriteRequest):
            reported = request.header_data is not None
            return request.synchronise is None and (reported or delivery == "rud")
        return isinstance(request, ReadRequest | NoOperationRequest)

    def _finish(self, work: DividedWork) -> None:
        self._forget(work)
        request = work.request
        self._done.append(
            Completion(
                kind=work.kind or request.kind,
                peer=request.peer,
                length=work.moved,
                context=request.context,
                error=work.error,
            )
        )

    def _forget(self, work: DividedWork) -> None:
        self._open.discard(work)
        if work.number is not None:
            peer = work.request.peer
            self._numbers[peer].give_back(work.number)
            if peer in self._waiting:
                self._at(self.now, peer)

    def _start_waiting(self, peer: str) -> None:
        """Numbers have become free."""
        waiting = self._waiting.get(peer)
        while waiting:
            work = waiting[0]
            if self._is_numbered(work.request):
                work.number = self._numbers[peer].take()
                if work.number is None:
                    return
            waiting.popleft()
            try:
                self._start(work)
            except ValueError as error:
                work.error = str(error)
                self._finish(work)
        self._waiting.pop(peer, None)

    # -- planes that die and come back ---------------------------------------------------------

    def use_ports(self, working: Sequence[int]) -> None:
        """Planes numbered ``working`` have carrier at the NIC, from the next turn on."""
        self._liveness.announced = tuple(sorted(working))

    def _ask(self, probe: PlaneProbe) -> None:
        """Send a NOOP message, unless that is of no use any more."""
        if self._liveness.wants(probe) and not self._closing:
            address = self._address_at(probe.peer, probe.plane)
            self._feps[probe.plane].post(NoOperationRequest(peer=address, context=probe))

    def _give_up(self, peer: str, plane: int) -> None:
        """Nobody answers there: what waits would each wait for as long."""
        if self._liveness.lost(peer, plane, self.now):
            self._feps[plane].abandon(_SILENT, self._address_at(peer, plane))

    def _look(self, peer: str, plane: int) -> None:
        """Give ``plane`` up if ``peer`` is silent there and not elsewhere."""
        when = self.hearing.look(peer, plane, self.now)
        others = [each for each in self._liveness.usable(peer) if each != plane]
        if when == self.now and self.hearing.is_heard_since(peer, plane, others):
            self._give_up(peer, plane)
        elif when == self.now and others and not self._closing:
            address = self._address_at(peer, others[0])
            self._feps[others[0]].post(NoOperationRequest(peer=address, context=_ALIVE))
        if when is not None:
            self._at(when if when > self.now else self.now + self.hearing.after, (peer, plane))

    def _address_at(self, peer: str, plane: int) -> str:
        route = self._routes.get(self._names.get(peer, peer))
        return peer if route is None else route[plane]

    def _again(self, part: WorkPart) -> None:
        """Issue a part over another plane than the one that has failed, if there is any."""
        work = part.work
        if work.error is not None:  # another part of it has failed for good
            self._end(part, None)
            return
        peer = work.request.peer
        usable = self._liveness.usable(peer)
        others = [plane for plane in usable if plane != part.plane]
        delivery = work.request.delivery or self._delivery
        if part.is_again:
            self.counts["tx_messages_issued_again"] += 1
        self._issue(part, self._sharing.choose(peer, delivery, others or usable))

    # -- time ----------------------------------------------------------------------------------

    def _at(self, when: int, what: WorkPart | PlaneProbe | _Place | str) -> None:
        self._sequence += 1
        serial = what.work.serial if isinstance(what, WorkPart) else 0
        heapq.heappush(self._later, (when, serial, self._sequence, what))

    @property
    def due(self) -> int | None:
        """Return when :meth:`run_timers` has something to do (ns), or ``None``."""
        if self._liveness.has_news:
            return self.now
        return self._later[0][0] if self._later else None

    def run_timers(self) -> None:
        """Whatever is due."""
        if self._liveness.has_news:
            for plane in self._liveness.settle(self.now):
                self._feps[plane].abandon(PORT_DOWN)
        while self._later and self._later[0][0] <= self.now:
            what = heapq.heappop(self._later)[-1]
            if isinstance(what, WorkPart):
                self._again(what)
            elif isinstance(what, PlaneProbe):
                self._ask(what)
            elif isinstance(what, tuple):
                self._look(*what)
            else:
                self._start_waiting(what)
        if self._closing and not self._open:
            for fep in self._feps:
                fep.close()

    def next_deadline(self) -> int | None:
        """The earliest timer of any plane (ns)."""
        return min((d for p in self.planes if (d := p.next_deadline()) is not None), default=None)

    # -- frames, for who has no port for each plane --------------------------------------------

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take whole Ethernet frames, each for the FEP whose address it has."""
        self.now = now
        sorted_out: dict[int, list[memoryview]] = {}
        for frame in frames:
            four = len(frame) > 14 and frame[14] >> 4 == 4
            address = bytes(frame[30:34] if four else frame[38:54])
            sorted_out.setdefault(self._by_address.get(address, 0), []).append(frame)
        for plane, own in sorted_out.items():
            self.planes[plane].receive(own, now)

    def transmit(self, now: int, limit: int) -> list[Frame]:
        """Return what may leave by all planes.

        All answers, and at most ``limit`` frames more of each.
        """
        return [frame for plane in self.planes for frame in plane.transmit(now, limit)]

    # -- the end, and what was counted ---------------------------------------------------------

    def close(self) -> None:
        """Finish what was posted, then close every PDC."""
        self._closing = True

    @property
    def closed(self) -> bool:
        """Nothing of ours is open any more, but for what a plane without carrier keeps."""
        return (
            self._closing
            and not self._open
            and all(self._feps[plane].closed for plane in self._liveness.working)
        )

    def per_fep(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        """Name and counters of each FEP."""
        for plane in self.planes:
            yield plane.name, plane.fep.counters()

    def counters(self) -> Mapping[str, int]:
        """Return the counters of all FEPs added up, with the interface's own."""
        total = Counter(self.counts)
        for _, counts in self.per_fep():
            for name, count in counts.items():
                total[name] += count
        return dict(total)
