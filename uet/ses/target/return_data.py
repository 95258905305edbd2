"""Data on its way back to an initiator, on the return direction of its PDC (UES 3.5.20.1)."""

from __future__ import annotations

from uet.ses.arrival import RequestArrival
from uet.ses.responses import data_header
from uet.wire.codes import NextHeader

_RESPONSE_DATA = int(NextHeader.RESPONSE_DATA)
_RESPONSE_DATA_SMALL = int(NextHeader.RESPONSE_DATA_SMALL)


class ReturnData:
    """The data that one request packet reads: an :class:`uet.pds.semantics.Outbound`.

    A READ of several packets is requested packet by packet, and each draws one of these.
    """

    __slots__ = (
        "_data",
        "_header",
        "acknowledged",
        "by",
        "error",
        "id",
        "key",
        "next_header",
        "offset",
        "packets",
        "ready",
        "sent",
    )

    def __init__(
        self,
        request: RequestArrival,
        data: memoryview | bytes,
        *,
        key: int | None = None,
        offset: int = 0,
        by: object = None,
    ) -> None:
        #: the region that was read, where, and by which message, if one was and has taken the data
        self.key = key
        self.offset = offset
        self.by = by
        self.id = request.message_id
        self.packets = self.ready = 1
        self.sent = 0
        self.acknowledged = 0
        self.next_header = _RESPONSE_DATA if request.has_id else _RESPONSE_DATA_SMALL
        self.error: str | None = None
        self._header = data_header(request, len(data))
        self._data = data

    def __len__(self) -> int:
        """Octets of data."""
        return len(self._data)

    def packet(self, index: int) -> tuple[bytes, memoryview | bytes]:
        """SES header and data; ``index`` is 0."""
        return self._header, self._data

    def answered(self, index: int, next_header: int, response: memoryview) -> None:
        """Note that the initiator has refused the data: it does not count as read."""
        self.key = None
