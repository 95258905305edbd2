"""Numbers of the Ultra Ethernet wire: types, opcodes, codes, masks and defaults.

Every table names its place in the Ultra Ethernet Specification (UES) 1.0.  Names are the
specification's without the ``UET_`` in front.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag
from typing import Final

#: UDP destination port registered with IANA for UET (configurable).
UDP_PORT: Final = 4793
#: IP protocol / next header for native encapsulation: an experimental number (RFC 3692), as no
#: number is assigned (configurable; the entropy header is UES Table 3-31).
NATIVE_PROTOCOL: Final = 253
#: Differentiated-services code points (UES 3.6 leaves the numbers to the operator).
DSCP_DATA: Final = 0
DSCP_CONTROL: Final = 46
#: EtherTypes of VLAN tags (IEEE 802.1Q), and IPv6 extension headers that may stand in front of UET:
#: hop-by-hop, routing, destination (RFC 8200).
VLAN_TYPES: Final = frozenset({0x8100, 0x88A8, 0x9100})
IPV6_EXTENSIONS: Final = frozenset({0, 43, 60})
#: Octets of the UET CRC trailer, and of the TSS authentication tag (UES 3.7).
CRC_SIZE: Final = 4
ICV_SIZE: Final = 16
#: A trimmed packet keeps at least this many octets of IP payload: a UDP header and one of a PDS
#: request (UES 4.1).
MIN_TRIM_SIZE: Final = 24
#: Payload octets per packet that a fabric may be configured for (UES 3.4.1.11).
PAYLOAD_MTUS: Final = (1024, 2048, 4096, 8192)
#: ECN field values (RFC 3168).
ECN_NOT_ECT: Final = 0
ECN_ECT1: Final = 1
ECN_ECT0: Final = 2
ECN_CE: Final = 3


class PacketType(IntEnum):
    """First five bits after the UDP or entropy header (UES Table 3-32)."""

    TSS = 1
    RUD_REQ = 2
    ROD_REQ = 3
    RUDI_REQ = 4
    RUDI_RESP = 5
    UUD_REQ = 6
    ACK = 7
    ACK_CC = 8
    ACK_CCX = 9
    NACK = 10
    CP = 11
    NACK_CCX = 12
    RUD_CC_REQ = 13
    ROD_CC_REQ = 14


#: Requests, acknowledgements and refusals of a PDC (UES Table 3-32).  Plain numbers, since the data
#: path looks received ones up in them.
REQUEST_TYPES: Final = frozenset(
    map(
        int,
        (PacketType.RUD_REQ, PacketType.ROD_REQ, PacketType.RUD_CC_REQ, PacketType.ROD_CC_REQ),
    )
)
ACK_TYPES: Final = frozenset(map(int, (PacketType.ACK, PacketType.ACK_CC, PacketType.ACK_CCX)))
NACK_TYPES: Final = frozenset(map(int, (PacketType.NACK, PacketType.NACK_CCX)))


class NextHeader(IntEnum):
    """The SES header behind the PDS header (UES Table 3-16)."""

    NONE = 0
    REQUEST_SMALL = 1
    REQUEST_MEDIUM = 2
    REQUEST_STD = 3
    RESPONSE = 4
    RESPONSE_DATA = 5
    RESPONSE_DATA_SMALL = 6


class ControlType(IntEnum):
    """The type of a control packet (UES Table 3-38)."""

    NOOP = 0
    ACK_REQ = 1
    CLEAR_CMD = 2
    CLEAR_REQ = 3
    CLOSE_CMD = 4
    CLOSE_REQ = 5
    PROBE = 6
    CREDIT = 7
    CREDIT_REQ = 8
    NEGOTIATION = 9


class RequestFlag(IntFlag):
    """Flags of RUD and ROD requests, masks within the 7-bit field (UES Table 3-33)."""

    RETX = 0x10
    AR = 0x08
    SYN = 0x04


class AckFlag(IntFlag):
    """Flags of ACK, ACK_CC and ACK_CCX (UES Table 3-35); ``REQ`` is a two-bit number."""

    M = 0x20
    RETX = 0x10
    P = 0x08
    REQ_CLOSE = 0x04
    REQ_CLEAR = 0x02
    REQ_MASK = 0x06


class NackFlag(IntFlag):
    """Flags of NACK and NACK_CCX (UES Table 3-40)."""

    M = 0x20
    RETX = 0x10
    NT = 0x08


class ControlFlag(IntFlag):
    """Flags of control packets (UES Table 3-38)."""

    ISROD = 0x20
    RETX = 0x10
    AR = 0x08
    SYN = 0x04


class RudiFlag(IntFlag):
    """Flags of RUDI packets; ``M`` in responses only (UES Table 3-39)."""

    M = 0x20
    RETX = 0x10


class AckRequest(IntEnum):
    """Two-bit ``req`` of an ACK: the target's request to the initiator (UES Table 3-35)."""

    NONE = 0
    CLEAR = 1
    CLOSE = 2


#: Place of ``use_rsv_pdc`` in ``pdc_info`` on send (UES Table 3-33); a receiver also takes the
#: most significant bit, since implementations differ.
USE_RSV_PDC: Final = 0x1
USE_RSV_PDC_ACCEPTED: Final = 0x9
#: Bits of ``psn_offset``, to the right of ``pdc_info`` (UES Table 3-33).
PSN_OFFSET_BITS: Final = 12


class CcType(IntEnum):
    """Congestion-control state carried by ACK_CC (UES Table 3-48)."""

    NSCC = 0
    CREDIT = 1


#: ``service_time``: unit and special values (UES Table 3-74).
SERVICE_TIME_UNIT_NS: Final = 128
SERVICE_TIME_INVALID: Final = 0
SERVICE_TIME_OVERFLOW: Final = 0xFFFF
#: ``ooo_count`` value for "not provided" (UES Table 3-74).
OOO_COUNT_NONE: Final = 0xFFFF
#: Octets per unit of ``rcvd_bytes``, ``credit`` and ``credit_target`` (UES Tables 3-74, 3-75).
BYTE_COUNT_UNIT: Final = 256
#: PSNs per unit of ``mpr`` (UES Table 3-36).
MPR_UNIT: Final = 128


class ErrorClass(Enum):
    """The effect of a NACK on the PDC (UES Tables 3-58 to 3-61)."""

    NORMAL = "the PDC keeps working"
    PDC_ERR = "one packet is affected"
    PDC_FATAL = "the PDC must be torn down"


class NackCode(IntEnum):
    """Why a packet was refused (UES Tables 3-58 to 3-61); reserved codes are absent."""

    TRIMMED = 0x01
    TRIMMED_LASTHOP = 0x02
    TRIMMED_ACK = 0x03
    NO_PDC_AVAIL = 0x04
    NO_CCC_AVAIL = 0x05
    NO_BITMAP = 0x06
    NO_PKT_BUFFER = 0x07
    NO_GTD_DEL_AVAIL = 0x08
    NO_SES_MSG_AVAIL = 0x09
    NO_RESOURCE = 0x0A
    PSN_OOR_WINDOW = 0x0B
    ROD_OOO = 0x0D
    INV_DPDCID = 0x0E
    PDC_HDR_MISMATCH = 0x0F
    CLOSING = 0x10
    CLOSING_IN_ERR = 0x11
    PKT_NOT_RCVD = 0x12
    GTD_RESP_UNAVAIL = 0x13
    ACK_WITH_DATA = 0x14
    INVALID_SYN = 0x15
    PDC_MODE_MISMATCH = 0x16
    NEW_START_PSN = 0x17
    RCVD_SES_PROCG = 0x18
    UNEXP_EVENT = 0x19
    RCVR_INFER_LOSS = 0x1A
    EXP_NACK_NORMAL = 0xFD
    EXP_NACK_ERR = 0xFE
    EXP_NACK_FATAL = 0xFF

    @property
    def error_class(self) -> ErrorClass:
        """Return what the code means for the PDC."""
        if self in _PDC_FATAL:
            return ErrorClass.PDC_FATAL
        return ErrorClass.PDC_ERR if self in _PDC_ERR else ErrorClass.NORMAL


_PDC_ERR: Final = frozenset({NackCode.PKT_NOT_RCVD, NackCode.ACK_WITH_DATA, NackCode.EXP_NACK_ERR})
_PDC_FATAL: Final = frozenset(
    {
        NackCode.INV_DPDCID,
        NackCode.PDC_HDR_MISMATCH,
        NackCode.CLOSING,
        NackCode.CLOSING_IN_ERR,
        NackCode.GTD_RESP_UNAVAIL,
        NackCode.INVALID_SYN,
        NackCode.PDC_MODE_MISMATCH,
        NackCode.UNEXP_EVENT,
        NackCode.EXP_NACK_FATAL,
    }
)


class Opcode(IntEnum):
    """SES request opcodes, six bits (UES 3.4)."""

    NO_OP = 0x00
    WRITE = 0x01
    READ = 0x02
    ATOMIC = 0x03
    FETCHING_ATOMIC = 0x04
    SEND = 0x05
    RENDEZVOUS_SEND = 0x06
    DATAGRAM_SEND = 0x07
    DEFERRABLE_SEND = 0x08
    TAGGED_SEND = 0x09
    RENDEZVOUS_TSEND = 0x0A
    DEFERRABLE_TSEND = 0x0B
    DEFERRABLE_RTR = 0x0C
    TSEND_ATOMIC = 0x0D
    TSEND_FETCH_ATOMIC = 0x0E
    MSG_ERROR = 0x0F
    EXTENDED = 0x3F


class ProviderOpcode(IntEnum):
    """Opcodes of the UEC reference provider, in the range that UES 1.0 reserves."""

    SYNC_WRITE = 0x10
    SYNC_ATOMIC = 0x11


#: Requests followed by the rendezvous extension, by an atomic one, with restart tokens in the
#: place of the buffer offset, and without payload (UES 3.4, Tables 3-8 and 3-9).
RENDEZVOUS_OPCODES: Final = frozenset({Opcode.RENDEZVOUS_SEND, Opcode.RENDEZVOUS_TSEND})
ATOMIC_OPCODES: Final = frozenset(
    {Opcode.ATOMIC, Opcode.FETCHING_ATOMIC, Opcode.TSEND_ATOMIC, Opcode.TSEND_FETCH_ATOMIC}
)
DEFERRABLE_OPCODES: Final = frozenset({Opcode.DEFERRABLE_SEND, Opcode.DEFERRABLE_TSEND})
NO_PAYLOAD_OPCODES: Final = frozenset({Opcode.READ, Opcode.DEFERRABLE_RTR})


class ResponseOpcode(IntEnum):
    """SES response opcodes, six bits (UES Table 3-11)."""

    DEFAULT_RESPONSE = 0
    RESPONSE = 1
    RESPONSE_W_DATA = 2
    NO_RESPONSE = 3


class ResponseList(IntEnum):
    """The list that a message matched on (UES Table 3-11)."""

    EXPECTED = 0
    OVERFLOW = 1


class ReturnCode(IntEnum):
    """SES return codes, six bits (UES 3.4)."""

    NULL = 0x00
    OK = 0x01
    BAD_GENERATION = 0x02
    DISABLED = 0x03
    DISABLED_GEN = 0x04
    NO_MATCH = 0x05
    UNSUPPORTED_OP = 0x06
    UNSUPPORTED_SIZE = 0x07
    AT_INVALID = 0x08
    AT_PERM = 0x09
    AT_ATS_ERROR = 0x0A
    AT_NO_TRANS = 0x0B
    AT_OUT_OF_RANGE = 0x0C
    HOST_POISONED = 0x0D
    HOST_UNSUCCESS_CMPL = 0x0E
    AMO_UNSUPPORTED_OP = 0x0F
    AMO_UNSUPPORTED_DT = 0x10
    AMO_UNSUPPORTED_SIZE = 0x11
    AMO_UNALIGNED = 0x12
    AMO_FP_NAN = 0x13
    AMO_FP_UNDERFLOW = 0x14
    AMO_FP_OVERFLOW = 0x15
    AMO_FP_INEXACT = 0x16
    PERM_VIOLATION = 0x17
    OP_VIOLATION = 0x18
    BAD_INDEX = 0x19
    BAD_PID = 0x1A
    BAD_JOB_ID = 0x1B
    BAD_MKEY = 0x1C
    BAD_ADDR = 0x1D
    CANCELLED = 0x1E
    UNDELIVERABLE = 0x1F
    UNCOR = 0x20
    UNCOR_TRNSNT = 0x21
    TOO_LONG = 0x22
    INITIATOR_ERR = 0x23
    DROPPED = 0x24
    EXTENDED = 0x3E


class AtomicOpcode(IntEnum):
    """Atomic memory operations (UES 3.4)."""

    MIN = 0x00
    MAX = 0x01
    SUM = 0x02
    DIFF = 0x03
    PROD = 0x04
    LOR = 0x05
    LAND = 0x06
    BOR = 0x07
    BAND = 0x08
    LXOR = 0x09
    BXOR = 0x0A
    READ = 0x0B
    WRITE = 0x0C
    CSWAP = 0x0D
    CSWAP_NE = 0x0E
    CSWAP_LE = 0x0F
    CSWAP_LT = 0x10
    CSWAP_GE = 0x11
    CSWAP_GT = 0x12
    MSWAP = 0x13
    INVAL = 0x14


#: The compare-and-swap family, whose extension header carries both operands (UES 3.4).
CSWAP_OPCODES: Final = frozenset(range(AtomicOpcode.CSWAP, AtomicOpcode.CSWAP_GT + 1))


class Datatype(IntEnum):
    """Operand types of atomic operations (UES 3.4)."""

    INT8 = 0x00
    UINT8 = 0x01
    INT16 = 0x02
    UINT16 = 0x03
    INT32 = 0x04
    UINT32 = 0x05
    INT64 = 0x06
    UINT64 = 0x07
    INT128 = 0x08
    UINT128 = 0x09
    FLOAT = 0x0A
    DOUBLE = 0x0B
    FLOAT_COMPLEX = 0x0C
    DOUBLE_COMPLEX = 0x0D
    LONG_DOUBLE = 0x0E
    LONG_DOUBLE_COMPLEX = 0x0F
    BF16 = 0x10
    FP16 = 0x11

    @property
    def size(self) -> int | None:
        """Octets of one operand; ``None`` where the implementation decides."""
        return _DATATYPE_SIZES[self]


_DATATYPE_SIZES: Final = (1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 4, 8, 8, 16, None, None, 2, 2)


class SemanticControl(IntFlag):
    """``sem_ctl`` of the atomic extension (UES 3.4)."""

    CACHEABLE = 0x01
    COHERENT = 0x02
