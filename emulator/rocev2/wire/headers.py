"""Every RoCEv2 header behind UDP (IBA chapter 9), in the notation of :mod:`uet.wire.headers`."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.rocev2.wire.codes import EXTENSIONS, Extension
from uet.wire.codec import Header, header

_LAYERS = "emulator.rocev2.wire.layers"
#: Without the ICRC, which scapy keeps among its fields though it ends the packet.
BTH = header(
    "bth",
    f"{_LAYERS}.BTH",
    "opcode:8 solicited:1 migreq:1 padcount:2 version:4 pkey:16=0xffff fecn:1 becn:1 resv6:6"
    " dqpn:24 ackreq:1 resv7:7 psn:24",
)
RETH = header("reth", f"{_LAYERS}.RETH", "va:64 rkey:32 dmalen:32")
AETH = header("aeth", f"{_LAYERS}.AETH", "syndrome:8 msn:24")
ATOMIC_ETH = header("atomiceth", f"{_LAYERS}.AtomicETH", "va:64 rkey:32 swap_or_add:64 compare:64")
ATOMIC_ACK_ETH = header("atomicacketh", f"{_LAYERS}.AtomicAckETH", "origremdt:64")
IMM_DT = header("immdt", f"{_LAYERS}.ImmDt", "immediate:32")
IETH = header("ieth", f"{_LAYERS}.IETH", "rkey:32")
DETH = header("deth", f"{_LAYERS}.DETH", "qkey:32 rsvd:8 srcqp:24")
CNP_PADDING = header("cnp", f"{_LAYERS}.CNPPadding", "reserved1:64 reserved2:64")

OF: Mapping[Extension, Header] = {
    Extension.DETH: DETH,
    Extension.RETH: RETH,
    Extension.ATOMIC_ETH: ATOMIC_ETH,
    Extension.AETH: AETH,
    Extension.ATOMIC_ACK_ETH: ATOMIC_ACK_ETH,
    Extension.IMM_DT: IMM_DT,
    Extension.IETH: IETH,
    Extension.CNP_PADDING: CNP_PADDING,
}

#: Octets of the extension headers by opcode.
EXTENSION_OCTETS: Mapping[int, int] = {
    opcode: sum(OF[extension].size for extension in extensions)
    for opcode, extensions in EXTENSIONS.items()
}
#: Octets of the largest request's headers, from BTH on.
LARGEST = BTH.size + max(EXTENSION_OCTETS.values())
