"""PDUs of NVMe/TCP: types, flags, fatal errors, layouts (NVMe/TCP Transport Specification 1.0).

::

    0     1     2    3    4       8             HLEN       PDO            PLEN
    +-----+-----+----+----+-------+--------------+-----+----+-----+--------+
    |type |flags|HLEN|PDO | PLEN  | of the type  |HDGST|pad |data |DDGST   |
    +-----+-----+----+----+-------+--------------+-----+----+-----+--------+

All numbers are little-endian.  HLEN leaves the header digest out, PLEN counts everything.
"""

from __future__ import annotations

import struct
from enum import IntEnum

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
