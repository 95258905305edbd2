"""What a transport puts around data on the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WireCost:
    """Octets around the payload of every data packet, and the payload it carries at most.

    An acknowledgement is for ``packets_per_ack`` packets of a message, or what is left of it; each
    of the ``first`` packets to a peer has one of its own.
    """

    around_bytes: int
    payload_mtu: int
    packets_per_ack: int = 1
    first: int = 0

    def octets(self, length: int) -> int:
        """Return what a message of ``length`` octets puts on the wire."""
        return length + self.packets(length) * self.around_bytes

    @property
    def full_octets(self) -> int:
        """Return what a full packet takes on the wire."""
        return self.payload_mtu + self.around_bytes

    @property
    def payload_share(self) -> float:
        """Payload over all octets of a full packet."""
        return self.payload_mtu / self.full_octets

    def packets(self, length: int) -> int:
        return max(1, math.ceil(length / self.payload_mtu))
