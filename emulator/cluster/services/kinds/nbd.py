"""Block storage of every storage node by NBD, the network block device, served by nbdkit.

A node has one export, a sparse file in the service's directory, which goes with the lab.  Clients
are libnbd's (``nbdinfo``, ``nbdcopy``), fio (``--ioengine=nbd``) and Linux's ``nbd-client``.

nbdkit 1.32 asks for SIGTERM at the death of its parent (``prctl(PR_SET_PDEATHSIG)``), also without
``--exit-with-parent``.  The parent is the thread that started it, which here ends at once; so a
shell stands between them, and ends with nbdkit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.cluster.services.kinds.block_storage import BLOCK_OCTETS, DISK, SIZE_OCTETS
from emulator.cluster.services.service_registry import (
    KINDS,
    NeededProgram,
    ServiceKind,
    ServicePlace,
)
from emulator.errors import UserError
from topologies.model import STORAGE
from topologies.registry import parameter

#: NBD's port, registered at IANA.
PORT = 10809
#: Arguments: the server with its arguments.
_KEEP_PARENT = '"$@" & wait $!'


@dataclass(frozen=True, kw_only=True)
class ExportSize:
    size: float = parameter(SIZE_OCTETS, help="octets of the export of each storage node")


def _command(place: ServicePlace) -> Sequence[str]:
    octets = int(place.parameters["size"])
    if octets < BLOCK_OCTETS or octets % BLOCK_OCTETS:
        raise UserError(f"nbd.size is {octets} octets; take a multiple of {BLOCK_OCTETS}")
    disk = place.directory / DISK
    with disk.open("wb") as file:
        file.truncate(octets)
    nbdkit = ("nbdkit", "-f", "-i", place.address, "-p", str(PORT), "file", str(disk))
    return ("sh", "-c", _KEEP_PARENT, "nbd", *nbdkit)


NBD = KINDS.register(
    ServiceKind(
        name="nbd",
        meaning="block storage by NBD (nbdkit), an export of each storage node",
        network=STORAGE,
        machines=lambda machines: machines.named("storage"),
        command=_command,
        port=PORT,
        programs=(
            NeededProgram(command="nbdkit", package="nbdkit"),
            NeededProgram(command="nbdcopy", package="libnbd-bin"),
        ),
        parameters=ExportSize,
    )
)
