"""The form of every event of a trace, as JSON Schema (draft 2020-12).

The fields of headers, their widths and the names of their values are those of the compiled
headers; all other fields are in :data:`EVENTS`, in qlog's manner: names ``uet:noun_verb``, times
in ms, PSNs and identifiers as numbers, numbers wider than 32 bits as hexadecimal strings.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from uet.eventlog.logged_packets import ECN_NAMES, SECTIONS, field_name, is_flag
from uet.eventlog.sequence import EVENT_SCHEMA
from uet.wire import headers
from uet.wire.codec import Field, Header
from uet.wire.naming import prefix, presented, shown_fields

Schema = dict[str, Any]

NAMESPACE: Final = "uet"


def _number(bits: int) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": (1 << bits) - 1}


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _choice(*names: str) -> Schema:
    return {"enum": list(names)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TEXT: Schema = {"type": "string"}
_TRUTH: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_DURATION: Schema = {"type": "number", "minimum": 0}
_PSN, _ID, _OCTET = _number(32), _number(16), _number(8)
_HEX64: Schema = {"type": "string", "pattern": "^0x[0-9a-f]{16}$"}
#: An enumerated value: its name, or the number where it has none.
_NAMED: Schema = {"type": ["string", "integer"]}
_CONTEXT: Schema = {"type": ["string", "integer"]}
_ENDED: Schema = {"error": _TEXT}


def _value(header: Header, field: Field, label: str) -> Schema:
    """Return what a header field may be.

    The name of its value, a number, or a hexadecimal string.
    """
    shown = presented(label, 0)
    if isinstance(shown, str):
        return {"type": "string", "pattern": f"^0x[0-9a-f]{{{len(shown) - 2}}}$"}
    if field.signed:
        half = 1 << (field.width - 1)
        number = {"type": "integer", "minimum": -half, "maximum": half - 1}
    else:
        number = _number(field.width)
    for description in header.layer.fields_desc if header.layer else ():
        if description.name == field.name:
            names = getattr(description, "i2s", None)
            if names:
                return {"anyOf": [_choice(*sorted(names.values())), number]}
    return number


@cache
def _sections() -> dict[str, Schema]:
    """One object per kind of header, with every field that some header of the kind has."""
    fields: dict[str, dict[str, list[Schema]]] = {name: {} for name in SECTIONS.values()}
    flags: set[str] = set()
    for header in vars(headers).values():
        if not isinstance(header, Header) or prefix(header) not in SECTIONS:
            continue
        section = fields[SECTIONS[prefix(header)]]
        for index, label in shown_fields(header):
            field, name = header.fields[index], field_name(header, label)
            if is_flag(label, field):
                flags.add(name)
                continue
            schema = _value(header, field, label)
            if schema not in section.setdefault(name, []):
                section[name].append(schema)
    sections = {
        section: _object(
            {},
            {name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in named.items()},
        )
        for section, named in fields.items()
    }
    header = sections["header"]
    header["properties"] |= {"flags": _list(_choice(*sorted(flags)))}
    header["properties"] |= dict.fromkeys(
        ("clear_psn", "start_psn", "ack_psn", "sack_base_psn"), _PSN
    )
    header["required"] = ["type"]
    return sections


def _packet(required: Schema, optional: Schema | None = None) -> Schema:
    whole: Schema = {
        "raw": _object({"length": _COUNT}, {"payload_length": _COUNT}),
        **required,
    }
    return _object(
        whole,
        {
            "peer": _TEXT,
            "dscp": _number(6),
            "ecn": _choice(*ECN_NAMES.values()),
            "entropy": _number(16),
            "trimmed": _TRUTH,
            "errors": _list(_TEXT),
            **_sections(),
            **(optional or {}),
        },
    )


_PDC = {"pdc": _ID}
_MESSAGE = {"message": _COUNT, "message_id": _ID, "packets": _COUNT, "peer": _TEXT, "pdc": _ID}
_STATES = ("creating", "established", "quiesce", "closing", "closed")
_REQUEST = {"kind": _TEXT, "peer": _TEXT}
_REQUEST_MORE = {
    "length": _COUNT, "delivery": _TEXT, "protocol": _TEXT, "key": _HEX64, "offset": _HEX64,
    "tag": _HEX64, "header_data": _HEX64, "delivery_complete": _TRUTH, "operation": _OCTET,
    "datatype": _OCTET, "context": _CONTEXT,
}  # fmt: skip

#: Data of every event, by the name behind ``uet:``.
EVENTS: Final[dict[str, Schema]] = {
    # The endpoint.  Parameters are those of uet.config, without keys.  The seed is what this
    # endpoint was given, which need not be a run's; as decimal digits, since it may exceed 2^53.
    "parameters_set": _object({"endpoint_seed": _TEXT, "parameters": {"type": "object"}}),
    "endpoint_state_updated": _object({"new": _choice("closing", "closed")}),
    # PDCs.
    "pdc_state_updated": _object(
        {
            **_PDC,
            "new": _choice(*_STATES),
            "peer": _TEXT,
            "start_psn": _PSN,
            "role": _choice("initiator", "target"),
            "delivery": _choice("rud", "rod"),
        },
        {"old": _choice(*_STATES), "peer_pdc": _ID, "sdi": _number(24)},
    ),
    "pdc_failed": _object({**_PDC, "error": _TEXT}),
    "pdc_renumbered": _object({**_PDC, "start_psn": _PSN}),
    #: An event of a PDC that has no name of its own here yet.
    "pdc_event": _object({**_PDC, "event": _TEXT, "details": {"type": "object"}}),
    # Packets.  `counters` are those of reception that the packet has moved.
    "packet_sent": _packet({}),
    "packet_received": _packet({}, {"counters": _list(_TEXT)}),
    "packet_dropped": _packet({"trigger": _TEXT}, {"counters": _list(_TEXT)}),
    # Acknowledgement; `sack` has first and last PSN of each run that has arrived.
    "ack_received": _object(
        {**_PDC, "peer": _TEXT, "cack": _PSN, "ecn_marked": _TRUTH, "request": _NAMED},
        {
            "ack_psn": _PSN,
            "probe_opaque": _ID,
            "sack": _list(_list(_PSN)),
            "mpr": _OCTET,
            "service_time": _ID,
            "rcvd_bytes": _number(24),
            "ooo_count": _ID,
            "credit": _number(24),
            "return_code": _NAMED,
        },
    ),
    **{
        name: _object(
            {**_PDC, "peer": _TEXT, "code": _NAMED, "payload": _PSN}, {"psn": _PSN, "pkt_id": _PSN}
        )
        for name in ("nack_received", "nack_sent")
    },
    # Loss and its repair.  `timeouts` counts those of this packet.
    "rto_expired": _object({}, {**_PDC, "psn": _PSN, "timeouts": _COUNT, "pkt_id": _PSN}),
    "loss_inferred": _object({**_PDC, "psn": _PSN}),
    "go_back_started": _object({**_PDC, "expected_psn": _PSN}),
    "packet_retransmitted": _object(
        {
            "peer": _TEXT,
            "trigger": _choice("rto", "nack", "loss_inferred", "go_back", "renumbered", "unknown"),
        },
        {**_PDC, "psn": _PSN, "pkt_id": _PSN},
    ),
    # Congestion, per peer; credit in units of 256 octets.  Base RTT and average queueing delay (ms)
    # are logged where the window follows them.
    "window_updated": _object(
        {"peer": _TEXT, "room": {"type": "integer"}, "window": _COUNT},
        {"base_rtt": _DURATION, "queueing_delay": _DURATION},
    ),
    "credit_updated": _object(
        {
            "peer": _TEXT,
            "direction": _choice("sent", "received"),
            "kind": _choice("credit", "request"),
            "units": _number(24),
        },
        {"context": _OCTET},
    ),
    # Security: what is sent with, whether what arrives is refused, what could not be sealed.
    "key_updated": _object({"sdi": _number(24), "an": _number(1), "epoch": _number(16)}),
    "domain_latched": _object({"sdi": _number(24), "failures": _COUNT}),
    "sealing_failed": _object({"trigger": _TEXT}),
    # What the application requests, the messages that carry it (numbered in this trace; one
    # request may take several), and the application's completions.
    "message_posted": _object(_REQUEST, _REQUEST_MORE),
    "receive_posted": _object(
        {"length": _COUNT},
        {
            "tag": _HEX64,
            "ignore": _HEX64,
            "initiator": _PSN,
            "peer": _TEXT,
            "least_space": _COUNT,
            "context": _CONTEXT,
        },
    ),
    "message_waiting": _object({"peer": _TEXT, "delivery": _TEXT, "trigger": _choice("no_pdc")}),
    "message_started": _object({**_MESSAGE, "delivery": _TEXT}),
    "message_ended": _object({**_MESSAGE, "acknowledged": _COUNT}, _ENDED),
    "message_unsent": _object({"message": _COUNT, "message_id": _ID}),
    "message_completed": _object(
        {"kind": _TEXT, "peer": _TEXT, "length": _COUNT},
        {
            "header_data": _HEX64,
            "tag": _HEX64,
            "key": _HEX64,
            "offset": _HEX64,
            "initiator": _PSN,
            "context": _CONTEXT,
            **_ENDED,
        },
    ),
}


def json_schema() -> Schema:
    """Return the JSON Schema of one event, for other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": EVENT_SCHEMA,
        "title": "An event of an Ultra Ethernet endpoint's trace",
        "oneOf": [
            _object(
                {
                    "time": {"type": "number", "minimum": 0},
                    "name": {"const": f"{NAMESPACE}:{name}"},
                    "data": data,
                }
            )
            for name, data in EVENTS.items()
        ],
    }
