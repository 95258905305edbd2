"""A message on its way out: cut into packets, each with a header of its own (UES 3.4.1).

Every packet but the last carries exactly one payload MTU, or requests one where it is a read. Each
repeats the addressing, so that the target can deal with any packet without having seen the first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from uet.pds.semantics import Outbound
from uet.ses.initiator.requests import MessagePlan
from uet.wire import headers
from uet.wire.codes import DEFERRABLE_OPCODES, NextHeader, Opcode

_STD: Final = int(NextHeader.REQUEST_STD)
_SMALL: Final = int(NextHeader.REQUEST_SMALL)
_RTR: Final = int(Opcode.DEFERRABLE_RTR)
_MSG_ERROR: Final = int(Opcode.MSG_ERROR)
_DEFERRABLE: Final = frozenset(int(opcode) for opcode in DEFERRABLE_OPCODES)
_OFFSET_AT: Final = headers.SES_STD_NOSOM.field("message_offset").offset // 8
_pack_som: Final = headers.SES_STD_SOM.pack
_pack_nosom: Final = headers.SES_STD_NOSOM.pack
_pack_offset: Final = struct.Struct(">I").pack
_LENGTH_AT: Final = headers.SES_STD_NOSOM.field("request_length").offset // 8
#: The resource that a key on a small header stands for (UES Table 2-13).
_KEY_INDEX: Final = 0xFFF

#: Operations whose first header differs between messages by whole words only, given its kind.
_PLAIN: Final = frozenset(map(int, (Opcode.WRITE, Opcode.READ, Opcode.SEND, Opcode.TAGGED_SEND)))
#: Words of a header by what else decides it: its flags, and the resource with its generation.
_templates: dict[tuple[object, ...], tuple[int, int]] = {}
_MOST_TEMPLATES: Final = 4_096

#: message, index of the packet, next header and octets of the response
OnAnswer = Callable[["OutboundMessage", int, int, memoryview], None]


class OutboundMessage(Outbound):
    """One attempt to carry a request out."""

    __slots__ = (
        "_after",
        "_before",
        "_ended_early",
        "_first",
        "_generation",
        "_head",
        "_mtu",
        "_on_answer",
        "_rest",
        "_tail",
        "_tokens",
        "operation",
        "plan",
    )

    def __init__(
        self,
        plan: MessagePlan,
        message_id: int,
        mtu: int,
        on_answer: OnAnswer,
        *,
        generation: int = 0,
        tokens: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(message_id, plan.next_header, -(-plan.span // mtu) or 1)
        self.plan = plan
        #: whose attempt this is: the initiator's own record
        self.operation: object = None
        self._ended_early = False
        self._mtu = mtu
        self._on_answer = on_answer
        self._generation = generation
        self._tokens = tokens
        payload, last = plan.payload, self.packets - 1
        if self.next_header != _STD:
            self._head = self._short_header()
        else:
            self._head = self._header(0, eom=not last and plan.single_eom)
        self._first = payload[:mtu]
        self._tail = b""
        self._rest: memoryview | bytes = b""
        self._before = self._after = b""
        if last:
            self._tail = self._header(last, eom=True)
            self._rest = payload[last * mtu :]
            if last > 1:  # the packets between differ in their message_offset only
                middle = self._header(1, eom=False)
                self._before, self._after = middle[:_OFFSET_AT], middle[_LENGTH_AT:]

    def packet(self, index: int) -> tuple[bytes, memoryview | bytes]:
        """SES header and payload of packet ``index``, the same at every transmission."""
        if not index:
            return self._head, self._first
        if index == self.packets - 1:
            return self._tail, self._rest
        mtu = self._mtu
        offset = index * mtu
        header = self._before + _pack_offset(offset) + self._after
        return header, self.plan.payload[offset : offset + mtu]

    def answered(self, index: int, next_header: int, response: memoryview) -> None:
        """Packet ``index`` drew a response that is more than the default one."""
        self._on_answer(self, index, next_header, response)

    # -- ending it before its time -------------------------------------------------------------

    def cancel(self) -> None:
        """Send no more of the message; one MSG_ERROR reports that, unless all has been sent."""
        self._end_early(_MSG_ERROR)

    def defer(self) -> None:
        """Send no more of it: a packet without payload ends this attempt (UES 3.4)."""
        self._end_early(self.plan.opcode)

    def _end_early(self, opcode: int) -> None:
        if 0 < self.sent < self.packets and not self._ended_early:
            self._ended_early = True
            self.ready = self.packets = self.sent + 1
            self._tail = self._header(self.sent, eom=True, opcode=opcode, empty=True)
            self._rest = b""

    @property
    def requested(self) -> int:
        """Return how many of its packets are requests proper: not the one that ended it early."""
        return self.packets - self._ended_early

    # -- headers -------------------------------------------------------------------------------

    def _header(
        self, index: int, *, eom: bool, opcode: int | None = None, empty: bool = False
    ) -> bytes:
        if opcode is None:
            opcode = self.plan.opcode
            if opcode in _PLAIN:
                return self._plain_header(index, eom)
        return self._full_header(index, eom, opcode, empty=empty)

    def _full_header(self, index: int, eom: bool, opcode: int, *, empty: bool = False) -> bytes:
        plan = self.plan
        to = plan.address
        fields: dict[str, int] = {
            "opcode": opcode,
            "dc": plan.delivery_complete,
            "ie": plan.initiator_error,
            "rel": to.relative,
            "eom": eom,
            "message_id": self.id,
            "ri_generation": self._generation,
            "job_id": to.job_id,
            "pid_on_fep": to.pid_on_fep,
            "resource_index": to.resource_index,
            "initiator": plan.initiator,
            "request_length": plan.length,
        }
        som, nosom = headers.SES_STD_SOM, headers.SES_STD_NOSOM
        if opcode in _DEFERRABLE:
            som, nosom = headers.SES_DEFERRABLE_SOM, headers.SES_DEFERRABLE_NOSOM
            fields["initiator_restart_token"], fields["target_restart_token"] = self._tokens
            fields["match_bits"] = plan.match_bits
        elif opcode == _RTR:
            som = headers.SES_RTR_SOM
            first, second = plan.restart_tokens
            fields["rtr_initiator_restart_token"] = first
            fields["rtr_target_restart_token"] = second
        else:
            fields["buffer_offset"] = plan.buffer_offset
            fields["match_bits"] = plan.match_bits
        extension = b"" if opcode == _MSG_ERROR else plan.extension
        if not index:
            data = plan.header_data
            hd = data is not None
            return som.encode(som=1, hd=hd, header_data=data or 0, **fields) + extension
        offset = index * self._mtu
        octets = 0 if empty else min(self._mtu, plan.span - offset)
        return nosom.encode(som=0, message_offset=offset, payload_length=octets, **fields) + (
            extension
        )

    def _plain_header(self, index: int, eom: bool) -> bytes:
        """Return the same by the template of its kind and address.

        Most headers are like one before but for what the words hold that are numbers alone.
        """
        plan = self.plan
        data = None if index else plan.header_data
        kind = (
            plan.address,
            plan.opcode,
            plan.delivery_complete,
            plan.initiator_error,
            eom,
            not index,
            data is not None,
            self._generation,
        )
        template = _templates.get(kind)
        if template is None:
            if len(_templates) >= _MOST_TEMPLATES:
                _templates.clear()
            whole = self._full_header(index, eom, plan.opcode)
            flags, _, resource, *_ = headers.SES_STD_SOM.unpack_from(whole, 0)
            template = _templates[kind] = (flags, resource)
        flags, resource = template
        if not index:
            header = _pack_som(
                flags,
                self.id,
                resource,
                plan.buffer_offset,
                plan.initiator,
                plan.match_bits,
                data or 0,
                plan.length,
            )
            return header + plan.extension
        offset = index * self._mtu
        header = _pack_nosom(
            flags,
            self.id,
            resource,
            plan.buffer_offset,
            plan.initiator,
            plan.match_bits,
            min(self._mtu, plan.span - offset),
            offset,
            plan.length,
        )
        return header + plan.extension

    def _short_header(self) -> bytes:
        """Small or medium: one packet, no message id (UES Table 3-10, Figure 3-14)."""
        plan = self.plan
        to = plan.address
        fields: dict[str, int] = {
            "opcode": plan.opcode,
            "dc": plan.delivery_complete,
            "rel": to.relative,
            "eom": 1,
            "som": 1,
            "request_length": plan.length,
            "ri_generation": self._generation,
            "job_id": to.job_id,
            "pid_on_fep": to.pid_on_fep,
            "resource_index": to.resource_index,
        }
        if self.next_header == _SMALL:
            fields["resource_index"] = plan.match_bits & _KEY_INDEX
            header = headers.SES_SMALL.encode(buffer_offset=plan.buffer_offset, **fields)
            return header + plan.extension
        fields["initiator"], fields["match_bits"] = plan.initiator, plan.match_bits
        if plan.header_data is None:
            header = headers.SES_MEDIUM.encode(buffer_offset=plan.buffer_offset, **fields)
        else:
            header = headers.SES_MEDIUM_HD.encode(hd=1, header_data=plan.header_data, **fields)
        return header + plan.extension
