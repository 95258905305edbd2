"""No packet of one path overtakes another: what a capture of NICs says of a whole run.

Packets from one NIC to another with one entropy value and one code point take one path through
switches that balance by flow, and wait in the same queues.  They arrive in the order in which they
left, but for those that were dropped or trimmed.
"""

import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from emulator.dataplane.capture import pcapng
from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.code_points import LAB

#: Interface description block and its option if_name (pcapng, draft-ietf-opsawg-pcapng, 4.2).
_INTERFACE, _IF_NAME = 1, 2
_BLOCK = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_OPTION = struct.Struct("<HH")
_TRIMMED = {point for point, kind in enumerate(LAB.classes()) if kind == TrafficClass.TRIMMED}
_IPV4, _ADDRESSES, _HEADER, _UDP = b"\x08\x00\x45", slice(26, 34), 34, 17
#: Of a header of a transport: enough to tell packets of one path from each other.
_TOLD_BY = slice(42, 42 + 32)


class Passed(NamedTuple):
    """A packet at a port; ``path`` is what its path and its queues follow from."""

    out: bool
    trimmed: bool
    path: bytes
    packet: bytes


def overtaken(capture: Path, gpus: Collection[str]) -> list[str]:
    """Each path whose packets arrive in another order than they left in, in a sentence.

    Of ``capture``, which holds all ports of ``gpus``, and maybe of others.
    """
    sent: dict[bytes, list[bytes]] = defaultdict(list)
    arrived: dict[bytes, list[bytes]] = defaultdict(list)
    for one in _packets(capture, gpus):
        if one.out:
            sent[one.path].append(one.packet)
        elif not one.trimmed:
            arrived[one.path].append(one.packet)
    assert sent, f"{capture} has no packets of GPUs"
    found = []
    for path, packets in arrived.items():
        left = iter(sent[path])
        for place, packet in enumerate(packets):
            if not any(packet == other for other in left):
                found.append(f"packet {place} of path {path.hex()} comes too late or from nowhere")
                break
    return found


def _packets(capture: Path, gpus: Collection[str]) -> Iterator[Passed]:
    octets = capture.read_bytes()
    of_gpus: list[bool] = []  # by number of the interface
    at = 0
    while at < len(octets):
        kind, total = _BLOCK.unpack_from(octets, at)
        if kind == _INTERFACE:
            name = dict(_options(octets[at + 16 : at + total - 4]))[_IF_NAME]
            of_gpus.append(name.decode().partition(":")[0] in gpus)
        elif kind == pcapng.ENHANCED_PACKET and of_gpus[_LENGTH.unpack_from(octets, at + 8)[0]]:
            (captured,) = _LENGTH.unpack_from(octets, at + 20)
            begin = at + 28
            frame = octets[begin : begin + captured]
            options = octets[begin + captured + -captured % 4 : at + total - 4]
            if frame[12:15] == _IPV4 and frame[23] == _UDP:
                code_point, flags = frame[15] >> 2, dict(_options(options))[pcapng.FLAGS]
                yield Passed(
                    out=int.from_bytes(flags, "little") & 3 == pcapng.OUTBOUND,
                    trimmed=code_point in _TRIMMED,
                    path=frame[_ADDRESSES] + frame[_HEADER : _HEADER + 4] + bytes([code_point]),
                    packet=frame[_TOLD_BY],
                )
        at += total


def _options(octets: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(octets):
        kind, length = _OPTION.unpack_from(octets, at)
        yield kind, octets[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
