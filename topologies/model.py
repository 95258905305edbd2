"""The validated fabric, and by name all that it is made of.

A :class:`Topology` is complete before the kernel is touched: every port has its name, MAC and
address, every link its rate, delay, MTU and buffer.  The modules that the rules themselves rest on
import the parts from :mod:`topologies.elements` and :mod:`topologies.wiring`; all others find them
here.  Routes and lengths of paths are computed from a topology above it, by
:mod:`topologies.routing`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from topologies.elements import (
    AUTO_ISOLATION,
    AXES,
    BACKEND,
    BY_FILTER,
    END_ROLES,
    ETHERNET,
    EVPN,
    FRONTEND,
    ISOLATIONS,
    MANAGEMENT,
    MAX_MTU,
    MAX_VLAN,
    MESH,
    MIN_MTU,
    NETWORKS,
    OF_DEVICES,
    OF_NAMESPACES,
    RING,
    ROUTINGS,
    SCALE_UP_SHAPES,
    SHORTEST,
    STORAGE,
    SWITCH,
    SWITCH_ROLES,
    VLAN_USES,
    VXLAN,
    VXLAN_OVERHEAD,
    Bridge,
    CableEnd,
    FabricProfile,
    Handoff,
    Link,
    Node,
    Port,
    Role,
    ScaleUp,
    Server,
    TopologyError,
    Vrf,
)
from topologies.validation import validate, validate_networks
from topologies.wiring import Wiring

__all__ = [
    "AUTO_ISOLATION",
    "AXES",
    "BACKEND",
    "BY_FILTER",
    "END_ROLES",
    "ETHERNET",
    "EVPN",
    "FRONTEND",
    "ISOLATIONS",
    "MANAGEMENT",
    "MAX_MTU",
    "MAX_VLAN",
    "MESH",
    "MIN_MTU",
    "NETWORKS",
    "OF_DEVICES",
    "OF_NAMESPACES",
    "RING",
    "ROUTINGS",
    "SCALE_UP_SHAPES",
    "SHORTEST",
    "STORAGE",
    "SWITCH",
    "SWITCH_ROLES",
    "VLAN_USES",
    "VXLAN",
    "VXLAN_OVERHEAD",
    "Bridge",
    "CableEnd",
    "FabricProfile",
    "Handoff",
    "Link",
    "Node",
    "Port",
    "Role",
    "ScaleUp",
    "Server",
    "Topology",
    "TopologyError",
    "Vrf",
]


@dataclass(frozen=True, kw_only=True)
class Topology(Wiring):
    """A validated fabric: its parts agree, or making it raises TopologyError.

    The choice of the switch sets ``switch_latency_ns``, not the designer
    (:meth:`with_switch_latency`).  ``networks`` are the other networks of its servers, each a
    fabric of its own (:mod:`topologies.cluster`).
    """

    networks: tuple[Topology, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        validate(self)
        validate_networks(self, self.networks)

    def network_named(self, name: str) -> Topology:
        """Return the network ``name`` of the cluster; TopologyError if it has none."""
        for one in (self, *self.networks):
            if one.network == name:
                return one
        names = ", ".join(one.network for one in (self, *self.networks))
        raise TopologyError(f"topology {self.name} has no network {name!r}; it has {names}")

    def with_switch_latency(self, latency_ns: int) -> Topology:
        """Return this fabric with switches whose pipeline takes ``latency_ns``."""
        if latency_ns == self.switch_latency_ns:
            return self
        return replace(self, switch_latency_ns=latency_ns)
