"""The modules that ``python -m emulator.compiled`` compiles, and whether they are compiled here.

Python imports a compiled module in place of the source beside it.  So the build writes down what
it was made from, and whoever changes a source is asked to build again.
"""

from __future__ import annotations

import hashlib
import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from emulator.errors import UserError

#: The folder of the packages, and the name of the library that compiled modules share there.
ROOT = Path(__file__).parents[2]
LIBRARY = "uetemu"
#: The digest of each source that the build compiled, by its path from :data:`ROOT`.
RECORD = Path(__file__).with_name("compiled_sources.json")

#: Where the processor time of a frame goes, or that of an operation of a schedule.  A compiled
#: class has no derived class in a module that is not compiled.
HOT = (
    "emulator/dataplane/kernel/frames/kernel_switch.py",
    "emulator/dataplane/kernel/frames/packet_ring.py",
    "emulator/sim/endpoint/operations/executor.py",
    "emulator/sim/event_queue.py",
    "emulator/sim/gpu_endpoint.py",
    "emulator/sim/gpu_port.py",
    "emulator/sim/line.py",
    "emulator/sim/outlets.py",
    "emulator/sim/scale_up_copies.py",
    "uet/arrivals.py",
    "uet/carrier_codec.py",
    "uet/congestion/context.py",
    "uet/congestion/spraying/reps.py",
    "uet/pds/destination.py",
    "uet/pds/feedback.py",
    "uet/pds/packets.py",
    "uet/pds/pdc.py",
    "uet/pds/repair.py",
    "uet/pds/rto.py",
    "uet/pds/scheduler.py",
    "uet/pds/source.py",
    "uet/pds/window.py",
    "uet/ses/initiator/outbound.py",
    "uet/ses/target/inbound.py",
    "uet/ses/target/target.py",
    "uet/timekeeper.py",
)


def digest_of(source: str) -> str:
    """Return the SHA-256 of ``source``, a path from :data:`ROOT`."""
    return hashlib.sha256((ROOT / source).read_bytes()).hexdigest()


def extension_of(source: str) -> Path:
    """Return where the compiled module of ``source`` lies."""
    return (ROOT / source).with_suffix(EXTENSION_SUFFIXES[0])


def compiled() -> list[str]:
    """Return the sources whose compiled modules Python imports, none where nothing was built.

    Raises UserError if a source has changed since then.
    """
    there = [source for source in HOT if extension_of(source).exists()]
    if not there:
        return []
    try:
        known: dict[str, str] = json.loads(RECORD.read_text())
    except (OSError, ValueError):
        known = {}
    for source in there:
        if known.get(source) != digest_of(source):
            raise UserError(
                f"{source} is not what its compiled module was made from; compile it again by "
                "`python -m emulator.compiled`, or add --remove to run without"
            )
    return there
