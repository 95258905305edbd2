"""An object store with the interface of S3 on the first storage node, by moto's server.

Objects are in memory.  Any client of S3 will do.  Requests have to be signed, by whatever key: the
store does not check who it is, and refuses objects to requests without a signature.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from emulator.cluster.services.service_registry import (
    KINDS,
    NeededProgram,
    ServiceKind,
    ServicePlace,
)
from topologies.model import STORAGE

PORT = 9000
#: The program of the Python package moto, beside the interpreter.
MOTO = Path(sys.executable).with_name("moto_server")


def _command(place: ServicePlace) -> Sequence[str]:
    return (str(MOTO), "--host", place.address, "--port", str(PORT))


OBJECT_STORE = KINDS.register(
    ServiceKind(
        name="s3",
        meaning="object store with the interface of S3 (moto)",
        network=STORAGE,
        machines=lambda machines: machines.named("storage")[:1],
        command=_command,
        port=PORT,
        programs=(NeededProgram(command=str(MOTO), package="uetemu[s3]"),),
    )
)
