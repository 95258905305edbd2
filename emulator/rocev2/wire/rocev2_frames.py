"""Frames of one queue pair to its peer: all around BTH, extension headers and payload.

Packets of a queue pair with one opcode, length and traffic class are alike up to the PSN. So is the
CRC of that part: both are made once.
"""

from __future__ import annotations

from zlib import crc32

from emulator.rocev2.wire import rocev2_headers as headers
from emulator.rocev2.wire.icrc import seed
from emulator.rocev2.wire.rocev2_codes import ICRC_SIZE
from uet.carrier_codec import PeerEnvelope
from uet.transport import Frame

_IP_AT = 14
_UDP_SIZE = 8
_FIRST_HALF = 8  # octets of the BTH before AckReq and PSN
_PAD_SHIFT = headers.BTH.shift("padcount")
_DQPN_SHIFT = headers.BTH.shift("dqpn")
_ACK_REQUEST = headers.BTH.mask("ackreq")
_BECN = headers.BTH.mask("becn")
_KEPT_PREFIXES = 64

ACK_REQUEST = _ACK_REQUEST


class Frames:
    """Makes frames to one queue pair of a peer, or to several (datagrams)."""

    __slots__ = ("_dqpn", "_envelope", "_pkey", "_port", "_prefixes")

    def __init__(self, envelope: PeerEnvelope, source_port: int, dqpn: int, pkey: int) -> None:
        self._envelope = envelope
        self._port = source_port.to_bytes(2, "big")
        self._dqpn = dqpn
        self._pkey = pkey
        self._prefixes: dict[int, tuple[bytes, int, bytes]] = {}

    def frame(
        self,
        traffic_class: int,
        word: int,
        psn: int,
        extensions: bytes,
        payload: memoryview | bytes = b"",
        becn: int = 0,
    ) -> Frame:
        """One frame.

        ``word`` is the first of the BTH: opcode and flags, PadCnt left to this.  ``psn`` has 24
        bits, and :data:`ACK_REQUEST` where it requests an answer.
        """
        octets = len(extensions) + len(payload)
        key = (octets << 16 | word) << 9 | traffic_class << 1 | becn
        try:
            prefix, crc, pad = self._prefixes[key]
        except KeyError:
            prefix, crc, pad = self._prefix(key, traffic_class, word, octets, becn)
        rest = psn.to_bytes(4, "big") + extensions
        crc = crc32(rest, crc)
        if not payload:
            return prefix + rest, crc.to_bytes(ICRC_SIZE, "little")
        crc = crc32(payload, crc)
        if pad:
            return prefix + rest, b"".join(
                (payload, pad, crc32(pad, crc).to_bytes(ICRC_SIZE, "little"))
            )
        return prefix + rest, b"".join((payload, crc.to_bytes(ICRC_SIZE, "little")))

    def _prefix(
        self, key: int, traffic_class: int, word: int, octets: int, becn: int
    ) -> tuple[bytes, int, bytes]:
        """Everything before the PSN, the CRC of it, and the pad octets."""
        pad = -octets & 3  # extension headers are whole words
        length = headers.BTH.size + octets + pad + ICRC_SIZE
        bth = headers.BTH.pack(
            word | pad << _PAD_SHIFT,
            self._pkey,
            self._dqpn << _DQPN_SHIFT | (_BECN if becn else 0),
        )[:_FIRST_HALF]
        prologue = bytearray(self._envelope.prologue(traffic_class, length))
        udp_at = len(prologue) - _UDP_SIZE
        prologue[udp_at : udp_at + 2] = self._port
        made = bytes(prologue) + bth, seed(bytes(prologue[_IP_AT:]), bth), bytes(pad)
        if len(self._prefixes) >= _KEPT_PREFIXES:
            self._prefixes.clear()
        self._prefixes[key] = made
        return made
