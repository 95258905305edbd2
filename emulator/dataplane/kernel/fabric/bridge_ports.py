"""Ports that a bridge of the kernel can have."""

from __future__ import annotations

from collections import Counter

from emulator.dataplane.kernel.fabric import vlans
from emulator.errors import UserError
from topologies.model import Node, Topology

#: Numbers 1..1023 (``BR_PORT_BITS`` of net/bridge/br_private.h).
MOST_PORTS = 1023


def check(topology: Topology) -> None:
    """Raise UserError if a switch of ``topology`` needs a bridge of more than :data:`MOST_PORTS`.

    A bond is one port, and so is the tunnel of a stretched subnet.
    """
    together = vlans.requested(topology)
    for switch in topology.switches:
        name, ports = _largest(switch, together)
        if ports > MOST_PORTS:
            raise UserError(
                f"the bridge {name} of {switch.name} would have {ports:,} ports, and one of Linux "
                f"has at most {MOST_PORTS:,}: use fewer servers, or spread them over more switches "
                "(such as segments=2)"
            )


def _largest(switch: Node, together: bool) -> tuple[str, int]:
    """Return the bridge of ``switch`` with most ports, and how many; all in one if ``together``."""
    members = {(port.bridge, port.bond or port.name) for port in switch.ports if port.bridge}
    ports = Counter(bridge for bridge, _ in members)
    ports.update(bridge.name for bridge in switch.bridges if bridge.vni is not None)
    if together and ports:
        return next(iter(ports)), ports.total()
    return max(ports.items(), key=lambda item: (item[1], item[0]), default=("", 0))
