"""Time by PTP: ptp4l on the head node is the grandmaster, and those of other machines measure it.

No clock is set or slewed (``free_running``): all machines share the kernel's clock, so that the
offset that clients report is the error of software time stamps over this network.  Messages are
multicast over UDP (IEEE 1588-2008, Annex D).
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.cluster.services.service_registry import (
    KINDS,
    NeededProgram,
    ServiceKind,
    ServicePlace,
)
from topologies.model import MANAGEMENT

CONFIGURATION, SOCKET = "ptp4l.conf", "ptp4l.sock"


def _command(place: ServicePlace) -> Sequence[str]:
    (grandmaster,) = place.machines.named("head")
    port = place.machines.port(place.machine, MANAGEMENT)
    settings = {
        "free_running": 1,
        "time_stamping": "software",
        "network_transport": "UDPv4",
        "uds_address": place.directory / SOCKET,
        "masterOnly" if place.machine == grandmaster else "slaveOnly": 1,
    }
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    configuration = place.directory / CONFIGURATION
    configuration.write_text(f"[global]\n{lines}")
    return ("ptp4l", "-f", str(configuration), "-i", port, "-m", "-q")


PTP = KINDS.register(
    ServiceKind(
        name="ptp",
        meaning="time by PTP: the head node is the grandmaster, the others measure (ptp4l)",
        network=MANAGEMENT,
        machines=lambda machines: machines.within(MANAGEMENT),
        command=_command,
        programs=(NeededProgram(command="ptp4l", package="linuxptp"),),
    )
)
