"""Frames at an endpoint's edge as data of events: the header fields by name, numbers as numbers.

Names and meanings come from the compiled headers.  What is secured is opened with the endpoint's
own keys, which notices nothing of it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from uet.config import FepConfig
from uet.wire.codec import Field, Header
from uet.wire.codes import ECN_CE, ECN_ECT0, ECN_ECT1, ECN_NOT_ECT, CcType, ControlType
from uet.wire.frame import DecodedPacket, Layer, OpenSecure, decode_frame
from uet.wire.naming import meaning, prefix, presented, shown_fields

if TYPE_CHECKING:
    from uet.tss.record import SecureDomains

Data = dict[str, Any]

#: Under which key of an event's data the fields of a header stand, by the prefix of their names.
SECTIONS = {"tss": "tss", "pds": "header", "ses": "ses", "ext": "ses_extension"}
ECN_NAMES = {
    ECN_NOT_ECT: "Not-ECT",
    ECN_ECT1: "ECT(1)",
    ECN_ECT0: "ECT(0)",
    ECN_CE: "CE",
}
_MASK = 0xFFFF_FFFF
#: No field that names its values is wider.
_ENUMERATED_BITS = 8
_CREDITS = {ControlType.CREDIT.name: "credit", ControlType.CREDIT_REQ.name: "request"}
#: Fields of an ACK's header that its event repeats.
_ACK_STATE = (
    "mpr", "cc.service_time", "cc.rcvd_bytes", "cc.ooo_count", "cc.credit",
    "probe_opaque",
)  # fmt: skip


class FrameReader:
    """Decodes the frames of one endpoint as it does itself."""

    def __init__(self, config: FepConfig, domains: SecureDomains | None) -> None:
        self._domains = domains
        self._crc = config.crc
        self._port = config.udp_port
        self._protocol = config.ip_protocol
        self._trimmed = frozenset(
            dscp for dscp in (config.dscp_trimmed, config.dscp_trimmed_lasthop) if dscp is not None
        )
        self._openers = {sent: self._opener(sent) if domains else None for sent in (False, True)}

    def read(self, frame: bytes | memoryview, *, sent: bool) -> DecodedPacket:
        """Decode a whole Ethernet frame that arrived, or that is ``sent``."""
        return decode_frame(
            frame,
            crc="on" if self._crc else "off",
            udp_port=self._port,
            native_protocol=self._protocol,
            trimmed_dscp=self._trimmed,
            open_secure=self._openers[sent],
        )

    def _opener(self, sent: bool) -> OpenSecure:
        def open_secure(sealed: bytes, packet: memoryview, address_size: int) -> bytes | str:
            sdi = int.from_bytes(packet[1:4], "big")
            records = self._domains.find(sdi) if self._domains is not None else None
            if records is None:
                return f"SDI {sdi} is none of this endpoint's"
            by_server = sent and records.domain.mode == "server"
            return records.read(sealed, packet, address_size, by_server=by_server)

        return open_secure


def field_name(header: Header, label: str) -> str:
    """The key of a field in its section, from the name under which it is shown."""
    return label.removeprefix(f"{prefix(header)}.").removeprefix("flags.")


def is_flag(label: str, field: Field) -> bool:
    """Return whether the field is one of the bits that stand together in ``flags``."""
    return label.startswith("pds.flags.") and field.width == 1


@cache
def _plan(header: Header) -> tuple[tuple[int, str, bool, dict[int, str], int], ...]:
    """Return for each field its index, key, kind, names of values and hexadecimal digits."""
    plan = []
    for index, label in shown_fields(header):
        field = header.fields[index]
        values = range(1 << field.width) if field.width <= _ENUMERATED_BITS else ()
        names = {value: meaning(header, field, value) for value in values}
        shown = presented(label, 0)
        digits = len(shown) - len("0x") if isinstance(shown, str) else 0
        known = {value: name for value, name in names.items() if name is not None}
        plan.append((index, field_name(header, label), is_flag(label, field), known, digits))
    return tuple(plan)


def _fields(header: Header, values: tuple[int, ...]) -> Data:
    named: Data = {}
    flags: list[str] = []
    for index, name, flag, names, digits in _plan(header):
        value = values[index]
        if flag:
            if value:
                flags.append(name)
        elif digits:
            named[name] = f"0x{value:0{digits}x}"
        else:
            named[name] = names.get(value, value)
    if flags:
        named["flags"] = flags
    return named


def describe(decoded: DecodedPacket, octets: int, *, sent: bool) -> Data:
    """A frame of ``octets``: peer, envelope, the fields of each header, and its size."""
    env = decoded.envelope
    data: Data = {"raw": {"length": octets}}
    if env.version:
        data["peer"] = env.destination if sent else env.source
        data["dscp"] = env.dscp
        data["ecn"] = ECN_NAMES[env.ecn]
    if decoded.is_uet:
        data["entropy"] = env.entropy
    if decoded.trimmed:
        data["trimmed"] = True
    for layer in decoded.layers:
        _add(data, layer)
    if "header" in data:
        data["header"] |= decoded.derived
    if decoded.errors:
        data["errors"] = decoded.errors
    return data


def _add(data: Data, layer: Layer) -> None:
    header = layer.header
    if header is not None:
        data.setdefault(SECTIONS[prefix(header)], {}).update(_fields(header, layer.values))
    elif layer.name == "payload" and "header" in data:  # what is sealed is no payload
        data["raw"]["payload_length"] = layer.length


def sack_ranges(base: int, bitmap: int) -> list[list[int]]:
    """First and last PSN of each run of set bits; bit 0 stands for ``base``."""
    ranges: list[list[int]] = []
    at = 0
    while bitmap:
        clear = (bitmap & -bitmap).bit_length() - 1
        bitmap >>= clear
        run = (~bitmap & (bitmap + 1)).bit_length() - 1
        first = base + at + clear
        ranges.append([first & _MASK, (first + run - 1) & _MASK])
        bitmap >>= run
        at += clear + run
    return ranges


def ack_data(data: Data) -> Data:
    """Return the fields of an ACK from its packet's :func:`describe`."""
    header = data["header"]
    ack: Data = {"pdc": header["dpdcid"], "peer": data["peer"], "cack": header["cack_psn"]}
    if "ack_psn" in header:
        ack["ack_psn"] = header["ack_psn"]
    if "sack_base_psn" in header:
        bitmap = int(header["sack_bitmap"], 16)
        ack["sack"] = sack_ranges(header["sack_base_psn"], bitmap)
    ack |= {name.removeprefix("cc."): header[name] for name in _ACK_STATE if name in header}
    ack["ecn_marked"] = "m" in header.get("flags", ())
    ack["request"] = header["req"]
    if "return_code" in data.get("ses", {}):
        ack["return_code"] = data["ses"]["return_code"]
    return ack


def nack_data(data: Data, *, sent: bool) -> Data:
    """Return what a NACK refuses, and why."""
    header = data["header"]
    nack: Data = {"pdc": header["spdcid" if sent else "dpdcid"], "peer": data["peer"]}
    for name, key in (("nack_psn", "psn"), ("nack_pkt_id", "pkt_id")):
        if name in header:
            nack[key] = header[name]
    return nack | {"code": header["nack_code"], "payload": header["payload"]}


def credit_data(data: Data, *, sent: bool) -> Data | None:
    """Return the credit that a packet grants or requests (units of 256 octets), else ``None``.

    It stands in CREDIT and CREDIT_REQ, in requests with congestion state and in ACKs of a target
    that grants (UES 3.6.14).
    """
    header = data["header"]
    credit: Data = {"peer": data["peer"], "direction": "sent" if sent else "received"}
    if header.get("ctl_type") in _CREDITS:
        word = header["payload"]
        credit |= {"kind": _CREDITS[header["ctl_type"]], "context": word >> 24}
        return credit | {"units": word & 0xFF_FFFF}
    if "credit_target" in header:
        credit |= {"kind": "request", "context": header["ccc_id"]}
        return credit | {"units": header["credit_target"]}
    if header.get("cc_type") == CcType.CREDIT.name and "cc.credit" in header:
        return credit | {"kind": "credit", "units": header["cc.credit"]}
    return None
