"""Who delays frames by the length of a cable: decided once for a lab, by asking the kernel."""

from __future__ import annotations

import errno
from typing import Literal

from emulator.fabric import namespaces
from emulator.fabric.kernel_objects import LOOPBACK_INDEX
from emulator.fabric.netlink import KernelRefusal, RouteSocket
from emulator.fabric.shaping import Egress, egress_requests

CableDelay = Literal["netem", "nic"]

ABSENT = frozenset({errno.ENOENT, errno.EOPNOTSUPP})
#: Any egress with a delay: its first request is the one for netem.
TRIAL = Egress(rate_bps=1e9, mtu=9000, buffer_bytes=65_536, delay_ns=1000)


def cable_delay_mechanism() -> CableDelay:
    """``netem`` if the kernel has it (it loads the module when asked), otherwise ``nic``.

    Tried on the loopback of a network namespace that has no name and ends with the attempt.
    Needs root.
    """

    def attempt() -> CableDelay:
        namespaces.leave_for_unnamed()
        kernel = RouteSocket()
        try:
            request = egress_requests(TRIAL)[0]
            kernel.queue(request.kind, request.flags, request.body(LOOPBACK_INDEX), "netem")
            kernel.flush()
        except KernelRefusal as refusal:
            if refusal.errno not in ABSENT:
                raise
            return "nic"
        finally:
            kernel.close()
        return "netem"

    return namespaces.visitor().run(attempt)
