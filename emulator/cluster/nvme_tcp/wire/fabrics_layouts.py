"""Fabrics commands, controller properties and the discovery log (NVM Express Base 2.0)."""

from __future__ import annotations

import struct
from enum import IntEnum

from emulator.cluster.nvme_tcp.wire.sparse_layout import SparseLayout

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
