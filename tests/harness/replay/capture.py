"""The captures of another implementation, decoded."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from scapy.utils import RawPcapReader

from tests import DATA
from uet.tss.record import SecureRecords
from uet.tss.secure_domain import SecureDomain
from uet.wire.frame import DecodedPacket, decode_frame

DIRECTORY = DATA / "captures"
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.pcap"))

INITIATOR, TARGET = "initiator", "target"
OTHER = {INITIATOR: TARGET, TARGET: INITIATOR}
MACS = {INITIATOR: "02:00:00:00:00:0a", TARGET: "02:00:00:00:00:0b"}
ADDRESSES = {4: {INITIATOR: "10.99.0.1", TARGET: "10.99.0.2"},
             6: {INITIATOR: "fd99::1", TARGET: "fd99::2"}}  # fmt: skip
SIDES = {address: side for both in ADDRESSES.values() for side, address in both.items()}
BASE_KEY = bytes.fromhex("07e9724958d9e1f710f594e18e11fd8d4a3582c256ccfecfc5eb1902e556bed4")


def version(name: str) -> int:
    """The version of IP in a capture."""
    return 6 if "ipv6" in name else 4


def domain(name: str) -> SecureDomain | None:
    """The secure domain of a capture."""
    if not name.startswith("tss_"):
        return None
    if "direct" in name:
        return SecureDomain(sdi=1, mode="direct", keys={0: BASE_KEY}, accept_clear=True)
    return SecureDomain(
        sdi=1,
        mode="cluster",
        keys={0: BASE_KEY},
        rekey_mask=0xFF00,
        rekey_shift=8,
        accept_clear=True,
    )


@dataclass
class Packet:
    """A frame of one side, decoded."""

    octets: bytes
    decoded: DecodedPacket
    time: int = 0  # ns since the first frame of the capture
    #: its PDC and where that began when the packet left, once a conversation has seen it
    pdc: int | None = None
    start: int = 0

    @property
    def side(self) -> str:
        return SIDES[self.decoded.envelope.source]

    @property
    def fields(self) -> Mapping[str, int]:
        return self.decoded.fields

    @property
    def kind(self) -> str:
        """Name of the PDS header, without the prefix."""
        return next(n for n in self.decoded.layer_names if n.startswith("pds."))[4:]

    @property
    def is_request(self) -> bool:
        return self.kind in ("rud_req", "rod_req", "rudi_req", "uud_req")

    @property
    def is_syn(self) -> bool:
        return self.fields.get("pds.flags.syn") == 1

    @property
    def is_resend(self) -> bool:
        return self.fields.get("pds.flags.retx") == 1

    @property
    def control(self) -> int | None:
        return self.fields["pds.ctl_type"] if self.kind == "cp" else None

    @property
    def secured(self) -> bool:
        return any(name.startswith("tss") for name in self.decoded.layer_names)

    @property
    def tells_expected_psn(self) -> bool:
        """Whether it is the ACK of a secured CLOSE, with four octets of the provider's behind."""
        return self.kind == "ack" and not self.fields["pds.next_hdr"] and bool(self.payload)

    @property
    def payload(self) -> bytes:
        """SES payload, or whatever else stands behind the last header."""
        for layer in self.decoded.layers:
            if layer.name == "payload":
                return bytes(self.decoded.octets[layer.offset : layer.offset + layer.length])
        return b""


def decode(frame: bytes, records: SecureRecords | None, time: int = 0) -> Packet:
    """Decode a frame of either side; with ``records`` secured ones are opened."""

    def open_secure(prefix: bytes, packet: memoryview, size: int) -> bytes | str:
        assert records is not None
        return records.open(prefix, packet, size)

    decoded = decode_frame(frame, open_secure=None if records is None else open_secure)
    assert decoded.errors == []
    return Packet(frame, decoded, time)


@cache
def raw(name: str) -> tuple[tuple[int, bytes], ...]:
    """(ns since the first frame, frame) of a capture."""
    frames = [
        (meta.sec * 1_000_000_000 + meta.usec * 1_000, octets)
        for octets, meta in RawPcapReader(str(DIRECTORY / f"{name}.pcap"))
    ]
    return tuple((time - frames[0][0], octets) for time, octets in frames)


def packets(name: str) -> list[Packet]:
    """A capture, decoded; secured packets opened."""
    secure = domain(name)
    records = SecureRecords(secure) if secure is not None else None
    return [decode(octets, records, time) for time, octets in raw(name)]
