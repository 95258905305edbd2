"""Sources of ``uetemu decode``: files of frames, and the keys to decrypt them.

Frames come from a capture file, standard input, or hexadecimal; keys from a JSON file.

The capture readers are scapy's.  They end quietly where a file is cut short or damaged, so the
stream below them watches every read and reports it.
"""

from __future__ import annotations

import binascii
import gzip
import json
import logging
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from scapy.error import Scapy_Exception
from scapy.utils import RawPcapNgReader

from emulator.errors import UserError
from emulator.transports.one_time_keys import KEY_FILE, KEY_SUFFIX
from uet.tss.record import BAD_TAG, SecureRecords, sdi_of
from uet.tss.secure_domain import SecureDomain, SecureDomainError, domain_from_data
from uet.wire import headers
from uet.wire.frame import OpenSecure

#: No block of a sane capture is longer (octets): more is a damaged length.
_LONGEST_BLOCK = 64 << 20
#: Link types of capture files (the registry of tcpdump.org): Ethernet, raw IP (three numbers),
#: and the two "cooked" ones of a capture on all interfaces.
_ETHERNET = 1
_RAW_IP = frozenset({12, 101, 228, 229})
_COOKED, _COOKED2 = 113, 276
_IP_VERSIONS = {4: 0x0800, 6: 0x86DD}
_IPV6_SIZE = 16
_SP = headers.TSS.mask("sp") >> 24
_HEX = re.compile(r"(0[xX])?[0-9a-fA-F\s:.-]*")


@dataclass(frozen=True, slots=True)
class CapturedFrame:
    """One frame: its octets as Ethernet, and its length on the wire."""

    number: int
    octets: bytes
    wire_length: int
    interface: str = ""
    from_hex: bool = False


class _Damaged(Exception):
    """The capture file does not hold what its lengths promise."""


class _Watched:
    """A stream that notices when a record or block ends early."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.name = getattr(stream, "name", "capture")
        #: the next read is the first of a record, where the file may end
        self.between_records = False
        self.ended = False

    def read(self, size: int) -> bytes:
        may_end, self.between_records = self.between_records or self.ended, False
        if size > _LONGEST_BLOCK:
            raise _Damaged(f"a block claims to be {size} octets long")
        data = b""
        while len(data) < size and (more := self._stream.read(size - len(data))):
            data += more
        if size and not data and may_end:
            self.ended = True
        elif len(data) < size:
            raise _Damaged("the file ends in the middle of a record")
        return data

    def seek(self, offset: int) -> None:
        raise _Damaged("the file is compressed twice")


def read_frames(source: str) -> Iterator[CapturedFrame]:
    """Frames of a capture file, of standard input (``-``), or of hexadecimal digits.

    Raises :class:`UserError` where the input is neither, or is damaged (after the frames that
    stand in front of the damage).
    """
    if source == "-":
        yield from _read_capture(sys.stdin.buffer, "standard input")
        return
    if not source.strip():
        raise UserError("nothing to decode; give a capture file or a frame in hexadecimal")
    path = Path(source)
    try:
        known = path.exists()
    except (OSError, ValueError):  # a long string of digits is no possible file name
        known = False
    if not known:
        octets = _from_hex(source)
        yield CapturedFrame(1, octets, len(octets), from_hex=True)
        return
    try:
        with path.open("rb") as file:
            compressed = file.peek(2)[:2] == b"\x1f\x8b"
            if compressed:
                with gzip.open(file) as plain:
                    yield from _read_capture(cast(IO[bytes], plain), source)
            else:
                yield from _read_capture(file, source)
    except IsADirectoryError:
        raise UserError(f"{source} is a directory; name a capture file in it") from None
    except PermissionError:
        raise UserError(f"{source} may not be read; check its permissions") from None
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror}; take another") from None


def _from_hex(source: str) -> bytes:
    if not _HEX.fullmatch(source):
        raise UserError(f"{source}: no such file, and not a frame in hexadecimal; check the path")
    digits = re.sub(r"^0[xX]|[\s:.-]", "", source)
    try:
        return binascii.unhexlify(digits)
    except binascii.Error:
        raise UserError(
            f"the frame has {len(digits)} hexadecimal digits; two are needed for every octet"
        ) from None


def _read_capture(stream: IO[bytes], name: str) -> Iterator[CapturedFrame]:
    watched = _Watched(stream)
    number = 0
    with _quiet_scapy():
        try:
            watched.between_records = True
            reader = RawPcapNgReader(watched)
            for number, (octets, linktype, wire_length, interface) in enumerate(
                _records(reader, watched), 1
            ):
                yield CapturedFrame(
                    number, *_as_ethernet(octets, wire_length, linktype, name), interface
                )
        except Scapy_Exception:
            what = "is empty" if watched.ended else "is not a pcap or pcapng capture"
            raise UserError(f"{name} {what}; give one that tcpdump or dumpcap wrote") from None
        except (_Damaged, EOFError, OSError, zlib.error, struct.error, ValueError) as fault:
            reason = str(fault) or "a block is malformed"
            where = f"after frame {number}" if number else "before its first frame"
            raise UserError(f"{name} is damaged {where}: {reason}; capture it again") from None


def _records(reader: Any, watched: _Watched) -> Iterator[tuple[bytes, int, int, str]]:
    """Octets, link type, length on the wire and interface of each packet record."""
    while True:
        watched.between_records = True
        try:
            if isinstance(reader, RawPcapNgReader):
                # Block by block, so that an end between two blocks differs from one inside.
                record = reader._read_block()  # noqa: SLF001  scapy has no public one
                if record is None:
                    continue
                octets, meta = record
                interface = (meta.ifname or b"").decode(errors="replace")
                yield octets, meta.linktype, meta.wirelen, interface
            else:
                octets, meta = reader._read_packet()  # noqa: SLF001  nor one that says the length
                yield octets, reader.linktype, meta.wirelen, ""
        except EOFError:
            if watched.ended:
                return
            raise


def _as_ethernet(octets: bytes, wire_length: int, linktype: int, name: str) -> tuple[bytes, int]:
    """The record with an Ethernet header (addresses zero where the link type has none)."""
    linktype &= 0xFFFF
    if linktype == _ETHERNET:
        return octets, wire_length
    if linktype in _RAW_IP:
        removed = 0
        ethertype = _IP_VERSIONS.get(octets[0] >> 4 if octets else 0, 0)
    elif linktype in (_COOKED, _COOKED2):
        removed, at = (16, 14) if linktype == _COOKED else (20, 0)
        ethertype = int.from_bytes(octets[at : at + 2], "big")
    else:
        raise UserError(f"{name} has link type {linktype}; captures of Ethernet or IP are needed")
    header = bytes(12) + ethertype.to_bytes(2, "big")
    return header + octets[removed:], wire_length - removed + len(header)


@contextmanager
def _quiet_scapy() -> Iterator[None]:
    """Keep scapy's warnings off stderr; their content is in this program's own sentence."""
    log = logging.getLogger("scapy.runtime")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def keys_beside(source: str) -> Path | None:
    """The key file of a capture, else the one in its folder, if there is one."""
    try:
        if Path(source).is_file():
            for beside in (Path(source + KEY_SUFFIX), Path(source).parent / KEY_FILE):
                if beside.is_file():
                    return beside
        return None
    except (OSError, ValueError):  # digits, too long for a file name
        return None


def read_domains(path: Path) -> list[SecureDomain]:
    """The secure domains of a key file.  Raises :class:`UserError`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a JSON file: {error}; correct it") from None
    if isinstance(data, dict):
        data = data.get("domains", [data])
    if not isinstance(data, list) or not data:
        raise UserError(f"{path} names no secure domains; give a list of at least one")
    domains = []
    for number, entry in enumerate(data, 1):
        try:
            domains.append(domain_from_data(entry))
        except SecureDomainError as fault:
            raise UserError(f"{path}, secure domain {number}: {fault}") from None
    return domains


def opener(domains: list[SecureDomain]) -> OpenSecure:
    """Opens packets of these domains, in both directions, whatever their order and epoch.

    Several domains may have the same SDI: the generations of keys that a run has gone through.
    """
    by_sdi: dict[int, list[SecureRecords]] = {}
    for domain in domains:
        # A reader of captures takes what an endpoint must refuse.
        lenient = replace(
            domain, ssi=None, clients={}, reject_old_epochs=False, failure_threshold=0
        )
        by_sdi.setdefault(domain.sdi, []).append(SecureRecords(lenient))

    def open_secure(prefix: bytes, packet: memoryview, address_size: int) -> bytes | str:
        sdi, an = sdi_of(packet), packet[0] & 1
        if sdi not in by_sdi:
            return f"not decrypted: no keys are given for secure domain {sdi}"
        reasons = set()
        for records in by_sdi[sdi]:
            for by_server in (False, True) if records.domain.mode == "server" else (False,):
                found = records.read(prefix, packet, address_size, by_server=by_server)
                if isinstance(found, bytes):
                    return found
                reasons.add(found)
        if BAD_TAG in reasons:
            derived = address_size == _IPV6_SIZE and packet[0] & _SP
            other = " or address_in_ipv6_kdf," if derived else ""
            return (
                f"not decrypted: the packet does not authenticate with the key of AN {an} of"
                f" secure domain {sdi} (another key,{other} or octets that were changed)"
            )
        return f"not decrypted: no key is given for AN {an} of secure domain {sdi}"

    return open_secure
