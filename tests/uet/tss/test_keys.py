"""Key derivation against published and independent values."""

import json
from ipaddress import ip_address

import pytest
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

from tests.harness.uet.tss_vectors import KEY
from tests.harness.wire.golden import VECTORS
from uet.tss.keys import (
    LABEL_CLIENT,
    LABEL_CLUSTER,
    KeyRing,
    PacketKey,
    context,
    derive,
    provision_client,
)
from uet.tss.secure_domain import SecureDomain

PUBLISHED = json.loads((VECTORS / "primitives" / "kdf.json").read_text())


@pytest.mark.conformance("C-130")
@pytest.mark.parametrize("case", PUBLISHED["cases"], ids=lambda case: case["name"])
def test_published_derivations(case: dict[str, str]) -> None:
    octets = derive(
        bytes.fromhex(PUBLISHED["domain_key"]),
        case["label"].encode(),
        bytes.fromhex(case["context"]),
    )
    assert octets.hex() == case["packet_key"] + case["iv_mask"]


@pytest.mark.conformance("C-130")
@pytest.mark.parametrize("case", PUBLISHED["cases"], ids=lambda case: case["name"])
def test_the_published_contexts_follow_from_the_packet(case: dict[str, str]) -> None:
    address = "192.168.42.1" if "ipv4" in case["name"] else "2001:cb0::fc0:0:0:abc"
    epoch, counter = 0x1DC0, int(PUBLISHED["tsc"], 16) & (1 << 48) - 1
    rekey = (counter & int(PUBLISHED["rekey_mask"], 16)) >> PUBLISHED["rekey_shift"]
    rekey = rekey if case["label"] == "U1" else 0
    assert context(epoch, rekey, ip_address(address).packed).hex() == case["context"]


#: label, epoch, rekey number, identity, and the 44 octets where the length has 32 bits.
WIDE = [
    (
        *(LABEL_CLUSTER, 0, 0, "0a000001"),
        "2a39ba7aca40f7fbb19ac7a940dbda1366b8f076fe4d106c42f7957781b92b027755555a3bdd376f9356014b",
    ),
    (
        *(LABEL_CLUSTER, 1, 0x12, "00000007"),
        "27d9d321dc45e87fd6bd7231712bc9124072dc436a3ffb9a407f324d96f15c2b4786a25da4430b966acd552c",
    ),
    (
        *(LABEL_CLIENT, 0, 0, "00000002"),
        "e19f72f7d4cf02ac05b7b9c02ab7cacc536fc7ee9afd63f667006efe5eab14804f6d391aa146bfb9ac888e7b",
    ),
    (
        *(LABEL_CLUSTER, 0, 0, "fd000000000000000000000000000001"),
        "1c0cd5c56bff178bc252d15338a388e888c2f55dbe74cc45bc06f43b9cc3c0636f84bb43ff75b43803d9b17b",
    ),
]


@pytest.mark.conformance("C-130")
@pytest.mark.parametrize(("label", "epoch", "rekey", "identity", "octets"), WIDE)
def test_derivations_with_a_wide_length(
    label: bytes, epoch: int, rekey: int, identity: str, octets: str
) -> None:
    there = context(epoch, rekey, bytes.fromhex(identity))
    assert derive(KEY, label, there, length_octets=4).hex() == octets


@pytest.mark.conformance("C-130")
@pytest.mark.parametrize(("label", "epoch", "rekey", "identity", "octets"), WIDE)
def test_derivations_against_cmac_itself(
    label: bytes, epoch: int, rekey: int, identity: str, octets: str
) -> None:
    there = context(epoch, rekey, bytes.fromhex(identity))
    blocks = b""
    for number in (1, 2, 3):
        cmac = CMAC(AES(KEY))
        cmac.update(bytes([number]) + label + b"\0" + there + (352).to_bytes(2, "big"))
        blocks += cmac.finalize()
    assert derive(KEY, label, there) == blocks[:44]
    assert derive(KEY, label, there).hex() != octets


def test_the_initialisation_vector_is_masked() -> None:
    """Source 10.0.0.1, epoch 0, counter 5, with the first of the wide derivations."""
    packet_key = PacketKey(bytes.fromhex(WIDE[0][-1]))
    plain = int.from_bytes(bytes.fromhex("0a0000010000000000000005"), "big")
    assert (plain ^ packet_key.iv_mask).to_bytes(12, "big").hex() == "7d55555b3bdd376f9356014e"


def test_a_client_gets_what_the_server_derives() -> None:
    server = SecureDomain(sdi=1, mode="server", keys={0: KEY}, epoch=9)
    provisioned = provision_client(server, 0, bytes([10, 0, 0, 7]), epoch=9)
    assert provisioned == derive(KEY, b"U2", bytes.fromhex("0009000000000a000007"))


def test_a_ring_remembers_only_so_many_packet_keys() -> None:
    ring = KeyRing(SecureDomain(sdi=1, mode="cluster", keys={0: KEY}), 0, KEY, 0, 0)
    key = PacketKey(bytes(44))
    for rekey in range(ring.CAPACITY + 10):
        ring.keep((0, rekey, b"abcd"), key)
    assert len(ring.packet_keys) == ring.CAPACITY
    assert (0, 9, b"abcd") not in ring.packet_keys
    assert (0, 10, b"abcd") in ring.packet_keys
