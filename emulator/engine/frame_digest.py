"""The digest of a run: every frame at every port, with its time.

Each line keeps a CRC32C of what it has begun to send (:class:`emulator.engine.line.Line`).  When a
frame arrives, and whether, follows from that and from what the line counts, so one number stands
for both ends of a cable.  Ports are taken in the order of their names: the digest does not depend
on who worked for which port.
"""

from __future__ import annotations

import hashlib

from emulator.engine.line_state import LineStates

#: Hexadecimal digits of a digest (SHA-256, FIPS 180-4).
DIGITS = 64


def digest(states: LineStates) -> str:
    """The digest of all that the lines with ``states`` have carried and lost."""
    total = hashlib.sha256()
    for end, line in sorted(states.items(), key=lambda one: str(one[0])):
        counts = line.counts
        numbers = (
            line.crc,
            counts.frames,
            counts.octets,
            counts.arrived,
            counts.in_queue,
            counts.in_flight,
            counts.no_room,
        )
        total.update(f"{end} {' '.join(map(str, numbers))}\n".encode())
    return total.hexdigest()
