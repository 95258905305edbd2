"""Captures of the UEC reference provider: every secured packet, against its clear twin."""

from ipaddress import ip_address
from pathlib import Path

import pytest
from scapy.utils import RawPcapReader

from tests import DATA
from tests.harness.uet.tss_vectors import move, opened, parts
from uet.tss import record
from uet.tss.record import SecureRecords
from uet.tss.secure_domain import Mode, SecureDomain
from uet.wire.codes import CRC_SIZE, PacketType
from uet.wire.envelope import open_frame
from uet.wire.frame import decode_frame

VECTORS = DATA / "tss"
CAPTURES = sorted(path for path in VECTORS.glob("tss_*.pcap") if "clear" not in path.name)
KEY = bytes.fromhex("07e9724958d9e1f710f594e18e11fd8d4a3582c256ccfecfc5eb1902e556bed4")


def domain_of(capture: Path) -> SecureDomain:
    if "direct" in capture.name:
        return SecureDomain(sdi=1, mode="direct", keys={0: KEY})
    return SecureDomain(sdi=1, mode="cluster", keys={0: KEY}, rekey_mask=0xFF00, rekey_shift=8)


def frames(capture: Path) -> list[bytes]:
    return [octets for octets, _ in RawPcapReader(str(capture))]


def is_secured(frame: bytes) -> bool:
    at = open_frame(frame).uet
    return at is not None and frame[at] >> 3 == PacketType.TSS


def clear_twins(capture: Path) -> list[tuple[bytes, bytes]]:
    twins = frames(capture.with_name(f"{capture.stem}_clear.pcap"))
    return list(zip(frames(capture), twins, strict=True))


def test_there_are_captures() -> None:
    assert len(CAPTURES) == 5


@pytest.mark.conformance("C-130")
@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_packets_open_to_their_clear_twins(capture: Path) -> None:
    records = SecureRecords(domain_of(capture))
    secured = 0
    for frame, clear in clear_twins(capture):
        if not is_secured(frame):
            continue
        secured += 1
        _, twin, _ = parts(clear)
        assert opened(records, frame) == twin[:-CRC_SIZE]
    assert secured >= 4
    assert not records.counts


@pytest.mark.conformance("C-130", "C-131")
@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_our_seal_makes_the_same_packets(capture: Path) -> None:
    senders: dict[str, SecureRecords] = {}
    for frame, clear in clear_twins(capture):
        if not is_secured(frame):
            continue
        source = open_frame(frame).source
        sender = senders.setdefault(source, SecureRecords(domain_of(capture)))
        prefix, packet, _ = parts(frame)
        _, twin, _ = parts(clear)
        # The provider counts from 0; a packet that was lost before the tap took a counter too.
        counter = int.from_bytes(packet[6:12], "big")
        assert counter >= sender.position(0)[1]
        move(sender, 0, 0, counter)
        header, sealed = sender.seal(prefix, twin[:12], twin[12:-CRC_SIZE])
        assert header + sealed == packet
        assert ip_address(source).packed == prefix[: len(prefix) // 2 - 2]


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_packets_of_the_other_mode_are_refused(capture: Path) -> None:
    mode: Mode = "cluster" if "direct" in capture.name else "direct"
    records = SecureRecords(SecureDomain(sdi=1, mode=mode, keys={0: KEY}))
    found = {opened(records, frame) for frame in frames(capture) if is_secured(frame)}
    assert found == {record.BAD_TAG}


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_the_decoder_shows_what_the_clear_twin_shows(capture: Path) -> None:
    records = SecureRecords(domain_of(capture))
    for frame, clear in clear_twins(capture):
        shown = decode_frame(frame, open_secure=records.open)
        plain = decode_frame(clear, crc="on")
        if is_secured(frame):
            assert shown.layer_names == ["tss", *plain.layer_names[:-1], "icv"]
        assert shown.errors == plain.errors == []
        assert shown.derived == plain.derived
        assert shown.notes == plain.notes

        def without(fields: dict[str, int]) -> dict[str, int]:
            return {n: v for n, v in fields.items() if n != "crc" and not n.startswith("tss.")}

        assert without(shown.fields) == without(plain.fields)
        for layer in shown.layers:
            if layer.name == "payload":
                (there,) = (other for other in plain.layers if other.name == "payload")
                octets = shown.octets[layer.offset : layer.offset + layer.length]
                assert octets == clear[there.offset : there.offset + there.length]
