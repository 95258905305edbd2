"""Power of all machines by Redfish, on the head node."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emulator.cluster.services.redfish import redfish_server
from emulator.cluster.services.service_registry import KINDS, ServiceKind, ServicePlace
from topologies.model import MANAGEMENT

PORT = 8001


def _command(place: ServicePlace) -> Sequence[str]:
    module = redfish_server.__name__
    return (sys.executable, "-m", module, place.cluster, place.address, str(PORT))


REDFISH = KINDS.register(
    ServiceKind(
        name="redfish",
        meaning="power of machines, off and on, which pulls their cables (Redfish)",
        network=MANAGEMENT,
        machines=lambda machines: machines.named("head"),
        command=_command,
        port=PORT,
    )
)
