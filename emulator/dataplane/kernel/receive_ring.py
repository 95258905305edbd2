"""The receive ring that a packet socket shares with the kernel (packet(7), PACKET_RX_RING)."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct

# linux/if_packet.h
SOL_PACKET = 263
PACKET_STATISTICS, PACKET_IGNORE_OUTGOING = 6, 23
_PACKET_RX_RING, _PACKET_VERSION = 5, 10
_TPACKET_V2 = 1
_BLOCK_OCTETS = 1 << 16
#: Where the kernel puts the frame in a slot: struct tpacket2_hdr and sockaddr_ll, aligned.
FRAME_AT = 66
_libc = ctypes.CDLL(None, use_errno=True)


def map_ring(
    raw: socket.socket, frame_octets: int, slots: int
) -> tuple[mmap.mmap, tuple[int, ...]]:
    """Give ``raw`` a ring of at least ``slots`` slots for frames of at most ``frame_octets``.

    Returns its memory, and where in it each slot begins.
    """
    stride = -(-(FRAME_AT + frame_octets) // 16) * 16
    block = max(_BLOCK_OCTETS, 1 << (stride - 1).bit_length())
    per_block = block // stride
    blocks = -(-slots // per_block)
    raw.setsockopt(SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
    request = struct.pack("=IIII", block, blocks, stride, blocks * per_block)
    _set_ring(raw, request)
    begins = tuple(
        index // per_block * block + index % per_block * stride
        for index in range(blocks * per_block)
    )
    return mmap.mmap(raw.fileno(), block * blocks), begins


def _set_ring(raw: socket.socket, request: bytes) -> None:
    """Set up the ring without holding Python's lock.

    The kernel waits for all its processors here (synchronize_net): other threads may go on, which
    Python's own ``setsockopt`` does not let them.
    """
    code = _libc.setsockopt(raw.fileno(), SOL_PACKET, _PACKET_RX_RING, request, len(request))
    if code != 0:
        failure = ctypes.get_errno()
        raise OSError(failure, os.strerror(failure))
