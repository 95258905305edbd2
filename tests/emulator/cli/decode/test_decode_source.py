"""Secured packets in the decoder: every encapsulation, and what only a capture's reader takes."""

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cli.decode.decode_source import opener
from tests.harness.examples import examples
from tests.harness.uet.tss_vectors import ADDRESSES, KEY, OTHER_KEY, move, sealed_frame
from uet.tss.keys import provision_client
from uet.tss.record import SecureRecords
from uet.tss.secure_domain import SecureDomain
from uet.wire import headers
from uet.wire.codes import NextHeader
from uet.wire.frame import DecodedPacket, decode_frame

REQUEST = headers.RUD_REQ.encode(next_hdr=NextHeader.NONE, psn=77, spdcid=1, dpdcid=2)
PAYLOAD = b"the payload"
LINKS = pytest.mark.parametrize(("version", "udp"), [(4, True), (4, False), (6, True), (6, False)])


def domain(**changes: Any) -> SecureDomain:
    fields: dict[str, Any] = {"sdi": 3, "mode": "cluster", "keys": {0: KEY}}
    return SecureDomain(**fields | changes)


def assert_open(shown: DecodedPacket) -> None:
    assert shown.errors == []
    assert shown.layer_names == ["tss", "pds.rud_req", "payload", "icv"]
    assert shown.fields["pds.psn"] == 77
    layer = shown.layers[2]
    assert shown.octets[layer.offset : layer.offset + layer.length] == PAYLOAD


@LINKS
def test_every_encapsulation(version: int, udp: bool) -> None:
    frame = bytearray(
        sealed_frame(SecureRecords(domain()), REQUEST, PAYLOAD, version=version, udp=udp)
    )
    if udp:  # a checksum that something on the way has filled in
        at = 14 + (20 if version == 4 else 40) + 6
        frame[at : at + 2] = b"\x12\x34"
    for octets in (bytes(frame), memoryview(frame)):
        assert_open(decode_frame(octets, open_secure=opener([domain()])))
    padded = bytes(frame) + bytes(9)  # Ethernet padding is not of the packet
    assert_open(decode_frame(padded, open_secure=opener([domain()])))


@pytest.mark.parametrize(
    ("version", "udp", "with_ssi"),
    [(4, True, False), (4, False, False), (4, True, True), (6, True, True), (6, False, True)],
)
@pytest.mark.parametrize("by_address", [False, True])
def test_a_servers_keys_open_both_directions(
    version: int, udp: bool, with_ssi: bool, by_address: bool
) -> None:
    """The keys open them also where the UEC reference provider derives from IPv6 addresses."""
    here, there = ADDRESSES[version]
    clients = {here: 7} if with_ssi else {}
    secure = domain(
        mode="server", clients=clients, failure_threshold=1, address_in_ipv6_kdf=by_address
    )
    identity = bytes([0, 0, 0, 7]) if with_ssi else bytes([10, 0, 0, 1])
    if by_address and version == 6:
        identity = ip_address(here).packed
    key = provision_client(secure, 0, identity)
    client = domain(mode="client", keys={0: key}, ssi=7 if with_ssi else None)
    link: dict[str, Any] = {"version": version, "udp": udp}
    request = sealed_frame(SecureRecords(client), REQUEST, PAYLOAD, **link)
    answer = sealed_frame(
        SecureRecords(secure), REQUEST, PAYLOAD, source=there, destination=here, **link
    )
    with_server_key, with_client_key = opener([secure]), opener([client])
    for frame in (request, answer) * 3:
        assert_open(decode_frame(frame, open_secure=with_server_key))
        assert_open(decode_frame(frame, open_secure=with_client_key))


def test_a_reader_takes_old_epochs_and_packets_without_ssi() -> None:
    secure = domain(epoch=900, reject_old_epochs=True, rx_max_epoch_lifetime=1)
    sender = SecureRecords(secure)
    move(sender, 0, 3, 12345)
    frame = sealed_frame(sender, REQUEST, PAYLOAD)
    assert_open(decode_frame(frame, open_secure=opener([replace(secure, ssi=1)])))


def test_a_reader_does_not_latch() -> None:
    secure = domain(failure_threshold=2)
    sender = SecureRecords(secure)
    open_secure = opener([secure])
    forged = sealed_frame(SecureRecords(domain(keys={0: OTHER_KEY})), REQUEST, PAYLOAD)
    for _ in range(5):
        (error,) = decode_frame(forged, open_secure=open_secure).errors
        assert "does not authenticate" in error
    assert_open(decode_frame(sealed_frame(sender, REQUEST, PAYLOAD), open_secure=open_secure))


def test_a_packet_that_secures_nothing() -> None:
    frame = sealed_frame(SecureRecords(domain()), b"")
    shown = decode_frame(frame, open_secure=opener([domain()]))
    assert shown.layer_names == ["tss", "icv"]
    assert shown.errors == ["nothing stands between TSS header and authentication tag"]


def test_security_inside_security_is_malformed() -> None:
    inner = headers.TSS.encode(sdi=3)
    shown = decode_frame(
        sealed_frame(SecureRecords(domain()), inner), open_secure=opener([domain()])
    )
    assert shown.errors == ["packet type 1 is reserved"]


def test_truncated_headers_inside() -> None:
    frame = sealed_frame(SecureRecords(domain()), REQUEST[:7])
    shown = decode_frame(frame, open_secure=opener([domain()]))
    assert shown.layer_names == ["tss", "truncated", "icv"]
    assert "needs 12 octets, 7 are left" in shown.errors[0]


def test_a_trimmed_packet_stays_closed() -> None:
    frame = bytearray(sealed_frame(SecureRecords(domain()), REQUEST, bytes(400)))
    del frame[14 + 20 + 8 + 40 :]
    frame[16:18] = (20 + 8 + 40).to_bytes(2, "big")
    shown = decode_frame(bytes(frame), open_secure=opener([domain()]))
    assert shown.trimmed
    assert shown.errors == []
    assert shown.layer_names == ["tss", "truncated"]


@examples(100)
@given(first=st.integers(0, 255), rest=st.binary(max_size=120))
def test_whatever_a_peer_seals_is_decoded(first: int, rest: bytes) -> None:
    frame = sealed_frame(SecureRecords(domain()), bytes([first]) + rest)
    shown = decode_frame(frame, open_secure=opener([domain()]))
    assert shown.layer_names[0] == "tss"
    assert shown.layer_names[-1] == "icv"
    assert sum(layer.length for layer in shown.layers) == len(frame) - 14 - 20 - 8


def test_the_derivation_is_among_what_may_be_wrong_over_ipv6() -> None:
    """Where the sender derives from the address in spite of its SSI and the key file does not."""
    sender = SecureRecords(domain(ssi=7, address_in_ipv6_kdf=True))
    for version, hint in ((4, False), (6, True)):
        frame = sealed_frame(sender, REQUEST, PAYLOAD, version=version)
        shown = decode_frame(frame, open_secure=opener([domain(ssi=7)]))
        if not hint:
            assert_open(shown)
            continue
        (complaint,) = shown.errors
        assert "another key, or address_in_ipv6_kdf, or octets" in complaint
