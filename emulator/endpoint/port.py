"""A port that one userspace endpoint has opened: its raw socket, kept from the kernel's own stack.

The kernel's answers are suppressed while the port is open, and not a moment longer (see
:mod:`emulator.endpoint.quiet`): the interface is the user's.
"""

from __future__ import annotations

import contextlib
import select

from emulator.endpoint.clock import Clock
from emulator.endpoint.frame_filter import TransportFrames
from emulator.endpoint.interface import Interface
from emulator.endpoint.nic import Nic
from emulator.endpoint.quiet import quiet
from emulator.errors import UserError
from uet.config import FepConfig
from uet.wire.headers import ETHERNET

#: Frames that wait in the receive ring while this process is busy elsewhere, if they take no
#: more octets than this together.
_SLOTS, _RING = 4096, 32 << 20


class Port:
    """``interface``, opened for the endpoint of ``config``; ``silence`` says how it is kept quiet.

    Open it in the interface's namespace.  Raises :class:`UserError` if that cannot be.
    """

    def __init__(self, interface: Interface, config: FepConfig, clock: Clock) -> None:
        interface.must_work()
        self.clock = clock
        # Both encapsulations' frames are kept from the kernel: a peer may have chosen the other.
        frames = TransportFrames(udp_ports=(config.udp_port,), ip_protocols=(config.ip_protocol,))
        with contextlib.ExitStack() as opened:
            try:
                self.silence = opened.enter_context(quiet(interface.index, interface.name, frames))
                self.nic = Nic(
                    interface.name,
                    clock,
                    frames=frames,
                    frame_octets=interface.mtu + ETHERNET.size,
                    slots=max(1, min(_SLOTS, _RING // interface.mtu)),
                )
            except PermissionError:
                raise UserError(
                    f"opening {interface.name} needs root, or CAP_NET_RAW and CAP_NET_ADMIN; run"
                    " it as root"
                ) from None
            opened.callback(self.nic.close)
            self._opened = opened.pop_all()

    def wait(self, now: int, timer: int | None, end: int | None, descriptor: int) -> bool:
        """Sleep until a frame, room to send, or a deadline gives something to do.

        ``timer`` is the endpoint's own deadline, which counts only while there is room to send,
        ``end`` the caller's (both in ns of the clock).  True if ``descriptor`` has woken us.
        """
        nic = self.nic
        room = nic.room()
        wakes = (timer if room else None, end, nic.next_deadline(now))
        wake = min((at for at in wakes if at is not None), default=None)
        socket = nic.fileno()
        readable, _, _ = select.select(
            (socket, descriptor) if nic.pollable else (descriptor,),
            () if room else (socket,),
            (),
            None if wake is None else self.clock.host_seconds(max(0, wake - now)),
        )
        if socket in readable:
            nic.acknowledge_error()
        return descriptor in readable

    def close(self) -> None:
        """Give the interface back to the kernel."""
        self._opened.close()
