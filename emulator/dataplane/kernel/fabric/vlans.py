"""Rails as VLANs (802.1Q) of one bridge per switch, instead of a bridge per rail.

::

    GPU -- down0 --+                    +-- rail0 (VLAN 101) 10.0.1.1 --+
                   |  br0, which minds  |                               |  routes, as ever
    GPU -- down1 --+  VLANs             +-- rail1 (VLAN 102) 10.0.2.1 --+

A port carries no tags and is in the VLAN of its rail.  The switch itself is in each VLAN with an
interface (an SVI). It has the name, the index and the address of the bridge that it stands for. So
routes, neighbours, captures and status need not distinguish the two.
"""

from __future__ import annotations

from emulator.dataplane.doctor import capabilities
from topologies.model import Topology


def check(topology: Topology) -> None:
    """Raise UserError if ``topology`` requires VLANs and the kernel cannot have them."""
    if topology.profile.vlans == "on":
        capabilities.require(
            "vlan",
            purpose="make rails VLANs of one bridge (vlans=on; vlans=off takes a bridge each)",
        )


def requested(topology: Topology) -> bool:
    """Return whether the rails of ``topology`` are VLANs on this machine."""
    use = topology.profile.vlans
    return use == "on" or (use == "auto" and capabilities.has("vlan"))
