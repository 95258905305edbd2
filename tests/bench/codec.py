"""How much faster the fast codec is than scapy, on the frame of a RUD write.

Both do the whole job in the same run: from field values to the octets of a frame with lengths
and IP checksum, and from octets to the value of every field.  The results are compared.
"""

import statistics
import struct
import time
from collections.abc import Callable
from typing import Any

from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from uet.wire import headers
from uet.wire.codec import compile_stack
from uet.wire.codes import NextHeader, Opcode
from uet.wire.pds import UET_RUD_REQ
from uet.wire.ses import UET_SES_STD

STACK = compile_stack(
    headers.ETHERNET,
    headers.IPV4,
    headers.UDP_HEADER,
    ("pds", headers.RUD_REQ),
    ("ses", headers.SES_STD_SOM),
)
_LAYERS = (Ether, IP, UDP, UET_RUD_REQ, UET_SES_STD)
_CHECKSUM_INDEX = STACK.names.index("ip_chksum")
_IP_AT = headers.ETHERNET.size
_IP_WORDS = struct.Struct(">10H")
#: Frames per timed stretch of each codec: scapy's few are as long as ours many.
_SCAPY_FRAMES, _CODEC_FRAMES = 5, 500


def rud_write() -> Packet:
    """First packet of a write: Ethernet to SES, lengths and checksum left to be computed."""
    return (
        Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")
        / IP(src="10.0.1.2", dst="10.0.1.3", flags="DF", id=0)
        / UDP(sport=48783)
        / UET_RUD_REQ(ar=1, clear_psn_offset=-3, psn=0x01020304, spdcid=0x1A2B, dpdcid=0x3C4D)
        / UET_SES_STD(
            opcode=Opcode.WRITE,
            rel=1,
            hd=1,
            eom=0,
            message_id=0x5E6F,
            ri_generation=0x71,
            job_id=0x829304,
            pid_on_fep=0xA5B,
            resource_index=0xC6D,
            buffer_offset=0x1112131415161718,
            initiator=0x21222324,
            match_bits=0x3132333435363738,
            header_data=0x4142434445464748,
            request_length=0x51525354,
        )
    )


def encode(values: tuple[Any, ...]) -> bytes:
    """A frame from its fields, the IP checksum computed."""
    frame = STACK.encode(*values)
    total = sum(_IP_WORDS.unpack_from(frame, _IP_AT))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return b"%b%b%b" % (frame[:24], checksum.to_bytes(2, "big"), frame[26:])


def scapy_values(packet: Packet) -> tuple[Any, ...]:
    """Return what scapy found, in the codec's order and form."""
    values: list[Any] = []
    for layer, header in zip(
        _LAYERS,
        (
            headers.ETHERNET,
            headers.IPV4,
            headers.UDP_HEADER,
            headers.RUD_REQ,
            headers.SES_STD_SOM,
        ),
        strict=True,
    ):
        for field in header.fields:
            value = packet[layer].getfieldval(field.name)
            if isinstance(value, str):
                separator = ":" if ":" in value else "."
                base = 16 if separator == ":" else 10
                value = bytes(int(part, base) for part in value.split(separator))
            values.append(value if field.octets else int(value))
    return tuple(values)


def _seconds(work: Callable[[], object], count: int) -> float:
    """Time of one call."""
    start = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - start) / count


def measure(seconds: float) -> dict[str, float]:
    """Ratios scapy to codec, each the median over alternating stretches of ``seconds`` in all."""
    packet = rud_write()
    frame = bytes(packet)
    values = STACK.decode(frame)
    blank = (*values[:_CHECKSUM_INDEX], 0, *values[_CHECKSUM_INDEX + 1 :])
    assert headers.UDP_HEADER.size + 56 == values[STACK.names.index("udp_len")]
    assert values[STACK.names.index("pds_next_hdr")] == NextHeader.REQUEST_STD
    if encode(blank) != frame:
        raise AssertionError("the codecs build different octets")
    if scapy_values(Ether(frame)) != values:
        raise AssertionError("the codecs find different values")

    decode = STACK.decode
    encoded: list[float] = []
    decoded: list[float] = []
    before, conf.contribs["uet"]["crc"] = conf.contribs["uet"]["crc"], False
    try:
        deadline = time.perf_counter() + seconds
        while not encoded or time.perf_counter() < deadline:
            scapy_time = _seconds(lambda: bytes(packet), _SCAPY_FRAMES)
            encoded.append(scapy_time / _seconds(lambda: encode(blank), _CODEC_FRAMES))
            scapy_time = _seconds(lambda: Ether(frame), _SCAPY_FRAMES)
            decoded.append(scapy_time / _seconds(lambda: decode(frame), _CODEC_FRAMES))
    finally:
        conf.contribs["uet"]["crc"] = before
    return {
        "codec_encode_ratio": statistics.median(encoded),
        "codec_decode_ratio": statistics.median(decoded),
    }


if __name__ == "__main__":
    for name, ratio in measure(3.0).items():
        print(f"{name}: {ratio:.0f}")  # noqa: T201
