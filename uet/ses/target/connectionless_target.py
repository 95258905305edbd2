"""Requests that come without a PDC: idempotent ones (RUDI) and datagrams (UUD), UES 3.5.3."""

from __future__ import annotations

from uet.config import FepConfig
from uet.pds.semantics import Response
from uet.profiles import FepCapability
from uet.ses.arrival import RequestArrival
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.ses.responses import default_response, malformed, response
from uet.ses.target.checks import Checks
from uet.ses.target.rma_target import MemoryAccess
from uet.ses.target.sends import Sends
from uet.wire.codes import Opcode, ReturnCode

_OP_VIOLATION = int(ReturnCode.OP_VIOLATION)


class ConnectionlessTarget:
    """Carries out what may be executed any number of times, or not at all."""

    def __init__(
        self,
        config: FepConfig,
        checks: Checks,
        access: MemoryAccess,
        sends: Sends,
        counters: dict[str, int],
    ) -> None:
        self._checks = checks
        self._access = access
        self._sends = sends
        self._counters = counters
        self._able = FepCapability.RUDI in config.capabilities
        self._with_length = config.compatibility.modified_length_in_default_response

    def idempotent(self, peer: str, request: RequestArrival | None) -> Response:
        """A RUDI packet: executed at every arrival, with no memory of the last one.

        Only READ, and WRITE without header data, of a region whose key marks this as safe.
        """
        if request is None:
            self._counters["rx_malformed_requests"] += 1
            return malformed()
        code = self._execute(peer, request)
        if isinstance(code, int):
            self._counters["rx_requests_refused"] += 1
            return response(request, code)
        return code

    def _execute(self, peer: str, request: RequestArrival) -> Response | int:
        if not self._able:
            return int(ReturnCode.UNSUPPORTED_OP)
        code, resource = self._checks.common(request, peer)
        if code:
            if code == ReturnCode.BAD_GENERATION and resource is not None:
                self._counters["rx_requests_refused"] += 1
                return response(request, code, generation=resource.generation(peer))
            return code
        writes = request.opcode == Opcode.WRITE
        if not writes and request.opcode != Opcode.READ:
            return _OP_VIOLATION
        region = self._access.region(request, request.length, write=writes, read=not writes)
        if isinstance(region, int):
            if region == ReturnCode.BAD_MKEY and self._access.is_unsafe(request):
                return _OP_VIOLATION
            return region
        if not region.key & IDEMPOTENT_SAFE or request.header_data is not None:
            return _OP_VIOLATION
        if not writes:
            return self._access.read_inline(request)
        begin = request.buffer_offset + request.start
        region.memory[begin : begin + len(request.payload)] = request.payload
        return default_response(request, request.length if self._with_length else 0)

    def datagram(self, peer: str, request: RequestArrival | None) -> None:
        """Put a UUD packet into a posted receive, or drop it without an answer (UES 3.5.3)."""
        if request is None:
            self._counters["rx_malformed_requests"] += 1
            return
        code, resource = self._checks.common(request, peer, datagram=True)
        length = request.length
        whole = request.is_first and request.is_last and len(request.payload) == length
        if code or resource is None or not whole:
            self._counters["rx_datagrams_dropped"] += 1
            return
        match = self._sends.match_datagram(request, peer, resource)
        if match is None:
            self._counters["rx_datagrams_dropped"] += 1
            return
        match.memory[:] = request.payload
        self._counters["rx_messages"] += 1
        self._counters["rx_message_octets"] += length
        self._sends.report(request, peer, match, length, None)
