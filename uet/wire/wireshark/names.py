"""Under which names and words the Wireshark dissector shows the fields of the layers.

Where Wireshark's own UET dissector has a field, the name is the one it registers, so that a
display filter works in both; everything else is ``uet.`` and the decoder's name
(:mod:`uet.wire.naming`).
"""

from __future__ import annotations

from uet.wire import naming
from uet.wire.codec import Field, Header
from uet.wire.codes import (
    BYTE_COUNT_UNIT,
    MPR_UNIT,
    SERVICE_TIME_UNIT_NS,
    ControlType,
    NackCode,
)

_REQUEST = {
    "rsvd_opcode": "rsv",
    "opcode": "opcode",
    "eom": "eom",
    "som": "som",
    "job_id": "job_id",
    "pid_on_fep": "pidonfep",
    "resource_index": "resource_index",
    "buffer_offset": "buffer_offset",
}
_SHORT_REQUEST = {
    **_REQUEST,
    "opcode": "uet.ses.std.opcode",
    "version": "flags.ver",
    "dc": "flags.dc",
    "ie": "flags.ie",
    "rel": "flags.rel",
    "rsvd_length": "flags.rsv2",
    "request_length": "req_length",
    "rsvd_pid": "rsv3",
    "rsvd_index": "rsv4",
}
_STD_REQUEST = {
    **_REQUEST,
    "version": "ver",
    "dc": "dc",
    "ie": "ie",
    "rel": "rel",
    "hd": "hd",
    "message_id": "message_id",
    "ri_generation": "index_generation",
    "initiator": "initiator",
    "match_bits": "mem_key_match_bits",
    "header_data": "header_data",
    "rsvd_pid": "reserved2",
    "rsvd_index": "reserved3",
    "rsvd_continuation": "reserved4",
    "payload_length": "payload_length",
    "message_offset": "message_offset",
    "request_length": "request_length",
}
_RESPONSE = {
    "list": "list",
    "opcode": "opcode",
    "version": "ver",
    "return_code": "return_code",
    "message_id": "message_id",
    "response_message_id": "message_id",
    "read_request_message_id": "read_req_message_id",
    "ri_generation": "resource_index_gen",
    "rsvd_generation": "reserved",
    "job_id": "job_id",
    "modified_length": "mod_length",
    "payload_length": "payload_length",
    "message_offset": "message_offset",
}
_ACK_CC = {
    "cc_type": "ack.cc_type",
    "mpr": "ack.mpr",
    "sack_psn_offset": "ack.sack_offset",
    "sack_bitmap": "ack.sack_bitmap",
    "service_time": "ack.cc_state.service_time",
    "restore_cwnd": "ack.cc_state.rc",
    "rcv_cwnd_pend": "ack.cc_state.rcv_cwnd_pend",
    "rcvd_bytes": "ack.cc_state.rcvd_bytes",
    "credit": "ack.cc_state.credit",
    "ooo_count": "ack.cc_state.ooo_count",
}
_NACK = {
    "nack_code": "nack.code",
    "vendor_code": "nack.vendor_code",
    "nack_psn": "nack.psn",
    "payload_word": "nack.max_recv_psn_plus_1",
}
_RUDI = {"rsvd": "rudi.rsvd", "pkt_id": "rudi.pkt_id"}
_ATOMIC = {
    "atomic_opcode": "atomic_opcode",
    "atomic_datatype": "atomic_data_type",
    "sem_ctl": "sem_ctl",
    "rsvd": "rsvd",
}


def _reserved(kind: str) -> dict[str, str]:
    """Reserved flags: one name for all of a packet type, in however many runs they stand."""
    runs = ("rsvd_flags", "rsvd_flags_hi", "rsvd_flags_lo")
    return dict.fromkeys(runs, f"flags.rsvd_{kind}")


#: Header (or the beginning of its name) -> where Wireshark's own dissector puts its fields, and
#: field -> name there (or the whole name, if it is elsewhere).  A field that is absent has no
#: counterpart, or one of another type or meaning.
UPSTREAM: dict[str, tuple[str, dict[str, str]]] = {
    "entropy": ("pds", {"entropy": "entropy", "rsvd": "entropy.rsvd"}),
    "tss": ("tss", {"rsvd": "reserved"}),
    "pds.rud_req": ("pds", {"next_hdr": "nh", **_reserved("rud_rod")}),
    "pds.rod_req": ("pds", {"next_hdr": "nh", **_reserved("rud_rod")}),
    "pds.req_cc_state": (
        "pds",
        {"ccc_id": "cc_state.ccc_id", "credit_target": "cc_state.credit_target"},
    ),
    "pds.ack": ("pds", {"next_hdr": "nh", **_ACK_CC, **_reserved("ack")}),
    "pds.nack": ("pds", {"next_hdr": "nh", **_NACK, **_reserved("nack")}),
    "pds.cp": (
        "pds",
        {
            "probe_opaque": "ctrl_probe_opaque",
            "payload_word": "ctrl_payload",
            **_reserved("ctl"),
        },
    ),
    "pds.rudi": ("pds", {"next_hdr": "nh", **_RUDI, **_reserved("rudi")}),
    "pds.uud_req": ("pds", {"next_hdr": "nh", **_reserved("uud")}),
    "ses.request_std": ("ses.std", _STD_REQUEST),
    "ses.request_medium": (
        "ses.med_req",
        {
            **_SHORT_REQUEST,
            "hd": "flags.hd",
            "ri_generation": "resource_index_generation",
            "initiator": "initiator",
            "match_bits": "mem_key_match_bits",
            "header_data": "header_data",
        },
    ),
    "ses.request_small": (
        "ses.small_req",
        {**_SHORT_REQUEST, "hd": "flags.rsvd", "ri_generation": "index_generation"},
    ),
    "ses.response": ("ses.rsp", {**_RESPONSE, "rsvd_length": "reserved2"}),
    "ses.response_data_small": ("ses.rsp", {**_RESPONSE, "rsvd_length": "reserved3"}),
    "ses.ext_atomic": ("ses.atomic_op_ext_hdr", _ATOMIC),
    "ses.ext_cswap": (
        "ses.comp_swap_ext_hdr",
        {**_ATOMIC, "compare_value": "comp_value", "swap_value": "swap_value"},
    ),
    "ses.ext_rendezvous": (
        "ses.rendv_ext_hdr",
        {
            "eager_length": "eager_length",
            "read_pid_on_fep": "read_pid_on_fep",
            "read_resource_index": "read_resource_index",
            "read_offset": "read_offset",
            "read_memory_key": "read_match_bits",
        },
    ),
}

#: What Wireshark's own dissector has as one field and the layers as several neighbours, or as
#: octets: (header, first field, last field, name) -> label and Lua type.
JOINED = {
    ("tss", "epoch", "counter", "uet.tss.tsc"): ("Time-stamp counter (TSC)", "uint64"),
    ("ses.request_std", "initiator_restart_token", "target_restart_token",
     "uet.ses.std.restart_token"): ("Restart tokens", "uint64"),
    ("ses.request_std", "rtr_initiator_restart_token", "rtr_target_restart_token",
     "uet.ses.std.restart_token"): ("Restart tokens", "uint64"),
    ("ses.request_std", "version", "som", "uet.ses.std.flags"): ("Flags", "uint8"),
    ("ses.request_medium", "version", "som", "uet.ses.med_req.flags"): ("Flags", "uint8"),
    ("ses.request_small", "version", "som", "uet.ses.small_req.flags"): ("Flags", "uint8"),
    ("pds.ack_cc", "cc_type", "ooo_count", "uet.pds.ack.prlg"): ("ACK extension", "bytes"),
    ("pds.ack_cc", "cc_type", "state", "uet.pds.ack.prlg"): ("ACK extension", "bytes"),
    ("pds.ack_ccx", "ccx_type", "ccx_state_lo", "uet.pds.ack.prlg"): ("ACK extension", "bytes"),
    ("pds.ack_cc", "service_time", "ooo_count", "uet.pds.ack.cc_state"): ("CC state", "bytes"),
    ("pds.ack_cc", "credit", "ooo_count", "uet.pds.ack.cc_state"): ("CC state", "bytes"),
    ("pds.ack_cc", "state", "state", "uet.pds.ack.cc_state"): ("CC state", "bytes"),
    ("pds.ack_cc", "rsvd_credit", "rsvd_credit", "uet.pds.ack.cc_state.reserved"): (
        "Reserved", "bytes"),
    ("pds.ack_ccx", "ccx_state_hi", "ccx_state_lo", "uet.pds.ack.ccx_state"): (
        "CCX state", "bytes"),
}  # fmt: skip

_PDC_MODE = {
    "uet.pds.pdc_mode": 'ProtoField.uint8("uet.pds.pdc_mode", "PDC mode", base.DEC, nil, 0xf0)',
    # the specification's place of use_rsv_pdc and that of Wireshark's own dissector
    "uet.pds.pdc_mode_use_rsv": 'ProtoField.bool("uet.pds.pdc_mode_use_rsv", "Use reserved PDC", 8,'
    ' { "yes", "no" }, 0x90)',
    "uet.pds.pdc_mode_rsv": 'ProtoField.uint8("uet.pds.pdc_mode_rsv", "Reserved", base.HEX, nil,'
    " 0x60)",
}
#: Names that Wireshark's own dissector has for what is shown under another one, or for parts of it:
#: (header, field, name) -> Lua.  They are hidden, so that filters and columns find them.
ALIASES = {
    **{
        (header, "pdc_info", name): definition
        for header in ("pds.rud_req", "pds.rod_req", "pds.cp")
        for name, definition in _PDC_MODE.items()
    },
    ("pds.ack_ccx", "ccx_type", "uet.pds.ack.cc_type"): (
        'ProtoField.uint8("uet.pds.ack.cc_type", "CCX type", base.DEC, nil, 0xf0)'
    ),
    ("pds.nack", "nack_pkt_id", "uet.pds.nack.psn"): (
        'ProtoField.uint32("uet.pds.nack.psn", "Packet ID", base.DEC)'
    ),
}
#: Names of Wireshark's own dissector for bits that UES 1.0 does not reserve (UES 3.4, rendezvous
#: extension): known, so that a profile with them loads, and never found.
UNFILLED = tuple(
    f'ProtoField.uint16("uet.ses.rendv_ext_hdr.{name}", "Reserved (no such bits)", base.HEX)'
    for name in ("reserved", "reserved2")
)

#: Fields of several SES formats that also answer to one name, ``uet.ses.<field>``, whatever the
#: format: Wireshark's own names differ from format to format.
SHARED = (
    "opcode",
    "message_id",
    "job_id",
    "pid_on_fep",
    "resource_index",
    "request_length",
    "buffer_offset",
    "initiator",
    "match_bits",
    "header_data",
    "payload_length",
    "message_offset",
)

#: Field -> octets, nanoseconds or PSNs per unit (UES Tables 3-36, 3-74, 3-75).
UNITS = {
    "service_time": (SERVICE_TIME_UNIT_NS, "ns"),
    "rcvd_bytes": (BYTE_COUNT_UNIT, "B"),
    "credit": (BYTE_COUNT_UNIT, "B"),
    "credit_target": (BYTE_COUNT_UNIT, "B"),
    "mpr": (MPR_UNIT, "PSNs"),
}

#: What the payload word means, as words with their place: (word, shift, bits).  By control type
#: (UES Tables 3-64 to 3-66) and by NACK code (UES Table 3-58).
CONTROL_PAYLOAD = {
    ControlType.ACK_REQ: (("msg", 0, 16),),
    ControlType.CLEAR_CMD: (("clear PSN", 0, 32),),
    ControlType.CLEAR_REQ: (("clear PSN", 0, 32),),
    ControlType.PROBE: (("SACK base PSN", 0, 32),),
    ControlType.CREDIT: (("CCC", 24, 8), ("credit", 0, 24)),
    ControlType.CREDIT_REQ: (("CCC", 24, 8), ("credit target", 0, 24)),
}
NACK_PAYLOAD = {NackCode.NEW_START_PSN: (("start PSN", 0, 32),)}

#: Fields of one bit that are numbers in Wireshark's own dissector, and wide ones that people read
#: as decimal numbers.
NUMBERS = ("uet.tss.an", "uet.tss.sp", "uet.ses.small_req.flags.rsvd")
DECIMAL = ("sdi", "counter")

#: Derived numbers -> display name and label.
DERIVED = {
    "clear_psn": ("uet.pds.clear_psn", "Clear PSN"),
    "start_psn": ("uet.pds.start_psn", "Start PSN"),
    "ack_psn": ("uet.pds.ack_psn", "ACK PSN"),
    "sack_base_psn": ("uet.pds.sack_base_psn", "SACK base PSN"),
}

_ACRONYMS = ("psn", "pdc", "cc", "ccc", "ccx", "ack", "nack", "sack", "mpr", "an", "sdi", "ssi")
_WORDS = {
    **{word: word.upper() for word in (*_ACRONYMS, "icv", "crc", "id", "ri", "fep")},
    "hdr": "header",
    "spdcid": "source PDCID",
    "dpdcid": "destination PDCID",
    "cack": "cumulative ACK",
    "pkt": "packet",
    "rcvd": "received",
    "rcv": "receive",
    "ooo": "out-of-order",
    "cwnd": "window",
    "pend": "penalty",
    "pid": "PID",
    "rsvd": "reserved",
    "rtr": "",
    "ctl": "control",
    "sem": "semantic",
    "hi": "(high)",
    "lo": "(low)",
}
_LABELS = {
    "retx": "Retransmission (retx)",
    "ar": "ACK requested (ar)",
    "syn": "PDC establishment (syn)",
    "m": "Congestion mark seen (m)",
    "p": "Answers a probe (p)",
    "req": "Request to the initiator (req)",
    "nt": "NACK for RUDI (nt)",
    "isrod": "Ordered PDC (isrod)",
    "dc": "Delivery complete (dc)",
    "ie": "Initiator error (ie)",
    "rel": "Relative addressing (rel)",
    "hd": "Header data valid (hd)",
    "eom": "End of message (eom)",
    "som": "Start of message (som)",
    "sp": "SSI present (sp)",
    "match_bits": "Match bits or memory key",
    "payload_word": "Payload",
    "pid_on_fep": "PIDonFEP",
    "job_id": "JobID",
}


def upstream(header: str) -> tuple[str, dict[str, str]]:
    """Return where Wireshark's own dissector has the fields of ``header``.

    Longest name that fits.
    """
    fits = [name for name in UPSTREAM if header == name or header.startswith(name)]
    return UPSTREAM[max(fits, key=len)] if fits else ("", {})


def display_name(header: Header, field: Field) -> str:
    """The name for display filters of ``field``, reserved or not."""
    place, names = upstream(header.name)
    if field.name in names:
        there = names[field.name]
        return there if there.startswith("uet.") else f"uet.{place}.{there}"
    own = naming.label(header, field)
    if own is not None:
        return f"uet.{own}"
    flags = ".flags" if field.name.startswith("rsvd_flags") else ""
    return f"uet.{place or naming.prefix(header)}{flags}.{field.name}"


def shared_name(header: Header, field: Field) -> str | None:
    """The name that is the same in all SES formats, if the field has one."""
    if not header.name.startswith("ses.re") or field.name not in SHARED:
        return None
    if field.name == "opcode" and header.name.startswith("ses.response"):
        return None
    return f"uet.ses.{field.name}"


def words(name: str) -> str:
    """Return how a field is called in the packet details."""
    if name in _LABELS:
        return _LABELS[name]
    spoken = " ".join(filter(None, (_WORDS.get(word, word) for word in name.split("_"))))
    return spoken[:1].upper() + spoken[1:]
