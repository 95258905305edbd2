"""Every RoCEv2 header behind UDP, compiled from its scapy layer."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.rocev2.wire import layers as wire
from emulator.rocev2.wire.codes import EXTENSIONS, Extension
from uet.wire.codec import Header, compile_header

#: Without the ICRC, which scapy keeps among its fields though it ends the packet.
BTH = compile_header("bth", wire.BTH, omit=("icrc",))
RETH = compile_header("reth", wire.RETH)
AETH = compile_header("aeth", wire.AETH)
ATOMIC_ETH = compile_header("atomiceth", wire.AtomicETH)
ATOMIC_ACK_ETH = compile_header("atomicacketh", wire.AtomicAckETH)
IMM_DT = compile_header("immdt", wire.ImmDt)
IETH = compile_header("ieth", wire.IETH)
DETH = compile_header("deth", wire.DETH)
CNP_PADDING = compile_header("cnp", wire.CNPPadding)

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
    opcode: sum(OF[header].size for header in extensions)
    for opcode, extensions in EXTENSIONS.items()
}
#: Octets of the largest request's headers, from BTH on.
LARGEST = BTH.size + max(EXTENSION_OCTETS.values())
