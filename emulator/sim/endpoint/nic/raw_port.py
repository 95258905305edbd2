"""A port that one userspace endpoint has opened: its raw socket, kept from the kernel's own stack.

The kernel's answers are suppressed while the port is open, and not a moment longer (see
:mod:`emulator.dataplane.kernel.scoped_icmp_guard`): the interface is the user's.
"""

from __future__ import annotations

import contextlib
import fcntl
import select
import struct
from collections.abc import Sequence
from typing import Any

from emulator.dataplane.clock import Clock
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.scoped_icmp_guard import guarded_interface
from emulator.errors import UserError
from emulator.sim.endpoint.nic.interface import NetworkInterface
from emulator.sim.endpoint.nic.packet_nic import Nic
from uet.transport import Frame
from uet.wire.headers import ETHERNET

#: Frames that wait in the receive ring while this process is busy elsewhere, if they take no
#: more octets than this together.
_SLOTS, _RING = 4096, 32 << 20
#: How often a link that is down is looked at (s of the machine's time).
_LOOK_S = 0.2
#: While data cannot leave, what is due is looked at so often (ns of the clock).
_BLOCKED_LOOK_NS = 1_000
# linux/sockios.h, linux/if.h
_SIOCGIFNAME, _SIOCGIFFLAGS = 0x8910, 0x8913
_IFREQ = struct.Struct("=16si20x")
_IFF_UP = 0x1


class RawPort:
    """``interface``, opened for an endpoint that ``frames`` are for.

    ``silence`` is the way in which it is kept quiet.  Open it in the interface's namespace.  Raises
    :class:`UserError` if that cannot be.  ``settings`` are further ones of its :class:`Nic`.
    """

    def __init__(
        self,
        interface: NetworkInterface,
        frames: TransportFrames,
        clock: Clock,
        **settings: Any,
    ) -> None:
        interface.must_work()
        self.clock = clock
        self._name, self._index = interface.name, interface.index
        self._down = False
        with contextlib.ExitStack() as opened:
            try:
                self.silence = opened.enter_context(
                    guarded_interface(interface.index, interface.name, frames)
                )
                self.nic = Nic(
                    interface.name,
                    clock,
                    frames=frames,
                    frame_octets=interface.mtu + ETHERNET.size,
                    **{"slots": max(1, min(_SLOTS, _RING // interface.mtu)), **settings},
                )
            except PermissionError:
                raise UserError(
                    f"opening {interface.name} needs root, or CAP_NET_RAW and CAP_NET_ADMIN; run"
                    " it as root"
                ) from None
            opened.callback(self.nic.close)
            self._opened = opened.pop_all()

    def send(self, frames: Sequence[Frame]) -> int:
        """Send frames; how many went out now.  :class:`UserError` if they have become too long."""
        try:
            return self.nic.send(frames)
        except ValueError as too_long:
            raise UserError(str(too_long)) from None

    def wait(self, now: int, timer: int | None, end: int | None, descriptor: int) -> bool:
        """Sleep until a frame, room to send, or a deadline gives something to do.

        ``timer`` is the endpoint's own deadline, which counts only while there is room to send (or
        control leaves by itself), ``end`` the caller's (both in ns of the clock).  True if
        ``descriptor`` has woken us.
        """
        nic = self.nic
        room = nic.room()
        if not room and timer is not None:
            # What is due may be data, which cannot leave; an answer that can is not held up.
            timer = max(timer, now + _BLOCKED_LOOK_NS) if nic.by_class else None
        wakes = (timer, end, nic.next_deadline(now))
        wake = min((at for at in wakes if at is not None), default=None)
        timeout = None if wake is None else self.clock.host_seconds(max(0, wake - now))
        if self._down:
            timeout = _LOOK_S if timeout is None else min(timeout, _LOOK_S)
        socket = nic.fileno()
        readable, _, _ = select.select(
            (socket, descriptor) if nic.pollable else (descriptor,),
            nic.blocked,
            (),
            timeout,
        )
        if self._down or (socket in readable and nic.acknowledge_error()):
            self._look_at_link()
        return descriptor in readable

    def _look_at_link(self) -> None:
        """A link that is down may come up again; :class:`UserError` for one that is gone."""
        try:
            # The socket's namespace, which need not be that of the caller.
            found = fcntl.ioctl(self.nic, _SIOCGIFNAME, _IFREQ.pack(b"", self._index))
            flags = fcntl.ioctl(self.nic, _SIOCGIFFLAGS, found)
        except OSError:
            raise UserError(
                f"the interface {self._name} is gone from its namespace; start again once it is"
                " back"
            ) from None
        self._down = not _IFREQ.unpack(flags)[1] & _IFF_UP

    def close(self) -> None:
        """Give the interface back to the kernel."""
        self._opened.close()
