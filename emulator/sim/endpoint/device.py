"""A real port under the API: what carries a domain's frames over an interface of this machine.

::

    device = Device("eth0")
    domain = Domain(device.config(["10.0.1.2"]), device)
    ...
    domain.close()

Fabric time is this machine's time (dilation 1).  One thread uses a device and its domain; only
:meth:`Device.interrupt` may come from another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from emulator.dataplane.clock import Clock
from emulator.errors import UserError
from emulator.sim.endpoint.endpoint_fitting import REAL_TIME, frames_of, payload_for
from emulator.sim.endpoint.first_counter import first_counter
from emulator.sim.endpoint.nic.interface import interface as facts_of
from emulator.sim.endpoint.nic.interface import mac_of
from emulator.sim.endpoint.nic.raw_port import RawPort
from uet.api.domain import Domain
from uet.api.driver import Beginning
from uet.config import FepConfig

_RECEIVE_BATCH = 64


class Device:
    """The interface ``interface`` of the current network namespace: a :class:`uet.api.Driver`.

    It serves one domain, which must be made in the same namespace.  Frames of the transport are
    kept from the kernel's own stack while the domain is open (see
    :mod:`emulator.dataplane.kernel.scoped_icmp_guard`).  Raises :class:`UserError` if there is no
    such interface.
    """

    def __init__(self, interface: str, *, clock: Clock | None = None) -> None:
        self.interface = interface
        self._facts = facts = facts_of(interface)
        #: as the kernel has them; ``address`` is ``None`` without a global one
        self.mac, self.mtu = facts.mac, facts.mtu
        lasting = (at for at in facts.addresses if not at.is_link_local and not at.is_loopback)
        self.address = next(map(str, lasting), None)
        self._clock = Clock.start(1) if clock is None else clock
        self._domain: Domain | None = None
        self._port: RawPort | None = None
        self._interrupt = -1

    def config(self, peers: Iterable[str] | Mapping[str, str], **parameters: object) -> FepConfig:
        """A configuration that fits this port.

        ``peers`` maps the fabric addresses of peers to the MACs that reach them, or lists only the
        addresses: then the kernel's routes and neighbours give the MACs (:class:`UserError` if they
        do not).  ``parameters`` are those of :class:`uet.config.FepConfig`; what is left out is
        taken from the port. Times are those of ``REAL_TIME`` in
        :mod:`emulator.sim.endpoint.endpoint_fitting`, for example an initial retransmission timeout
        of 100 ms, since software is slower than the specification supposes.
        """
        address = parameters.get("address", self.address)
        if address is None:
            raise UserError(f"{self.interface} has no IP address; assign one with `ip address add`")
        neighbours = dict(peers) if isinstance(peers, Mapping) else self.neighbours(peers)
        settings = {
            **REAL_TIME,
            "address": address,
            "mac": self.mac,
            "neighbours": neighbours,
            **parameters,
        }
        if "payload_mtu" not in settings:
            settings["payload_mtu"] = payload_for(
                self.mtu,
                version=ip_address(str(address)).version,
                native=bool(parameters.get("native")),
                crc=bool(parameters.get("crc")),
                secure=bool(parameters.get("domains")),
                requested=None,
            )
        return FepConfig(**settings)  # type: ignore[arg-type]

    def neighbours(self, peers: Iterable[str]) -> dict[str, str]:
        """Return the MAC address that reaches each peer; the kernel resolves those it lacks."""
        return {peer: mac_of(self._facts, peer) for peer in peers}

    # -- the driver ----------------------------------------------------------------------------

    def beginning(self) -> Beginning:
        """Begin unlike every earlier domain at this address, in any process."""
        return Beginning(first_counter=first_counter())

    @property
    def now(self) -> int:
        """Time in ns since the device was made."""
        return self._clock.now()

    def attach(self, domain: Domain) -> None:
        """Open the port for ``domain``.  Raises :class:`UserError` if that cannot be."""
        config = domain.config
        if self._domain is not None:
            raise UserError(f"{self.interface} serves a domain already; close it first")
        if config.mac.lower() != self.mac.lower():
            raise UserError(
                f"the domain's MAC address is {config.mac}, but that of {self.interface} is"
                f" {self.mac}; take the configuration from Device.config"
            )
        self._port = RawPort(self._facts, frames_of(config), self._clock)
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._domain = domain

    def detach(self, domain: Domain) -> None:
        """Close the port."""
        if domain is not self._domain or self._port is None:
            return
        self._domain = None
        self._port.close()
        self._port = None
        os.close(self._interrupt)
        self._interrupt = -1

    def poll(self) -> bool:
        """Return what can be done without waiting; whether that was anything."""
        return self._turn(self._clock.now())

    def progress(self, timeout: int | None) -> bool:
        """Sleep until frames, timers or room to send give something to do, and do it.

        True after :meth:`interrupt` too, False after ``timeout`` ns.  A signal handler that
        raises (Ctrl-C) ends the wait at once.
        """
        domain, port = self._opened()
        clock = self._clock
        end = None if timeout is None else clock.now() + timeout
        while True:
            if self._turn(clock.now()):
                return True
            now = clock.now()
            if end is not None and now >= end:
                return False
            if port.wait(now, domain.fep.next_deadline(), end, self._interrupt):
                os.eventfd_read(self._interrupt)
                return True

    def interrupt(self) -> None:
        """Make :meth:`progress` return, now or the next time; from any thread."""
        if self._interrupt >= 0:
            os.eventfd_write(self._interrupt, 1)

    def counters(self) -> dict[str, int]:
        """Frames, octets and drops of the port (see :meth:`Nic.counters`)."""
        return self._opened()[1].nic.counters()

    def _turn(self, now: int) -> bool:
        """A bounded share of everything; whether there was something to do."""
        domain, port = self._opened()
        nic = port.nic
        frames = nic.receive(now, _RECEIVE_BATCH)
        if frames:
            domain.fep.receive(frames, now)
        out = domain.fep.transmit(now, nic.room())
        sent = port.send(out) if out or nic.backlog else 0
        return domain.dispatch() or sent > 0 or bool(frames)

    def _opened(self) -> tuple[Domain, RawPort]:
        if self._domain is None or self._port is None:
            raise UserError(f"no domain is open on {self.interface}; make one with this device")
        return self._domain, self._port
