"""Classic BPF with named forward jumps (kernel ``linux/filter.h``, ``linux/bpf_common.h``)."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence

INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter
#: Loads into the accumulator; those after X are that many octets behind.
LOAD_WORD, LOAD_HALF, LOAD_BYTE = 0x20, 0x28, 0x30
LOAD_HALF_AFTER_X, LOAD_BYTE_AFTER_X = 0x48, 0x50
LOAD_LENGTH, LOAD_MEMORY = 0x80, 0x60
X_FROM_IHL, X_FROM_MEMORY, X_FROM_VALUE = 0xB1, 0x61, 0x01
STORE, STORE_X, TO_X, FROM_X = 0x02, 0x03, 0x07, 0x87
AND, ADD, ADD_X, SHIFT_LEFT, SHIFT_RIGHT = 0x54, 0x04, 0x0C, 0x64, 0x74
JUMP_EQUAL, JUMP_ANY_BIT, JUMP_FROM_X = 0x15, 0x45, 0x3D
RETURN = 0x06
#: What is loaded from SKF_AD_OFF on is the kernel's own.
PACKET_TYPE, INTERFACE = 0xFFFF_F000 + 4, 0xFFFF_F000 + 8
WHOLE_FRAME = 0x0004_0000  # as many octets as a frame may have
_SO_ATTACH_FILTER = 26


class Assembler:
    """Collects instructions; a jump leads to a label that comes later."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, str | None, str | None]] = []
        self._labels: dict[str, int] = {}

    def add(self, opcode: int, operand: int = 0) -> None:
        self._code.append((opcode, operand, None, None))

    def jump(self, opcode: int, operand: int, if_true: str | None, if_false: str | None) -> None:
        """Jump to a label, or fall through where that is None."""
        self._code.append((opcode, operand, if_true, if_false))

    def one_of(self, values: Sequence[int], target: str) -> None:
        """Jump to ``target`` when the accumulator is one of ``values``, else fall through."""
        for value in values:
            self.jump(JUMP_EQUAL, value, target, None)

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def assemble(self) -> list[bytes]:
        def skip(at: int, label: str | None) -> int:
            return 0 if label is None else self._labels[label] - at - 1

        return [
            INSTRUCTION.pack(opcode, skip(at, if_true), skip(at, if_false), operand)
            for at, (opcode, operand, if_true, if_false) in enumerate(self._code)
        ]


def attach(raw: socket.socket, program: Sequence[bytes]) -> None:
    """Let only those frames into ``raw`` for which ``program`` returns octets to keep."""
    octets = b"".join(program)
    code = ctypes.create_string_buffer(octets, len(octets))
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(code))
    raw.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
