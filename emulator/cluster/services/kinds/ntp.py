"""Time by NTP: chronyd on the head node serves it, and those of other machines measure it.

None of them sets the machine's clock (``chronyd -x``): the clients report how far their clock would
be off, which is the same clock, so that what they measure is the network.
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

CONFIGURATION, SOCKET = "chrony.conf", "chronyd.sock"
#: How good a clock claims to be that nothing disciplines (RFC 5905, stratum).
STRATUM = 8


def _command(place: ServicePlace) -> Sequence[str]:
    folder = place.directory
    (server,) = place.machines.named("head")
    lines = [
        f"pidfile {folder}/chronyd.pid",
        f"bindcmdaddress {folder}/{SOCKET}",
        "cmdport 0",
    ]
    if place.machine == server:
        block = place.machines.subnet(place.machine, MANAGEMENT)
        lines += [f"bindaddress {place.address}", f"allow {block}", f"local stratum {STRATUM}"]
    else:
        address = place.machines.address(server, MANAGEMENT)
        lines += ["port 0", f"server {address} iburst minpoll 0 maxpoll 4"]
    (folder / CONFIGURATION).write_text("\n".join(lines) + "\n")
    folder.chmod(0o750)  # chronyd makes no socket where others could
    return ("chronyd", "-x", "-d", "-u", "root", "-f", str(folder / CONFIGURATION))


NTP = KINDS.register(
    ServiceKind(
        name="ntp",
        meaning="time: the head node serves it, the others measure theirs (chronyd -x)",
        network=MANAGEMENT,
        machines=lambda machines: machines.within(MANAGEMENT),
        command=_command,
        programs=(NeededProgram(command="chronyd", package="chrony", provisioned=False),),
    )
)
