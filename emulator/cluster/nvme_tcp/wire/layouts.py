"""Data structures of NVMe: queue entries, status codes, Fabrics commands, identify data, log pages.

Sources: NVM Express Base 2.0 (queue entries: 3.3.3; status: 3.3.3.2.1), NVM Command Set 1.0.

A status is ``type << 8 | code``; :data:`DO_NOT_RETRY` may be added.  The completion queue entry has
it shifted left by the phase tag, which NVMe over Fabrics does not use.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple


class SparseLayout:
    """A structure of ``size`` octets, little-endian, with fields of ``struct`` formats at offsets.

    ``fields`` maps a name to ``(offset, format)``; octets outside of fields are zero.
    """

    def __init__(self, size: int, fields: Mapping[str, tuple[int, str]]) -> None:
        self.size = size
        self._fields = {
            name: (offset, struct.Struct("<" + form)) for name, (offset, form) in fields.items()
        }
        for name, (offset, form) in self._fields.items():
            if offset + form.size > size:
                raise ValueError(f"field {name} ends outside of the structure")

    def offset(self, name: str) -> int:
        return self._fields[name][0]

    def pack(self, **values: Any) -> bytes:
        """Make the structure's octets; fields that are not named are zero."""
        octets = bytearray(self.size)
        for name, value in values.items():
            offset, form = self._fields[name]
            form.pack_into(octets, offset, value)
        return bytes(octets)

    def unpack(self, octets: bytes) -> dict[str, Any]:
        """Return the value of each field; raises ``struct.error`` where ``octets`` are too few."""
        return {name: form.unpack_from(octets, at)[0] for name, (at, form) in self._fields.items()}


def padded_text(octets: bytes) -> str:
    """Return the text of a field that is padded with spaces or ends at a NUL."""
    return octets.split(b"\0", 1)[0].decode("utf-8", "replace").rstrip(" ")


#: Do Not Retry: the same command is expected to fail again (figure "Completion Queue Entry").
DO_NOT_RETRY = 0x4000


class NvmeStatus(IntEnum):
    """The values that the target returns or the initiator treats by name."""

    SUCCESS = 0x000
    INVALID_OPCODE = 0x001
    INVALID_FIELD = 0x002
    ID_CONFLICT = 0x003
    DATA_TRANSFER_ERROR = 0x004
    INTERNAL_ERROR = 0x006
    ABORT_REQUESTED = 0x007
    INVALID_NAMESPACE = 0x00B
    SEQUENCE_ERROR = 0x00C
    DATA_LENGTH_INVALID = 0x00F
    DESCRIPTOR_TYPE_INVALID = 0x011
    SGL_OFFSET_INVALID = 0x016
    NAMESPACE_WRITE_PROTECTED = 0x020
    TRANSIENT_TRANSPORT_ERROR = 0x022
    LBA_OUT_OF_RANGE = 0x080
    EVENT_LIMIT_EXCEEDED = 0x105
    INVALID_LOG_PAGE = 0x109
    # the same numbers mean other things for Connect (Base 2.0, 6.3) than for I/O
    CONNECT_INCOMPATIBLE_FORMAT = 0x180
    CONNECT_CONTROLLER_BUSY = 0x181
    CONNECT_INVALID_PARAMETERS = 0x182
    CONNECT_INVALID_HOST = 0x184
    COMPARE_FAILURE = 0x285


def status_name(status: int) -> str:
    """Return a status's name, or the two numbers of one without a name."""
    value = status & ~DO_NOT_RETRY & 0x7FF
    try:
        return NvmeStatus(value).name.lower()
    except ValueError:
        return f"type {value >> 8:#x}, code {value & 0xFF:#x}"


#: Opcode, flags, CID, NSID, MPTR, SGL address, SGL length, SGL identifier, CDW10 to CDW15.
SQE = struct.Struct("<BBHI8xQQI3xB6I")
#: SGL descriptor: address, length, identifier (Base 2.0, 4.1.2).
SGL = struct.Struct("<QI3xB")
#: Result in dwords 0 and 1, SQHD, SQID, CID, status with the phase tag.
CQE = struct.Struct("<QHHHH")
#: PSDT 01b in the flags: the command uses SGLs, as all of NVMe over Fabrics do (Base 2.0, 3.3.3.1).
USES_SGL, PSDT_MASK = 0x40, 0xC0
#: SGL identifier: Data Block with an offset into the capsule's data (Base 2.0, 4.1.2).
IN_CAPSULE = 0x01
#: SGL identifier: Transport SGL Data Block, sub type A (NVMe/TCP).
IN_TRANSPORT = 0x5A
#: The NSID that means all namespaces (Base 2.0, 3.2.1).
ALL_NAMESPACES = 0xFFFFFFFF
#: SQHD of a Connect response whose queue has no flow control (Base 2.0, 6.3).
NO_FLOW_CONTROL = 0xFFFF


class AdminOpcode(IntEnum):
    """Opcodes of the Admin command set (Base 2.0, 5)."""

    GET_LOG_PAGE = 0x02
    IDENTIFY = 0x06
    ABORT = 0x08
    SET_FEATURES = 0x09
    GET_FEATURES = 0x0A
    ASYNC_EVENT_REQUEST = 0x0C
    KEEP_ALIVE = 0x18


class IoOpcode(IntEnum):
    """Opcodes of the NVM command set (NVM Command Set 1.0, 3)."""

    FLUSH = 0x00
    WRITE = 0x01
    READ = 0x02
    COMPARE = 0x05
    WRITE_ZEROES = 0x08
    DATASET_MANAGEMENT = 0x09


#: Opcode of all Fabrics commands; FCTYPE tells them apart (Base 2.0, 6).
FABRICS = 0x7F
#: FUA in CDW12 of Read and Write; AD in CDW11 of Dataset Management.
FORCE_UNIT_ACCESS, ATTRIBUTE_DEALLOCATE = 1 << 30, 1 << 2
#: Dataset Management: context attributes, length in blocks, first LBA of a range.
DSM_RANGE = struct.Struct("<IIQ")


class NvmeCommand(NamedTuple):
    """A submission queue entry, its fields in the order of :data:`SQE`."""

    opcode: int
    flags: int
    cid: int
    nsid: int
    mptr: int
    address: int
    length: int
    descriptor: int
    cdw10: int
    cdw11: int
    cdw12: int
    cdw13: int
    cdw14: int
    cdw15: int

    @property
    def lba(self) -> int:
        """Return SLBA of a read or write."""
        return self.cdw11 << 32 | self.cdw10

    @property
    def blocks(self) -> int:
        """Return NLB of a read or write, as a count."""
        return (self.cdw12 & 0xFFFF) + 1


def entry_of(header: bytes, at: int) -> NvmeCommand:
    """Return the submission queue entry behind ``at`` octets of a capsule's header."""
    return NvmeCommand._make(SQE.unpack_from(header, at))


class NvmeCompletion(NamedTuple):
    """A completion queue entry; ``status`` is without the phase tag."""

    result: int
    sqhd: int
    sqid: int
    cid: int
    status: int

    @property
    def ok(self) -> bool:
        return self.status == NvmeStatus.SUCCESS


def completion_of(header: bytes, at: int) -> NvmeCompletion:
    """Return the completion queue entry behind ``at`` octets of a capsule's header."""
    result, sqhd, sqid, cid, status = CQE.unpack_from(header, at)
    return NvmeCompletion(result, sqhd, sqid, cid, status >> 1)


#: NQN of every discovery subsystem (Base 2.0, 4.5).
DISCOVERY_NQN = "nqn.2014-08.org.nvmexpress.discovery"
#: TCP port assigned to NVMe/TCP; a discovery controller of its own may be at port 8009.
IO_PORT = 4420
#: Longest NQN in octets, without the NUL (Base 2.0, 4.5).
MOST_NQN = 223
#: The host asks for a controller of the dynamic controller model (Base 2.0, 6.3).
ANY_CONTROLLER = 0xFFFF
#: CATTR: the host requests that the submission queue has no flow control (Base 2.0, 6.3).
DISABLE_FLOW_CONTROL = 1 << 2
#: IATTR of a refused Connect: the invalid parameter is in the data (Base 2.0, 6.3).
IN_DATA = 1


class FabricsType(IntEnum):
    """FCTYPE: the kind of a Fabrics command (Base 2.0, 6)."""

    PROPERTY_SET = 0x00
    CONNECT = 0x01
    PROPERTY_GET = 0x04


_FABRICS = {"opcode": (0, "B"), "flags": (1, "B"), "cid": (2, "H"), "fctype": (4, "B")}
_SGL = {"address": (24, "Q"), "length": (32, "I"), "descriptor": (39, "B")}
CONNECT = SparseLayout(
    64,
    {
        **_FABRICS,
        **_SGL,
        "recfmt": (40, "H"),
        "qid": (42, "H"),
        "sqsize": (44, "H"),
        "cattr": (46, "B"),
        "kato": (48, "I"),
    },
)
CONNECT_DATA = SparseLayout(
    1024, {"hostid": (0, "16s"), "cntlid": (16, "H"), "subnqn": (256, "256s"),
           "hostnqn": (512, "256s")}
)  # fmt: skip
PROPERTY = SparseLayout(
    64, {**_FABRICS, "attrib": (40, "B"), "ofst": (44, "I"), "value": (48, "Q")}
)
#: Where FCTYPE lies in a submission queue entry.
AT_FCTYPE = 4


class Property(IntEnum):
    """Offsets of controller properties (Base 2.0, 3.1.3)."""

    CAP = 0x00
    VS = 0x08
    CC = 0x14
    CSTS = 0x1C


#: Properties of 8 octets; the others have 4.
LONG_PROPERTIES = {Property.CAP}
# CC (Base 2.0, 3.1.3.5): EN, SHN, IOSQES 6, IOCQES 4
ENABLE = 1
SHUTDOWN_MASK, SHUTDOWN_NORMAL = 3 << 14, 1 << 14
IO_ENTRY_SIZES = 6 << 16 | 4 << 20
# CSTS (Base 2.0, 3.1.3.6): RDY, CFS, SHST
READY, FATAL_STATUS = 1, 2
SHUTDOWN_COMPLETE = 2 << 2
#: Version 2.0.0 (Base 2.0, 3.1.3.2).
VERSION = 0x00020000


def capabilities(most_entries: int, timeout_ms: int) -> int:
    """Make CAP (Base 2.0, 3.1.3.1): MQES, CQR, TO in units of 500 ms, CSS, 4 KiB pages."""
    return (most_entries - 1) | 1 << 16 | (timeout_ms // 500) << 24 | 1 << 37


def most_entries(cap: int) -> int:
    """Return the most entries of a queue, by MQES of CAP."""
    return (cap & 0xFFFF) + 1


def ready_timeout_ms(cap: int) -> int:
    """Return the longest time until CSTS.RDY follows CC.EN, by TO of CAP."""
    return (cap >> 24 & 0xFF) * 500


#: Head of the discovery log: GENCTR, NUMREC, RECFMT (Base 2.0, 5.16.1.23).
DISCOVERY_HEAD = struct.Struct("<QQH1006x")
DISCOVERY_ENTRY = SparseLayout(
    1024,
    {
        "trtype": (0, "B"),
        "adrfam": (1, "B"),
        "subtype": (2, "B"),
        "treq": (3, "B"),
        "portid": (4, "H"),
        "cntlid": (6, "H"),
        "asqsz": (8, "H"),
        "trsvcid": (32, "32s"),
        "subnqn": (256, "256s"),
        "traddr": (512, "256s"),
        "sectype": (768, "B"),
    },
)
#: TRTYPE of TCP, ADRFAM of IPv4 and IPv6, SUBTYPE of an NVM subsystem.
TRANSPORT_TCP, FAMILY_IPV4, FAMILY_IPV6, SUBTYPE_NVM = 3, 1, 2, 2
#: SUBTYPE of the discovery subsystem that answers (Base 2.0, figure of 5.16.1.23).
SUBTYPE_THIS_DISCOVERY = 3
#: TREQ: a secure channel is not required (Base 2.0, figure of 5.16.1.23).
NO_SECURE_CHANNEL = 2


#: Octets of all Identify data.
IDENTIFY_SIZE = 4096


class IdentifyCns(IntEnum):
    """CNS of Identify (Base 2.0, 5.17.1)."""

    NAMESPACE = 0x00
    CONTROLLER = 0x01
    ACTIVE_NAMESPACES = 0x02
    DESCRIPTORS = 0x03
    COMMAND_SET_NAMESPACE = 0x05
    COMMAND_SET_CONTROLLER = 0x06


IDENTIFY_CONTROLLER = SparseLayout(
    IDENTIFY_SIZE,
    {
        "sn": (4, "20s"),
        "mn": (24, "40s"),
        "fr": (64, "8s"),
        "cmic": (76, "B"),
        "mdts": (77, "B"),
        "cntlid": (78, "H"),
        "ver": (80, "I"),
        "oaes": (92, "I"),
        "ctratt": (96, "I"),
        "cntrltype": (111, "B"),
        "oacs": (256, "H"),
        "acl": (258, "B"),
        "aerl": (259, "B"),
        "frmw": (260, "B"),
        "lpa": (261, "B"),
        "elpe": (262, "B"),
        "kas": (320, "H"),
        "sqes": (512, "B"),
        "cqes": (513, "B"),
        "maxcmd": (514, "H"),
        "nn": (516, "I"),
        "oncs": (520, "H"),
        "vwc": (525, "B"),
        "sgls": (536, "I"),
        "subnqn": (768, "256s"),
        "ioccsz": (1792, "I"),
        "iorcsz": (1796, "I"),
        "icdoff": (1800, "H"),
        "msdbd": (1803, "B"),
    },
)
#: CNTRLTYPE (Base 2.0, 5.17.2.1).
IO_CONTROLLER, DISCOVERY_CONTROLLER = 1, 2
#: CMIC: more than one port, and more than one controller, may reach the subsystem; NMIC: they share
#: the namespace (Base 2.0, 5.17.2.1; NVM Command Set 1.0, 4.1.5.1).
SEVERAL_PORTS_AND_CONTROLLERS, SHARED_NAMESPACE = 1 << 0 | 1 << 1, 1 << 0
#: ONCS: Compare, Dataset Management, Write Zeroes.
SUPPORTS_COMPARE, SUPPORTS_DSM, SUPPORTS_WRITE_ZEROES = 1 << 0, 1 << 2, 1 << 3
#: SGLS: SGLs of any alignment, offsets into capsules, Transport SGL Data Blocks.
SGL_SUPPORT = 1 << 0 | 1 << 20 | 1 << 21
#: Commands of the effects log: supported; supported and changes contents (Base 2.0, 5.16.1.6).
EFFECT_SUPPORTED, EFFECT_CHANGES = 1, 3
#: LPA: commands supported and effects; extended data of Get Log Page (Base 2.0, 5.17.2.1).
LPA_EFFECTS, LPA_EXTENDED = 1 << 1, 1 << 2
#: VWC: a volatile write cache is present, and Flush takes the NSID of all namespaces.
WRITE_CACHE = 1 | 3 << 1
#: FRMW: one slot, which is read only.
ONE_FIRMWARE_SLOT = 1 | 1 << 1
#: MDTS counts in units of the smallest memory page: 2**MDTS of these (CAP.MPSMIN is 0).
PAGE = 4096
#: IOCCSZ and IORCSZ count units of 16 octets; KAS units of 100 ms.
CAPSULE_UNIT, KEEP_ALIVE_UNIT_MS = 16, 100
IDENTIFY_NAMESPACE = SparseLayout(
    IDENTIFY_SIZE,
    {
        "nsze": (0, "Q"),
        "ncap": (8, "Q"),
        "nuse": (16, "Q"),
        "nsfeat": (24, "B"),
        "nlbaf": (25, "B"),
        "flbas": (26, "B"),
        "nmic": (30, "B"),
        "dlfeat": (33, "B"),
        "nsattr": (99, "B"),
        "nguid": (104, "16s"),
        "eui64": (120, "8s"),
        "lbads": (130, "B"),
    },
)
#: DLFEAT: deallocated blocks read as zeroes, and Write Zeroes may deallocate.
DEALLOCATED_ZEROES = 1 | 1 << 3
WRITE_PROTECTED = 1
#: Descriptor of the descriptor list: NIDT, NIDL (Base 2.0, 5.17.2.3).
DESCRIPTOR = struct.Struct("<BB2x")
DESCRIPTOR_NGUID, DESCRIPTOR_UUID, DESCRIPTOR_CSI = 2, 3, 4


class LogPage(IntEnum):
    """LID of Get Log Page (Base 2.0, 5.16.1)."""

    ERRORS = 0x01
    HEALTH = 0x02
    FIRMWARE_SLOTS = 0x03
    CHANGED_NAMESPACES = 0x04
    COMMAND_EFFECTS = 0x05
    DISCOVERY = 0x70


ERROR_ENTRY = SparseLayout(
    64,
    {
        "count": (0, "Q"),
        "sqid": (8, "H"),
        "cid": (10, "H"),
        "status": (12, "H"),
        "location": (14, "H"),
        "lba": (16, "Q"),
        "nsid": (24, "I"),
    },
)
#: Parameter error location that says nothing (Base 2.0, figure of 5.16.1.2).
NO_LOCATION = 0xFFFF
#: Counters of 16 octets: their low 8 are written.  Units of data are 1000 times 512 octets.
HEALTH = SparseLayout(
    512,
    {
        "available_spare": (3, "B"),
        "data_units_read": (32, "Q"),
        "data_units_written": (48, "Q"),
        "read_commands": (64, "Q"),
        "write_commands": (80, "Q"),
        "error_entries": (176, "Q"),
    },
)
HEALTH_UNIT = 512_000
FIRMWARE_SLOTS = SparseLayout(512, {"afi": (0, "B"), "slot1": (8, "8s")})
#: Places of a Get Log Page command's I/O commands in the effects log.
EFFECTS_SIZE, EFFECTS_IO = 4096, 1024
CHANGED_SIZE = 4096


class FeatureId(IntEnum):
    """FID of Get and Set Features (Base 2.0, 5.27.1)."""

    WRITE_CACHE = 0x06
    NUMBER_OF_QUEUES = 0x07
    ASYNC_EVENTS = 0x0B
    KEEP_ALIVE = 0x0F
    HOST_IDENTIFIER = 0x81
