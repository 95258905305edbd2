"""A file server on the head node, by which files are rolled out to all machines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emulator.cluster.services.service_registry import KINDS, ServiceKind, ServicePlace
from topologies.model import MANAGEMENT

PORT = 8000
#: Below the service's directory: what it offers.
OFFERED = "offered"


def _command(place: ServicePlace) -> Sequence[str]:
    offered = place.directory / OFFERED
    offered.mkdir(exist_ok=True)
    return (
        *(sys.executable, "-m", "http.server", str(PORT)),
        *("--bind", place.address, "--directory", str(offered)),
    )


FILES = KINDS.register(
    ServiceKind(
        name="files",
        meaning="HTTP server of files that are rolled out to all machines",
        network=MANAGEMENT,
        machines=lambda machines: machines.named("head"),
        command=_command,
        port=PORT,
    )
)
