"""An endpoint in a secure domain, and a peer that the test plays in it (UES 3.7)."""

import random
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from tests.harness.uet.network import Network, endpoint, joined
from tests.harness.uet.script import (
    HERE,
    INITIATOR,
    KEY,
    THERE,
    Script,
    Seen,
    rud,
    write,
)
from tests.harness.uet.tss_vectors import parts, sealed_frame
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.tss.record import SecureDomains, sdi_of
from uet.tss.secure_domain import SecureDomain
from uet.wire.frame import decode_frame

SDI, OTHER = 0x123456, 0x77
DOMAINS = (
    SecureDomain(sdi=SDI, mode="cluster", keys={0: bytes(range(32))}),
    SecureDomain(sdi=OTHER, mode="cluster", keys={0: bytes(range(50, 82))}),
)


class SecureScript(Script):
    """The peer speaks in a secure domain, and understands what it is told there."""

    def __init__(self, **parameters: Any) -> None:
        parameters.setdefault("domains", DOMAINS)
        parameters.setdefault("sdi", SDI)
        parameters.setdefault("expected_psn", 0)
        self.there = SecureDomains(DOMAINS)
        #: what the endpoint really sent
        self.sealed: list[bytes] = []
        super().__init__(**parameters)

    def frame(self, packet: Packet, *, sdi: int | None = SDI, **envelope: Any) -> bytes:
        """A sealed frame, or one in clear (``sdi=None``)."""
        if sdi is None:
            return super().frame(packet, **envelope)
        records = self.there.find(sdi)
        assert records is not None
        return sealed_frame(records, bytes(packet), source=THERE, destination=HERE)

    def take(self, limit: int = 64) -> list[Seen]:
        seen = []
        while frames := self.fep.transmit(self.now, limit):
            for frame in frames:
                octets = joined(frame)
                self.sealed.append(octets)
                prefix, packet, size = parts(octets)
                plaintext = self.there.open(prefix, packet, size)
                assert isinstance(plaintext, bytes), plaintext
                ip = IP(src=HERE, dst=THERE, tos=octets[15], flags="DF")
                ports = UDP(sport=int.from_bytes(octets[34:36], "big"), dport=4793, chksum=0)
                clear = bytes(Ether() / ip / ports / Raw(plaintext))
                seen.append(Seen(decode_frame(clear, crc="off"), clear))
        return seen

    @property
    def newest_sdi(self) -> int:
        return sdi_of(parts(self.sealed[-1])[1])


def opening(start: int, *, offset: int = 0, spdcid: int = INITIATOR) -> Packet:
    """A SYN packet of a PDC that begins at ``start``."""
    psn = start + offset
    return rud(psn, syn=offset, clear=start - 1, ar=1, spdcid=spdcid) / write(b"\0")


def pair(seed: int, **parameters: Any) -> tuple[Network, dict[str, bytearray]]:
    feps, memory = {}, {}
    more: dict[str, Any] = {
        "domains": DOMAINS,
        "sdi": SDI,
        "payload_mtu": 1024,
        "expected_psn": 0,
        "first_counter": 0,
    } | parameters
    for k, address in enumerate((HERE, THERE)):
        feps[address] = endpoint(address, seed=seed + k, **more)
        memory[address] = bytearray(32_768)
        feps[address].register(memoryview(memory[address]), key=KEY)
        feps[address].register(memoryview(memory[address]), key=KEY | IDEMPOTENT_SAFE)
    return Network(feps, random.Random(seed), keep=True), memory


def counter_of(frame: bytes) -> tuple[bytes, int, bytes]:
    """Return what must be unique: source address, AN, packet counter with epoch."""
    _, packet, _ = parts(frame)
    return frame[26:30], packet[0] & 1, packet[4:12]
