"""The rendezvous of jobs on the head node: a store of keys and values over TCP."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emulator.cluster.services.rendezvous import store_server
from emulator.cluster.services.service_registry import KINDS, ServiceKind, ServicePlace
from topologies.model import MANAGEMENT

PORT = 29_500  # as PyTorch has it by default (MASTER_PORT)


def _command(place: ServicePlace) -> Sequence[str]:
    return (sys.executable, "-m", store_server.__name__, place.address, str(PORT))


RENDEZVOUS = KINDS.register(
    ServiceKind(
        name="rendezvous",
        meaning="keys and values, by which the ranks of a job find each other",
        network=MANAGEMENT,
        machines=lambda machines: machines.named("head"),
        command=_command,
        port=PORT,
    )
)
