"""Operands of an atomic operation in its packet (UES 3.4).

Operands and results are big-endian on the wire; a complex number is its real part, then its
imaginary one.  The compare family has its operands in two 128-bit fields of the extension header,
narrower ones at the right, so it works on one element.  Others have them as payload, any number of
elements.  ``MSWAP`` has the short extension header too: here the masks go first, then the values,
in the order of the compare family (UES leaves it open).
"""

from __future__ import annotations

from typing import NamedTuple

from uet.ses.memory.atomic_operations import (
    NO_OPERAND,
    WITH_COMPARE,
    AtomicError,
    ByteOrder,
    Octets,
    reverse_order,
    size_of,
    supported,
)
from uet.wire import headers
from uet.wire.codes import CSWAP_OPCODES, AtomicOpcode

#: Octets of each operand field of the compare family's extension header.
FIELD_SIZE = 16


class AtomicOperands(NamedTuple):
    """The request of an atomic packet; operands are big-endian, and empty where there are none."""

    operation: int
    datatype: int
    sem_ctl: int
    operand: bytes
    compare: bytes | None

    def target_length(self, request_length: int) -> int:
        """Octets of target memory in question.

        The message's length gives it only where no operand does: implementations differ in what it
        counts for the compare family (the target's octets, or those of both fields).
        """
        return len(self.operand) or request_length


def pack_operands(
    operation: int,
    datatype: int,
    operand: Octets,
    compare: Octets | None = None,
    *,
    sem_ctl: int = 0,
    byteorder: ByteOrder = "little",
) -> tuple[bytes, bytes]:
    """The extension header and the payload of an atomic request.

    ``operand`` and ``compare`` are whole elements in the target's ``byteorder``.  Raises
    :class:`AtomicError` for what no packet could carry.
    """
    if not supported(operation, datatype):
        raise AtomicError(
            f"operation {operation:#x} on datatype {datatype:#x} is not supported; use a pair of"
            " AtomicOpcode and Datatype that is"
        )
    if not len(operand) and operation not in NO_OPERAND:
        raise AtomicError(f"operation {operation:#x} needs an operand; give at least one element")
    if (compare is not None) != (operation in WITH_COMPARE):
        raise AtomicError("a compare value goes with the CSWAP operations and MSWAP, and only them")
    if compare is not None and len(compare) != len(operand):
        raise AtomicError("the operand and the compare value must be of the same length")
    wire = _on_the_wire(datatype, operand, byteorder)
    if compare is None:
        return headers.SES_ATOMIC.encode(operation, datatype, sem_ctl), wire
    other = _on_the_wire(datatype, compare, byteorder)
    if operation not in CSWAP_OPCODES:
        return headers.SES_ATOMIC.encode(operation, datatype, sem_ctl), other + wire
    size = size_of(datatype)
    if len(wire) != size or size > FIELD_SIZE:
        raise AtomicError(
            f"a compare-and-swap carries one element of at most {FIELD_SIZE} octets; post one"
            " request per element"
        )
    extension = headers.SES_CSWAP.encode(
        operation,
        datatype,
        sem_ctl,
        compare_value=int.from_bytes(other, "big"),
        swap_value=int.from_bytes(wire, "big"),
    )
    return extension, b""


def _on_the_wire(datatype: int, octets: Octets, byteorder: ByteOrder) -> bytes:
    big = reverse_order(datatype, octets)  # also checks the length
    return big if byteorder == "little" else bytes(octets)


def unpack_operands(packet: Octets) -> AtomicOperands | None:
    """Read a request from its extension header to the end of its payload.

    ``None`` if the extension header is cut short, or a compare-and-swap has a payload.  The pair
    of operation and type is not judged: :func:`execute` does that.
    """
    if len(packet) < headers.SES_ATOMIC.size:
        return None
    operation, datatype, sem_ctl, _ = headers.SES_ATOMIC.decode(packet)
    if operation in CSWAP_OPCODES:
        if len(packet) != headers.SES_CSWAP.size:
            return None
        *_, compare, swap = headers.SES_CSWAP.decode(packet)
        size = min(size_of(datatype) or FIELD_SIZE, FIELD_SIZE)
        low = (1 << 8 * size) - 1  # what is left of a narrow operand has no meaning
        return AtomicOperands(
            operation,
            datatype,
            sem_ctl,
            (swap & low).to_bytes(size, "big"),
            (compare & low).to_bytes(size, "big"),
        )
    payload = bytes(packet[headers.SES_ATOMIC.size :])
    if operation == AtomicOpcode.MSWAP:
        half = len(payload) // 2
        return AtomicOperands(operation, datatype, sem_ctl, payload[half:], payload[:half])
    return AtomicOperands(operation, datatype, sem_ctl, payload, None)
