"""The homing of NICs: what the ports of one NIC are to each other.

With ``paths`` all ports lead to one address of the GPU.  With ``bond`` the two ports are one
interface with one address, and the two rail switches look like one: one subnet, one gateway address
and MAC. Between them each rail has a standby link, for frames to GPUs whose own port there is down.
With ``esi`` they have no such link, and advertise their GPUs to each other by BGP EVPN (Ethernet
segments, RFC 7432).  With ``auto`` it is ``bond`` that is drawn, and ``paths`` where the kernel has
no bonds (:mod:`emulator.dataplane.homing`).  With ``planes`` each port is a fabric endpoint (FEP)
of its own, with its own address; all of a NIC have its one MAC.  Nothing joins the planes then.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies.elements import TopologyError

HOMINGS = ("paths", "planes", "bond", "esi", "auto")
PATHS, PLANES, PAIR, SEGMENT, AUTO_HOMING = HOMINGS


@dataclass(frozen=True)
class NicHoming:
    """The homing ``word`` of NICs with ``nic_ports`` ports each."""

    word: str
    nic_ports: int

    @property
    def drawn(self) -> str:
        """Return the homing; of ``auto``, what it is on a machine whose kernel has bonds."""
        if self.word != AUTO_HOMING:
            return self.word
        return PAIR if self.nic_ports == 2 else PATHS

    @property
    def paired(self) -> bool:
        """Return whether two rail switches look like one, with standby links between them."""
        return self.drawn == PAIR

    @property
    def ethernet_segment(self) -> bool:
        """Return whether the ports of a GPU are an Ethernet segment of BGP EVPN."""
        return self.word == SEGMENT

    @property
    def bonded(self) -> bool:
        """Return whether the two ports of a GPU are one interface."""
        return self.paired or self.ethernet_segment

    @property
    def fep_per_port(self) -> bool:
        """Return whether each port is a fabric endpoint."""
        return self.word == PLANES

    @property
    def subnet_planes(self) -> int:
        """Return the number of planes that have subnets of their own."""
        return 1 if self.bonded or self.fep_per_port else self.nic_ports

    def check(self) -> None:
        """Raise TopologyError unless NICs have the ports that their homing takes."""
        if self.bonded and self.nic_ports != 2:
            raise TopologyError(
                f"homing is {self.word} and nic_ports {self.nic_ports}; a bond has two ports: "
                "take nic_ports=2, or homing=paths"
            )
