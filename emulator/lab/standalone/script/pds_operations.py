"""Operations of PDS alone, outside of requests: PROBE, and PDCs that control packets open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uet.pds.pdc import Pdc, PdcState
from uet.transport import Request

if TYPE_CHECKING:
    from emulator.lab.standalone.uet_endpoint import WatchedEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest(Request):
    """Send a PROBE on an open PDC to ``peer``, and have it answered within ``wait`` ns.

    A PROBE that is lost is not sent again (UES 3.5.16).
    """

    wait: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Request):
    """Open a PDC by a NOOP, or a NEGOTIATION; with a PDC there already, it goes on that."""

    ordered: bool
    negotiate: bool


class ProbeOutcome:
    """The outcome of one operation.  Raises ``ValueError`` if it cannot be sent."""

    def __init__(self, endpoint: WatchedEndpoint, request: ProbeRequest | Open, now: int) -> None:
        self._endpoint = endpoint
        self._pdc: Pdc | None = None
        self._psn = 0
        #: ns; ``None``: its PDC decides when to give up
        self.deadline: int | None = None
        if isinstance(request, ProbeRequest):
            self._before = endpoint.counts["rx_probe_acks"]
            if not endpoint.probe(request.peer):
                raise ValueError(
                    f"no PDC to {request.peer} is open here; let an open, or another operation,"
                    " go before"
                )
            self.deadline = now + request.wait
            return
        if not endpoint.open_pdc(
            request.peer, ordered=request.ordered, negotiate=request.negotiate
        ):
            raise ValueError(f"there is no room for a PDC to {request.peer}")
        for pdc in endpoint.table.by_id.values():
            ours = pdc.initiator and pdc.address == request.peer
            if ours and pdc.ordered is request.ordered and pdc.takes_messages:
                self._pdc = pdc
        assert self._pdc is not None, "an open PDC is in the table"
        self._psn = self._pdc.source.window.next - 1 & 0xFFFF_FFFF

    def outcome(self, now: int) -> tuple[bool, str | None]:
        """Return whether it has ended, and by which error."""
        pdc = self._pdc
        if pdc is None:
            if self._endpoint.counts["rx_probe_acks"] > self._before:
                return True, None
            assert self.deadline is not None
            return now >= self.deadline, "TIMEOUT"
        error = self._endpoint.failures.get(pdc.id)
        if error is not None:
            return True, error
        if not pdc.source.window.is_open(self._psn) and pdc.peer_id:
            return True, None
        return pdc.state is PdcState.CLOSED, "PDC_CLOSED"
