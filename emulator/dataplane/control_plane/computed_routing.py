"""The control plane of switches that are a model: its routes are computed, and no daemon runs.

The switches have from the start what
:class:`~emulator.dataplane.control_plane.convergence.ConvergedState` has of the whole fabric.
After a fault they have what it has of the rest, as soon as the time of
:mod:`emulator.dataplane.control_plane.charged_time` is over.  So a run meets what it meets in the
kernel with
:mod:`emulator.dataplane.control_plane.held_routes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.control_plane.charged_time import Broken, ChargedTime
from emulator.dataplane.control_plane.control_plane_choice import ControlPlane
from emulator.dataplane.control_plane.kernel_routes import UNNUMBERED, Hops
from topologies.model import CableEnd, Topology
from topologies.routing.static_routes import Hop, Route
from topologies.stretch import stretch_of

#: Takes the routes of a switch, by its name.
Install = Callable[[str, Sequence[Route]], None]
#: Takes what switches know of the members of stretched networks.
InstallMembers = Callable[[AdvertisedMembers], None]


class ComputedRouting:
    """The control plane ``plane`` of the switches of ``topology``, whose routes ``install`` takes.

    ``members`` takes who is behind which tunnel, where there are any.
    ``vlans``: the rails of a switch are VLANs of one bridge.

    A run uses it as it uses :class:`~emulator.dataplane.control_plane.lab_routing.Routing` and
    :class:`~emulator.dataplane.control_plane.held_routes.HeldRoutes`.
    """

    judged_by_silence = False

    def __init__(
        self,
        plane: ControlPlane,
        topology: Topology,
        install: Install,
        *,
        members: InstallMembers | None = None,
        vlans: bool = False,
    ) -> None:
        self.plane, self.topology = plane, topology
        self.charged = ChargedTime(topology, plane, vlans=vlans)
        self._install = install
        self._members = members if stretch_of(topology) is not None else None
        self.settle(Broken())

    def settle(self, broken: Broken) -> float:
        """Give all switches their routes without what is ``broken``.

        Returns how long it took (s of this machine).
        """
        began = time.monotonic()
        for switch, routes in self.charged.expected(broken).requested.items():
            self._install(
                switch,
                [
                    Route(destination=destination, hops=tuple(self._hops(switch, hops)))
                    for destination, hops in routes.items()
                ],
            )
        if self._members is not None:
            self._members(AdvertisedMembers(self.charged.left(broken), self.topology))
        return time.monotonic() - began

    def _hops(self, switch: str, hops: Hops) -> Iterator[Hop]:
        """Yield ``hops`` in the order in which zebra writes them, on which shares of hashes depend.

        That is by address of the neighbour, which is link-local and made of its MAC where sessions
        are unnumbered.
        """
        ordered = []
        for port, address in hops:
            if address != UNNUMBERED:
                via = IPv4Address(address)
                ordered.append((via.packed, Hop(port, via)))
                continue
            far = self.topology.far_end(CableEnd(switch, port))
            mac = bytes.fromhex(self.topology.node(far.node).port(far.port).mac.replace(":", ""))
            ordered.append((mac, Hop(port, self.topology.addresses[far].ip)))
        yield from (hop for _, hop in sorted(ordered))

    def facts(self) -> Mapping[str, object]:
        """Return facts for the record of a run; nothing had to converge."""
        return {
            "spec": self.plane.spec,
            "converged_s": 0.0,
            "detection_s": self.plane.detection_s,
        }

    def neighbours_lost(self) -> int:
        """Return 0: no daemon gives up a neighbour."""
        return 0

    def save(self, folder: Path) -> None:
        """Write nothing to ``folder``: no daemon has read or logged anything."""

    def await_convergence(self) -> None:
        """Give all switches the routes of the whole fabric."""
        self.settle(Broken())
