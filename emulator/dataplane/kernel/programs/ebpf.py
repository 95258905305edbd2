"""Small eBPF classifiers, written as instructions and loaded without a compiler.

Registers: 0 result, 1 to 5 arguments of a call (1 at first the frame), 6 to 9 outlast calls, 10
frame pointer (kernel ``linux/bpf.h``).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from emulator.errors import UserError

BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
BPF_PROG_LOAD, BPF_PROG_TYPE_SCHED_CLS = 5, 3

#: Helpers: bpf_map_lookup_elem, bpf_skb_store_bytes, bpf_l3_csum_replace, bpf_clone_redirect,
#: bpf_redirect, bpf_skb_load_bytes, bpf_skb_pull_data, bpf_set_hash.
MAP_LOOKUP, STORE_OCTETS, REPLACE_IN_CHECKSUM, CLONE_REDIRECT = 1, 9, 10, 13
REDIRECT, LOAD_OCTETS, PULL_DATA, SET_HASH = 23, 26, 39, 48
#: Offsets in struct __sk_buff.
SKB_MARK, SKB_INTERFACE, SKB_HASH, SKB_SOCKET = 8, 40, 68, 168
TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_STOLEN = -1, 2, 4
LOAD_BYTE, LOAD_HALF, LOAD_WORD, LOAD_DOUBLE = 0x71, 0x69, 0x61, 0x79
STORE_WORD, STORE_HALF_VALUE = 0x63, 0x6A
MOVE, COPY, ADD, ADD_REGISTER, AND, OR = 0xB7, 0xBF, 0x07, 0x0F, 0x57, 0x47
MULTIPLY, SHIFT_RIGHT, XOR_REGISTER = 0x27, 0x77, 0xAF
JUMP_IF_ZERO, JUMP_UNLESS, CALL, EXIT = 0x15, 0x55, 0x85, 0x95
LOAD_MAP, OF_DESCRIPTOR = 0x18, 1  # two instructions; the source determines what the value is
FRAME_POINTER = 10

_libc = ctypes.CDLL(None, use_errno=True)


def instruction(
    code: int, *, to: int = 0, source: int = 0, offset: int = 0, value: int = 0
) -> bytes:
    """One instruction (struct bpf_insn)."""
    return struct.pack("=BBhi", code, source << 4 | to, offset, value)


def load_classifier(program: tuple[bytes, ...]) -> int:
    """``program`` in the kernel, as a file descriptor that keeps it there.

    Raises :class:`UserError` if the kernel does not take it.
    """
    octets = b"".join(program)
    instructions = ctypes.create_string_buffer(octets, len(octets))
    licence = ctypes.create_string_buffer(b"GPL")
    settings = struct.pack(
        "=IIQQ",
        BPF_PROG_TYPE_SCHED_CLS,
        len(program),
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
    )
    number = BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise UserError(f"eBPF is needed and unknown on {platform.machine()}: use another machine")
    union = ctypes.create_string_buffer(settings, 128)
    loaded: int = _libc.syscall(number, BPF_PROG_LOAD, union, len(union))
    if loaded < 0:
        reason = os.strerror(ctypes.get_errno())
        raise UserError(f"the kernel refuses an eBPF classifier ({reason}): see uetemu doctor")
    return loaded
