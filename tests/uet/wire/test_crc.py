"""CRC-32C of the UET trailer."""

import json

import pytest

from tests.harness.wire.golden import VECTORS, WITH_CRC, Vector
from uet.wire import crc
from uet.wire.envelope import open_frame

_CASES = json.loads((VECTORS / "primitives" / "crc32c.json").read_text())["cases"]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
def test_check_values(case: dict[str, str]) -> None:
    data = bytes.fromhex(case["input"])
    assert crc.crc32c(data) == int(case["crc"], 16)
    assert crc.extend(crc.crc32c(data[:5]), data[5:]) == int(case["crc"], 16)
    assert crc.crc32c(data).to_bytes(4, "big").hex() == case["wire"]


@pytest.mark.parametrize("vector", WITH_CRC, ids=str)
def test_vectors_verify_and_any_flipped_bit_fails(vector: Vector) -> None:
    envelope = open_frame(vector.frame)
    udp = None if envelope.udp is None else envelope.udp - envelope.ip
    packet = vector.frame[envelope.ip :]
    assert crc.verify(packet, udp_offset=udp)
    assert crc.trailer(packet[:-4], udp_offset=udp) == packet[-4:]
    start = crc.COVERAGE_START[envelope.version]
    for offset in range(len(packet)):
        for bit in range(8):
            flipped = bytearray(packet)
            flipped[offset] ^= 1 << bit
            if offset < 1:
                continue  # the version tells the coverage
            checksum = udp is not None and offset - udp in (6, 7)
            covered = offset >= start and not checksum
            assert crc.verify(bytes(flipped), udp_offset=udp) is not covered
