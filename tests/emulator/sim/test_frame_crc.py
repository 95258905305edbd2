"""The CRC of a line's frames is the CRC32C of their stamps and octets."""

import random
import struct

from google_crc32c import value

from emulator.sim.line import FrameCrc


def test_stamps_and_frames_are_octets_of_one_crc() -> None:
    draw = random.Random(1)
    crc, octets = FrameCrc(), b""
    for began in (0, 1, 2**32 - 1, 2**32, 2**61, *(draw.getrandbits(60) for _ in range(50))):
        frame = draw.randbytes(draw.randrange(200))
        crc.add(began, frame)
        octets += struct.pack("<QI", began, len(frame)) + frame
        assert crc.value == value(octets)
