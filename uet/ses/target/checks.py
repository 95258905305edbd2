"""The receive checks that every request passes, in the specification's order (UES 3.4.1).

The first that fails decides the return code.  Checks that belong to one kind of request (does a
receive match, is the memory registered) are made by what carries it out.
"""

from __future__ import annotations

from uet.compatibility import Compatibility
from uet.profiles import FepCapability
from uet.ses.arrival import SYNC_ATOMIC, SYNC_WRITE, RequestArrival
from uet.ses.resources import Resource, ResourceTable
from uet.wire.codes import Opcode, ReturnCode

_NEEDED: dict[int, FepCapability] = {
    Opcode.NO_OP: FepCapability.NONE,
    Opcode.WRITE: FepCapability.NONE,
    Opcode.READ: FepCapability.READ,
    Opcode.ATOMIC: FepCapability.ATOMIC,
    Opcode.FETCHING_ATOMIC: FepCapability.FETCHING_ATOMIC,
    Opcode.SEND: FepCapability.NONE,
    Opcode.RENDEZVOUS_SEND: FepCapability.RENDEZVOUS,
    Opcode.DEFERRABLE_SEND: FepCapability.NONE,  # without the capability it is a plain send
    Opcode.TAGGED_SEND: FepCapability.TAGGED_SEND,
    Opcode.RENDEZVOUS_TSEND: FepCapability.RENDEZVOUS | FepCapability.TAGGED_SEND,
    Opcode.DEFERRABLE_TSEND: FepCapability.TAGGED_SEND,
    Opcode.DEFERRABLE_RTR: FepCapability.DEFERRABLE,
    Opcode.TSEND_ATOMIC: FepCapability.TSEND_ATOMIC,
    Opcode.TSEND_FETCH_ATOMIC: FepCapability.TSEND_ATOMIC,
    Opcode.MSG_ERROR: FepCapability.NONE,
}
_SYNC = {SYNC_WRITE: FepCapability.NONE, SYNC_ATOMIC: FepCapability.ATOMIC}
#: What a small request may carry: memory named by the resource index.
SMALL_OPCODES = frozenset(
    {int(Opcode.WRITE), int(Opcode.READ), int(Opcode.ATOMIC), int(Opcode.FETCHING_ATOMIC)}
)

#: What a datagram may be: the UEC reference provider sends SEND.
DATAGRAM_OPCODES = frozenset({int(Opcode.SEND), int(Opcode.DATAGRAM_SEND)})


def supported_opcodes(capabilities: FepCapability, compatibility: Compatibility) -> frozenset[int]:
    """Opcodes that an endpoint with these profiles carries out on a PDC."""
    needed = _NEEDED | (_SYNC if compatibility.sync_operations else {})
    return frozenset(int(opcode) for opcode, what in needed.items() if capabilities & what == what)


class Checks:
    """The receive checks of one endpoint."""

    def __init__(
        self,
        resources: ResourceTable,
        capabilities: FepCapability,
        compatibility: Compatibility,
        payload_mtu: int,
    ) -> None:
        self._resources = resources
        self._opcodes = supported_opcodes(capabilities, compatibility)
        self._short = FepCapability.OPTIMIZED_HEADERS in capabilities
        self._mtu = payload_mtu

    def restart(self, request: RequestArrival) -> int:
        """The code of the first check that DEFERRABLE_RTR fails, or 0.

        Its token names a message of this endpoint.  The message did not name the resource that
        it was posted at. So the resource in the RTR means nothing.
        """
        if request.version:
            return ReturnCode.UNCOR
        known = request.opcode in self._opcodes and request.has_id
        if known and not request.consistent(self._mtu):
            return ReturnCode.OP_VIOLATION
        if request.initiator_error:
            return ReturnCode.INITIATOR_ERR
        return 0 if known else ReturnCode.UNSUPPORTED_OP

    def common(
        self, request: RequestArrival, peer: str, *, ordered: bool = False, datagram: bool = False
    ) -> tuple[int, Resource | None]:
        """The checks up to the opcode: (0, the resource), or the code of the first that fails.

        With a wrong generation the resource comes too, as the answer carries its own.  For a
        datagram the generation does not count (UES 3.5.3); only an ordered stream can be disabled.
        """
        if request.version:
            return ReturnCode.UNCOR, None
        # The index of a small request is that of a region, which has no generations.
        by_region = request.small and request.opcode in SMALL_OPCODES
        resources = self._resources
        found = resources.find_process(request) if by_region else resources.find(request)
        if isinstance(found, int):
            return found, None
        if not found.enabled:
            return ReturnCode.DISABLED, None
        opcodes = DATAGRAM_OPCODES if datagram else self._opcodes
        known = request.opcode in opcodes and (request.has_id or self._short)
        if known and not request.consistent(self._mtu):
            return ReturnCode.OP_VIOLATION, None
        if not datagram and not by_region:
            if ordered and found.is_disabled(peer):
                return ReturnCode.DISABLED_GEN, None
            if found.generation(peer) != request.generation:
                return ReturnCode.BAD_GENERATION, found
        if request.initiator_error:
            return ReturnCode.INITIATOR_ERR, None
        if not known or (request.small and not by_region and request.opcode != Opcode.NO_OP):
            return ReturnCode.UNSUPPORTED_OP, None
        return 0, found
