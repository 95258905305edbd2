"""Namespaces of the kernel as functions: a frame goes in, and what comes out is all there.

A frame that a socket sends is forwarded before ``send`` returns. The veth, bridge, routing and
switch program all run in the softirq at the end of the system call.  The account proves it for each
frame: the program counts what it lets go and what it takes, and the ring must have as many.
"""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from emulator.dataplane.kernel.frames.kernel_drops import Explanation
from emulator.dataplane.kernel.frames.line import LOW, Line
from emulator.dataplane.kernel.frames.packet_ring import FrameRing, Taken
from emulator.dataplane.kernel.frames.softirq_barrier import FrameBarrier
from emulator.dataplane.model.switch.model_packet import parse
from emulator.sim.event_queue import PS, EventQueue
from uet.transport import Frame

#: UDP port of VXLAN (RFC 7348); EtherType of IPv4 and the first octet of a header without options.
_VXLAN, _IPV4 = (4789).to_bytes(2), b"\x08\x00\x45"
#: The bit of a destination address that is a group's, or everybody's (IEEE 802-2014, 8.2.2).
_GROUP = 1
#: Below the DSCP in the octet of an IP header that has both (RFC 3168).
_ECN_BITS = 2
#: Errors of a send whose frame a filter took, or whose interface somebody has taken down.
_REFUSED = frozenset({errno.ENOBUFS, errno.ENETDOWN})


class Astray(Exception):
    """A frame went into a namespace and neither came out nor was counted as dropped."""


@dataclass
class Account:
    """The account of every frame that went into a namespace of the kernel."""

    injected: int = 0
    delivered: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, object]:
        """Return the account for a result file."""
        return {
            "injected": self.injected,
            "delivered": self.delivered,
            "dropped": dict(sorted(self.dropped.items())),
        }


class _Overtakes:
    """Follows a word in which the switch program counts frames that are to overtake."""

    def __init__(self, words: memoryview, at: int) -> None:
        self._words, self._at = words, at
        self._known = words[at]

    def counted(self) -> bool:
        """Return whether the word has counted since the last call."""
        now = self._words[self._at]
        more = now != self._known
        self._known = now
        return more


class Outlets:
    """Takes what the kernel hands out at the inner ends, and puts it into their lines.

    ``lines`` are by inner interface index; a line's ``tables`` map the DSCP of an IP packet to its
    queue.  ``changes`` sees all of it first.  With ``tunnels`` the kernel's own headers lose their
    identification, which starts at random.
    """

    def __init__(
        self,
        ring: FrameRing,
        lines: Mapping[int, Line],
        barrier: FrameBarrier,
        *,
        tunnels: bool = False,
    ) -> None:
        self.ring = ring
        self._barrier = barrier
        self.changes: Callable[[Sequence[Taken]], None] | None = None
        self._tunnels = tunnels
        self._lines = dict(lines)
        #: by inner interface: the line, and its queues by the octet with DSCP and ECN
        self._ways: dict[int, tuple[Line, bytes]] = {}
        self._overtaking: dict[int, _Overtakes] = {}
        self.account = Account()

    def classify(self, index: int, queues: bytes) -> None:
        """Let the line of inner interface ``index`` queue by ``queues``, a number for each DSCP."""
        by_octet = bytes(queues[octet >> _ECN_BITS] for octet in range(256))
        self._ways[index] = self._lines[index], by_octet

    def put_ahead(self, index: int, word: tuple[memoryview, int] | None) -> None:
        """Put frames ahead of others at inner interface ``index`` as ``word`` there counts them.

        None: never, from now on.
        """
        self._overtaking.pop(index, None)
        if word is not None:
            self._overtaking[index] = _Overtakes(*word)

    def take(self, origin: int = 0) -> int:
        """Enqueue what is there now; return how many frames that were."""
        taken = self.ring.take()
        if self._tunnels:
            taken = [(interface, unnumbered(frame)) for interface, frame in taken]
        if self.changes is not None:
            self.changes(taken)
        ways, overtaking, sound = self._ways, self._overtaking, not self._tunnels
        for interface, frame in taken:
            way = ways.get(interface)
            if way is None:
                raise Astray(f"a frame came out of interface {interface}, which is no inner end")
            line, queues = way
            if sound and frame[12] == 0x08 and frame[13] == 0:
                queue = queues[frame[15]]
            else:
                queue = queue_of(frame, queues)
            if overtaking and interface in overtaking:
                line.enqueue(frame, queue, origin, ahead=overtaking[interface].counted())
            else:
                line.enqueue(frame, queue, origin)
        return len(taken)

    def settle(self) -> None:
        """Have the kernel finish what it has begun on this processor."""
        self.ring.settle()

    def finish(self, arrived: Callable[[], bool]) -> None:
        """Have the kernel finish all that it has begun, or enough for ``arrived`` to be true.

        What has not come out then, never will.
        """
        self._barrier.wait(arrived)

    def from_socket(self, send: Callable[[Frame], int], frame: Frame, node: str) -> bool:
        """``send`` a GPU's frame through its namespace, into the line that it comes out by.

        False if it does not come out, which is counted: a filter there took it.
        """
        account = self.account
        account.injected += 1
        try:
            send(frame)
        except OSError as failure:
            if failure.errno not in _REFUSED:
                raise
            account.dropped[f"{node}: filtered in its namespace"] += 1
            return False
        out = self.take() or self._take_late()
        if out == 1:
            account.delivered += 1
            return True
        if out:
            raise Astray(surplus(node, out))
        account.dropped[f"{node}: filtered in its namespace"] += 1
        return False

    def _take_late(self) -> int:
        """Enqueue what comes late; return how many frames that were."""
        out = 0

        def arrived() -> bool:
            nonlocal out
            out += self.take()
            return out > 0

        self.finish(arrived)
        return out

    def late(self, ring: FrameRing, node: str) -> memoryview | None:
        """The frame that was sent to ``node`` and is not in its ``ring`` yet, once it is there.

        None if it never will be, which is counted: a filter in the namespace took it.
        """
        self.finish(lambda: ring.look() is not None)
        frame = ring.look()
        if frame is None:
            ring.settle()  # it counts frames without a slot
            self.account.dropped[f"{node}: filtered in its namespace"] += 1
        return frame


def surplus(node: str, out: int) -> str:
    """Return the sentence on ``out`` frames that came out at ``node`` where one went in."""
    return (
        f"one frame went into {node} and {out} came out: something there keeps frames back "
        "(a qdisc that delays, a queue to a program), or another program sends"
    )


def queue_of(frame: bytes, queues: bytes) -> int:
    """Return the queue of ``frame``, which may be no IP packet, or have come broken from a tunnel.

    ``queues`` has one for each octet of DSCP and ECN; what is no IP packet, for the switch program
    either, waits with data.
    """
    packet = parse(frame)
    return queues[packet.traffic] if packet.version else LOW


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


class SwitchInlet:
    """A port of a switch, for what arrives there: the frame crosses the switch, in no time.

    ``words`` are those that the switch program shares, ``now_at``, ``passed_at`` and ``dropped_at``
    the places of its switch in them; ``words`` None: there is no program.  What the kernel dropped
    by itself, ``drops`` explains.  ``without_carrier`` are the ports of the switch that have
    none now: what a bridge has for one of them it drops, and counts nowhere.
    """

    __slots__ = (
        "_dropped_at",
        "_drops",
        "_events",
        "_index",
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
        index: int,
        events: EventQueue,
        outlets: Outlets,
        send: Callable[[bytes], int],
        drops: Explanation,
        words: tuple[memoryview, int, int, int] | None,
        without_carrier: Collection[object] = (),
    ) -> None:
        self._without_carrier = without_carrier
        self.node, self._index = node, index
        self._events, self._outlets, self._send, self._drops = events, outlets, send, drops
        self._words: memoryview | None = None
        if words is not None:
            self._words, self._now_at, self._passed_at, self._dropped_at = words

    def arrive(self, frame: bytes) -> None:
        """Bring ``frame`` into the switch and queue what comes out at its ports."""
        words = self._words
        account = self._outlets.account
        account.injected += 1
        if words is None:
            self._send(frame)
            out = self._outlets.take(self._index)
            if not out:
                self._look_for(frame, 0, 0, 0)
                return
            account.delivered += 1
            if out > 1 or frame[0] & _GROUP:
                self._take_rest()
            return
        words[self._now_at] = self._events.now // PS
        passed, dropped = words[self._passed_at], words[self._dropped_at]
        self._send(frame)
        out = self._outlets.take(self._index)
        expected = words[self._passed_at] - passed
        if out == expected and expected:
            account.delivered += 1
            return
        self._look_for(frame, out, passed, dropped)

    def _take_rest(self) -> None:
        """Enqueue what is late of a frame that a bridge sends out of several ports.

        The kernel hands on 64 frames at a time (net.core.dev_weight), and leaves what is beyond
        its budget to ksoftirqd.  A switch program counts copies; without one nobody does.
        """
        outlets, index = self._outlets, self._index

        def all_arrived() -> bool:
            outlets.take(index)
            return False  # unknown

        outlets.finish(all_arrived)

    def _look_for(self, frame: bytes, out: int, passed: int, dropped: int) -> None:
        """Settle the account of ``frame``, which is not where it is looked for at once."""
        account, outlets = self._outlets.account, self._outlets
        reason = self._fate(out, passed, dropped)

        def arrived() -> bool:
            nonlocal out, reason
            out += outlets.take(self._index)
            reason = self._fate(out, passed, dropped)
            return reason is not None and out <= 1  # of several copies, more may come

        if reason is None:
            outlets.settle()
            if not arrived():
                if not out:
                    reason = self._drops(frame)
                if reason is None or out > 1:
                    outlets.finish(arrived)
                if reason is None and not out:
                    reason = self._drops(frame)
        if reason is None and not out and self._without_carrier:
            reason = "port without carrier"
        if reason is None:
            raise Astray(self._astray(out, passed))
        if reason:
            account.dropped[f"{self.node}: {reason}"] += 1
        else:
            account.delivered += 1

    def _fate(self, out: int, passed: int, dropped: int) -> str | None:
        """Return why the frame was dropped, "" if all of it is there, None if neither shows."""
        words = self._words
        if words is None:
            return "" if out else None
        if out != words[self._passed_at] - passed:
            return None
        if out:
            return ""
        return "switch" if words[self._dropped_at] != dropped else None

    def _astray(self, out: int, passed: int) -> str:
        """Return the sentence on a frame whose account does not close."""
        where = f"a frame went into {self.node} at {self._events.now / PS:.3f} ns and "
        if not out:
            return f"{where}neither came out nor was counted as dropped"
        assert self._words is not None
        self._outlets.settle()
        expected, full = self._words[self._passed_at] - passed, self._outlets.ring.lost
        if out > expected:
            return surplus(self.node, out)
        lost = f"{full} found the receive ring full" if full else "the kernel had no room for them"
        return (
            f"{where}{out} came out, of {expected} that its ports let go: {lost} "
            "(net.core.netdev_max_backlog)"
        )
