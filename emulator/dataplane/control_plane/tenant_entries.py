"""Entries of tenants that zebra loses, or does not read.

Router MACs are put back by ``python -m`` this module with ``LAB``.  When a route of a tenant goes
and comes at once, as after a dead spine on a busy machine, zebra 8.4 enters the router MAC of the
new route and then removes that of the old one, the same.  Frames to that switch are lost from then
on, and zebra does not notice.  A process of the lab watches the tables of its VRFs.  Where the
kernel has a route and no router MAC it enters that, and counts it.

Neighbours of VRFs that are namespaces are put before zebra.  It takes the machines of a subnet from
the kernel's table of neighbours and has BGP advertise them.  When it gets to know of a VNI it reads
that table in its own namespace only.  In others it learns of what is added from then on: so each
permanent entry is removed and added again.
"""

from __future__ import annotations

import errno
import json
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from emulator.dataplane import lab_record
from emulator.dataplane.control_plane.daemons import SwitchDaemons
from emulator.dataplane.control_plane.tenant_routes import TenantRoutes, places_of
from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.netlink import (
    RECEIVE_BYTES,
    RTMGRP_IPV4_ROUTE,
    RTMGRP_NEIGH,
    KernelRefusal,
    RouteSocket,
)
from emulator.errors import UserError
from emulator.whole_file import write_whole
from topologies.interface_indices import interface_indices, vrf_space
from topologies.model import OF_NAMESPACES, CableEnd, Node, Topology
from topologies.routing.static_routes import static_neighbours

#: Between two questions to zebra (s).
PAUSE_S = 0.05
#: Tables are compared when nothing has changed for so long (ms), or after so many changes.
SETTLED_MS, CHANGES = 200, 100
#: After a refusal of the kernel they are compared again, whatever changes (ms).
REFUSED_MS = 2_000


def start(lab: str) -> None:
    """Start the process that watches ``lab``; it ends with the lab."""
    lab_record.start_process(
        lab, "emulator.dataplane.control_plane.tenant_entries", _place(lab, "log")
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


def announce(
    topology: Topology,
    daemons: Mapping[str, SwitchDaemons],
    indices: Mapping[CableEnd, int],
    kernels: Callable[[str], RouteSocket],
    *,
    budget_s: float,
) -> None:
    """Have zebra hear of the neighbours in every VRF that is a namespace.

    Returns when it has.  Raises UserError if a switch's zebra does not know its VNIs in time.
    """
    if topology.profile.isolation != OF_NAMESPACES:
        return
    deadline = time.monotonic() + budget_s
    neighbours = static_neighbours(topology)
    for switch in topology.switches:
        bridges = {bridge.name: bridge for bridge in switch.bridges if bridge.vrf is not None}
        if not bridges:
            continue
        _await_vnis(switch, daemons[switch.name], deadline)
        for known in neighbours[switch.name]:
            bridge = bridges.get(known.interface)
            if bridge is None or bridge.vrf is None:
                continue
            kernel = kernels(vrf_space(switch.name, bridge.vrf))
            index = indices[CableEnd(switch.name, bridge.name)]
            subject = f"{switch.name}, neighbour {known.address}"
            kernel_object.forget_neighbour(kernel, index, known.address, subject=subject)
            kernel_object.neighbour(kernel, index, known.address, known.mac, subject=subject)
            kernel.flush()


def _await_vnis(switch: Node, daemons: SwitchDaemons, deadline: float) -> None:
    """Return when zebra of ``switch`` has all VNIs of its subnets."""
    requested = {str(bridge.vni) for bridge in switch.bridges if bridge.vrf is not None}
    while missing := requested - json.loads(daemons.vtysh("show evpn vni json")).keys():
        if time.monotonic() > deadline:
            raise UserError(
                f"zebra of {switch.name} does not know VNI {min(missing)}: the machine is "
                "overloaded; try again, or take isolation=filter"
            )
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    watch(sys.argv[1])
