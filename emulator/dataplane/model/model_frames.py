"""The way of frames through modelled nodes, in no time.

::

    enter(frame) --> switch: program, bridge or route, program --> (inner end, frame), ...
    arrive(frame) --> GPU: its interface's filter --> deliver
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from emulator.dataplane.dataplane import (
    FILTERED,
    NO_CARRIER,
    Account,
    Astray,
    Enter,
    Host,
    HostPort,
    Taken,
    switch_words,
)
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.model.model_fabric import ModelFabric
from emulator.dataplane.model.model_switch import FRAMES_IN, FRAMES_OUT, OCTETS_IN, OCTETS_OUT
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.virtual_state import DROPPED, NOW
from topologies.model import CableEnd
from uet.transport import Frame

_ETHERNET = 14
_IPV4 = b"\x08\x00"
_UDP = 17
_LATER_FRAGMENT = 0x1FFF


class ModelFrames:
    """The way of frames through the nodes of ``fabric``."""

    def __init__(self, fabric: ModelFabric, asic: FabricAsic | None) -> None:
        self._fabric, self._asic = fabric, asic
        self.account = Account()
        self._hosts: list[ModelHostPort] = []

    def entrance(self, end: CableEnd, without_carrier: Collection[CableEnd]) -> Enter:
        """Return the function that brings frames into port ``end`` of a switch."""
        interface, switch = self._fabric.interface(end), self._fabric.switches[end.node]
        account, left, arrive = self.account, self._fabric.left, switch.arrive
        shared = switch_words(self._asic, end)
        words, at = (memoryview(bytearray(24)).cast("Q"), 0) if shared is None else shared
        now_at, dropped_at = at + NOW, at + DROPPED

        def count_lost(dropped: int) -> None:
            reason = "switch" if words[dropped_at] != dropped else switch.reason
            if reason is None and without_carrier:
                reason = NO_CARRIER
            if reason is None:
                raise Astray(f"a frame went into {end.node} and nothing came of it")
            account.dropped[f"{end.node}: {reason}"] += 1

        def enter(frame: bytes, now_ns: int) -> Sequence[Taken]:
            account.injected += 1
            words[now_at] = now_ns
            dropped = words[dropped_at]
            arrive(interface, frame)
            if not left:
                count_lost(dropped)
                return ()
            account.delivered += 1
            out = left[:]
            left.clear()
            return out

        return enter

    def open_hosts(self, hosts: Sequence[Host]) -> list[list[HostPort]]:
        """Open the interfaces of ``hosts``, in their order."""
        opened: list[list[HostPort]] = []
        for host in hosts:
            ends = [CableEnd(host.node, interface) for interface in host.interfaces]
            ports = [ModelHostPort(self._fabric, end, host.frames, self.account) for end in ends]
            self._hosts += ports
            opened.append(list(ports))
        return opened

    def close_hosts(self) -> None:
        """Have no GPU listen any more."""
        for port in self._hosts:
            port.listens = False
        self._hosts.clear()

    def close(self) -> None:
        """Have no GPU listen any more."""
        self.close_hosts()


class ModelHostPort:
    """Interface ``end`` of a GPU, a port or a bond of ports, for its ``frames``."""

    lost = 0

    def __init__(
        self, fabric: ModelFabric, end: CableEnd, frames: TransportFrames, account: Account
    ) -> None:
        self._fabric, self._node, self._frames, self._account = fabric, end.node, frames, account
        self._bond = fabric.bond(end)
        self._port = fabric.interface(end) if self._bond is None else None
        self.listens = True

    def send(self, frame: Frame) -> Sequence[Taken]:
        """Send ``frame`` out; return it as it comes out, or nothing if no port has carrier."""
        account, port = self._account, self._port
        account.injected += 1
        joined = b"".join(frame)
        if self._bond is not None:
            port = self._bond.member_for(joined)
        if port is None:
            account.dropped[f"{self._node}: {FILTERED}"] += 1
            return ()
        account.delivered += 1
        words, at = port.words, port.at
        words[at + FRAMES_OUT] += 1
        words[at + OCTETS_OUT] += len(joined)
        return ((port.wire, joined),)

    def receiver(
        self, end: CableEnd, deliver: Callable[[memoryview], None]
    ) -> Callable[[bytes], None]:
        """Return the function that brings a frame from the cable to ``end`` in, to ``deliver``."""
        account, port, frames = self._account, self._fabric.interface(end), self._frames
        words, at = port.words, port.at

        def arrive(frame: bytes) -> None:
            account.injected += 1
            words[at + FRAMES_IN] += 1
            words[at + OCTETS_IN] += len(frame)
            if self.listens and frame[:6] == port.mac and is_for(frames, frame):
                account.delivered += 1
                deliver(memoryview(frame))
            else:
                account.dropped[f"{self._node}: {FILTERED}"] += 1

        return arrive


def is_for(frames: TransportFrames, frame: bytes) -> bool:
    """Return whether ``frame`` is one of ``frames``; see :meth:`TransportFrames.program`."""
    kind = frame[12:14]
    if kind == _IPV4:
        if (frame[20] << 8 | frame[21]) & _LATER_FRAGMENT:
            return False
        protocol, ports_at = frame[23], _ETHERNET + (frame[14] & 0xF) * 4
    elif kind == b"\x86\xdd":
        protocol, ports_at = frame[20], _ETHERNET + 40
    else:
        return False
    if protocol in frames.ip_protocols:
        return True
    port = int.from_bytes(frame[ports_at + 2 : ports_at + 4])
    return protocol == _UDP and len(frame) >= ports_at + 4 and port in frames.udp_ports
