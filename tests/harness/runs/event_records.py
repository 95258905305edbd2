"""A reader of TensorBoard's event files: records with their checksums, and the scalars in them.

A record is its length (8 octets, little endian), the masked CRC-32C of those, the data, and the
masked CRC-32C of that.
"""

import struct
from pathlib import Path
from typing import Any

import google_crc32c

Scalars = dict[str, list[tuple[int, Any, Any]]]


def scalars(path: Path) -> Scalars:
    """Return (step, value, wall time in s) of each tag; the file must be whole."""
    from tensorboardX.proto.event_pb2 import Event

    first, *events = (Event.FromString(data) for data in records(path.read_bytes()))
    assert (first.file_version, first.wall_time) == ("brain.Event:2", 0)
    found: Scalars = {}
    for event in events:
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(
                (event.step, value.simple_value, event.wall_time)
            )
    return found


def records(octets: bytes) -> list[bytes]:
    found = []
    while octets:
        (length,) = struct.unpack_from("<Q", octets)
        assert struct.unpack_from("<I", octets, 8)[0] == _masked(octets[:8])
        data = octets[12 : 12 + length]
        assert len(data) == length
        assert struct.unpack_from("<I", octets, 12 + length)[0] == _masked(data)
        found.append(data)
        octets = octets[16 + length :]
    return found


def _masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
