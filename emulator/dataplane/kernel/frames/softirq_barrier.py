"""A barrier behind all that the kernel still has to do for frames that were sent before.

A frame that crosses a veth pair, or leaves a tunnel, waits in a queue of the processor that sent
it. The softirq there takes it out.  Each processor serves these queues in turn, and each of them in
order of arrival (``net_rx_action`` and ``process_backlog``, net/core/dev.c)::

    sent: frame ... marker          queue of the processor: frame, marker
    marker is back                  the frame has been taken out, and is gone or in its next queue

Markers are frames of the loopback interface, which wait in the same queue.  Two of them, one after
the other, are behind a frame in any queue of that processor. The first may be served before a queue
that was filled earlier, but the queue of the loopback interface then goes behind that one. A round
over all processors therefore takes every frame out of the queue that it is in. A frame that waits
in :data:`_MOST_QUEUES` queues on its way is at its end after as many rounds. A frame that has
neither come out then nor been counted will never come: no time-out decides.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.netlink import RouteSocket

#: A frame waits behind the veth pair into a node, behind a tunnel's end, behind the pair out of it.
_MOST_QUEUES = 3
_MARKERS = 2
#: EtherType for local experiments (IEEE 802-2014, 9.2.4); addresses are zero on this interface.
_KIND = 0x88B5
_HEADER = bytes(12) + _KIND.to_bytes(2)
_NUMBER = struct.Struct("!Q38x")
#: After so long (ms) a marker is sent again: the kernel may have had no room for it
#: (net.core.netdev_max_backlog).
_AGAIN_MS = 100


class SoftirqBarrier:
    """The markers of one worker, on the loopback interface of a network namespace of its own.

    It holds for the processors that the calling thread may run on. Those serve its frames, unless
    ``rps_cpus`` of a port assigns others (Documentation/networking/scaling.rst).
    """

    def __init__(self) -> None:
        self._number = 0
        self._socket = namespaces.visitor().run(_loopback)
        self._back = select.poll()
        self._back.register(self._socket, select.POLLIN)

    def wait(self, arrived: Callable[[], bool]) -> None:
        """Return when ``arrived`` is true, or every frame that this thread has sent is at its end.

        ``arrived`` is called after markers, and after the last one in any case.
        """
        for _ in range(_MOST_QUEUES):  # most often this processor has it, or ksoftirqd there
            self._mark()
            if arrived():
                return
        allowed = os.sched_getaffinity(0)
        with _ahead_of_others():
            try:
                there = sorted(allowed)
                for _ in range(_MOST_QUEUES):
                    for processor in there:
                        os.sched_setaffinity(0, (processor,))
                        for _ in range(_MARKERS):
                            self._mark()
                        if arrived():
                            return
                    there.reverse()  # the next round begins where this one ends
            finally:
                os.sched_setaffinity(0, allowed)

    def _mark(self) -> None:
        """Send a marker and wait until it is back."""
        self._number += 1
        marker = _HEADER + _NUMBER.pack(self._number)
        while True:
            self._socket.send(marker)
            while self._back.poll(_AGAIN_MS):
                if self._socket.recv(len(marker)) == marker:
                    return

    def close(self) -> None:
        """Give up the socket, and the namespace with it."""
        self._socket.close()


@contextlib.contextmanager
def _ahead_of_others() -> Iterator[None]:
    """Let the calling thread run at once on each processor it moves to, where that is allowed."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:  # it waits its turn there
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def _loopback() -> socket.socket:
    """Open a packet socket in a new namespace whose loopback interface is up."""
    namespaces.leave_for_unnamed()
    kernel = RouteSocket()
    try:
        kernel_object.raise_link(kernel, kernel_object.LOOPBACK_INDEX, subject="loopback interface")
        kernel.flush()
    finally:
        kernel.close()
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        made.bind(("lo", _KIND))
    except BaseException:
        made.close()
        raise
    return made
