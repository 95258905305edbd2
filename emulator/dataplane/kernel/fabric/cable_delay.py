"""The choice of what delays frames by the length of a cable, made once for a lab.

``nic``: the delay line of the receiving endpoint (:mod:`emulator.sim.endpoint.nic.delay_line`).
For endpoints this is the one to have on every kernel:

* Below netem a port could not hold its sender back.  netem takes a frame off the account of the
  socket that sent it at once, so an endpoint would pour all it may send into its port, at best
  to wait there in the wrong order, at worst to be dropped where no real NIC drops.
* The line stands at the receiver in any case, for the serialisation that shapers leave out.
* No hop needs a timer for it, and a run means the same on kernels with netem and without.

What it costs: a frame meets each queue earlier than on cables, by the cables that it has passed. It
makes good for it at the end of its path.  Every loop from a sender through a queue and back has its
true length; what the kernel itself sends (ping) is not delayed.

``netem``: the kernel, at each port, whatever the frame.  For labs whose traffic is the kernel's own
(``uetemu up``).
"""

from __future__ import annotations

import errno

from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.kernel_objects import LOOPBACK_INDEX
from emulator.dataplane.kernel.netlink import KernelRefusal, RouteSocket
from emulator.dataplane.kernel.shaping import Egress, egress_requests
from emulator.dataplane.settings import CableDelay

ABSENT = frozenset({errno.ENOENT, errno.EOPNOTSUPP})
#: Any egress with a delay: its first request is the one for netem.
TRIAL = Egress(rate_bps=1e9, mtu=9000, buffer_bytes=65_536, delay_ns=1000)


def for_kernel_traffic() -> CableDelay:
    """Return ``netem`` if the kernel has it (it loads the module on demand), otherwise ``nic``.

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
