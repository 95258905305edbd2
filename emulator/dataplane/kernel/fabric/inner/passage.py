"""Sort frames at the inner ends of cables: an engine takes some, the kernel passes on the others.

::

    frame at an inner end --+-- packet ring: takes frames of the transport, no others
                            +-- clsact: drops those, and sends on any other at the inner end of
                                the port at the other end of the cable

Ping, ARP and routing protocols therefore pass as on one cable, and frames of the transport wait
for whoever holds the ring.  Both places run the same classifier: a frame is in the ring or on the
cable.  All clsact qdiscs share one block of filters (tc(8)), and nothing is pinned: programs and
map go with the namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from emulator.dataplane.kernel.fabric.inner.carried import classifier
from emulator.dataplane.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    U16,
    U32,
    RouteSocket,
    attribute,
    nested,
    text,
)
from emulator.dataplane.kernel.programs.bpf_syscall import (
    MAP_CREATE,
    MAP_TYPE_ARRAY,
    MAP_UPDATE,
    bpf,
)
from emulator.dataplane.kernel.programs.classic_bpf import WHOLE_FRAME, attach
from emulator.dataplane.kernel.programs.ebpf import (
    ADD,
    AND,
    CALL,
    COPY,
    EXIT,
    FRAME_POINTER,
    JUMP_IF_ZERO,
    LOAD_MAP,
    LOAD_WORD,
    MAP_LOOKUP,
    MOVE,
    OF_DESCRIPTOR,
    REDIRECT,
    SKB_INTERFACE,
    STORE_WORD,
    TC_ACT_SHOT,
    TC_ACT_UNSPEC,
    instruction,
    load_classifier,
)
from emulator.dataplane.kernel.release import (
    CLSACT,
    CLSACT_HANDLE,
    DIRECT_ACTION,
    ETH_P_ALL_ON_WIRE,
    TCA_BPF_FD,
    TCA_BPF_FLAGS,
    TCA_BPF_NAME,
)
from emulator.dataplane.kernel.shaping import TCA_KIND, TCA_OPTIONS, TCMSG
from emulator.dataplane.wires import Wires

TCA_BPF_OPS_LEN, TCA_BPF_OPS = 4, 5
TCA_INGRESS_BLOCK = 13
BLOCK = 1
OF_BLOCK = -1  # TCM_IFINDEX_MAGIC_BLOCK, in place of an interface's index
TAKE, PASS = 1, 2  # preferences: the ring's frames are dropped first
ENTRY = struct.Struct("=II")  # a map's key and value


def ring_filter(raw: socket.socket, wires: Wires, worker: int) -> None:
    """Let into ``raw``, in the namespace of ``wires``, what the ring of ``worker`` is to take.

    These are an engine's frames (:mod:`emulator.dataplane.kernel.fabric.inner.carried`) that arrive
    at the inner ends of its nodes.
    """
    own = (worker + 1, wires.stride.bit_length() - 1)
    attach(raw, classifier(matching=WHOLE_FRAME, other=0, interfaces=own))


def queue_qdisc(kernel: RouteSocket, index: int, *, subject: str) -> None:
    """Queue what attaches the inner end ``index`` to the filters that all of them share."""
    header = TCMSG.pack(0, 0, 0, index, CLSACT_HANDLE, CLSACT, 0)
    body = header + text(TCA_KIND, "clsact") + attribute(TCA_INGRESS_BLOCK, U32(BLOCK))
    kernel.queue(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, body, subject)


def add_filters(kernel: RouteSocket, wires: Wires) -> None:
    """Make the filters that all inner ends share; one at least has its qdisc.

    Raises UserError if the kernel does not take the program.
    """
    taken = classifier(matching=TC_ACT_SHOT, other=TC_ACT_UNSPEC & 0xFFFF_FFFF)
    _queue_filter(
        kernel,
        TAKE,
        "uetemu-taken",
        attribute(TCA_BPF_OPS_LEN, U16(len(taken))) + attribute(TCA_BPF_OPS, b"".join(taken)),
    )
    peers = _peers(wires)
    try:
        program = load_classifier(_passing(peers, wires.stride))
    finally:
        os.close(peers)  # the program holds it
    try:
        _queue_filter(kernel, PASS, "uetemu-passed", attribute(TCA_BPF_FD, U32(program)))
        kernel.flush()
    finally:
        os.close(program)


def _queue_filter(kernel: RouteSocket, preference: int, name: str, classifier: bytes) -> None:
    header = TCMSG.pack(0, 0, 0, OF_BLOCK, 1, BLOCK, preference << 16 | ETH_P_ALL_ON_WIRE)
    options = nested(
        TCA_OPTIONS,
        classifier,
        text(TCA_BPF_NAME, name),
        attribute(TCA_BPF_FLAGS, U32(DIRECT_ACTION)),
    )
    body = header + text(TCA_KIND, "bpf") + options
    kernel.queue(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, body, f"filter {name} of the wires")


def _peers(wires: Wires) -> int:
    """Make the map from a port's index to that of the inner end of the port it is cabled to."""
    settings = struct.pack("=IIIII", MAP_TYPE_ARRAY, 4, 4, wires.stride, 0)
    peers = bpf(MAP_CREATE, settings, "the wires' map")
    try:
        for link in wires.topology.links:
            for near, far in (link.ends, link.ends[::-1]):
                entry = ctypes.create_string_buffer(
                    ENTRY.pack(wires.indices[near], wires.index(far)), ENTRY.size
                )
                place = ctypes.addressof(entry)
                bpf(MAP_UPDATE, struct.pack("=IIQQQ", peers, 0, place, place + 4, 0), "the wires")
    except BaseException:
        os.close(peers)
        raise
    return peers


def _passing(peers: int, stride: int) -> tuple[bytes, ...]:
    """Send on the frame at the other inner end of its cable; of no cable, drop it."""
    return (
        instruction(LOAD_WORD, to=2, source=1, offset=SKB_INTERFACE),
        instruction(AND, to=2, value=stride - 1),
        instruction(STORE_WORD, to=FRAME_POINTER, source=2, offset=-4),
        instruction(COPY, to=2, source=FRAME_POINTER),
        instruction(ADD, to=2, value=-4),
        instruction(LOAD_MAP, to=1, source=OF_DESCRIPTOR, value=peers),
        instruction(0),
        instruction(CALL, value=MAP_LOOKUP),
        instruction(JUMP_IF_ZERO, to=0, offset=4),
        instruction(LOAD_WORD, to=1, source=0),
        instruction(MOVE, to=2, value=0),
        instruction(CALL, value=REDIRECT),
        instruction(EXIT),
        instruction(MOVE, value=TC_ACT_SHOT),
        instruction(EXIT),
    )
