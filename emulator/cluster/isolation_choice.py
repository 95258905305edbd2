"""How the tenants of a frontend are apart on this machine (``isolation=``).

``vrf``: their routes are VRF devices of the kernel.  ``netns``: each VRF is a network namespace,
for kernels without such devices.  ``filter``: all share the routes of a switch, and nftables drops
what would cross.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from emulator.dataplane.doctor import capabilities
from emulator.errors import UserError
from topologies.cluster import tenant_of_bridge
from topologies.model import (
    AUTO_ISOLATION,
    BY_FILTER,
    OF_DEVICES,
    OF_NAMESPACES,
    Topology,
)

STATED: Mapping[str, str] = {
    OF_DEVICES: "a VRF device for each in every leaf",
    OF_NAMESPACES: "a VRF for each in every leaf, which is a network namespace",
    BY_FILTER: "nftables filters on the leaves",
}


def resolved(topology: Topology, *, has: Callable[[str], bool] = capabilities.has) -> Topology:
    """Return ``topology`` with the isolation that this machine gives its tenants.

    Raises UserError for VRF devices that the user requests and the kernel has not.
    """
    isolation = topology.profile.isolation
    if isolation == AUTO_ISOLATION:
        isolation = OF_DEVICES if has("vrf") else OF_NAMESPACES
    elif isolation == OF_DEVICES and not has("vrf"):
        raise UserError(
            f"isolation is {OF_DEVICES} and this kernel has no VRF devices: take isolation="
            f"{OF_NAMESPACES}, which makes each VRF a network namespace"
        )
    profile = dataclasses.replace(topology.profile, isolation=isolation)
    return dataclasses.replace(topology, profile=profile)


def tenants_of(topology: Topology) -> tuple[str, ...]:
    """Return the names of the tenants of ``topology``."""
    bridges = (bridge for switch in topology.switches for bridge in switch.bridges)
    found = (tenant_of_bridge(bridge.name) for bridge in bridges)
    return tuple(sorted({name for name in found if name is not None}))


def stated(topology: Topology) -> str:
    """Return a sentence on the tenants of ``topology`` and what keeps them apart."""
    return f"{len(tenants_of(topology))} tenants: {STATED[topology.profile.isolation]}"
