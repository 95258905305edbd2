"""A writer makes PDUs with the padding and digests that both ends have agreed on."""

from __future__ import annotations

import google_crc32c

from emulator.cluster.nvme_tcp.wire.nvme_pdu import (
    ALIGNMENT_UNIT,
    COMMON,
    DATA,
    DDGST,
    DIGEST_SIZE,
    HDGST,
    INITIALIZE,
    MOST_QUOTED,
    R2T,
    TERMINATE,
    PduError,
    PduType,
)


def digest(octets: bytes) -> bytes:
    """Return the CRC-32C of ``octets`` as it lies on the wire."""
    return int(google_crc32c.value(octets)).to_bytes(DIGEST_SIZE, "little")


class PduWriter:
    """Make PDUs of one direction; ``alignment`` is the HPDA or CPDA of the receiver."""

    def __init__(self) -> None:
        self.header_digest = False
        self.data_digest = False
        self.alignment = 0

    def initialize(self, kind: PduType, alignment: int, digests: int, maximum: int) -> bytes:
        """Make ICReq or ICResp of PDU format version 0."""
        size = INITIALIZE.size
        return INITIALIZE.pack(kind, 0, size, 0, size, 0, alignment, digests, maximum)

    def terminate(self, kind: PduType, error: PduError) -> bytes:
        """Make H2CTermReq or C2HTermReq, which quotes the header at fault."""
        quoted = error.header[:MOST_QUOTED]
        size = TERMINATE.size
        head = TERMINATE.pack(
            kind, 0, size, 0, size + len(quoted), error.status, error.information & 0xFFFFFFFF
        )
        return head + quoted

    def capsule(self, kind: PduType, entry: bytes, data: bytes = b"") -> list[bytes]:
        """Make CapsuleCmd with its data, or CapsuleResp."""
        flags, length, offset, total = self._measure(COMMON.size + len(entry), len(data))
        head = COMMON.pack(kind, flags, length, offset, total) + entry
        return self._assembled(head, offset, data)

    def data(
        self, kind: PduType, flags: int, cccid: int, ttag: int, offset: int, data: bytes
    ) -> list[bytes]:
        """Make H2CData or C2HData at ``offset`` of the command's data."""
        own, length, place, total = self._measure(DATA.size, len(data))
        head = DATA.pack(kind, flags | own, length, place, total, cccid, ttag, offset, len(data))
        return self._assembled(head, place, data)

    def ready_to_transfer(self, cccid: int, ttag: int, offset: int, length: int) -> list[bytes]:
        """Make R2T for ``length`` octets from ``offset`` on."""
        flags, header, place, total = self._measure(R2T.size, 0)
        head = R2T.pack(PduType.R2T, flags, header, place, total, cccid, ttag, offset, length)
        return self._assembled(head, place, b"")

    def _measure(self, header: int, data: int) -> tuple[int, int, int, int]:
        """Return flags of digests, HLEN, PDO, PLEN."""
        flags = HDGST if self.header_digest else 0
        end = header + (DIGEST_SIZE if self.header_digest else 0)
        if not data:
            return flags, header, 0, end
        unit = ALIGNMENT_UNIT * (self.alignment + 1)
        place = -(-end // unit) * unit
        if not self.data_digest:
            return flags, header, place, place + data
        return flags | DDGST, header, place, place + data + DIGEST_SIZE

    def _assembled(self, head: bytes, place: int, data: bytes) -> list[bytes]:
        if self.header_digest:
            head += digest(head)
        if not data:
            return [head]
        head = head.ljust(place, b"\0")
        return [head, data, digest(data)] if self.data_digest else [head, data]
