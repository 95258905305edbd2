"""Packet keys of the transport security sublayer (UES 3.7).

Key derivation is NIST SP 800-108 in counter mode over CMAC-AES-256: an octet of counter in
front, then label, zero octet, context and the output's length in bits.  Packets of the UEC
reference provider need that length in 16 bits, though older numbers of its have it in 32.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFCMAC, CounterLocation, Mode

from uet.tss.secure_domain import CLIENT_KEY_SIZE, KEY_SIZE, SecureDomain
from uet.wire import headers

LABEL_CLUSTER = b"U1"
LABEL_CLIENT = b"U2"
_COUNTER_OCTETS = 1
_IPV6_SIZE = 16
_FIRST_BLOCK = (2).to_bytes(4, "big")

#: What distinguishes packet keys of one domain key: epoch, rekey number, identity.
KeyIndex = tuple[int, int, bytes]


def derive(key: bytes, label: bytes, context: bytes, *, length_octets: int = 2) -> bytes:
    """44 octets, packet key and IV mask, from a domain's key.

    ``length_octets`` is the width of the output length in the derivation's input.
    """
    kdf = KBKDFCMAC(
        algorithm=AES,
        mode=Mode.CounterMode,
        length=CLIENT_KEY_SIZE,
        rlen=_COUNTER_OCTETS,
        llen=length_octets,
        location=CounterLocation.BeforeFixed,
        label=label,
        context=context,
        fixed=None,
    )
    return kdf.derive(key)


def context(epoch: int, rekey: int, identity: bytes) -> bytes:
    """The context of a derivation: 10 octets, or 26 with an IPv6 address.

    ``identity`` is an SSI or IPv4 address (4 octets) or an IPv6 address (16).
    """
    front = bytes(4) if len(identity) == _IPV6_SIZE else b""
    return front + epoch.to_bytes(2, "big") + rekey.to_bytes(4, "big") + identity


def provision_client(server: SecureDomain, an: int, identity: bytes, epoch: int = 0) -> bytes:
    """The 44 octets that key management hands to a server's client, who never sees its key."""
    return derive(server.keys[an], LABEL_CLIENT, context(epoch, 0, identity))


class PacketKey:
    """The key of packets: AES-256-GCM, and the mask of their initialisation vectors."""

    __slots__ = ("_octets", "decrypt", "encrypt", "iv_mask")

    def __init__(self, octets: bytes) -> None:
        """``octets``: a packet key, with or without an IV mask behind it."""
        cipher = AESGCM(octets[:KEY_SIZE])
        self.encrypt = cipher.encrypt
        self.decrypt = cipher.decrypt
        self.iv_mask = int.from_bytes(octets[KEY_SIZE:], "big")
        self._octets = octets[:KEY_SIZE]

    def first_octets(self, iv: bytes, ciphertext: bytes) -> bytes:
        """Decrypt the beginning of a ciphertext, which nothing authenticates.

        GCM encrypts by counter; its first block has number 2 (NIST SP 800-38D section 7.1).
        """
        counter = modes.CTR(iv + _FIRST_BLOCK)
        return Cipher(AES(self._octets), counter).decryptor().update(ciphertext)


class KeyRing:
    """The key of one association number, and the packet keys that follow from it.

    ``epoch`` and ``counter`` are those of the next packet sent under it, ``first_word`` begins
    its security header.  ``fixed`` is the packet key of the modes that derive none.
    """

    #: Packet keys kept; the oldest makes room, and is derived again where it is still needed.
    CAPACITY = 4096

    __slots__ = ("_key", "_label", "an", "counter", "epoch", "first_word", "fixed", "packet_keys")

    def __init__(
        self, domain: SecureDomain, an: int, key: bytes, epoch: int, first_counter: int
    ) -> None:
        self.an = an
        self.epoch = epoch
        self.counter = domain.first_counter + first_counter
        header = headers.TSS_SSI if domain.uses_ssi else headers.TSS
        self.first_word = header.word(an=an, sdi=domain.sdi)
        self._key = key
        self._label = LABEL_CLUSTER if domain.mode == "cluster" else LABEL_CLIENT
        self.fixed = PacketKey(key) if domain.mode in ("direct", "client") else None
        self.packet_keys: dict[KeyIndex, PacketKey] = {}

    def derive(self, index: KeyIndex) -> PacketKey:
        """The packet key of ``index``, which is not remembered.

        Whoever makes up epochs, counters and identities must neither fill the memory nor drive
        out the keys in use: :meth:`keep` those that a packet has proven, or that are sent with.
        """
        return PacketKey(derive(self._key, self._label, context(*index)))

    def keep(self, index: KeyIndex, key: PacketKey) -> None:
        """Remember a packet key that was just derived."""
        keys = self.packet_keys
        if len(keys) >= self.CAPACITY:
            del keys[next(iter(keys))]
        keys[index] = key
