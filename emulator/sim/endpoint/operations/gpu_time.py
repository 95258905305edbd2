"""The time that a GPU's collective library takes for a schedule: its launch, and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_PS: Final = 1000
_BITS_PS: Final = 8 * 10**9 * _PS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTime:
    """What a rank's schedule takes beside its networks.

    Nothing begins before ``launch_ns``.  A copy begins ``copy_ns`` after it is ready, and a write
    ``write_ns``, of which the NICs of both ends (:mod:`emulator.sim.endpoint.nic.nic_profile`) may
    take a part.  All channels of the GPU together move data at ``rate_bps``.
    """

    launch_ns: int
    copy_ns: int
    write_ns: int
    rate_bps: int

    def octets_ps(self, octets: int) -> int:
        """Return how long the GPU's channels take for ``octets``."""
        return -(-octets * _BITS_PS // self.rate_bps)
