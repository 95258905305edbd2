"""The port of a bond that a frame leaves by: Linux's hash, worked out by hand, and carrier."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from emulator.dataplane.model.model_bond import ModelBond, layer34_hash
from emulator.dataplane.model.model_switch import ModelInterface

UDP, UET_NATIVE = 17, 253


def frame(protocol: int = UDP, *, fragment: int = 0) -> bytes:
    """A frame of 10.0.1.2 to 10.0.1.3, from and to port 0x12b9 (4793)."""
    addresses = IPv4Address("10.0.1.2").packed + IPv4Address("10.0.1.3").packed
    start = b"\x45" + bytes(5) + fragment.to_bytes(2) + b"\x40" + bytes([protocol]) + bytes(2)
    return bytes(12) + b"\x08\x00" + start + addresses + b"\x12\xb9\x12\xb9" + bytes(4)


@pytest.mark.parametrize(
    ("sent", "hash_"),
    [
        # b912b912 ^ 0201000a ^ 0301000a = b812b912, folded b8120100, then b8aa1301, halved
        (frame(), 0x5C550980),
        # 0201000a ^ 0301000a = 01000000, folded 01000100, then 01010101, halved
        (frame(UET_NATIVE), 0x00808080),
        (frame(fragment=0x2000), 0x00808080),
        (frame(fragment=1), 0x00808080),
        (frame(fragment=0x4000), 0x5C550980),  # "don't fragment" is no fragment
    ],
    ids=["UDP", "no ports", "first fragment", "later fragment", "not to be fragmented"],
)
def test_the_hash_is_of_addresses_and_of_ports_where_there_are_any(sent: bytes, hash_: int) -> None:
    assert layer34_hash(sent) == hash_


def test_another_protocol_than_ipv4_is_refused() -> None:
    with pytest.raises(ValueError, match="type 86dd is not IPv4"):
        layer34_hash(bytes(12) + b"\x86\xdd" + bytes(40))


def test_ports_without_carrier_are_not_chosen() -> None:
    ports = [ModelInterface(f"eth{place}", bytes(6), place + 1, 9000) for place in range(2)]
    bond = ModelBond(ports)
    assert bond.member_for(frame()) is ports[0]  # an even hash
    ports[0].carrier = False
    assert bond.member_for(frame()) is ports[1]
    ports[1].carrier = False
    assert bond.member_for(frame()) is None
