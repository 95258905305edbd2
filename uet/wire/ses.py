# scapy.contrib.description = Ultra Ethernet Transport (UET): semantic sublayer
# scapy.contrib.status = loads

"""Semantic sublayer (SES) of Ultra Ethernet Transport, UES 3.4: requests and responses.

The opcode of a request alone determines which extension header follows it.  As in the packet
delivery sublayer, ``fields_desc`` is the only place where these layouts are written.
"""

from __future__ import annotations

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    IntField,
    ShortField,
    XBitField,
    XByteField,
    XIntField,
    XLongField,
)
from scapy.packet import Packet

from uet.wire.codes import (
    ATOMIC_OPCODES,
    CSWAP_OPCODES,
    DEFERRABLE_OPCODES,
    RENDEZVOUS_OPCODES,
    AtomicOpcode,
    Datatype,
    NextHeader,
    Opcode,
    ProviderOpcode,
    ResponseList,
    ResponseOpcode,
    ReturnCode,
)
from uet.wire.encapsulation import UETLayer
from uet.wire.pds import bind_next_header

_PROVIDER_OPCODES = frozenset(ProviderOpcode)


def _common(length_or_id: list[BitField]) -> list[BitField]:
    """First 12 octets of a request; bits 16 to 31 differ by format (UES Tables 3-8 to 3-10)."""
    return [
        BitField("rsvd_opcode", 0, 2),
        BitEnumField("opcode", Opcode.NO_OP, 6, Opcode),
        BitField("version", 0, 2),
        BitField("dc", 0, 1),
        BitField("ie", 0, 1),
        BitField("rel", 0, 1),
        BitField("hd", 0, 1),
        BitField("eom", 1, 1),
        BitField("som", 1, 1),
        *length_or_id,
        ByteField("ri_generation", 0),
        BitField("job_id", 0, 24),
        BitField("rsvd_pid", 0, 4),
        BitField("pid_on_fep", 0, 12),
        BitField("rsvd_index", 0, 4),
        BitField("resource_index", 0, 12),
    ]


def _short_length() -> list[BitField]:
    return [BitField("rsvd_length", 0, 2), BitField("request_length", 0, 14)]


class _Request(UETLayer):
    """A request: the opcode, and for atomics the operation, selects the extension header."""

    def following(self, payload: bytes) -> type[Packet]:
        if self.opcode in RENDEZVOUS_OPCODES:
            return UET_SES_RENDEZVOUS
        if self.opcode in ATOMIC_OPCODES:
            return _atomic_extension(payload)
        if self.opcode in _PROVIDER_OPCODES and conf.contribs["uet"]["reference_provider"]:
            return UET_SES_SYNC
        return super().following(payload)


class UET_SES_STD(_Request):
    """Standard request, 44 octets (UES Tables 3-8, 3-9).

    ``som`` chooses between header data and the place of a continuation; deferrable sends have
    restart tokens in the place of the buffer offset, and DEFERRABLE_RTR (ready to restart)
    in the place of the match bits.
    """

    name = "UET SES standard request"
    uet_name = "ses.request_std"
    # The tokens stand at two places and scapy needs one name for each.
    uet_labels = {
        "rtr_initiator_restart_token": "initiator_restart_token",
        "rtr_target_restart_token": "target_restart_token",
    }
    fields_desc = [
        *_common([ShortField("message_id", 0)]),
        ConditionalField(
            XIntField("initiator_restart_token", 0), lambda pkt: pkt.opcode in DEFERRABLE_OPCODES
        ),
        ConditionalField(
            XIntField("target_restart_token", 0), lambda pkt: pkt.opcode in DEFERRABLE_OPCODES
        ),
        ConditionalField(
            XLongField("buffer_offset", 0), lambda pkt: pkt.opcode not in DEFERRABLE_OPCODES
        ),
        XIntField("initiator", 0),
        ConditionalField(
            XIntField("rtr_initiator_restart_token", 0),
            lambda pkt: pkt.opcode == Opcode.DEFERRABLE_RTR,
        ),
        ConditionalField(
            XIntField("rtr_target_restart_token", 0),
            lambda pkt: pkt.opcode == Opcode.DEFERRABLE_RTR,
        ),
        ConditionalField(
            XLongField("match_bits", 0), lambda pkt: pkt.opcode != Opcode.DEFERRABLE_RTR
        ),
        ConditionalField(XLongField("header_data", 0), lambda pkt: pkt.som),
        ConditionalField(BitField("rsvd_continuation", 0, 18), lambda pkt: not pkt.som),
        ConditionalField(BitField("payload_length", 0, 14), lambda pkt: not pkt.som),
        ConditionalField(IntField("message_offset", 0), lambda pkt: not pkt.som),
        IntField("request_length", 0),
    ]

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        # A trimmed packet states what it carried before; extensions do not count as payload.
        if self.som or self.opcode in RENDEZVOUS_OPCODES | ATOMIC_OPCODES:
            return s, None
        return s[: self.payload_length], s[self.payload_length :]


class UET_SES_MEDIUM(_Request):
    """Medium request: small message or small RMA, 32 octets (UES Figure 3-14)."""

    name = "UET SES medium request"
    uet_name = "ses.request_medium"
    fields_desc = [
        *_common(_short_length()),
        ConditionalField(XLongField("header_data", 0), lambda pkt: pkt.hd),
        ConditionalField(XLongField("buffer_offset", 0), lambda pkt: not pkt.hd),
        XIntField("initiator", 0),
        XLongField("match_bits", 0),
    ]


class UET_SES_SMALL(_Request):
    """Small request: optimized, non-matching, 20 octets (UES Table 3-10)."""

    name = "UET SES small request"
    uet_name = "ses.request_small"
    fields_desc = [*_common(_short_length()), XLongField("buffer_offset", 0)]


class UET_SES_RENDEZVOUS(UETLayer):
    """Rendezvous extension: where the target may read the rest of the message (UES 3.4)."""

    name = "UET SES rendezvous extension"
    uet_name = "ses.ext_rendezvous"
    fields_desc = [
        IntField("eager_length", 0),
        ByteField("read_ri_generation", 0),
        BitField("read_pid_on_fep", 0, 12),
        BitField("read_resource_index", 0, 12),
        XLongField("read_offset", 0),
        XLongField("read_memory_key", 0),
    ]


def _atomic(default: AtomicOpcode) -> list[BitField]:
    return [
        ByteEnumField("atomic_opcode", default, AtomicOpcode),
        ByteEnumField("atomic_datatype", Datatype.UINT64, Datatype),
        XByteField("sem_ctl", 0),
        ByteField("rsvd", 0),
    ]


class UET_SES_ATOMIC(UETLayer):
    """Atomic extension (UES 3.4); the operands follow as payload."""

    name = "UET SES atomic extension"
    uet_name = "ses.ext_atomic"
    fields_desc = _atomic(AtomicOpcode.SUM)


class UET_SES_CSWAP(UETLayer):
    """Atomic extension of the compare-and-swap family, with both operands (UES 3.4)."""

    name = "UET SES compare-and-swap extension"
    uet_name = "ses.ext_cswap"
    fields_desc = [
        *_atomic(AtomicOpcode.CSWAP),
        XBitField("compare_value", 0, 128),
        XBitField("swap_value", 0, 128),
    ]


class UET_SES_SYNC(UETLayer):
    """Extension of synchronised operations: a group, and its size if this member has it.

    The UEC reference provider's; it stands in front of an atomic operation's own extension.
    """

    name = "UET SES synchronisation extension"
    uet_name = "ses.ext_sync"
    fields_desc = [ShortField("sync_group", 0), ShortField("sync_count", 0)]

    def following(self, payload: bytes) -> type[Packet]:
        request = self.underlayer
        if isinstance(request, _Request) and request.opcode == ProviderOpcode.SYNC_ATOMIC:
            return _atomic_extension(payload)
        return super().following(payload)


def _atomic_extension(octets: bytes) -> type[Packet]:
    """The extension that ``octets`` begin with."""
    return UET_SES_CSWAP if octets[0] in CSWAP_OPCODES else UET_SES_ATOMIC


def _response(opcode: ResponseOpcode) -> list[BitField]:
    return [
        BitEnumField("list", ResponseList.EXPECTED, 2, ResponseList),
        BitEnumField("opcode", opcode, 6, ResponseOpcode),
        BitField("version", 0, 2),
        BitEnumField("return_code", ReturnCode.OK, 6, ReturnCode),
    ]


class UET_SES_RESPONSE(UETLayer):
    """Response, 12 octets (UES Table 3-11)."""

    name = "UET SES response"
    uet_name = "ses.response"
    fields_desc = [
        *_response(ResponseOpcode.RESPONSE),
        ShortField("message_id", 0),
        ByteField("ri_generation", 0),
        BitField("job_id", 0, 24),
        IntField("modified_length", 0),
    ]


class _ResponseWithData(UETLayer):
    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        return s[: self.payload_length], s[self.payload_length :]


class UET_SES_RESPONSE_DATA(_ResponseWithData):
    """Response with data, 20 octets (UES Table 3-12)."""

    name = "UET SES response with data"
    uet_name = "ses.response_data"
    fields_desc = [
        *_response(ResponseOpcode.RESPONSE_W_DATA),
        ShortField("response_message_id", 0),
        ByteField("rsvd_generation", 0),
        BitField("job_id", 0, 24),
        ShortField("read_request_message_id", 0),
        BitField("rsvd_length", 0, 2),
        BitField("payload_length", 0, 14),
        IntField("modified_length", 0),
        IntField("message_offset", 0),
    ]


class UET_SES_RESPONSE_DATA_SMALL(_ResponseWithData):
    """Optimized response with data, 12 octets (UES Table 3-13)."""

    name = "UET SES small response with data"
    uet_name = "ses.response_data_small"
    fields_desc = [
        *_response(ResponseOpcode.RESPONSE_W_DATA),
        BitField("rsvd_length", 0, 2),
        BitField("payload_length", 0, 14),
        ByteField("rsvd_generation", 0),
        BitField("job_id", 0, 24),
        IntField("original_request_psn", 0),
    ]


bind_next_header(UET_SES_SMALL, NextHeader.REQUEST_SMALL)
bind_next_header(UET_SES_MEDIUM, NextHeader.REQUEST_MEDIUM)
bind_next_header(UET_SES_STD, NextHeader.REQUEST_STD)
bind_next_header(UET_SES_RESPONSE, NextHeader.RESPONSE)
bind_next_header(UET_SES_RESPONSE_DATA, NextHeader.RESPONSE_DATA)
bind_next_header(UET_SES_RESPONSE_DATA_SMALL, NextHeader.RESPONSE_DATA_SMALL)
