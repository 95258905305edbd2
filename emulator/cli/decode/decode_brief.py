"""One line about a decoded frame: what ``uetemu decode --brief`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from emulator.cli.decode.decode_source import CapturedFrame
from uet.wire.codes import ControlType
from uet.wire.frame import DecodedPacket, Layer
from uet.wire.naming import meaning
from uet.wire.wireshark.wireshark_names import CONTROL_PAYLOAD, NACK_PAYLOAD

#: What a line about a layer has beside its name, where the layer has it.
_TELLING = (
    "ctl_type",
    "psn",
    "cack_psn",
    "nack_code",
    "nack_psn",
    "nack_pkt_id",
    "pkt_id",
    "opcode",
    "atomic_opcode",
    "return_code",
    "message_id",
    "response_message_id",
    "sync_group",
    "sync_count",
    "message_offset",
    "request_length",
    "sdi",
    "an",
    "epoch",
    "counter",
)
_TELLING_FLAGS = ("syn", "retx", "ar", "m", "p", "nt", "som", "eom")
#: Control packets that have a PSN of their own; that of the others is not in use.
_OWN_PSN = frozenset(
    {
        ControlType.NOOP,
        ControlType.CLOSE_CMD,
        ControlType.CLOSE_REQ,
        ControlType.NEGOTIATION,
    }
)
_CUT = "not decrypted: the capture has"


def brief_line(frame: CapturedFrame, packet: DecodedPacket) -> Text:
    """Return one line: number, addresses, the layers with their kinds, notes and errors."""
    line = Text.assemble((f"{frame.number:>6}", "bold"))
    envelope = packet.envelope
    if envelope.source:
        line.append(f"  {envelope.source} → {envelope.destination}")
    for layer in packet.layers:
        line.append(f"  {_layer(layer, packet)}")
    for note in packet.notes:
        line.append(f"  [{'not decrypted: cut' if note.startswith(_CUT) else note}]", "yellow")
    for error in packet.errors:
        line.append(f"  error: {error}", "bold red")
    return line


def _layer(layer: Layer, packet: DecodedPacket) -> str:
    if layer.header is None:
        return f"{layer.name} {layer.length}"
    words = [layer.name]
    values = dict(zip(layer.header.names, layer.values, strict=False))
    control = values.get("ctl_type")
    for name in _TELLING:
        if name not in values or (
            name == "psn" and control is not None and control not in _OWN_PSN
        ):
            continue
        says = meaning(
            layer.header,
            layer.header.field(name),
            values[name],
            reference_provider=packet.reference_provider,
        )
        words.append(says or f"{name}={values[name]}")
        if name == "cack_psn" and "ack_psn_offset" in values and "ack_psn" in packet.derived:
            words.append(f"ack_psn={packet.derived['ack_psn']}")
    if "spdcid" in values:
        opens = values.get("syn") and "dpdcid" not in values
        words.append(f"pdc={values['spdcid']}->{'new' if opens else values.get('dpdcid', '?')}")
    if values.get("req"):
        says = meaning(layer.header, layer.header.field("req"), values["req"])
        words.append(f"REQ={(says or str(values['req'])).lower()}")
    words += _payload(values, packet)
    words += [name for name in _TELLING_FLAGS if values.get(name)]
    return " ".join(words)


def _payload(values: dict[str, int], packet: DecodedPacket) -> list[str]:
    """The payload word of control packets and NACKs in words."""
    word = values.get("payload_word")
    if word is None:
        return []
    if values.get("ctl_type") == ControlType.NEGOTIATION:
        return [f"payload={packet.presented_derived()['negotiation_payload']}"]
    kind = values.get("ctl_type", values.get("nack_code"))
    meanings: Mapping[Any, Iterable[tuple[str, int, int]]] = (
        CONTROL_PAYLOAD if "ctl_type" in values else NACK_PAYLOAD
    )
    return [
        f"{name.lower().replace(' ', '_')}={word >> shift & (1 << bits) - 1}"
        for name, shift, bits in meanings.get(kind, ())
    ]
