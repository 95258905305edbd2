"""Responses of a target (UES Tables 3-11 to 3-13).

A response with more than the default one is guaranteed: PDS keeps it until the initiator has it
(UES 3.5.20.2).
"""

from __future__ import annotations

from typing import Final

from uet.pds.semantics import Response
from uet.ses.arrival import RequestArrival
from uet.wire import headers
from uet.wire.codes import NextHeader, ResponseOpcode, ReturnCode

_RESPONSE: Final = headers.SES_RESPONSE
_DATA: Final = headers.SES_RESPONSE_DATA
_SMALL: Final = headers.SES_RESPONSE_DATA_SMALL
_LIST_SHIFT: Final = _RESPONSE.shift("list")
_OPCODE_SHIFT: Final = _RESPONSE.shift("opcode")
_GENERATION_SHIFT: Final = _RESPONSE.shift("ri_generation")
_PLAIN: Final = int(ResponseOpcode.RESPONSE) << _OPCODE_SHIFT
_OK: Final = int(ReturnCode.OK)
_DEFAULT_WORD: Final = int(ResponseOpcode.DEFAULT_RESPONSE) << _OPCODE_SHIFT | _OK
_DATA_WORD: Final = int(ResponseOpcode.RESPONSE_W_DATA) << _OPCODE_SHIFT | _OK
_SMALL_SHIFT: Final = 48  # the first 16 bits of the optimized response lie in a word of 64
_SMALL_LENGTH_SHIFT: Final = _SMALL.shift("payload_length")
_RESPONSE_DATA: Final = int(NextHeader.RESPONSE_DATA)
_RESPONSE_DATA_SMALL: Final = int(NextHeader.RESPONSE_DATA_SMALL)


def response(
    to: RequestArrival,
    code: int,
    *,
    generation: int = 0,
    unexpected: bool = False,
    modified: int = 0,
    guaranteed: bool = True,
) -> Response:
    """A return code, and what goes with it.

    ``generation`` is the resource's, where the request had another; ``unexpected``: the message
    matched no receive; ``modified`` octets of the target's memory have been changed.
    """
    return Response(
        _RESPONSE.pack(
            int(unexpected) << _LIST_SHIFT | _PLAIN | code,
            to.message_id,
            generation << _GENERATION_SHIFT | to.job_id,
            modified,
        ),
        guaranteed=guaranteed,
    )


def malformed() -> Response:
    """Return the response to a packet without a whole header, which has nothing to refer to."""
    return Response(_RESPONSE.pack(_PLAIN | ReturnCode.OP_VIOLATION, 0, 0, 0))


def default_response(to: RequestArrival, modified: int) -> Response:
    """The default response, where PDS does not make it (RUDI)."""
    return Response(
        _RESPONSE.pack(_DEFAULT_WORD, to.message_id, to.job_id, modified), guaranteed=False
    )


def data_header(to: RequestArrival, octets: int) -> bytes:
    """Return what stands before data that answers a request (UES Tables 3-12, 3-13).

    A request without message identifier is named by its PSN.
    """
    if not to.has_id:
        word = _DATA_WORD << _SMALL_SHIFT | octets << _SMALL_LENGTH_SHIFT | to.job_id
        return _SMALL.pack(word, to.psn)
    number = to.message_id
    return _DATA.pack(_DATA_WORD, number, to.job_id, number, octets, to.length, to.start)


def data_response(to: RequestArrival, data: bytes | memoryview) -> Response:
    """Data within the response itself."""
    kind = _RESPONSE_DATA if to.has_id else _RESPONSE_DATA_SMALL
    return Response(data_header(to, len(data)) + bytes(data), next_header=kind)
