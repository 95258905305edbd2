"""Block storage of every storage node by NVMe/TCP, served by uetemu's own target.

A node has one subsystem with one namespace, a sparse file in the service's directory, which goes
with the lab.  Hosts are ``uetemu nvme`` and any other: Linux connects with ``nvme connect``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from emulator.cluster.nvme_tcp.wire.layouts import IO_PORT
from emulator.cluster.services.service_registry import KINDS, ServiceKind, ServicePlace
from emulator.errors import UserError
from topologies.model import STORAGE
from topologies.registry import parameter

#: The namespace, in the service's directory.
DISK = "disk.img"
SIZE_OCTETS, BLOCK_OCTETS = 2**30, 4096
_UETEMU = (sys.executable, "-P", "-c", "from emulator.cli.main import main; main()")


@dataclass(frozen=True, kw_only=True)
class NamespaceSize:
    size: float = parameter(SIZE_OCTETS, help="octets of the namespace of each storage node")


def subsystem_of(machine: str) -> str:
    """Return the NQN of the subsystem that the storage node ``machine`` serves."""
    return f"nqn.2026-01.example.uetemu:{machine}"


def check_whole_blocks(**octets: int) -> None:
    """Raise UserError for one of ``octets``, by name, that is no multiple of a block."""
    for name, number in octets.items():
        if number % BLOCK_OCTETS:
            raise UserError(
                f"{name} is {number} octets, no whole blocks of {BLOCK_OCTETS}; take a multiple"
            )


def _command(place: ServicePlace) -> Sequence[str]:
    octets = int(place.parameters["size"])
    if octets < BLOCK_OCTETS or octets % BLOCK_OCTETS:
        raise UserError(
            f"nvme.size is {octets} octets; take a multiple of the block, {BLOCK_OCTETS}"
        )
    return (
        *_UETEMU,
        *("nvme", "target", str(place.directory / DISK), "--size", str(octets)),
        *("--block-size", str(BLOCK_OCTETS), "--subsystem", subsystem_of(place.machine)),
        *("--listen", f"{place.address}:{IO_PORT}", "--format", "json"),
    )


BLOCK_STORAGE = KINDS.register(
    ServiceKind(
        name="nvme",
        meaning="block storage by NVMe/TCP, a subsystem of each storage node",
        network=STORAGE,
        machines=lambda machines: machines.named("storage"),
        command=_command,
        port=IO_PORT,
        parameters=NamespaceSize,
    )
)
