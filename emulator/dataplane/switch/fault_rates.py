"""The least rate that a fault may leave a port."""

from __future__ import annotations

import math

from emulator.dataplane.clock import Dilation
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_profile import SMALLEST_HOST_RATE
from emulator.errors import UserError
from topologies.model import Link
from topologies.units import format_rate


def check_rate(faults: Faults, cable: Link, where: str, dilation: float) -> None:
    """Raise UserError if ``faults`` leave less of ``cable`` than the program counts in."""
    least = Dilation(dilation).fabric_bps(SMALLEST_HOST_RATE) / cable.rate_bps
    if faults.rate < least:
        share = 1.1 * least
        mbps = math.ceil(share * cable.rate_bps / 10**6)
        raise UserError(
            f"the fault rate leaves {faults.rate:g} of {where}, too little to count in at "
            f"dilation {dilation:g}: choose a share of at least {share:.2g}, which is "
            f"{format_rate(mbps * 10**6)}"
        )
