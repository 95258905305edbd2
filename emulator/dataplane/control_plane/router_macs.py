"""Router MACs that zebra loses, put back: ``python -m`` this module with ``LAB``.

When a route of a tenant goes and comes at once, as after a dead spine on a busy machine, zebra 8.4
enters the router MAC of the new route and then removes that of the old one, the same.  Frames to
that switch are lost from then on, and zebra does not notice.  A process of the lab watches the
tables of its VRFs.  Where the kernel has a route and no router MAC it enters that, and counts it.
"""

from __future__ import annotations

import errno
import select
import socket
import sys
from pathlib import Path

from emulator.dataplane import lab_record
from emulator.dataplane.control_plane.tenant_routes import TenantRoutes, places_of
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.netlink import (
    RECEIVE_BYTES,
    RTMGRP_IPV4_ROUTE,
    RTMGRP_NEIGH,
    KernelRefusal,
    RouteSocket,
)
from emulator.whole_file import write_whole
from topologies.interface_indices import interface_indices

#: Tables are compared when nothing has changed for so long (ms), or after so many changes.
SETTLED_MS, CHANGES = 200, 100
#: After a refusal of the kernel they are compared again, whatever changes (ms).
REFUSED_MS = 2_000


def start(lab: str) -> None:
    """Start the process that watches ``lab``; it ends with the lab."""
    lab_record.start_process(
        lab, "emulator.dataplane.control_plane.router_macs", _place(lab, "log")
    )


def put_back(lab: str) -> int:
    """Return how many router MACs were put back in ``lab`` so far."""
    place = _place(lab, "count")
    return int(place.read_text()) if place.exists() else 0


def watch(lab: str) -> None:
    """Put back what is lost, until the lab ends this process."""
    topology = lab_record.load_topology(lab)
    visitor = namespaces.visitor()
    sockets: dict[str, RouteSocket] = {}

    def kernel(node: str) -> RouteSocket:
        if node not in sockets:
            sockets[node] = visitor.inside(namespaces.path_of(lab, node), RouteSocket)
        return sockets[node]

    routes = TenantRoutes(topology, interface_indices(topology), kernel)
    nodes = {
        place.node for switch in topology.switches for place in places_of(topology, switch).values()
    }
    changes = [visitor.inside(namespaces.path_of(lab, node), _changes) for node in sorted(nodes)]
    poll = select.poll()
    for one in changes:
        poll.register(one, select.POLLIN)
    total = 0
    while True:
        timeout: int | None = None
        try:
            for _ in routes.put_back_routers():
                total += 1
                write_whole(_place(lab, "count"), f"{total}\n")
                timeout = SETTLED_MS
        except KernelRefusal as refusal:  # an interface may be going
            print(refusal, flush=True)  # noqa: T201  into the log
            timeout = REFUSED_MS
        for _ in range(CHANGES):
            if not (changed := poll.poll(timeout)):
                break
            timeout = SETTLED_MS
            for descriptor, _ in changed:
                _drain(next(one for one in changes if one.fileno() == descriptor))


def _place(lab: str, kind: str) -> Path:
    return lab_record.directory_of(lab) / f"router-macs.{kind}"


def _changes() -> socket.socket:
    """Return a socket that hears of changed routes and neighbours in this namespace."""
    made = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
    )
    made.bind((0, RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE))
    return made


def _drain(changes: socket.socket) -> None:
    """Read what is there; what did not fit is no matter, as tables are read whole."""
    while True:
        try:
            changes.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise


if __name__ == "__main__":
    watch(sys.argv[1])
