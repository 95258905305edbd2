"""Submission and completion queue entries, SGL descriptors (NVM Express Base 2.0, 3.3.3)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from emulator.cluster.nvme_tcp.wire.nvme_status import NvmeStatus

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
        """Tell whether the command succeeded."""
        return self.status == NvmeStatus.SUCCESS


def completion_of(header: bytes, at: int) -> NvmeCompletion:
    """Return the completion queue entry behind ``at`` octets of a capsule's header."""
    result, sqhd, sqid, cid, status = CQE.unpack_from(header, at)
    return NvmeCompletion(result, sqhd, sqid, cid, status >> 1)
