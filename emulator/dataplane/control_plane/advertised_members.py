"""Compute what each switch knows by BGP EVPN of stretched networks after convergence.

Type 3 routes say which switches have a network (a VNI), type 2 routes which switches an address is
behind (RFC 8365).  No kernel is asked: whoever has the topology can compute it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emulator.dataplane.control_plane.speakers import parts
from topologies.model import SWITCH_ROLES, Topology
from topologies.stretch import segments_of, stretch_of


class AdvertisedMembers:
    """The members that switches tell each other of in ``left``, what faults have left of ``built``.

    A GPU stays a member behind a port without carrier, as its entry there is static; but an
    Ethernet segment leaves a switch with its port.
    """

    def __init__(self, left: Topology, built: Topology) -> None:
        self._part = parts(left, SWITCH_ROLES)
        now, before = stretch_of(left), stretch_of(built)
        self._owners = {} if now is None else now.owners
        #: GPU -> the switches that advertise it, and the VNI of its subnet
        self.homes: Mapping[str, tuple[tuple[str, ...], int]] = {}
        if before is not None and now is not None:
            segments = {segment.gpu.node for segment in segments_of(built)}
            staying = {gpu: home for gpu, home in before.homes.items() if gpu not in segments}
            leaving = {gpu: home for gpu, home in now.homes.items() if gpu in segments}
            self.homes = staying | leaving

    def reaches(self, switch: str, other: str) -> bool:
        """Return whether what ``other`` advertises comes to ``switch``."""
        return self._part[switch] == self._part[other]

    def others(self, switch: str, vni: int) -> Iterator[str]:
        """Yield the other switches that have ``vni``, as far as ``switch`` knows."""
        for owner in self._owners[vni]:
            if owner != switch and self.reaches(switch, owner):
                yield owner

    def elsewhere(self, switch: str, vni: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the GPUs of ``vni`` that are at others than ``switch``, each with those."""
        for gpu, (owners, of) in self.homes.items():
            if of == vni and switch not in owners:
                yield gpu, tuple(owner for owner in owners if self.reaches(switch, owner))
