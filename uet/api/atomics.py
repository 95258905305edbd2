"""Atomic operations on a peer's memory: ``fi_atomic``."""

from __future__ import annotations

from uet.api.flags import ApiError, Flag
from uet.api.posted import octets
from uet.api.rma import RmaOperations
from uet.profiles import FepCapability
from uet.ses.memory.atomic_operations import size_of, supported
from uet.transport import AtomicRequest
from uet.wire.codes import CSWAP_OPCODES, AtomicOpcode, Datatype


class AtomicOperations(RmaOperations):
    """Operations that nothing interrupts, on elements of one type.

    Buffers hold whole elements, little-endian, as the target's memory does; there are as many as
    fit into one payload MTU, and one for a compare-and-swap.  ``addr`` must be a multiple of the
    element's size.
    """

    def atomic(
        self,
        buf: object,
        dest_addr: int,
        addr: int,
        key: int,
        datatype: Datatype,
        op: AtomicOpcode,
        context: object = None,
    ) -> None:
        """``target = target op buf``, element by element: ``fi_atomic`` (SES ATOMIC).

        >>> from uet.api import AtomicOpcode, Datatype
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray((40).to_bytes(8, "little"))
        >>> region = b.domain.mr_reg(memory)
        >>> two = (2).to_bytes(8, "little")
        >>> a.endpoint.atomic(two, a.peer, 0, region.key, Datatype.UINT64, AtomicOpcode.SUM)
        >>> a.cq.wait()[0].len, int.from_bytes(memory, "little")
        (8, 42)
        """
        self._atomic(buf, None, None, dest_addr, addr, key, datatype, op, context)

    def fetch_atomic(
        self,
        buf: object,
        result: object,
        dest_addr: int,
        addr: int,
        key: int,
        datatype: Datatype,
        op: AtomicOpcode,
        context: object = None,
    ) -> None:
        """Run an atomic operation and fetch the original value: ``fi_fetch_atomic``.

        The value goes to ``result``.

        :attr:`AtomicOpcode.READ` (``FI_ATOMIC_READ``) goes with an empty ``buf``.

        >>> from uet.api import AtomicOpcode, Datatype
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray((40).to_bytes(8, "little"))
        >>> key, before = b.domain.mr_reg(memory).key, bytearray(8)
        >>> two = (2).to_bytes(8, "little")
        >>> a.endpoint.fetch_atomic(
        ...     two, before, a.peer, 0, key, Datatype.UINT64, AtomicOpcode.SUM
        ... )
        >>> a.cq.wait()[0].len
        8
        >>> int.from_bytes(before, "little"), int.from_bytes(memory, "little")
        (40, 42)
        """
        self._atomic(buf, None, result, dest_addr, addr, key, datatype, op, context)

    def compare_atomic(
        self,
        buf: object,
        compare: object,
        result: object,
        dest_addr: int,
        addr: int,
        key: int,
        datatype: Datatype,
        op: AtomicOpcode,
        context: object = None,
    ) -> None:
        """Replace the target by ``buf`` where ``compare`` selects it: ``fi_compare_atomic``.

        The CSWAP operations compare it with the target, MSWAP takes it as a mask.  ``result``
        gets the original value.

        >>> from uet.api import AtomicOpcode, Datatype
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray((40).to_bytes(4, "little"))
        >>> key, before = b.domain.mr_reg(memory).key, bytearray(4)
        >>> new, expected = (42).to_bytes(4, "little"), (40).to_bytes(4, "little")
        >>> a.endpoint.compare_atomic(
        ...     new, expected, before, a.peer, 0, key, Datatype.INT32, AtomicOpcode.CSWAP
        ... )
        >>> a.cq.wait()[0].len
        4
        >>> int.from_bytes(before, "little"), int.from_bytes(memory, "little")
        (40, 42)
        """
        self._atomic(buf, compare, result, dest_addr, addr, key, datatype, op, context)

    def atomicvalid(self, datatype: Datatype, op: AtomicOpcode) -> int:
        """Return how many elements one operation takes, 0 if there is none: ``fi_atomicvalid``.

        >>> from uet.api import AtomicOpcode, Datatype
        >>> from uet.api.loopback import pair
        >>> a, b = pair(payload_mtu=4096)
        >>> a.endpoint.atomicvalid(Datatype.UINT64, AtomicOpcode.SUM)
        512
        >>> a.endpoint.atomicvalid(Datatype.DOUBLE, AtomicOpcode.BOR)
        0
        """
        size = size_of(datatype)
        if size is None or not supported(op, datatype):
            return 0
        if op in CSWAP_OPCODES:
            return 1 if size <= 16 else 0
        room = self.domain.config.payload_mtu
        return room // (2 * size if op == AtomicOpcode.MSWAP else size)

    def _atomic(
        self,
        buf: object,
        compare: object,
        result: object,
        dest_addr: int,
        addr: int,
        key: int,
        datatype: Datatype,
        op: AtomicOpcode,
        context: object,
    ) -> None:
        self._need_reliable("atomic operations")
        if result is None and op in (AtomicOpcode.READ, AtomicOpcode.INVAL):
            raise ApiError(f"{op.name} only fetches; use fetch_atomic")
        fetches = result is not None
        peer = self._peer(
            dest_addr,
            FepCapability.FETCHING_ATOMIC if fetches else FepCapability.ATOMIC,
            "a fetching atomic operation" if fetches else "an atomic operation",
        )
        kind = Flag.ATOMIC | (Flag.READ if fetches else Flag.WRITE)
        self._post(
            AtomicRequest(
                peer=peer.address,
                destination=peer.destination,
                delivery=self._delivery,
                key=key,
                offset=addr,
                operation=int(op),
                datatype=int(datatype),
                operand=bytes(octets(buf)),
                compare=None if compare is None else bytes(octets(compare)),
                result=None if result is None else octets(result),
                context=self._posted(context, kind),
            )
        )
