"""A real port under the API: what carries a domain's frames over an interface of this machine.

::

    device = Device("eth0")
    domain = Domain(device.config(["10.0.1.2"]), device, seed=1)
    ...
    domain.close()

Fabric time is this machine's time (dilation 1).  One thread uses a device and its domain; only
:meth:`Device.interrupt` may come from another.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from pyroute2 import IPRoute, NetlinkError

from emulator.endpoint.clock import Clock
from emulator.endpoint.frame_filter import TransportFrames
from emulator.endpoint.nic import Nic
from emulator.endpoint.silence import silence
from emulator.errors import UserError
from uet.api import Domain
from uet.config import FepConfig
from uet.wire import headers
from uet.wire.codes import CRC_SIZE, ICV_SIZE, PAYLOAD_MTUS

_RECEIVE_BATCH = 64
#: UES 3.4.1.11: every implementation has it.
_PREFERRED_PAYLOAD = 4096
#: The most that any packet has around its payload, from the IP header on.
_MOST_HEADERS = (
    headers.IPV6.size
    + headers.UDP_HEADER.size
    + headers.TSS_SSI.size
    + headers.RUD_REQ.size
    + headers.REQ_CC_STATE.size
    + headers.SES_STD_SOM.size
    + headers.SES_RENDEZVOUS.size
    + ICV_SIZE
    + CRC_SIZE
)
#: The specification's initial timeout is 1 ms, which suits hardware: here a full window of
#: packets takes longer than that to be put together.
_RTO_NS = 100_000_000


class Device:
    """The interface ``interface`` of the current network namespace: a :class:`uet.api.Driver`.

    It serves one domain, which must be made in the same namespace.  Frames of the transport are
    kept from the kernel's own stack (see :mod:`emulator.endpoint.silence`), and stay so until the
    interface is gone.  Raises :class:`UserError` if there is no such interface.
    """

    def __init__(self, interface: str, *, clock: Clock | None = None) -> None:
        self.interface = interface
        with IPRoute() as netlink:
            found = netlink.link_lookup(ifname=interface)
            if not found:
                raise UserError(
                    f"there is no interface {interface} in this network namespace; see `ip link`"
                )
            self._index = int(found[0])
            link = netlink.get_links(self._index)[0]
            addresses = netlink.get_addr(index=self._index)
        #: as the kernel has them; ``address`` is ``None`` without a global one
        self.mac: str = link.get_attr("IFLA_ADDRESS")
        self.mtu: int = link.get_attr("IFLA_MTU")
        self.address = _global(entry.get_attr("IFA_ADDRESS") for entry in addresses)
        self._clock = Clock.start(1) if clock is None else clock
        self._domain: Domain | None = None
        self._nic: Nic | None = None
        self._interrupt = -1

    def config(self, peers: Iterable[str] | Mapping[str, str], **parameters: object) -> FepConfig:
        """A configuration that fits this port.

        ``peers`` maps the fabric addresses of peers to the MACs that reach them, or lists only the
        addresses: then the kernel's routes and neighbours say which (:class:`UserError` if they do
        not).  ``parameters`` are those of :class:`uet.config.FepConfig`; what is left out is taken
        from the port, with an initial retransmission timeout of 100 ms, since software is slower
        than the 1 ms of the specification supposes.
        """
        if self.address is None and "address" not in parameters:
            raise UserError(f"{self.interface} has no IP address; assign one with `ip address add`")
        neighbours = dict(peers) if isinstance(peers, Mapping) else self.neighbours(peers)
        settings: dict[str, object] = {
            "address": self.address,
            "mac": self.mac,
            "neighbours": neighbours,
            "payload_mtu": self._payload_mtu(),
            "rto_init_time": _RTO_NS,
        }
        return FepConfig(**settings | parameters)  # type: ignore[arg-type]

    def neighbours(self, peers: Iterable[str]) -> dict[str, str]:
        """The MAC address that reaches each peer, as the kernel knows it now."""
        known: dict[str, str] = {}
        with IPRoute() as netlink:
            table = {
                entry.get_attr("NDA_DST"): entry.get_attr("NDA_LLADDR")
                for family in (socket.AF_INET, socket.AF_INET6)
                for entry in netlink.get_neighbours(family=family, ifindex=self._index)
            }
            for peer in peers:
                family = socket.AF_INET if ip_address(peer).version == 4 else socket.AF_INET6
                try:
                    route = netlink.route("get", dst=peer, oif=self._index, family=family)[0]
                except NetlinkError as refusal:
                    why = os.strerror(refusal.code)
                    raise UserError(
                        f"the kernel cannot reach {peer} through {self.interface} ({why});"
                        " add a route, or map the peer to its MAC address"
                    ) from None
                mac = table.get(route.get_attr("RTA_GATEWAY") or peer)
                if mac is None:
                    raise UserError(
                        f"no MAC address is known for {peer} on {self.interface}; ping it first,"
                        " or map it to its MAC address"
                    )
                known[peer] = mac
        return known

    def _payload_mtu(self) -> int:
        room = self.mtu - _MOST_HEADERS
        fitting = [mtu for mtu in PAYLOAD_MTUS if mtu <= min(room, _PREFERRED_PAYLOAD)]
        if not fitting:
            raise UserError(
                f"the MTU of {self.interface} is {self.mtu}, and UET needs at least"
                f" {PAYLOAD_MTUS[0] + _MOST_HEADERS}; raise it with `ip link set`"
            )
        return max(fitting)

    # -- the driver ----------------------------------------------------------------------------

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
        frames = TransportFrames(udp_ports=(config.udp_port,), ip_protocols=(config.ip_protocol,))
        silence(self.interface, frames)
        try:
            self._nic = Nic(
                self.interface,
                self._clock,
                frames=frames,
                frame_octets=self.mtu + headers.ETHERNET.size,
            )
        except PermissionError:
            raise UserError(
                f"opening {self.interface} needs root or CAP_NET_RAW; run it as root"
            ) from None
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._domain = domain

    def detach(self, domain: Domain) -> None:
        """Close the port."""
        if domain is not self._domain or self._nic is None:
            return
        self._domain = None
        self._nic.close()
        self._nic = None
        os.close(self._interrupt)
        self._interrupt = -1

    def poll(self) -> bool:
        """What can be done without waiting; whether that was anything."""
        return self._turn(self._clock.now())

    def progress(self, timeout: int | None) -> bool:
        """Sleep until frames, timers or room to send give something to do, and do it.

        True after :meth:`interrupt` too, False after ``timeout`` ns.  A signal handler that
        raises (Ctrl-C) ends the wait at once.
        """
        domain, nic, clock = self._opened()
        end = None if timeout is None else clock.now() + timeout
        while True:
            if self._turn(clock.now()):
                return True
            now = clock.now()
            if end is not None and now >= end:
                return False
            room = nic.room()
            timers = (domain.fep.next_deadline() if room else None, nic.next_deadline(now), end)
            wake = min((when for when in timers if when is not None), default=None)
            readers = (nic.fileno(), self._interrupt) if nic.pollable else (self._interrupt,)
            readable, _, _ = select.select(
                readers,
                () if room else (nic.fileno(),),
                (),
                None if wake is None else clock.host_seconds(max(0, wake - now)),
            )
            if self._interrupt in readable:
                os.eventfd_read(self._interrupt)
                return True
            if nic.fileno() in readable:
                nic.acknowledge_error()

    def interrupt(self) -> None:
        """Make :meth:`progress` return, now or the next time; from any thread."""
        if self._interrupt >= 0:
            os.eventfd_write(self._interrupt, 1)

    def counters(self) -> dict[str, int]:
        """Frames, octets and drops of the port (see :meth:`Nic.counters`)."""
        return self._opened()[1].counters()

    def _turn(self, now: int) -> bool:
        """A bounded share of everything; whether there was something to do."""
        domain, nic, _ = self._opened()
        frames = nic.receive(now, _RECEIVE_BATCH)
        if frames:
            domain.fep.receive(frames, now)
        out = domain.fep.transmit(now, nic.room())
        sent = nic.send(out) if out or nic.backlog else 0
        return domain.dispatch() or sent > 0 or bool(frames)

    def _opened(self) -> tuple[Domain, Nic, Clock]:
        if self._domain is None or self._nic is None:
            raise UserError(f"no domain is open on {self.interface}; make one with this device")
        return self._domain, self._nic, self._clock


def _global(addresses: Iterable[str]) -> str | None:
    """The first address that peers beyond the link can use."""
    for address in addresses:
        known = ip_address(address)
        if not known.is_link_local and not known.is_loopback:
            return address
    return None
