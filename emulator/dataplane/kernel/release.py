"""Frames that have arrived at a switch belong to it, no longer to the socket that sent them.

A frame stays on its sender's send buffer until the kernel lets go of the buffer's owner.  Routing
does that on arrival, a bridge does not: a frame that waits in a rail switch would count against its
NIC, which has few frames of queue. These would hold back the sender, with all that it has for other
destinations. A real NIC goes on sending, and the switch's buffer fills.

So every bridged port passes on, in front of its queues, a clone of each frame that still has an
owner.  The clone has none, shares the octets, and passes this place untouched.
"""

from __future__ import annotations

from functools import cache

from emulator.dataplane.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    U32,
    attribute,
    nested,
    text,
)
from emulator.dataplane.kernel.programs.ebpf import (
    CALL,
    CLONE_REDIRECT,
    COPY,
    EXIT,
    JUMP_IF_ZERO,
    LOAD_DOUBLE,
    LOAD_WORD,
    MOVE,
    PULL_DATA,
    SKB_INTERFACE,
    SKB_MARK,
    SKB_SOCKET,
    STORE_WORD,
    TC_ACT_STOLEN,
    TC_ACT_UNSPEC,
    instruction,
    load_classifier,
)
from emulator.dataplane.kernel.shaping import TCA_KIND, TCA_OPTIONS, TCMSG, TcRequest

CLSACT, CLSACT_HANDLE, CLSACT_EGRESS = 0xFFFF_FFF1, 0xFFFF_0000, 0xFFFF_FFF3
TCA_BPF_FD, TCA_BPF_NAME, TCA_BPF_FLAGS, DIRECT_ACTION = 6, 7, 8, 1
FIRST = 1  # in front of all other programs: those then see each frame once
ETH_P_ALL_ON_WIRE = 0x0300

PROGRAM = (
    instruction(LOAD_DOUBLE, to=2, source=1, offset=SKB_SOCKET),
    instruction(JUMP_IF_ZERO, to=2, offset=5),
    instruction(LOAD_WORD, to=2, source=1, offset=SKB_INTERFACE),
    instruction(MOVE, to=3, value=0),
    instruction(CALL, value=CLONE_REDIRECT),
    instruction(MOVE, value=TC_ACT_STOLEN),  # the clone was sent or counted as a drop
    instruction(EXIT),
    instruction(MOVE, value=TC_ACT_UNSPEC),
    instruction(EXIT),
)


#: A tunnel looks its route up once for all packets, and sends them all one way, unless they have
#: a DSCP, can be marked by ECN, or carry any mark of the kernel's own: so they are given one.
ROUTED_EACH = 0x75655405
#: And it reads DSCP and ECN for the outside where the first octets of a frame are.  Of a large one
#: that an endpoint has sent these are the Ethernet header alone, and older kernels (6.1) read what
#: lies behind, and report it nowhere; so the IP header is brought there.
HEADERS = 14 + 40  # Ethernet, and IPv4 or IPv6
FOR_TUNNELS = (
    instruction(MOVE, to=2, value=ROUTED_EACH),
    instruction(STORE_WORD, to=1, source=2, offset=SKB_MARK),
    instruction(COPY, to=6, source=1),
    instruction(MOVE, to=2, value=HEADERS),
    instruction(CALL, value=PULL_DATA),  # nothing is lost where a frame is shorter
    instruction(COPY, to=1, source=6),
)


@cache
def release_requests(*, tunnel: bool = False) -> tuple[TcRequest, ...]:
    """Return what makes a port let go of the senders of the frames it sends.

    That of a ``tunnel`` has each of them looked up on its own. So equal next hops share them, and
    its class and mark are seen. Raises :class:`UserError` if the kernel does not take the program.
    """
    return egress_program((*FOR_TUNNELS, *PROGRAM) if tunnel else PROGRAM, "uetemu-release")


def egress_program(program: tuple[bytes, ...], name: str) -> tuple[TcRequest, ...]:
    """Return requests that put ``program`` in front of all others that see what a port sends.

    Raises :class:`UserError` if the kernel does not take it.
    """
    flags = NLM_F_CREATE | NLM_F_EXCL
    qdisc = TCMSG.pack(0, 0, 0, 0, CLSACT_HANDLE, CLSACT, 0)
    rule = TCMSG.pack(0, 0, 0, 0, 1, CLSACT_EGRESS, FIRST << 16 | ETH_P_ALL_ON_WIRE)
    options = nested(
        TCA_OPTIONS,
        attribute(TCA_BPF_FD, U32(load_classifier(program))),
        text(TCA_BPF_NAME, name),
        attribute(TCA_BPF_FLAGS, U32(DIRECT_ACTION)),
    )
    return (
        TcRequest(RTM_NEWQDISC, flags, qdisc[:4], qdisc[8:] + text(TCA_KIND, "clsact")),
        TcRequest(RTM_NEWTFILTER, flags, rule[:4], rule[8:] + text(TCA_KIND, "bpf") + options),
    )
