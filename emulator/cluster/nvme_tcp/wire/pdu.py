"""PDUs of NVMe/TCP (NVMe/TCP Transport Specification 1.0): their layouts, a reader, a writer.

::

    0     1     2    3    4       8             HLEN       PDO            PLEN
    +-----+-----+----+----+-------+--------------+-----+----+-----+--------+
    |type |flags|HLEN|PDO | PLEN  | of the type  |HDGST|pad |data |DDGST   |
    +-----+-----+----+----+-------+--------------+-----+----+-----+--------+

All numbers are little-endian.  HLEN leaves the header digest out, PLEN counts everything.

A reader cuts a stream of octets into PDUs, and checks headers before data arrive.  A writer makes
PDUs with the padding and digests that both ends have agreed on.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

#: Common header: type, flags, HLEN, PDO, PLEN (3.6.2.1).
COMMON = struct.Struct("<BBBBI")
#: ICReq and ICResp: common, PFV, HPDA or CPDA, DGST, MAXR2T or MAXH2CDATA (3.6.2.2, 3.6.2.3).
INITIALIZE = struct.Struct("<BBBBIHBBI112x")
#: H2CTermReq and C2HTermReq: common, FES, FEI (3.6.2.4, 3.6.2.5).
TERMINATE = struct.Struct("<BBBBIHI10x")
#: H2CData and C2HData: common, CCCID, TTAG, DATAO, DATAL (3.6.2.8, 3.6.2.9).
DATA = struct.Struct("<BBBBIHHII4x")
#: R2T: common, CCCID, TTAG, R2TO, R2TL (3.6.2.10).
R2T = struct.Struct("<BBBBIHHII4x")
DIGEST_SIZE = 4
#: Most octets of the faulty PDU that a termination request quotes (3.6.2.4).
MOST_QUOTED = 128
#: Pad octets come in units of four, and HPDA and CPDA are at most 31 (3.6.2.2).
ALIGNMENT_UNIT, MOST_ALIGNMENT = 4, 31
#: MAXH2CDATA is at least this (3.6.2.3).
LEAST_MAXH2CDATA = 4096


class PduType(IntEnum):
    """Types of PDUs (NVMe/TCP, 3.6.2.1)."""

    IC_REQ = 0
    IC_RESP = 1
    H2C_TERM_REQ = 2
    C2H_TERM_REQ = 3
    CAPSULE_CMD = 4
    CAPSULE_RESP = 5
    H2C_DATA = 6
    C2H_DATA = 7
    R2T = 9


#: HLEN of each type.
HEADER_LENGTHS = {
    PduType.IC_REQ: INITIALIZE.size,
    PduType.IC_RESP: INITIALIZE.size,
    PduType.H2C_TERM_REQ: TERMINATE.size,
    PduType.C2H_TERM_REQ: TERMINATE.size,
    PduType.CAPSULE_CMD: COMMON.size + 64,
    PduType.CAPSULE_RESP: COMMON.size + 16,
    PduType.H2C_DATA: DATA.size,
    PduType.C2H_DATA: DATA.size,
    PduType.R2T: R2T.size,
}
#: PDUs that may have data behind their header.
WITH_DATA = {PduType.CAPSULE_CMD, PduType.H2C_DATA, PduType.C2H_DATA}
#: PDUs that never have digests.
WITHOUT_DIGESTS = {
    PduType.IC_REQ,
    PduType.IC_RESP,
    PduType.H2C_TERM_REQ,
    PduType.C2H_TERM_REQ,
}
# flags
HDGST, DDGST, LAST_PDU, SUCCESS = 1, 2, 4, 8
# bits of DGST in ICReq and ICResp
HEADER_DIGEST, DATA_DIGEST = 1, 2
# offsets of fields, for FEI
AT_TYPE, AT_FLAGS, AT_HLEN, AT_PDO, AT_PLEN = 0, 1, 2, 3, 4
AT_PFV, AT_ALIGNMENT, AT_DGST, AT_MAXIMUM = 8, 10, 11, 12
AT_CCCID, AT_TTAG, AT_LENGTH = 8, 10, 16


class FatalError(IntEnum):
    """Fatal error status, FES (3.6.2.4 and 3.6.2.5)."""

    INVALID_HEADER_FIELD = 1
    SEQUENCE_ERROR = 2
    HEADER_DIGEST_ERROR = 3
    DATA_OUT_OF_RANGE = 4
    LIMIT_EXCEEDED = 5
    UNSUPPORTED_PARAMETER = 6


class PduError(Exception):
    """A PDU that ends its connection: FES, FEI, the header at fault, and words for people.

    FEI is the offset of the field at fault, the digest received for a header digest error, else 0.
    """

    def __init__(self, status: FatalError, information: int, header: bytes, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.information = information
        self.header = header


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


_NOTHING = memoryview(b"")
_TERMINATIONS = (PduType.H2C_TERM_REQ, PduType.C2H_TERM_REQ)


class Pdu(NamedTuple):
    """A PDU that arrived: its header of HLEN octets, its data, and whether the digest fits them."""

    kind: PduType
    flags: int
    header: bytes
    data: bytes
    data_intact: bool


class PduReader:
    """Cut a stream into PDUs of the types in ``limits``: type -> most octets of data.

    It keeps less than one PDU between calls, and refuses a PDU by its header, before its data.
    """

    def __init__(self, limits: Mapping[PduType, int]) -> None:
        self.header_digest = False
        self.data_digest = False
        self.alignment = 0
        self._limits = limits
        self._buffer = bytearray()
        self._at = 0
        self._checked: tuple[PduType, int, int, int, int] | None = None

    def feed(self, octets: bytes | memoryview) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += octets

    def next_pdu(self) -> Pdu | None:
        """Return the next whole PDU, or None; raises :class:`PduError`."""
        if self._checked is None:
            self._checked = self._check_header()
            if self._checked is None:
                return None
        kind, flags, header, place, total = self._checked
        at = self._at
        if len(self._buffer) - at < total:
            return None
        self._checked = None
        self._at = at + total
        if total == header or not place:
            return Pdu(kind, flags, bytes(self._buffer[at : at + header]), b"", True)
        with memoryview(self._buffer) as view:
            head = bytes(view[at : at + header])
            if not flags & DDGST or kind in WITHOUT_DIGESTS:
                return Pdu(kind, flags, head, bytes(view[at + place : at + total]), True)
            end = at + total - DIGEST_SIZE
            data = bytes(view[at + place : end])
            return Pdu(kind, flags, head, data, digest(data) == bytes(view[end : at + total]))

    def _check_header(self) -> tuple[PduType, int, int, int, int] | None:
        buffer, at = self._buffer, self._at
        here = len(buffer) - at
        if here < COMMON.size:
            return None
        number, flags, header, place, total = COMMON.unpack_from(buffer, at)
        if number not in self._limits:
            raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_TYPE, f"type {number:#x}")
        kind = PduType(number)
        expected = HEADER_LENGTHS[kind]
        if header != expected:
            raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_HLEN, f"HLEN {header}")
        plain = kind in WITHOUT_DIGESTS
        digested = self.header_digest and not plain
        if bool(flags & HDGST) != digested:
            raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_FLAGS, "the HDGST flag")
        end = header + (DIGEST_SIZE if digested else 0)
        if here < end:
            return None
        if digested:
            received = bytes(buffer[at + header : at + end])
            if digest(bytes(buffer[at : at + header])) != received:
                raise self._refused(
                    FatalError.HEADER_DIGEST_ERROR, int.from_bytes(received, "little"), "a digest"
                )
        if kind in _TERMINATIONS:
            if not header <= total <= header + MOST_QUOTED:
                raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_PLEN, f"PLEN {total}")
            return kind, flags, header, header, total
        if kind not in WITH_DATA or total == end:
            if total != end:
                raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_PLEN, f"PLEN {total}")
            return kind, flags, header, 0, total
        return kind, flags, header, self._check_data(kind, flags, end, place, total), total

    def _check_data(self, kind: PduType, flags: int, end: int, place: int, total: int) -> int:
        """Check PDO and PLEN of a PDU with data, and return PDO."""
        if bool(flags & DDGST) != self.data_digest:
            raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_FLAGS, "the DDGST flag")
        unit = ALIGNMENT_UNIT * (self.alignment + 1)
        if place < end or place % unit or place > ALIGNMENT_UNIT * (MOST_ALIGNMENT + 1) + end:
            raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_PDO, f"PDO {place}")
        length = total - place - (DIGEST_SIZE if flags & DDGST else 0)
        if length < 1:
            raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_PLEN, f"PLEN {total}")
        if length > self._limits[kind]:
            if kind is PduType.H2C_DATA:
                raise self._refused(FatalError.LIMIT_EXCEEDED, 0, f"{length} octets of data")
            raise self._refused(FatalError.INVALID_HEADER_FIELD, AT_PLEN, f"PLEN {total}")
        return place

    def _refused(self, status: FatalError, information: int, words: str) -> PduError:
        quoted = bytes(self._buffer[self._at : self._at + MOST_QUOTED])
        header = quoted[2] if len(quoted) > AT_HLEN else len(quoted)
        return PduError(status, information, quoted[: max(header, COMMON.size)], words)
