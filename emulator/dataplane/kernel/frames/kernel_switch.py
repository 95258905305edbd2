"""Namespaces of the kernel as functions: a frame goes in, and what comes out is all there.

A frame that a socket sends is forwarded before ``send`` returns. The veth, bridge, routing and
switch program all run in the softirq at the end of the system call.  The account proves it for each
frame: the program counts what it lets go and what it takes, and the ring must have as many.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection, Sequence

from emulator.dataplane.account import Account
from emulator.dataplane.dataplane import FILTERED, NO_CARRIER, Astray, Taken
from emulator.dataplane.kernel.frames.packet_ring import PacketRing
from emulator.dataplane.kernel.frames.softirq_barrier import SoftirqBarrier
from emulator.dataplane.switch.virtual_state import DROPPED, NOW, PASSED
from topologies.model import CableEnd
from uet.transport import Frame

#: UDP port of VXLAN (RFC 7348); EtherType of IPv4 and the first octet of a header without options.
_VXLAN, _IPV4 = (4789).to_bytes(2), b"\x08\x00\x45"
#: The bit of a destination address that is a group's, or everybody's (IEEE 802-2014, 8.2.2).
_GROUP = 1
#: Errors of a send whose frame a filter took, or whose interface somebody has taken down.
_REFUSED = frozenset({errno.ENOBUFS, errno.ENETDOWN})


class Outlets:
    """What the kernel hands out at the inner ends.

    With ``tunnels`` the kernel's own headers lose their identification, which starts at random.
    """

    def __init__(self, ring: PacketRing, barrier: SoftirqBarrier, *, tunnels: bool = False) -> None:
        self.ring = ring
        self._barrier = barrier
        self._tunnels = tunnels
        self.account = Account()

    def take(self) -> list[Taken]:
        """Return what is there now."""
        taken = self.ring.take()
        if self._tunnels:
            return [(interface, unnumbered(frame)) for interface, frame in taken]
        return taken

    def settle(self) -> None:
        """Have the kernel finish what it has begun on this processor."""
        self.ring.settle()

    def finish(self, arrived: Callable[[], bool]) -> None:
        """Have the kernel finish all that it has begun, or enough for ``arrived`` to be true.

        What has not come out then, never will.
        """
        self._barrier.wait(arrived)

    def take_late(self) -> list[Taken]:
        """Return what comes late."""
        out: list[Taken] = []

        def arrived() -> bool:
            out.extend(self.take())
            return bool(out)

        self.finish(arrived)
        return out


class KernelPort:
    """The interface of a GPU in the namespace of ``node``: its socket and ``ring``.

    A frame that leaves crosses the interface before its line serialises it. An arriving frame
    crosses it on its way in. So taps, filters and counters there see all frames.  ``senders`` are
    the sockets that send to the namespace's ports.
    """

    def __init__(
        self,
        node: str,
        ring: PacketRing,
        outlets: Outlets,
        senders: Callable[[CableEnd], Callable[[bytes], int]],
    ) -> None:
        self._node, self.ring, self._outlets, self._senders = node, ring, outlets, senders
        self._send = ring.socket.sendmsg

    @property
    def lost(self) -> int:
        """Frames that found no slot."""
        return self.ring.lost

    def send(self, frame: Frame) -> Sequence[Taken]:
        """Send ``frame`` through the namespace; return it, or nothing if a filter there took it."""
        outlets = self._outlets
        account = outlets.account
        account.injected += 1
        try:
            self._send(frame)
        except OSError as failure:
            if failure.errno not in _REFUSED:
                raise
            account.dropped[f"{self._node}: {FILTERED}"] += 1
            return ()
        out = outlets.take() or outlets.take_late()
        if len(out) == 1:
            account.delivered += 1
        elif out:
            raise Astray(surplus(self._node, len(out)))
        else:
            account.dropped[f"{self._node}: {FILTERED}"] += 1
        return out

    def receiver(
        self, end: CableEnd, deliver: Callable[[memoryview], None]
    ) -> Callable[[bytes], None]:
        """Return the function that brings a frame from the cable to ``end`` in, to ``deliver``."""
        send, ring, account = self._senders(end), self.ring, self._outlets.account

        def arrive(frame: bytes) -> None:
            account.injected += 1
            send(frame)
            crossed = ring.look()
            if crossed is None and (crossed := self._late()) is None:
                return
            account.delivered += 1
            deliver(crossed)
            ring.release()
            if ring.look() is not None:
                raise Astray(surplus(self._node, 2))

        return arrive

    def _late(self) -> memoryview | None:
        """Return the frame that was sent here and is not in the ring yet, once it is there.

        None if it never will be, which is counted: a filter in the namespace took it.
        """
        ring = self.ring
        self._outlets.finish(lambda: ring.look() is not None)
        frame = ring.look()
        if frame is None:
            ring.settle()  # it counts frames without a slot
            self._outlets.account.dropped[f"{self._node}: {FILTERED}"] += 1
        return frame

    def close(self) -> None:
        """Give up the socket."""
        self.ring.close()


def surplus(node: str, out: int) -> str:
    """Return the sentence on ``out`` frames that came out at ``node`` where one went in."""
    return (
        f"one frame went into {node} and {out} came out: something there keeps frames back "
        "(a qdisc that delays, a queue to a program), or another program sends"
    )


def unnumbered(frame: bytes) -> bytes:
    """A frame of VXLAN over IPv4 with identification 0 and the checksum for that (RFC 1624).

    Nobody needs the identification of a packet that is never cut in pieces (RFC 6864); others
    are as they were.
    """
    if frame[36:38] != _VXLAN or frame[12:15] != _IPV4 or frame[23] != socket.IPPROTO_UDP:
        return frame
    identification, checksum = int.from_bytes(frame[18:20]), int.from_bytes(frame[24:26])
    total = (checksum ^ 0xFFFF) + (identification ^ 0xFFFF)
    total = ((total & 0xFFFF) + (total >> 16)) ^ 0xFFFF
    return b"".join((frame[:18], bytes(2), frame[20:24], total.to_bytes(2), frame[26:]))


class SwitchEntrance:
    """Port ``end`` of a switch, for what arrives there: the frame crosses the switch, in no time.

    ``words`` are those that the switch program shares, with the place of its switch in them; None:
    there is no program.  What the kernel dropped by itself, ``drops`` explains.
    ``without_carrier`` are the ports of the switch that have none now.
    """

    __slots__ = (
        "_dropped_at",
        "_drops",
        "_now_at",
        "_outlets",
        "_passed_at",
        "_send",
        "_without_carrier",
        "_words",
        "node",
    )

    def __init__(
        self,
        node: str,
        outlets: Outlets,
        send: Callable[[bytes], int],
        drops: Callable[[bytes], str | None],
        words: tuple[memoryview, int] | None,
        without_carrier: Collection[CableEnd] = (),
    ) -> None:
        self.node, self._without_carrier = node, without_carrier
        self._outlets, self._send, self._drops = outlets, send, drops
        self._words: memoryview | None = None
        if words is not None:
            self._words, at = words
            self._now_at, self._passed_at, self._dropped_at = at + NOW, at + PASSED, at + DROPPED

    def enter(self, frame: bytes, now_ns: int) -> Sequence[Taken]:
        """Bring ``frame`` into the switch; return what comes out at its ports."""
        words, outlets = self._words, self._outlets
        account = outlets.account
        account.injected += 1
        if words is None:
            self._send(frame)
            out = outlets.take()
            if not out:
                self._look_for(frame, out, 0, 0, now_ns)
                return out
            account.delivered += 1
            if len(out) > 1 or frame[0] & _GROUP:
                self._take_rest(out)
            return out
        words[self._now_at] = now_ns
        passed, dropped = words[self._passed_at], words[self._dropped_at]
        self._send(frame)
        out = outlets.take()
        expected = words[self._passed_at] - passed
        if expected and len(out) == expected:
            account.delivered += 1
            return out
        self._look_for(frame, out, passed, dropped, now_ns)
        return out

    def _take_rest(self, out: list[Taken]) -> None:
        """Add to ``out`` what is late of a frame that a bridge sends out of several ports.

        The kernel hands on 64 frames at a time (net.core.dev_weight), and leaves what is beyond
        its budget to ksoftirqd.  A switch program counts copies; without one nobody does.
        """
        outlets = self._outlets

        def all_arrived() -> bool:
            out.extend(outlets.take())
            return False  # unknown

        outlets.finish(all_arrived)

    def _look_for(
        self, frame: bytes, out: list[Taken], passed: int, dropped: int, now_ns: int
    ) -> None:
        """Settle the account of ``frame``, which is not where it is looked for at once.

        What comes late is added to ``out``.
        """
        account, outlets = self._outlets.account, self._outlets
        reason = self._fate(out, passed, dropped)

        def arrived() -> bool:
            nonlocal reason
            out.extend(outlets.take())
            reason = self._fate(out, passed, dropped)
            return reason is not None and len(out) <= 1  # of several copies, more may come

        if reason is None:
            outlets.settle()
            if not arrived():
                if not out:
                    reason = self._drops(frame)
                if reason is None or len(out) > 1:
                    outlets.finish(arrived)
                if reason is None and not out:
                    reason = self._drops(frame)
        if reason is None and not out and self._without_carrier:
            reason = NO_CARRIER
        if reason is None:
            raise Astray(self._astray(len(out), passed, now_ns))
        if reason:
            account.dropped[f"{self.node}: {reason}"] += 1
        else:
            account.delivered += 1

    def _fate(self, out: Sequence[Taken], passed: int, dropped: int) -> str | None:
        """Return why the frame was dropped, "" if all of it is there, None if neither shows."""
        words = self._words
        if words is None:
            return "" if out else None
        if len(out) != words[self._passed_at] - passed:
            return None
        if out:
            return ""
        return "switch" if words[self._dropped_at] != dropped else None

    def _astray(self, out: int, passed: int, now_ns: int) -> str:
        """Return the sentence on a frame whose account does not close."""
        where = f"a frame went into {self.node} at {now_ns:,} ns and "
        if not out or self._words is None:
            return f"{where}neither came out nor was counted as dropped"
        self._outlets.settle()
        expected, full = self._words[self._passed_at] - passed, self._outlets.ring.lost
        if out > expected:
            return surplus(self.node, out)
        lost = f"{full} found the receive ring full" if full else "the kernel had no room for them"
        return (
            f"{where}{out} came out, of {expected} that its ports let go: {lost} "
            "(net.core.netdev_max_backlog)"
        )
