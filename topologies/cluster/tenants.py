"""The tenants of a frontend: their subnets and VNIs, and the VRFs that keep their routes apart.

::

    front-leaf0                                        front-leaf1
      VRF tenant0                                        VRF tenant0
        tenant0-net0, gateway --+                  +-- tenant0-net1, gateway
          |      (L2 VNI)       |                  |      |
          h0                    +-- L3 VNI 30000 --+      h2
                                  router MAC to router MAC

A tenant with several subnets has one of them on each leaf, in turn.  A packet from one to the other
is routed twice, into the L3 VNI and out of it (RFC 9135, symmetric IRB).  Users reach tenants by
the border router, which has all of their VRFs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from topologies import addressing as plan
from topologies.elements import (
    AUTO_ISOLATION,
    BY_FILTER,
    FRONTEND,
    Handoff,
    TopologyError,
)
from topologies.parts.assembly import Assembly

TENANT_PREFIX = "tenant"
#: Of the first tenant of a frontend: the number of its subnet, the VNIs of subnet and routes.
FIRST_TENANT_SUBNET, FIRST_SUBNET_VNI, FIRST_ROUTER_VNI = 512, 20_000, 30_000
#: Numbers of 24 bits (RFC 7348, 5); 0 is none.
FIRST_VNI, LAST_VNI = 1, (1 << 24) - 1
APART, EQUAL = "apart", "equal"


@dataclass(frozen=True, kw_only=True)
class Tenancy:
    """The tenants of a frontend, of which there are ``count``.

    ``subnets`` are those of each.  ``isolation`` is one of
    :data:`topologies.elements.ISOLATIONS`. ``addresses`` of all tenants are ``apart`` or ``equal``.
    The first of the subnets has the VNI ``subnet_vni``, the first tenant the L3 VNI ``router_vni``.
    """

    count: int
    subnets: int = 1
    isolation: str = AUTO_ISOLATION
    addresses: str = APART
    subnet_vni: int = FIRST_SUBNET_VNI
    router_vni: int = FIRST_ROUTER_VNI

    def check(self, *, leaves: int, spines: int, users: int) -> None:
        """Raise TopologyError unless leaves can hold the tenants and users can reach them."""
        if not self.count:
            return
        if not spines:
            raise TopologyError(
                f"tenants is {self.count} and frontend_spines 0: tunnels between leaves need a "
                "spine; take one, or tenants=0"
            )
        if self.subnets > leaves:
            raise TopologyError(
                f"tenant_subnets is {self.subnets} and frontend_leaves {leaves}: a leaf has one of "
                "them; take as many leaves"
            )
        if self.addresses == EQUAL and self.isolation == BY_FILTER:
            raise TopologyError(
                f"tenant_addresses is {EQUAL} and isolation {BY_FILTER}: one table of routes "
                "cannot hold a subnet twice; take isolation=auto, or tenant_addresses=apart"
            )
        if self.addresses == EQUAL and users:
            raise TopologyError(
                f"tenant_addresses is {EQUAL} and users {users}: users could not name a server; "
                "take users=0, or tenant_addresses=apart"
            )
        for first, last, key in (
            (self.subnet_vni, self.subnet_vni + self.count * self.subnets - 1, "subnet_vni"),
            (self.router_vni, self.router_vni + self.count - 1, "router_vni"),
        ):
            if last > LAST_VNI:
                raise TopologyError(
                    f"{key} is {first} and the last of them would be {last}, above {LAST_VNI}: "
                    "take a smaller one"
                )
        self._check_unique()

    def _check_unique(self) -> None:
        subnets = {
            self.vni_of(tenant, subnet): f"subnet {subnet} of {tenant_name(tenant)}"
            for tenant in range(self.count)
            for subnet in range(self.subnets)
        }
        for tenant in range(self.count if self.routed else 0):
            vni = self.router_vni + tenant
            if vni in subnets:
                raise TopologyError(
                    f"VNI {vni} is used twice, for {subnets[vni]} and as the L3 VNI of "
                    f"{tenant_name(tenant)}: take another router_vni"
                )

    @property
    def routed(self) -> bool:
        """Return whether tenants have VRFs."""
        return self.count > 0 and self.isolation != BY_FILTER

    def vni_of(self, tenant: int, subnet: int) -> int:
        """Return the L2 VNI of a subnet of a tenant."""
        return self.subnet_vni + tenant * self.subnets + subnet

    def subnet_of(self, tenant: int, subnet: int) -> IPv4Network:
        """Return the addresses of a subnet of a tenant; TopologyError if there are none left."""
        place = subnet if self.addresses == EQUAL else tenant * self.subnets + subnet
        return plan.network_subnet(FRONTEND, FIRST_TENANT_SUBNET + place)

    def bridge_at(self, tenant: int, leaf: int) -> str:
        """Return the bridge of a tenant in the ``leaf``-th leaf."""
        return f"{tenant_name(tenant)}-net{leaf % self.subnets}"

    def build(self, fabric: Assembly, leaves: Sequence[str]) -> None:
        """Give every leaf a subnet of each tenant, and its VRF."""
        for tenant in range(self.count):
            for number, leaf in enumerate(leaves):
                subnet = number % self.subnets
                fabric.bridge(
                    leaf,
                    self.bridge_at(tenant, number),
                    rail=FIRST_TENANT_SUBNET + tenant * self.subnets + subnet,
                    subnet=self.subnet_of(tenant, subnet),
                    vni=self.vni_of(tenant, subnet),
                    vrf=tenant_name(tenant) if self.routed else None,
                )
                if self.routed:
                    fabric.vrf(leaf, tenant_name(tenant), vni=self.router_vni + tenant)

    def join_border(self, fabric: Assembly, border: str, shared: tuple[IPv4Network, ...]) -> None:
        """Give ``border`` the VRF of every tenant, with a way to the subnets that all share."""
        for tenant in range(self.count if self.routed else 0):
            outside, inside = plan.handoff_link(tenant)
            networks = tuple(self.subnet_of(tenant, each) for each in range(self.subnets))
            handoff = Handoff(outside=outside, inside=inside, shared=shared, networks=networks)
            fabric.vrf(border, tenant_name(tenant), vni=self.router_vni + tenant, handoff=handoff)


def tenant_name(tenant: int) -> str:
    """Return the name of a tenant, which its VRF has, too."""
    return f"{TENANT_PREFIX}{tenant}"


def tenant_of_bridge(bridge: str) -> str | None:
    """Return the tenant that has ``bridge``, None if none has."""
    name, dash, _ = bridge.partition("-net")
    return name if dash and name.startswith(TENANT_PREFIX) else None
