"""Submission queue entries that the initiator makes; the queue adds CID and SGL."""

from __future__ import annotations

from emulator.cluster.nvme_tcp.wire.layouts import (
    CONNECT,
    CONNECT_DATA,
    DISABLE_FLOW_CONTROL,
    FABRICS,
    LONG_PROPERTIES,
    PROPERTY,
    SQE,
    USES_SGL,
    AdminOpcode,
    FabricsType,
    IdentifyCns,
    Property,
)

#: Offsets of CID and of the SGL descriptor within an entry (Base 2.0, 3.3.3.1).
AT_CID, AT_SGL = 2, 24


def entry(opcode: int, nsid: int = 0, *dwords: int) -> bytearray:
    """Make an entry with CDW10 and the dwords behind it."""
    six = (*dwords, 0, 0, 0, 0, 0, 0)[:6]
    return bytearray(SQE.pack(opcode, USES_SGL, 0, nsid, 0, 0, 0, 0, *six))


def io_entry(opcode: int, nsid: int, lba: int, blocks: int, flags: int = 0) -> bytearray:
    """Make a Read, Write, Compare or Write Zeroes; ``flags`` go into CDW12."""
    return entry(opcode, nsid, lba & 0xFFFFFFFF, lba >> 32, blocks - 1 | flags)


def identify_entry(cns: IdentifyCns, nsid: int = 0) -> bytearray:
    """Make an Identify command."""
    return entry(AdminOpcode.IDENTIFY, nsid, cns)


def log_entry(page: int, offset: int, length: int) -> bytearray:
    """Make a Get Log Page command for ``length`` octets, a multiple of 4."""
    dwords = length // 4 - 1
    return entry(
        AdminOpcode.GET_LOG_PAGE, 0xFFFFFFFF, page | (dwords & 0xFFFF) << 16, dwords >> 16,
        offset & 0xFFFFFFFF, offset >> 32,
    )  # fmt: skip


def connect_entry(qid: int, sqsize: int, keep_alive_ms: int, *, flow_control: bool) -> bytearray:
    """Make a Connect command; :func:`connect_data` makes its data."""
    return bytearray(
        CONNECT.pack(
            opcode=FABRICS,
            flags=USES_SGL,
            fctype=FabricsType.CONNECT,
            qid=qid,
            sqsize=sqsize,
            cattr=0 if flow_control else DISABLE_FLOW_CONTROL,
            kato=keep_alive_ms,
        )
    )


def connect_data(identifier: bytes, cntlid: int, subsystem: str, host: str) -> bytes:
    """Make the data of a Connect command."""
    return CONNECT_DATA.pack(
        hostid=identifier, cntlid=cntlid, subnqn=subsystem.encode(), hostnqn=host.encode()
    )


def property_get_entry(offset: Property) -> bytearray:
    """Make a Property Get command."""
    return bytearray(
        PROPERTY.pack(
            opcode=FABRICS,
            flags=USES_SGL,
            fctype=FabricsType.PROPERTY_GET,
            attrib=int(offset in LONG_PROPERTIES),
            ofst=offset,
        )
    )


def property_set_entry(offset: Property, value: int) -> bytearray:
    """Make a Property Set command of a property of 4 octets."""
    return bytearray(
        PROPERTY.pack(
            opcode=FABRICS,
            flags=USES_SGL,
            fctype=FabricsType.PROPERTY_SET,
            ofst=offset,
            value=value,
        )
    )
