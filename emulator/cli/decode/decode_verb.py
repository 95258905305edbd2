"""``uetemu decode``: layers and fields of UET packets, from a capture or from hexadecimal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from emulator.cli.decode import decode_source
from emulator.errors import UserError
from emulator.transports.one_time_keys import KEY_FILE
from uet.wire.codes import NATIVE_PROTOCOL, UDP_PORT, ControlType
from uet.wire.frame import CrcMode, DecodedPacket, Layer, decode_frame
from uet.wire.naming import label, meaning, presented
from uet.wire.wireshark.names import CONTROL_PAYLOAD, NACK_PAYLOAD

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


def brief_line(frame: decode_source.CapturedFrame, packet: DecodedPacket) -> Text:
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


#: Octets shown of a layer without fields.
_SHOWN_OCTETS = 24


@click.command("decode", short_help="show the layers and fields of UET packets")
@click.argument("source", metavar="FILE|HEX|-")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json: one object per line.",
)
@click.option("--brief", is_flag=True, help="One line of text per frame.")
@click.option(
    "--crc",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Do packets end with the UET CRC?  Nothing on the wire says so: auto takes the last four"
    " octets for it if they verify, on demands that they do.",
)
@click.option("--udp-port", type=click.IntRange(0, 65535), default=UDP_PORT, show_default=True)
@click.option(
    "--native-protocol",
    type=click.IntRange(0, 255),
    default=NATIVE_PROTOCOL,
    show_default=True,
    help="IP protocol of UET without UDP.",
)
@click.option(
    "--trimmed-dscp",
    type=click.IntRange(0, 63),
    multiple=True,
    help="Code point of trimmed packets; may be given again.  Without it, a packet whose UDP"
    " length exceeds its IP length counts as trimmed.",
)
@click.option(
    "--compat",
    type=click.Choice(["reference-provider"]),
    help="Take what UES reserves as this peer means it: opcodes 0x10 and 0x11 with their extension"
    " (synchronise= of uetemu fep), and the expected PSN behind ACK flag 0x40.",
)
@click.option(
    "--keys",
    metavar="FILE",
    help="Secure domains whose packets to decrypt, as JSON (see below).  Without it, a"
    f" {KEY_FILE} beside the capture is used.",
)
@click.option("--all", "everything", is_flag=True, help="List frames that carry no UET too.")
def command(  # noqa: PLR0913  options of the verb
    source: str,
    style: str,
    brief: bool,
    crc: CrcMode,
    udp_port: int,
    native_protocol: int,
    trimmed_dscp: tuple[int, ...],
    compat: str | None,
    keys: str | None,
    everything: bool,
) -> None:
    """Show the layers and fields of UET packets.

    Reads a pcap or pcapng capture (also gzipped, or from standard input as -), or one Ethernet
    frame in hexadecimal.  Malformed packets are listed with what is wrong with them.  Frames
    without UET are left out and counted on stderr.

    Packets with a TSS header show their plaintext if there is a key for their secure domain.  A
    key file, here and for uetemu fep, is a JSON list of domains (or an object that has it as
    "domains"):

    \b
      [{"sdi": 1, "mode": "cluster", "keys": {"0": "07e9...64 digits"},
        "rekey_mask": "0xff00", "rekey_shift": 8},
       {"sdi": 2, "mode": "direct", "ssi": 7, "an": 1,
        "keys": {"0": "a1b2...64 digits", "1": "c3d4...64 digits"}}]

    \b
    Needed:
      sdi       secure domain identifier, 24 bits
      mode      direct, cluster, server or client
      keys      one or two keys in hexadecimal, by association number (AN, "0"
                or "1"): 32 octets, a client's 44
    For endpoints, and with their defaults:
      an        AN that is sent with [the lowest of keys]
      ssi       own source identifier, 32 bits [none: the address is the
                identity]; over IPv6 direct and client mode need it
      clients   server mode: SSIs of the clients, by address [none: their
                addresses]; over IPv6 server mode needs it
      rekey_mask, rekey_shift
                cluster mode: bits of the packet counter that are the number
                of the packet key, and how far to shift them [0, 0]
      epoch     epoch of the AN that is sent with, 16 bits [0]
      reject_old_epochs
                drop packets of epochs too long ago [false]
      rx_max_epoch_lifetime
                how many epochs ago that is [16]
      failure_threshold, latch_time
                after more packets within that time (ns) that do not
                authenticate, drop all for as long [1000; 0: never,
                10000000; 0: for ever]
      accept_clear
                take unsecured packets from peers of the domain [false]
      address_in_ipv6_kdf
                derive keys from IPv6 addresses in spite of an SSI, as the UEC
                reference provider does [false]

    Numbers may be text, such as "0xff00".  A client's 44 octets are the packet key (32) and the
    mask of its initialisation vectors (12): NIST SP 800-108 derives them from the server's key
    with the label U2 and the client's identity, its SSI or address.
    uet.tss.keys.provision_client makes them.

    A capture's key file may name a domain again with other keys: each is tried.
    """
    key_file = Path(keys) if keys is not None else decode_source.keys_beside(source)
    open_secure = (
        None if key_file is None else decode_source.opener(decode_source.read_domains(key_file))
    )
    show = _Printer(style, brief)
    others: Counter[str] = Counter()
    total = 0
    try:
        for frame in decode_source.read_frames(source):
            total += 1
            packet = decode_frame(
                frame.octets,
                crc=crc,
                udp_port=udp_port,
                native_protocol=native_protocol,
                trimmed_dscp=frozenset(trimmed_dscp) if trimmed_dscp else None,
                wire_length=frame.wire_length,
                open_secure=open_secure,
                reference_provider=compat == "reference-provider",
            )
            if packet.is_uet or everything:
                show.frame(frame, packet)
            else:
                others[packet.errors[-1].removeprefix("no UET: ")] += 1
    finally:
        if others and not frame.from_hex:
            click.echo(_account(others, total), err=True)
    if others and total == 1 and frame.from_hex:
        raise UserError(f"no UET in this frame: {next(iter(others))}; give a whole Ethernet frame")
    if not total:
        raise UserError(f"{source} holds no frames; capture some traffic first")


def _account(others: Counter[str], total: int) -> str:
    reasons = "; ".join(f"{reason} ({count})" for reason, count in others.most_common(3))
    more = "; ..." if len(others) > 3 else ""
    return f"uetemu: {others.total()} of {total} frames carry no UET: {reasons}{more}"


class _Printer:
    """Writes decoded frames in the requested style."""

    def __init__(self, style: str, brief: bool) -> None:
        self._json = style == "json"
        self._brief = brief
        self._console = Console(highlight=False)

    def frame(self, frame: decode_source.CapturedFrame, packet: DecodedPacket) -> None:
        if self._json:
            click.echo(json.dumps(as_data(frame.number, packet)))
        elif self._brief:
            self._console.print(brief_line(frame, packet), soft_wrap=True)
        else:
            self._full(frame, packet)

    def _full(self, frame: decode_source.CapturedFrame, packet: DecodedPacket) -> None:
        console = self._console
        console.print(_headline(frame, packet), soft_wrap=True)
        if packet.is_uet:
            self._put(_pairs(_envelope_fields(packet)), 2)
        for layer in packet.layers:
            octets = bytes(packet.octets[layer.offset : layer.offset + layer.length])
            title = Text.assemble(
                (layer.name, "bold cyan"), f"  {layer.length} octets at {layer.offset}"
            )
            self._put(title, 2)
            self._put(_layer_body(layer, octets, packet.reference_provider), 6)
        if derived := packet.presented_derived():
            self._put(Text("derived", "bold cyan"), 2)
            self._put(_pairs((name, str(value)) for name, value in derived.items()), 6)
        for note in packet.notes:
            self._put(Text(f"note: {note}", "yellow"), 2)
        for error in packet.errors:
            self._put(Text(f"error: {error}", "bold red"), 2)
        console.print()

    def _put(self, text: Text, indent: int) -> None:
        self._console.print(Padding(text, (0, 0, 0, indent), expand=False))


def as_data(number: int, packet: DecodedPacket) -> dict[str, Any]:
    """The object that ``--format json`` prints for a frame."""
    uet = packet.is_uet
    return {
        "frame": number,
        "layers": packet.layer_names,
        "fields": packet.presented_fields() if uet else {},
        "derived": packet.presented_derived(),
        "errors": packet.errors,
        "notes": packet.notes,
    }


def _headline(frame: decode_source.CapturedFrame, packet: DecodedPacket) -> Text:
    line = Text.assemble((f"Frame {frame.number}", "bold"), f"  {frame.wire_length} octets")
    if frame.interface:
        line.append(f"  on {frame.interface}")
    envelope = packet.envelope
    if envelope.source:
        line.append(f"  {envelope.source} → {envelope.destination}")
    if packet.is_uet:
        line.append(f"  {envelope.encapsulation}")
    return line


def _envelope_fields(packet: DecodedPacket) -> Iterable[tuple[str, str]]:
    for name, value in packet.fields.items():
        if name.startswith(("ip.", "udp.", "entropy.")):
            yield name, str(value)
        if name == "ip.dscp":
            yield "ip.ecn", str(packet.envelope.ecn)


def _layer_body(layer: Layer, octets: bytes, reference_provider: bool) -> Text:
    if layer.header is None:
        if layer.name == "crc":
            return Text(f"0x{octets.hex()}")
        more = " …" if len(octets) > _SHOWN_OCTETS else ""
        return Text(octets[:_SHOWN_OCTETS].hex(" ", 4) + more)
    pairs: list[tuple[str, str]] = []
    flags: list[str] = []
    for field, value in zip(layer.header.fields, layer.values, strict=False):
        name = label(layer.header, field)
        if name is None:
            continue
        says = meaning(layer.header, field, value, reference_provider=reference_provider)
        if name.startswith("pds.flags."):
            if value:
                flags.append(field.name if field.width == 1 else f"{field.name}:{says or value}")
            continue
        shown = str(presented(name, value)) + (f"({says})" if says else "")
        pairs.append((name.split(".", 1)[1], shown))
    if layer.header.names[0] == "type" and layer.name.startswith("pds.") and len(octets) > 1:
        named = f"({'|'.join(flags)})" if flags else ""
        pairs.insert(2, ("flags", f"0x{octets[1] & 0x7F:02x}{named}"))
    return _pairs(pairs)


def _pairs(pairs: Iterable[tuple[str, str]]) -> Text:
    """``name=value`` pairs, which wrap between pairs only."""
    text = Text()
    for name, value in pairs:
        if text:
            text.append("  ")
        text.append(f"{name}=", "dim")
        text.append(value)
    return text
