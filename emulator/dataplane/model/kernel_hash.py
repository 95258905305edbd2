"""The hash by which Linux spreads the tunnel packets of a switch over equal next hops.

A packet that a switch sends itself has no hash of its own to be routed by, so that the kernel takes
one of its addresses and ports: SipHash-2-4 of ``struct flow_keys`` with the seed of
``fib_multipath_hash_seed`` (Linux 6.11, net/core/flow_dissector.c, include/net/ip_fib.h).
"""

from __future__ import annotations

import struct

_WORD = 2**64 - 1
_KEYS = struct.Struct("<2xBx4x8x8x4x2H4x2I4x")  # protocol, ports, addresses
_WORDS = struct.Struct("<6Q")
_UDP = 17
_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def udp_hash(seed: int, source: bytes, destination: bytes, ports: tuple[int, int]) -> int:
    """Return the hash (32 bits, never 0) of a UDP packet with IPv4 addresses and two ``ports``.

    ``seed`` has 32 bits.  The kernel sorts the two addresses, and the two ports, as numbers of a
    little-endian machine, so that both directions of a flow have one hash.
    """
    addresses = sorted(int.from_bytes(one, "little") for one in (source, destination))
    numbers = sorted(int.from_bytes(port.to_bytes(2), "little") for port in ports)
    octets = _KEYS.pack(_UDP, *numbers, *addresses)
    return siphash(seed << 32 | seed, octets) & 0xFFFF_FFFF or 1


def siphash(key: int, octets: bytes) -> int:
    """Return SipHash-2-4 of 48 ``octets`` with ``key`` for both halves of the key."""
    v0, v1, v2, v3 = (start ^ key for start in _INITIAL)
    for word in (*_WORDS.unpack(octets), _WORDS.size << 56):
        v3 ^= word
        v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3))
        v0 ^= word
    v2 ^= 0xFF
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = v0 + v1 & _WORD
    v1 = _turned(v1, 13) ^ v0
    v0 = _turned(v0, 32)
    v2 = v2 + v3 & _WORD
    v3 = _turned(v3, 16) ^ v2
    v0 = v0 + v3 & _WORD
    v3 = _turned(v3, 21) ^ v0
    v2 = v2 + v1 & _WORD
    v1 = _turned(v1, 17) ^ v2
    v2 = _turned(v2, 32)
    return v0, v1, v2, v3


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _WORD
