"""Responses at the initiator, and their effect on operations (UES 3.4.1, 3.5.20.1).

Responses come with the packet that they answer. Return data by the PDC's return direction names the
request by its message id, or by its PSN where that had none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from uet.pds.semantics import ACCEPTED, Answer, Context, Response
from uet.ses.address import Address
from uet.ses.initiator.operation import MessageIds, PostedOperation
from uet.ses.initiator.outbound import OutboundMessage
from uet.ses.memory.atomic_operations import reverse_order
from uet.wire import headers
from uet.wire.codes import (
    DEFERRABLE_OPCODES,
    NextHeader,
    ResponseList,
    ResponseOpcode,
    ReturnCode,
)

_RESPONSE: Final = headers.SES_RESPONSE
_DATA: Final = headers.SES_RESPONSE_DATA
_SMALL_DATA: Final = headers.SES_RESPONSE_DATA_SMALL
_WITH_DATA: Final = int(NextHeader.RESPONSE_DATA)
_WITH_SMALL_DATA: Final = int(NextHeader.RESPONSE_DATA_SMALL)
_OK: Final = int(ReturnCode.OK)
_NULL: Final = int(ReturnCode.NULL)
_BAD_GENERATION: Final = int(ReturnCode.BAD_GENERATION)
#: Refusals that time may mend (UES 3.4.1).
_TEMPORARY: Final = frozenset({int(ReturnCode.NO_MATCH), int(ReturnCode.DISABLED_GEN)})
_OVERFLOW: Final = int(ResponseList.OVERFLOW)
_DEFERRABLE: Final = frozenset(map(int, DEFERRABLE_OPCODES))
#: Delivery modes that have PDCs.
RELIABLE: Final = ("rud", "rod")
MALFORMED: Final = "MALFORMED_RESPONSE"


def code_name(code: int) -> str:
    """A return code as the name of an error."""
    try:
        return ReturnCode(code).name
    except ValueError:
        return f"RETURN_CODE_{code:#04x}"


def refusal(message_id: int, job_id: int, code: ReturnCode) -> Response:
    """An error response to what a target sent."""
    return Response(
        _RESPONSE.encode(
            opcode=int(ResponseOpcode.RESPONSE),
            return_code=int(code),
            message_id=message_id,
            job_id=job_id,
        )
    )


class Replies:
    """Reads responses and return data, and stores their results in the operation."""

    def __init__(
        self,
        ids: MessageIds,
        mtu: int,
        on_data: Callable[[PostedOperation], None],
        counters: dict[str, int],
    ) -> None:
        self._ids = ids
        self._mtu = mtu
        self._on_data = on_data
        self._counters = counters
        #: what targets have reported of their generations (UES 3.4.1)
        self.generations: dict[tuple[str, Address], int] = {}
        #: by PDC: what waits for data and has no message id, in the order of posting
        self._unnamed: dict[int, dict[PostedOperation, None]] = {}

    # -- what is expected ----------------------------------------------------------------------

    def expect(self, operation: PostedOperation, pdc: Context, packets: int, octets: int) -> None:
        """Begin an attempt of an operation that expects ``octets`` of data."""
        made = operation.plan
        operation.settled = bytearray(packets)
        if not operation.placed:
            operation.placed = bytearray(packets)
        operation.unit = min(self._mtu, octets)
        operation.expect(packets if made.length else 0)
        ahead = operation.stream.reads.ahead
        if packets > ahead and operation.message is not None and made.delivery in RELIABLE:
            # Each packet requests one packet of data; those settled let as many follow.
            operation.message.ready = ahead
        if made.delivery in RELIABLE:
            # A read or a fetching atomic operation keeps its PDC open (UES 3.5.8).
            pdc.locks += 1
            operation.locked = pdc
        if not made.has_id:
            self._unnamed.setdefault(pdc.id, {})[operation] = None

    def forget(self, operation: PostedOperation) -> None:
        """The attempt is over, however it went."""
        if not operation.expects_data:
            return
        operation.settled = bytearray()
        operation.expect(0)
        if operation.locked is not None:
            operation.locked.locks -= 1
            operation.locked = None
        pdc = operation.pdc
        if pdc is not None and not operation.plan.has_id:
            expected = self._unnamed[pdc.id]
            del expected[operation]
            if not expected:
                del self._unnamed[pdc.id]

    def __len__(self) -> int:
        return len(self._unnamed)

    # -- responses -----------------------------------------------------------------------------

    def answered(
        self, message: OutboundMessage, index: int, next_header: int, response: memoryview
    ) -> None:
        """Packet ``index`` drew a response that is more than the default one."""
        operation = message.operation
        assert isinstance(operation, PostedOperation)
        if operation.message is not message or not operation.is_out:
            self._counters["rx_responses_of_ended_message"] += 1
            return
        if next_header in (_WITH_DATA, _WITH_SMALL_DATA):
            self._data_in_answer(operation, index, next_header, response)
            return
        if len(response) < _RESPONSE.size:
            self._malformed(operation, index)
            return
        where, _, _, code, _, generation, _, modified = _RESPONSE.decode(response)
        if code != _OK and code != _NULL:
            self._refused(operation, index, code, generation)
            return
        made = operation.plan
        if where == _OVERFLOW and made.opcode in _DEFERRABLE and modified < made.length:
            if not operation.deferred:
                self._counters["tx_messages_deferred"] += 1
            operation.deferred = True
            message.defer()
        elif 0 < modified < made.length and not operation.expects_data:
            accepted = operation.accepted
            operation.accepted = modified if accepted is None else min(accepted, modified)

    def _refused(
        self, operation: PostedOperation, index: int, code: int, generation: int | None
    ) -> None:
        """The target refused the message: send no more of it (UES 3.4.1, error responses)."""
        made = operation.plan
        if code == _BAD_GENERATION and generation is not None:
            # To learn the generation is worth more than another refusal.
            self.generations[made.peer, made.address] = generation
            operation.code = code
        elif code in _TEMPORARY:
            operation.code = operation.code or code
        elif operation.refused is None:
            operation.refused = code_name(code)
        self._give_up(operation, index)

    def _malformed(self, operation: PostedOperation, index: int) -> None:
        self._counters["rx_responses_malformed"] += 1
        operation.refused = operation.refused or MALFORMED
        self._give_up(operation, index)

    @staticmethod
    def _give_up(operation: PostedOperation, index: int) -> None:
        operation.settle(index)
        # Without a PDC each packet stands for itself: there is no message to take back.
        if operation.message is not None and operation.plan.delivery in RELIABLE:
            operation.message.cancel()

    # -- data ----------------------------------------------------------------------------------

    def deliver_data(
        self, pdc: Context, psn: int, next_header: int, packet: memoryview, at: int
    ) -> Answer:
        """Return data of a read or a fetching atomic operation (UES Tables 3-12, 3-13)."""
        small = next_header == _WITH_SMALL_DATA
        header = _SMALL_DATA if small else _DATA
        if len(packet) - at < header.size:
            self._counters["rx_read_data_malformed"] += 1
            return refusal(0, 0, ReturnCode.OP_VIOLATION)
        number = offset = 0
        if small:
            _, _, _, code, _, octets, _, job_id, original = header.decode(packet, at)
            operation = self._of_psn(pdc, original)
        else:
            _, _, _, code, number, _, job_id, asked, _, octets, _, offset = header.decode(
                packet, at
            )
            operation = self._ids.find(asked)
        data = packet[at + header.size :]
        if operation is None or operation.pdc is not pdc or not operation.expects_data:
            # Most likely the rest of a read that has failed: the peer must not count on it.
            self._counters["rx_read_data_unknown"] += 1
            return refusal(number, job_id, ReturnCode.CANCELLED)
        index = offset // self._mtu
        if code != _OK and index < len(operation.settled):
            self._refused(operation, index, code, None)
        elif len(data) != octets or not self._place(operation, offset, data):
            self._counters["rx_read_data_malformed"] += 1
            return refusal(number, job_id, ReturnCode.OP_VIOLATION)
        self._on_data(operation)
        return ACCEPTED

    def _of_psn(self, pdc: Context, psn: int) -> PostedOperation | None:
        """Data comes nearly in the order of the requests, so the first is mostly the one."""
        for operation in self._unnamed.get(pdc.id, ()):
            if operation.message is not None and operation.message.psn == psn:
                return operation
        return None

    def _data_in_answer(
        self, operation: PostedOperation, index: int, next_header: int, response: memoryview
    ) -> None:
        small = next_header == _WITH_SMALL_DATA
        header = _SMALL_DATA if small else _DATA
        if len(response) < header.size or not operation.expects_data:
            self._malformed(operation, index)
            return
        offset = index * self._mtu
        if small:
            _, _, _, code, _, octets, _, _, _ = header.decode(response)
        else:
            _, _, _, code, _, _, _, _, _, octets, _, offset = header.decode(response)
        data = response[header.size :]
        if code != _OK and code != _NULL:
            self._refused(operation, index, code, None)
        elif (
            len(data) != octets
            or offset != index * self._mtu
            or not self._place(operation, offset, data)
        ):
            self._malformed(operation, index)

    def _place(self, operation: PostedOperation, offset: int, data: memoryview) -> bool:
        """Put a packet's data in its place; false if it does not match the request."""
        made, mtu = operation.plan, self._mtu
        memory = made.memory
        index, beside = divmod(offset, mtu)
        if memory is None or beside or len(data) != min(mtu, memory.nbytes - offset):
            return False
        if index >= len(operation.settled) or operation.settled[index]:
            self._counters["rx_read_data_duplicate"] += 1
            return True
        if operation.refused is None and not operation.code:
            if made.datatype is None:
                memory[offset : offset + len(data)] = data
            else:
                memory[:] = reverse_order(made.datatype, data)
            self._counters["rx_read_octets"] += len(data)
            operation.placed[index] = 1
        operation.settle(index)
        return True
