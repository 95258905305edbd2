"""Whole secured frames, over IPv4 and IPv6, with UDP and without, and their way back."""

from ipaddress import ip_address

from uet.tss.record import SecureDomains, SecureRecords, covered
from uet.wire import headers
from uet.wire.codes import NATIVE_PROTOCOL, UDP_PORT
from uet.wire.envelope import open_frame

#: version -> addresses of two endpoints
ADDRESSES = {4: ("10.0.0.1", "10.0.0.2"), 6: ("fd00::1", "fd00::2")}
ENTROPY = 0x3FBB
KEY = bytes(range(32))
OTHER_KEY = bytes(range(100, 132))


def sealed_frame(
    records: SecureRecords,
    header: bytes,
    payload: bytes = b"",
    *,
    version: int = 4,
    udp: bool = True,
    source: str = "",
    destination: str = "",
) -> bytes:
    """An Ethernet frame; addresses are those of the version's first to its second endpoint."""
    octets = records.overhead + len(header) + len(payload)
    first, second = ADDRESSES[version]
    ends = [ip_address(source or first).packed, ip_address(destination or second).packed]
    if udp:
        protocol, below = 17, headers.UDP_HEADER.size
        carrier = headers.UDP_HEADER.encode(
            sport=ENTROPY, dport=UDP_PORT, len=below + octets, chksum=0
        )
    else:
        protocol, below = NATIVE_PROTOCOL, headers.ENTROPY.size
        carrier = headers.ENTROPY.encode(entropy=ENTROPY)
    length = below + octets
    if version == 4:
        fields = {"src": ends[0], "dst": ends[1], "ttl": 64, "proto": protocol}
        ip, ethertype = headers.IPV4.encode(**fields, len=20 + length), 0x0800
    else:
        fields = {"src": ends[0], "dst": ends[1], "hlim": 64, "nh": protocol}
        ip, ethertype = headers.IPV6.encode(**fields, plen=length), 0x86DD
    tss, ciphertext = records.seal(ends[0] + ends[1] + carrier, header, payload)
    front = headers.ETHERNET.encode(dst=bytes(6), src=bytes(6), type=ethertype)
    return front + ip + carrier + tss + ciphertext


def parts(frame: bytes) -> tuple[bytes, bytes, int]:
    """Prefix, packet and address size of a frame, as a receiver takes them."""
    envelope = open_frame(frame)
    assert envelope.uet is not None, envelope.errors
    source_at = envelope.ip + (12 if envelope.version == 4 else 8)
    prefix = covered(frame, source_at, envelope.uet, udp=envelope.udp is not None)
    return prefix, frame[envelope.uet : envelope.end], 4 if envelope.version == 4 else 16


def opened(records: SecureRecords | SecureDomains, frame: bytes) -> bytes | str:
    return records.open(*parts(frame))


def move(records: SecureRecords, an: int, epoch: int, counter: int) -> None:
    """Put a sender where it would stand after a long time."""
    ring = records.ring(an)
    ring.epoch, ring.counter = epoch, counter
