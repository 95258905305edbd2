"""The errors that operations may end with: their names, and hints for some of them."""

from __future__ import annotations

import re
from typing import Final

from emulator.errors import UserError
from topologies.advice import question
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import ReadRequest, Request, WriteRequest
from uet.wire.codes import NackCode, ReturnCode

#: Errors of this end: what no peer has answered.
_OWN: Final = ("TIMEOUT", "RTO_RETRIES_EXHAUSTED", "NACK_RETRIES_EXHAUSTED", "PDC_CLOSED",
               "CLOSE_REQ_TIMEOUT", "READ_TIMEOUT", "RENDEZVOUS_TIMEOUT", "RESTART_TIMEOUT",
               "MALFORMED_RESPONSE", "REFUSED_HERE", "TSS_COUNTER_EXHAUSTED", "TSS_NEEDS_SSI",
               "TSS_UNKNOWN_CLIENT")  # fmt: skip
_NO_ERRORS: Final = ("NULL", "OK")
#: Reserved return codes are named by number.
_NUMBERED: Final = re.compile(r"RETURN_CODE_0X[0-9A-F]{2}")


def known_errors() -> tuple[str, ...]:
    """Own errors, SES return codes, NACK codes."""
    codes = (code.name for code in ReturnCode if code.name not in _NO_ERRORS)
    return (*_OWN, *codes, *(code.name for code in NackCode))


#: Without bit 63 there may be such a region, or not.
_NO_SAFE_REGION = (ReturnCode.OP_VIOLATION.name, ReturnCode.BAD_MKEY.name)


def error_name(text: str, what: str) -> str:
    """The error of that name, with or without ``RC_``.  Raises :class:`UserError`."""
    known = known_errors()
    name = text.strip().upper().removeprefix("RC_")
    if name in known:
        return name
    if _NUMBERED.fullmatch(name):
        return f"RETURN_CODE_0x{name[-2:].lower()}"
    listed = f"choose one of {', '.join(known)}"
    hint = question(name, known, otherwise=listed, likeness=0.5)
    raise UserError(f"{what} is {text!r}, which no operation ends with; {hint}")


def explanation(request: Request, error: str | None, delivery: str) -> str | None:
    """Return what a user of RUDI can do about a refusal.

    ``delivery`` is what the request leaves open.
    """
    if (
        not isinstance(request, ReadRequest | WriteRequest)
        or (request.delivery or delivery) != "rudi"
    ):
        return None
    if error == ReturnCode.OP_VIOLATION.name and not request.key & IDEMPOTENT_SAFE:
        return (
            "the region is not idempotent-safe, as RUDI wants it; offer it with --region"
            " KEY:SIZE,idempotent and say idempotent here"
        )
    if error in _NO_SAFE_REGION and request.key & IDEMPOTENT_SAFE:
        return (
            f"the peer has no idempotent-safe region {request.key:#x}, which RUDI asks for with"
            " bit 63 set; offer it with --region KEY:SIZE,idempotent"
        )
    return None
