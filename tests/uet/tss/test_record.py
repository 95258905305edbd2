"""Sealing and opening: golden packets, every mode and encapsulation, every way to be refused."""

import json
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.uet.tss_vectors import (
    ADDRESSES,
    KEY,
    OTHER_KEY,
    move,
    opened,
    parts,
    sealed_frame,
)
from tests.harness.wire.golden import VECTORS
from uet.counts import Counts
from uet.tss import record
from uet.tss.keys import provision_client
from uet.tss.record import SecureDomains, SecureRecords
from uet.tss.secure_domain import SealError, SecureDomain, SecureDomainError
from uet.wire.codes import ICV_SIZE

GOLDEN = sorted(path.stem for path in VECTORS.glob("rp-tss-*.json"))
HEADER, PAYLOAD = bytes(range(56)), b"some payload"
THIRD_KEY = bytes(range(200, 232))


def golden(name: str) -> tuple[dict[str, Any], SecureRecords]:
    data = json.loads((VECTORS / f"{name}.json").read_text())
    fields, tss = data["fields"], data["tss"]
    domain = SecureDomain(
        sdi=fields["tss.sdi"],
        mode=tss["mode"],
        keys={fields["tss.an"]: bytes.fromhex(tss["secure_domain_key"])},
        ssi=fields.get("tss.ssi"),
        rekey_mask=int(tss.get("rekey_mask", "0"), 16),
        rekey_shift=tss.get("rekey_shift", 0),
        epoch=fields["tss.epoch"],
    )
    return data, SecureRecords(domain)


def domain(**changes: Any) -> SecureDomain:
    fields: dict[str, Any] = {"sdi": 0x123456, "mode": "cluster", "keys": {0: KEY}}
    return SecureDomain(**fields | changes)


def pair(**changes: Any) -> tuple[SecureRecords, SecureRecords]:
    return SecureRecords(domain(**changes)), SecureRecords(domain(**changes))


@pytest.mark.conformance("C-130")
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_packets_are_sealed_bit_for_bit(name: str) -> None:
    data, records = golden(name)
    fields, tss = data["fields"], data["tss"]
    move(records, fields["tss.an"], fields["tss.epoch"], int(fields["tss.counter"], 16))
    prefix, packet, _ = parts(bytes.fromhex(data["frame_hex"]))
    plaintext = bytes.fromhex(tss["plaintext"])
    header, sealed = records.seal(prefix, plaintext[:12], memoryview(plaintext)[12:])
    assert (prefix + header).hex() == tss["aad"]
    assert sealed.hex() == tss["ciphertext"] + tss["icv"]
    assert header + sealed == packet
    assert records.overhead == len(packet) - len(plaintext)


@pytest.mark.conformance("C-130")
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_packets_open(name: str) -> None:
    data, records = golden(name)
    prefix, packet, size = parts(bytes.fromhex(data["frame_hex"]))
    for view in (packet, memoryview(packet)):
        assert records.read(prefix, view, size) == bytes.fromhex(data["tss"]["plaintext"])
    assert not records.counts


# Every mode, encapsulation and identity

LINKS = st.tuples(st.sampled_from([4, 6]), st.booleans())


@pytest.mark.conformance("C-136")
@examples(60)
@given(
    mode=st.sampled_from(["direct", "cluster"]),
    link=LINKS,
    ssi=st.none() | st.integers(0, 2**32 - 1),
    an=st.integers(0, 1),
    epoch=st.integers(0, 0xFFFF),
    counter=st.integers(0, 2**48 - 1),
    rekey=st.booleans(),
    by_address=st.booleans(),
    header=st.binary(min_size=1, max_size=60),
    payload=st.binary(max_size=100),
)
def test_round_trip_among_peers(
    mode: str, link: tuple[int, bool], ssi: int | None, an: int, epoch: int, counter: int,
    rekey: bool, by_address: bool, header: bytes, payload: bytes,
) -> None:  # fmt: skip
    version, udp = link
    changes: dict[str, Any] = {"mode": mode, "keys": {an: KEY}, "address_in_ipv6_kdf": by_address}
    if rekey and mode == "cluster":
        changes |= {"rekey_mask": 0xFF00, "rekey_shift": 8}
    sender = SecureRecords(domain(ssi=ssi, **changes))
    receiver = SecureRecords(domain(ssi=None if ssi is None else 99, **changes))
    move(sender, an, epoch, counter)
    if mode == "direct" and version == 6 and ssi is None:
        with pytest.raises(SealError) as refusal:
            sealed_frame(sender, header, payload, version=version, udp=udp)
        assert refusal.value.reason == record.NEEDS_SSI
        assert sender.counts == {record.NEEDS_SSI: 1}
        return
    frame = sealed_frame(sender, header, payload, version=version, udp=udp)
    octets = len(header) + len(payload) + ICV_SIZE
    assert header not in frame[-octets:] or len(header) < 4
    twin = SecureRecords(domain(ssi=ssi, **changes))
    move(twin, an, epoch, counter)
    zeros = sealed_frame(twin, bytes(len(header)), bytes(len(payload)), version=version, udp=udp)
    assert frame[:-octets] == zeros[:-octets]  # whatever is secret, what stands before is the same
    assert opened(receiver, frame) == header + payload
    assert sender.position(an) == (epoch, counter + 1)


@pytest.mark.conformance("C-136")
@examples(40)
@given(
    link=LINKS,
    ssi=st.none() | st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 0xFFFF),
    header=st.binary(min_size=1, max_size=60),
)
def test_round_trip_between_client_and_server(
    link: tuple[int, bool], ssi: int | None, epoch: int, header: bytes
) -> None:
    version, udp = link
    if version == 6 and ssi is None:
        ssi = 5
    here, there = ADDRESSES[version]
    clients = {} if ssi is None else {here: ssi}
    server = SecureRecords(domain(mode="server", clients=clients, epoch=epoch))
    identity = ip_address(here).packed if ssi is None else ssi.to_bytes(4, "big")
    key = provision_client(server.domain, 0, identity, epoch)
    client = SecureRecords(domain(mode="client", keys={0: key}, ssi=ssi, epoch=epoch))
    request = sealed_frame(client, header, version=version, udp=udp)
    assert opened(server, request) == header
    answer = sealed_frame(
        server, header[::-1], version=version, udp=udp, source=there, destination=here
    )
    assert opened(client, answer) == header[::-1]
    # Both directions have one key: no initialisation vector may come from both.
    _, packet, size = parts(request)
    _, back, _ = parts(answer)
    if ssi is None:
        assert packet[:12] == back[:12]  # told apart by the source address
    else:
        assert packet[4:8] == back[4:8] == identity
        assert packet[8:16] != back[8:16]
    # A reader of captures opens the server's own packets with the server's key.
    prefix, back, size = parts(answer)
    assert server.read(prefix, back, size, by_server=True) == header[::-1]


def test_a_server_with_identifiers_sends_to_known_clients_only() -> None:
    server = SecureRecords(domain(mode="server", clients={"10.0.0.7": 7}))
    with pytest.raises(SealError, match="no SSI"):
        sealed_frame(server, HEADER)
    assert server.counts == {record.UNKNOWN_CLIENT: 1}
    _, packet, _ = parts(sealed_frame(server, HEADER, destination="10.0.0.7"))
    assert packet[4:8] == bytes([0, 0, 0, 7])


@pytest.mark.conformance("C-136")
def test_one_clients_key_opens_no_other_clients_packets() -> None:
    server = SecureRecords(domain(mode="server", clients={"10.0.0.1": 1, "10.0.0.2": 2}))
    keys = [provision_client(server.domain, 0, bytes([0, 0, 0, ssi])) for ssi in (1, 2)]
    first, second = (
        SecureRecords(domain(mode="client", keys={0: key}, ssi=ssi))
        for ssi, key in enumerate(keys, 1)
    )
    frame = sealed_frame(server, HEADER, source="10.0.0.9", destination="10.0.0.1")
    assert opened(second, frame) == record.BAD_TAG
    assert opened(first, frame) == HEADER


@pytest.mark.conformance("C-136")
def test_cluster_keys_are_of_the_source() -> None:
    sender, receiver = pair()
    frames = [sealed_frame(sender, HEADER, source=f"10.0.0.{n}") for n in (1, 3)]
    assert [opened(receiver, frame) for frame in frames] == [HEADER, HEADER]
    # The second source's packet, as if the first had sent it.
    prefix, packet, _ = parts(frames[1])
    assert receiver.open(bytes([10, 0, 0, 1]) + prefix[4:], packet) == record.BAD_TAG


@pytest.mark.conformance("C-130")
def test_the_packet_key_changes_every_256_packets() -> None:
    sender, receiver = pair(rekey_mask=0xFF00, rekey_shift=8)
    for _ in range(600):
        assert opened(receiver, sealed_frame(sender, HEADER)) == HEADER
    for records in (sender, receiver):
        indices = records.ring(0).packet_keys
        assert sorted(rekey for _, rekey, _ in indices) == [0, 1, 2]
    # A receiver without rekeying opens the first 256 alone.
    plain = SecureRecords(domain())
    frames = []
    for counter in (0, 255, 256, 65535, 65536):
        move(sender, 0, 0, counter)
        frames.append(sealed_frame(sender, HEADER))
    found = [opened(plain, frame) for frame in frames]
    assert found == [HEADER, HEADER, record.BAD_TAG, record.BAD_TAG, HEADER]


# What is authenticated, and what is not


@pytest.mark.conformance("C-133")
@examples(150)
@given(data=st.data(), link=LINKS, ssi=st.none() | st.just(7), mode=st.sampled_from(["d", "c"]))
def test_any_flipped_bit_is_refused_and_counted(
    data: st.DataObject, link: tuple[int, bool], ssi: int | None, mode: str
) -> None:
    version, udp = link
    if version == 6:
        ssi = 7
    mode = {"d": "direct", "c": "cluster"}[mode]
    keys = {0: KEY, 1: OTHER_KEY}
    sender = SecureRecords(domain(mode=mode, ssi=ssi, keys=keys))
    domains = SecureDomains([domain(mode=mode, ssi=None if ssi is None else 99, keys=keys)])
    prefix, packet, size = parts(sealed_frame(sender, HEADER, PAYLOAD, version=version, udp=udp))
    covered = bytearray(prefix + packet)
    bit = data.draw(st.integers(0, len(covered) * 8 - 1))
    covered[bit // 8] ^= 0x80 >> bit % 8
    found = domains.open(bytes(covered[: len(prefix)]), memoryview(covered)[len(prefix) :], size)
    assert isinstance(found, str)
    assert domains.counts == {found: 1}
    assert domains.open(prefix, packet, size) == HEADER + PAYLOAD


@pytest.mark.conformance("C-133")
def test_every_bit_of_a_small_packet() -> None:
    sender, receiver = pair(mode="direct", failure_threshold=0)
    prefix, packet, _ = parts(sealed_frame(sender, b"ab", udp=False))
    octets = prefix + packet
    for bit in range(len(octets) * 8):
        changed = bytearray(octets)
        changed[bit // 8] ^= 1 << bit % 8
        found = receiver.open(bytes(changed[: len(prefix)]), bytes(changed[len(prefix) :]))
        assert isinstance(found, str), f"bit {bit} is not authenticated"
    assert sum(receiver.counts.values()) == len(octets) * 8
    assert receiver.counts[record.NO_KEY] == 1
    assert receiver.counts[record.TRUNCATED] == 1  # with the bit SP, it should be longer


@pytest.mark.parametrize("udp", [True, False])
def test_what_routers_change_is_not_authenticated(udp: bool) -> None:
    sender, receiver = pair()
    frame = bytearray(sealed_frame(sender, HEADER, udp=udp))
    frame[15] = 46 << 2 | 3  # DSCP and ECN
    frame[22] -= 5  # TTL
    frame[24:26] = b"\xab\xcd"  # header checksum
    if udp:
        frame[40:42] = b"\x12\x34"  # UDP checksum, ignored on receipt
    assert opened(receiver, bytes(frame)) == HEADER


@examples(150)
@given(
    prefix=st.sampled_from([bytes(12), bytes(16), bytes(40), b""]),
    packet=st.binary(max_size=80),
    size=st.sampled_from([4, 16]),
    mode=st.sampled_from(["direct", "cluster", "server"]),
)
def test_hostile_octets_never_raise(prefix: bytes, packet: bytes, size: int, mode: str) -> None:
    domains = SecureDomains([domain(mode=mode, keys={0: KEY, 1: OTHER_KEY})])
    for octets in (packet, b"\x08\x12\x34\x56" + packet, b"\x0d\x12\x34\x56" + packet):
        found = domains.open(prefix, octets, size)
        assert isinstance(found, str)
    assert sum(domains.counts.values()) == 3


# Refusals


def test_an_unknown_domain() -> None:
    sender = SecureRecords(domain(sdi=7))
    counts = Counts()
    domains = SecureDomains([domain(sdi=8)], counts)
    assert opened(domains, sealed_frame(sender, HEADER)) == record.UNKNOWN_SDI
    assert counts == {record.UNKNOWN_SDI: 1}
    domains.add(domain(sdi=7, keys={0: THIRD_KEY}))
    sender = SecureRecords(domain(sdi=7, keys={0: THIRD_KEY}))
    assert opened(domains, sealed_frame(sender, HEADER)) == HEADER
    with pytest.raises(SecureDomainError, match="taken"):
        domains.add(domain(sdi=7))
    domains.remove(7)
    assert opened(domains, sealed_frame(sender, HEADER)) == record.UNKNOWN_SDI
    with pytest.raises(SecureDomainError, match="unknown"):
        domains.remove(7)
    assert [there.domain.sdi for there in domains] == [8]
    assert domains.find(7) is None


def test_a_packet_of_one_domain_does_not_open_in_another() -> None:
    sender = SecureRecords(domain(sdi=7))
    prefix, packet, _ = parts(sealed_frame(sender, HEADER))
    domains = SecureDomains([domain(sdi=7), domain(sdi=8, keys={0: OTHER_KEY})])
    assert domains.open(prefix, packet[:3] + b"\x08" + packet[4:]) == record.BAD_TAG


def test_a_missing_source_identifier() -> None:
    sender, receiver = SecureRecords(domain()), SecureRecords(domain(ssi=3))
    assert opened(receiver, sealed_frame(sender, HEADER)) == record.MISSING_SSI
    assert receiver.counts == {record.MISSING_SSI: 1}
    assert opened(sender, sealed_frame(receiver, HEADER)) == HEADER


def test_a_wrong_key() -> None:
    sender, receiver = SecureRecords(domain()), SecureRecords(domain(keys={0: OTHER_KEY}))
    assert opened(receiver, sealed_frame(sender, HEADER)) == record.BAD_TAG


@pytest.mark.parametrize("kept", [0, 1, 4, 11, 12, 27])
def test_truncated_packets(kept: int) -> None:
    sender, receiver = pair()
    prefix, packet, _ = parts(sealed_frame(sender, HEADER))
    assert receiver.open(prefix, packet[:kept]) == record.TRUNCATED
    assert SecureDomains([domain()]).open(prefix, packet[:kept]) == record.TRUNCATED


def test_a_packet_without_plaintext() -> None:
    sender, receiver = pair()
    assert opened(receiver, sealed_frame(sender, b"")) == b""


@pytest.mark.conformance("C-137")
def test_old_epochs() -> None:
    changes = {"reject_old_epochs": True, "rx_max_epoch_lifetime": 16, "epoch": 10}
    sender, receiver = pair(**changes)
    for epoch, found in [
        (10, HEADER),
        (0xFFFA, HEADER),  # 16 before, across the wrap
        (0xFFF9, record.OLD_EPOCH),
        (11, HEADER),
        (0x8009, HEADER),  # ahead, as far as can be told
        (0x800B, record.OLD_EPOCH),
    ]:
        move(sender, 0, epoch, 0)
        assert opened(receiver, sealed_frame(sender, HEADER)) == found, hex(epoch)
    assert receiver.counts == {record.OLD_EPOCH: 2}
    assert receiver.failures == 0
    tolerant = SecureRecords(domain(epoch=10))
    assert opened(tolerant, sealed_frame(sender, HEADER)) == HEADER


@pytest.mark.conformance("C-139")
def test_too_many_failures_latch_the_domain() -> None:
    sender, receiver = pair(failure_threshold=3)
    good = sealed_frame(sender, HEADER)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    for _ in range(3):
        assert opened(receiver, bad) == record.BAD_TAG
        assert opened(receiver, good) == HEADER
    assert not receiver.latched
    assert opened(receiver, bad) == record.BAD_TAG
    assert receiver.latched
    assert opened(receiver, good) == opened(receiver, bad) == record.LATCHED
    assert receiver.counts == {record.BAD_TAG: 4, record.LATCHES: 1, record.LATCHED: 2}
    receiver.unlatch()
    assert opened(receiver, good) == HEADER
    assert receiver.failures == 0


@pytest.mark.conformance("C-139")
@pytest.mark.parametrize("latch_time", [10_000_000, 0])
def test_a_latch_opens_by_itself(latch_time: int) -> None:
    """After ``latch_time``, and only failures within one such time count; 0 is for ever."""
    sender, receiver = pair(failure_threshold=3, latch_time=latch_time)
    prefix, good, size = parts(sealed_frame(sender, HEADER))
    bad = good[:-1] + bytes([good[-1] ^ 1])
    end = 5_000_000
    for _ in range(4):
        assert receiver.open(prefix, bad, size, end) == record.BAD_TAG
    assert receiver.open(prefix, good, size, end + 9_999_999) == record.LATCHED
    found = receiver.open(prefix, good, size, end + 10_000_000)
    if not latch_time:
        assert found == receiver.open(prefix, good, size, 1 << 60) == record.LATCHED
        return
    assert found == HEADER
    # Ten failures, but never four within the time.
    for now in range(0, 50_000_000, 5_000_000):
        assert receiver.open(prefix, bad, size, 100_000_000 + now) == record.BAD_TAG
        assert receiver.open(prefix, good, size, 100_000_000 + now) == HEADER
    assert receiver.counts[record.LATCHES] == 1


@pytest.mark.conformance("C-141")
@pytest.mark.parametrize("mode", ["direct", "cluster"])
def test_packets_under_the_own_identifier_are_refused(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They came back, or are of another endpoint that was given the same SSI: one line says so."""
    own, twin, peer = (SecureRecords(domain(mode=mode, ssi=ssi)) for ssi in (7, 7, 8))
    for sender in (own, twin):
        frame = sealed_frame(sender, HEADER)
        assert opened(own, frame) == record.OWN_SSI
        assert opened(peer, frame) == HEADER
    assert own.counts == {record.OWN_SSI: 2}
    assert opened(own, sealed_frame(peer, HEADER)) == HEADER
    (line,) = caplog.messages
    assert "10.0.0.1 sends under SSI 7" in line


@pytest.mark.conformance("C-141")
@pytest.mark.parametrize("mode", ["direct", "cluster", "server"])
def test_one_key_is_not_in_two_domains(mode: str) -> None:
    """Under either would be counted from the start, so that every vector came twice."""
    domains = SecureDomains([domain(mode=mode, sdi=1, keys={0: KEY})])
    for keys in ({0: KEY}, {0: OTHER_KEY, 1: KEY}):
        with pytest.raises(SecureDomainError, match="SDI 1 and SDI 2 have the same key"):
            domains.add(domain(mode="cluster", sdi=2, keys=keys))
    second = domains.add(domain(mode="cluster", sdi=2, keys={0: OTHER_KEY}))
    with pytest.raises(SecureDomainError, match="same key"):
        second.set_key(1, KEY)
    # What a client is given counts by the octets that encrypt.
    with pytest.raises(SecureDomainError, match="same key"):
        domains.add(domain(mode="client", sdi=3, keys={0: KEY + bytes(12)}))
    # A domain that was left has counted, too.
    domains.remove(1)
    for sdi, word in ((1, "in use before"), (4, "same key")):
        with pytest.raises(SecureDomainError, match=word):
            domains.add(domain(mode=mode, sdi=sdi, keys={0: KEY}))
    assert [there.domain.sdi for there in domains] == [2]


@pytest.mark.conformance("C-142")
def test_counters_begin_where_the_caller_says() -> None:
    """Under every key, so that those of an earlier life are not used twice."""
    for fields in ({}, {"mode": "server", "clients": {"10.0.0.7": 7}}):
        secure = domain(**fields, keys={0: KEY, 1: OTHER_KEY})
        records = SecureRecords(secure, first_counter=1 << 40)
        records.rotate(1)
        records.retire(0)
        records.set_key(0, THIRD_KEY)
        start = secure.first_counter + (1 << 40)
        assert records.position(0) == records.position(1) == (0, start)
    for mode, ssi, room in (("direct", None, 1 << 48), ("client", 3, 1 << 47)):
        key = KEY + bytes(12) if mode == "client" else KEY
        secure = domain(mode=mode, ssi=ssi, keys={0: key})
        assert SecureRecords(secure, first_counter=room - 1).position(0) == (0, room - 1)
        for start in (-1, room):
            with pytest.raises(SecureDomainError, match="first_counter"):
                SecureRecords(secure, first_counter=start)


def test_forged_packets_do_not_fill_the_memory_for_keys() -> None:
    sender, receiver = pair(failure_threshold=0, rekey_mask=0xFFFF_FF00, rekey_shift=8)
    assert opened(receiver, sealed_frame(sender, HEADER)) == HEADER
    prefix, packet, _ = parts(sealed_frame(sender, HEADER))
    for number in range(200):
        forged = packet[:4] + number.to_bytes(2, "big") + number.to_bytes(5, "big") + packet[11:]
        assert receiver.open(prefix, forged) == record.BAD_TAG or number == 0
    assert len(receiver.ring(0).packet_keys) == 1


def test_a_known_packet_key_drives_out_none() -> None:
    sender, receiver = pair()
    frame = sealed_frame(sender, HEADER)
    assert opened(receiver, frame) == HEADER
    for ring in (sender.ring(0), receiver.ring(0)):
        (key,) = ring.packet_keys.values()
        while len(ring.packet_keys) < ring.CAPACITY:
            ring.keep((9, len(ring.packet_keys), b"abcd"), key)
    full = [list(records.ring(0).packet_keys) for records in (sender, receiver)]
    for _ in range(5):
        assert opened(receiver, sealed_frame(sender, HEADER)) == HEADER
    assert [list(records.ring(0).packet_keys) for records in (sender, receiver)] == full
