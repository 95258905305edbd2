"""Status codes of completions: status code type and status code (NVM Express Base 2.0, 3.3.3.2.1).

A value is ``type << 8 | code``; :data:`DO_NOT_RETRY` may be added.  The completion queue entry has
it shifted left by the phase tag, which NVMe over Fabrics does not use.
"""

from __future__ import annotations

from enum import IntEnum

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
