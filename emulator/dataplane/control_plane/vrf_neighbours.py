"""Neighbours of VRFs that are namespaces, put before zebra, which does not read them there.

Zebra takes the machines of a subnet from the kernel's table of neighbours and has BGP advertise
them.  When it gets to know of a VNI it reads that table in its own namespace only.  In others it
learns of what is added from then on: so each permanent entry is removed and added again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from emulator.dataplane.control_plane.daemons import SwitchDaemons
from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.errors import UserError
from topologies.interface_indices import vrf_space
from topologies.model import OF_NAMESPACES, CableEnd, Node, Topology
from topologies.routing.static_routes import static_neighbours

PAUSE_S = 0.05


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
