"""Atomic operations whose target is the memory of a matched receive (UES 3.4)."""

from __future__ import annotations

from uet.pds.semantics import Answer, Context
from uet.ses.arrival import RequestArrival
from uet.ses.memory.atomic_operations import execute, supported
from uet.ses.memory.operands import unpack_operands
from uet.ses.resources import Resource
from uet.ses.target.rma_target import MemoryAccess
from uet.ses.target.sends import Sends
from uet.wire.codes import AtomicOpcode, ReturnCode

_OK = int(ReturnCode.OK)


def tagged_atomic(
    pdc: Context, request: RequestArrival, resource: Resource, sends: Sends, access: MemoryAccess
) -> Answer:
    """Match a receive and operate on its memory; a positive number is a return code.

    An operation that does not exist is refused before it takes a receive.
    """
    assert request.extension is not None  # the checks have seen to it
    requested = unpack_operands(request.extension)
    if requested is None:
        return int(ReturnCode.OP_VIOLATION)
    length = requested.target_length(request.length)
    if not supported(requested.operation, requested.datatype):
        exists = 0 <= requested.operation < len(AtomicOpcode)
        return int(ReturnCode.AMO_UNSUPPORTED_DT if exists else ReturnCode.AMO_UNSUPPORTED_OP)
    code, match = sends.match(request, pdc.address, resource, length)
    if match is None:
        if code == ReturnCode.NO_MATCH and pdc.ordered:
            resource.disable_generation(pdc.address)
        return code
    code, before = execute(
        requested.operation,
        requested.datatype,
        match.memory,
        requested.operand,
        requested.compare,
        offset=match.offset,
    )
    name = None if code == _OK else ReturnCode(code).name
    sends.report(request, pdc.address, match, length if code == _OK else 0, name)
    return access.executed(pdc, request, before) if code == _OK else code
