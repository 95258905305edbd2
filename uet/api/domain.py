"""One fabric endpoint (FEP) and what an application opens on it: ``fi_domain``, ``fi_mr``."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final

from uet.api.address_vector import AddressVector
from uet.api.completion_queue import CompletionQueue, Counter
from uet.api.driver import Driver, wait_until
from uet.api.endpoint import Endpoint, Posted, octets
from uet.api.flags import ApiError, EndpointType, Flag, Order
from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.ses.address import Address
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE, OPTIMIZED, MemoryRegionError
from uet.transport import Completion

_ACCESS: Final = Flag.REMOTE_READ | Flag.REMOTE_WRITE

#: Bits of the key proper, and of that of an optimized one (UES Table 2-13).
RKEY_BITS: Final = 48
OPTIMIZED_BITS: Final = 12
#: Bits 55..48, which are 0 in keys that a user requested: here 1 in those that are given out, so
#: that the two never collide.
_GIVEN_OUT: Final = 1 << RKEY_BITS


class MemoryKeys:
    """Gives out memory keys (UES Table 2-13), and forms those that users request."""

    def __init__(self) -> None:
        self._taken: set[int] = set()  # without bit 63
        self._next = {False: 1, True: 1}

    def take(self, requested: int | None, *, idempotent: bool, optimized: bool) -> int:
        """A 64-bit key; :class:`ApiError` if the one requested cannot be had."""
        bits = OPTIMIZED_BITS if optimized else RKEY_BITS
        if requested is None:
            key = self._find(bits, optimized)
        else:
            if not 0 <= requested < 1 << bits:
                raise ApiError(
                    f"requested_key is {requested:#x}; it must fit into {bits} bits, as the rest"
                    " of a memory key is flags"
                )
            key = requested | (OPTIMIZED if optimized else 0)
            if key in self._taken:
                raise ApiError(f"the memory key {requested:#x} is in use; request another one")
        self._taken.add(key)
        return key | (IDEMPOTENT_SAFE if idempotent else 0)

    def _find(self, bits: int, optimized: bool) -> int:
        for _ in range(1 << min(bits, OPTIMIZED_BITS)):
            number = self._next[optimized]
            self._next[optimized] = (number + 1) % (1 << bits)
            key = number | (OPTIMIZED if optimized else _GIVEN_OUT)
            if key not in self._taken:
                return key
        raise ApiError(
            f"all {1 << bits} optimized memory keys are in use; close a region, or register"
            " without optimized"
        )

    def give_back(self, key: int) -> None:
        """Give back a key that nobody uses any more."""
        self._taken.discard(key & ~IDEMPOTENT_SAFE)


class MemoryRegion:
    """Registered memory; made by :meth:`uet.api.Domain.mr_reg`.

    Peers count offsets from its start (no ``FI_MR_VIRT_ADDR``).  Completions with the data of
    remote writes go to the queue of ``endpoint``.
    """

    def __init__(
        self,
        domain: Domain,
        memory: memoryview,
        key: int,
        access: Flag,
        endpoint: Endpoint | None,
    ) -> None:
        self._domain = domain
        self.memory = memory
        #: what peers name it by: ``fi_mr_key``
        self.key = key
        self.access = access
        self.endpoint = endpoint

    @property
    def idempotent(self) -> bool:
        """Return whether it may be reached by RUDI."""
        return self.key & IDEMPOTENT_SAFE != 0

    @property
    def optimized(self) -> bool:
        """Return whether its key fits into a small request header."""
        return self.key & OPTIMIZED != 0

    def bind(self, endpoint: Endpoint) -> None:
        """Report remote writes to ``endpoint``: ``fi_mr_bind``."""
        self.endpoint = endpoint

    def close(self) -> None:
        """Let nobody reach it any more, and its key be used again: ``fi_close``."""
        self._domain.mr_close(self)


class Domain:
    """A FEP, driven by ``driver``: ``fi_domain``.

    ``config`` holds its addresses, profiles, parameters and secure domains.  The driver decides how
    it begins (:class:`uet.api.driver.Beginning`). On a real interface PDC ids and first PSNs come
    from the operating system, and packet counters from the clock. So no restart repeats any.

    >>> from uet.api import Domain, Flag
    >>> from uet.api.loopback import Loopback
    >>> from uet.config import FepConfig
    >>> wire = Loopback()
    >>> macs = {"10.0.0.1": "02:00:00:00:00:01", "10.0.0.2": "02:00:00:00:00:02"}
    >>> def domain(own, peer):
    ...     config = FepConfig(address=own, mac=macs[own], neighbours={peer: macs[peer]})
    ...     return Domain(config, wire)
    >>> a, b = domain("10.0.0.1", "10.0.0.2"), domain("10.0.0.2", "10.0.0.1")
    >>> ends = []
    >>> for each in (a, b):
    ...     endpoint, av, cq = each.endpoint(), each.av_open(), each.cq_open()
    ...     endpoint.bind(av)
    ...     endpoint.bind(cq, Flag.TRANSMIT | Flag.RECV)
    ...     endpoint.enable()
    ...     ends.append((endpoint, av, cq))
    >>> (sender, av, sent), (receiver, _, received) = ends
    >>> peer = av.insert(receiver.getname())
    >>> memory = bytearray(5)
    >>> receiver.recv(memory)
    >>> sender.send(b"hello", peer, context=7)
    >>> sent.wait()[0].op_context
    7
    >>> received.wait()[0].len, bytes(memory)
    (5, b'hello')
    >>> a.close(), b.close()
    (True, True)

    The first endpoint is the resource that ``config`` names; others need an address of their own.
    All raise :class:`ApiError`, or another ``ValueError``, for what cannot be.
    """

    def __init__(self, config: FepConfig, driver: Driver) -> None:
        self.config = config
        self.driver = driver
        begins = driver.beginning()
        self.fep = FabricEndpoint(
            config, seed=begins.seed, first_counter=begins.first_counter if config.domains else None
        )
        self.home: Final = Address(
            job_id=config.job_id,
            pid_on_fep=config.pid_on_fep,
            resource_index=config.resource_index,
            relative=config.relative,
        )
        self.fep.target.set_enabled(False, self.home)
        self._endpoints: dict[Address, Endpoint] = {}
        self._known: set[Address] = {self.home}
        self._keys = MemoryKeys()
        self._regions: dict[int, MemoryRegion] = {}
        driver.attach(self)

    # -- what is opened ------------------------------------------------------------------------

    def endpoint(
        self,
        type: EndpointType = EndpointType.RDM,
        *,
        address: Address | None = None,
        msg_order: Order = Order.NONE,
    ) -> Endpoint:
        """A resource index of a process: ``fi_endpoint``.

        ``address`` is its own, by default that of the configuration.  It uses ROD if ``msg_order``
        requests any ordering, else RUD.
        """
        place = self.home if address is None else address
        if place in self._endpoints:
            raise ApiError(f"{place} is open already; give another resource_index")
        if place not in self._known:
            self.fep.add_resource(place)
            self._known.add(place)
            self.fep.target.set_enabled(False, place)
        opened = self._endpoints[place] = Endpoint(self, place, type, msg_order)
        return opened

    def cq_open(self) -> CompletionQueue:
        """``fi_cq_open``."""
        return CompletionQueue(self)

    def cntr_open(self) -> Counter:
        """``fi_cntr_open``."""
        return Counter(self)

    def av_open(self) -> AddressVector:
        """``fi_av_open``."""
        return AddressVector(self.config.neighbours)

    def mr_reg(
        self,
        buf: object,
        access: Flag = _ACCESS,
        *,
        requested_key: int | None = None,
        idempotent: bool = False,
        optimized: bool = False,
        endpoint: Endpoint | None = None,
    ) -> MemoryRegion:
        """Let peers of the job reach ``buf``: ``fi_mr_reg``.

        ``access`` is :attr:`Flag.REMOTE_READ`, :attr:`Flag.REMOTE_WRITE` or both (an atomic
        operation writes, a fetching one also reads).  A ``requested_key`` has 48 bits; without
        one a key is given out, which never equals a requested one.  ``idempotent`` lets peers use
        RUDI; ``optimized`` makes a key of 12 bits that fits into a small header.

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> hex(b.domain.mr_reg(bytearray(64), Flag.REMOTE_READ, requested_key=0x99).key)
        '0x99'
        >>> hex(b.domain.mr_reg(bytearray(64), idempotent=True, optimized=True).key)
        '0xc000000000000001'
        >>> b.domain.mr_reg(bytearray(64), requested_key=0x99)
        Traceback (most recent call last):
        ...
        uet.api.flags.ApiError: the memory key 0x99 is in use; request another one
        """
        if not access & _ACCESS or access & ~_ACCESS:
            raise ApiError("access is REMOTE_READ, REMOTE_WRITE or both of them")
        key = self._keys.take(requested_key, idempotent=idempotent, optimized=optimized)
        try:
            memory = octets(buf)
            self.fep.register(
                memory,
                key=key,
                writable=Flag.REMOTE_WRITE in access,
                readable=Flag.REMOTE_READ in access,
            )
        except (ApiError, MemoryRegionError):
            self._keys.give_back(key)
            raise
        region = self._regions[key] = MemoryRegion(self, memory, key, access, endpoint)
        return region

    def mr_close(self, region: MemoryRegion) -> None:
        """Called by :meth:`MemoryRegion.close`."""
        if self._regions.get(region.key) is not region:
            raise ApiError(f"the region with key {region.key:#x} is closed already")
        self.fep.unregister(region.key)
        del self._regions[region.key]
        self._keys.give_back(region.key)

    # -- progress ------------------------------------------------------------------------------

    def dispatch(self) -> bool:
        """Hand what has ended to endpoints and their queues; whether anything has.

        The driver calls this after frames have moved.
        """
        completions = self.fep.completions()
        for completion in completions:
            posted = completion.context
            if isinstance(posted, Posted):
                posted.endpoint.completed(posted, completion)
            elif completion.kind == "remote_write":
                self._remote_write(completion)
        return bool(completions)

    def _remote_write(self, completion: Completion) -> None:
        region = None if completion.key is None else self._regions.get(completion.key)
        if region is None:  # closed meanwhile
            return
        endpoint = region.endpoint or self._endpoints.get(self.home)
        if endpoint is not None:
            endpoint.remotely_written(region, completion)

    def counters(self) -> Mapping[str, int]:
        """The FEP's counters by name: packets, retransmissions, drops and their reasons."""
        return self.fep.counters()

    # -- the end -------------------------------------------------------------------------------

    def forget(self, address: Address) -> None:
        """Forget a closed endpoint.  Called by :meth:`Endpoint.close`."""
        self._endpoints.pop(address, None)

    def close(self, timeout: int | None = None) -> bool:
        """Finish what was posted and close all PDCs: ``fi_close``.

        Whether that came to an end within ``timeout`` ns.  The driver serves the domain no more.
        """
        self.fep.close()
        done = wait_until(self.driver, lambda: self.fep.closed, timeout)
        self.driver.detach(self)
        return done

    def __enter__(self) -> Domain:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.driver.detach(self)
