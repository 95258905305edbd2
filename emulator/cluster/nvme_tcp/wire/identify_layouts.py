"""Identify data, features and log pages (NVM Express Base 2.0; NVM Command Set 1.0)."""

from __future__ import annotations

import struct
from enum import IntEnum

from emulator.cluster.nvme_tcp.wire.sparse_layout import SparseLayout

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
