"""The attachment of GPUs with two ports where the machine decides (homing=auto).

Drawn are two switches that look like one, to which a GPU has a bond.  That takes a kernel with
bonding, and static routes.  Elsewhere the GPU has two paths, and an address of its own over both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from emulator.dataplane.doctor import capabilities
from topologies import catalogue
from topologies.clos import AUTO_HOMING, PAIR, PATHS
from topologies.model import Topology
from topologies.profile.fabric_keys import STATIC


@dataclass(frozen=True, kw_only=True)
class Homing:
    """The requested homing ``asked`` and the one ``taken``, with a ``reason`` if they differ."""

    asked: str
    taken: str
    reason: str | None = None

    def __str__(self) -> str:
        return self.taken if self.reason is None else f"{self.taken}, not a bond: {self.reason}"


def resolved(
    topology: Topology,
    plane: str | None = None,
    *,
    has: Callable[[str], bool] = capabilities.has,
) -> tuple[Topology, Homing | None]:
    """``topology`` with the homing that is to be built, and what that is; None: GPUs have one port.

    ``plane`` is the control plane that the user requests; None: that of the topology.
    """
    asked = str(topology.parameters.get("homing", PATHS))
    if asked != AUTO_HOMING:
        several = any(len(gpu.ports) > 1 for gpu in topology.gpus)
        return topology, Homing(asked=asked, taken=asked) if several else None
    name = (plane or topology.profile.control_plane).partition(":")[0]
    reason = None
    if not any(port.bond for gpu in topology.gpus for port in gpu.ports):
        reason = "only two ports make one"
    elif name != STATIC:
        reason = f"it takes static routes, and the control plane is {name}"
    elif not has("bonding"):
        reason = "this kernel has no bonding"
    taken = PAIR if reason is None else PATHS
    built = catalogue.rebuilt(topology, homing=taken)
    profile = dataclasses.replace(topology.profile, vlans=built.profile.vlans)
    made = dataclasses.replace(built, profile=profile)
    if all(len(gpu.ports) == 1 for gpu in made.gpus):
        return made, None
    return made, Homing(asked=asked, taken=taken, reason=reason)
