"""A reader cuts a stream of octets into PDUs, and checks headers before data arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from emulator.cluster.nvme_tcp.wire.nvme_pdu import (
    ALIGNMENT_UNIT,
    AT_FLAGS,
    AT_HLEN,
    AT_PDO,
    AT_PLEN,
    AT_TYPE,
    COMMON,
    DDGST,
    DIGEST_SIZE,
    HDGST,
    HEADER_LENGTHS,
    MOST_ALIGNMENT,
    MOST_QUOTED,
    WITH_DATA,
    WITHOUT_DIGESTS,
    FatalError,
    PduError,
    PduType,
)
from emulator.cluster.nvme_tcp.wire.pdu_writer import digest

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
        """Take octets that arrived."""
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
