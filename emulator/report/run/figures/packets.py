"""Figures of captured packets: the ladder of a flow's first packets, and times between ports.

Everything is read from the run's ``capture.pcapng``.  Its times are fabric time (virtual clock) or
the machine's (host's clock); the epoch of the first is 2000-01-01.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np

from emulator.dataplane.capture.pcapng import read_packets
from emulator.report.follow.capture import CUT, without_capture
from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.port_series import capture_filter, window_of
from emulator.report.run_folder import NO_ROW, RunRecord, drawn_rows
from emulator.rocev2.wire import headers as rocev2_headers
from emulator.rocev2.wire.codes import (
    CNP_OPCODE,
    OPERATION_MASK,
    UDP_PORT,
    BthOperation,
)
from emulator.run_files import CAPTURE, EPOCH_S
from uet.wire.frame import DecodedPacket, decode_frame

#: Fields that are shown, and flags that are shown where they are set, by their names in captures.
_FIELDS = ("pds.psn", "pds.cack_psn", "pds.nack_code", "pds.nack_psn", "pds.ctl_type")
_MESSAGE = ("ses.message_id", "ses.message_offset")
_FLAGS = ("pds.flags.syn", "pds.flags.retx", "pds.flags.ar", "ses.som", "ses.eom")
_CE = 3  # RFC 3168
_ETHERNET, _UDP = 14, 8  # octets of these headers


def packet_words(frame: bytes, length: int) -> str:
    """Describe ``frame``, of ``length`` octets on the wire, as far as it was captured."""
    packet = decode_frame(frame, wire_length=length)
    words = _uet(packet) if packet.is_uet else _rocev2(frame, packet)
    if packet.envelope.ecn == _CE:
        words += " CE"
    return words


def _uet(packet: DecodedPacket) -> str:
    layers = [name.partition(".")[2] for name in packet.layer_names if "." in name]
    words = [" ".join(name.upper() for name in layers[:1])]
    for name in (*_FIELDS, *_MESSAGE):
        if name in packet.fields:
            words.append(f"{name.partition('.')[2]}={packet.fields[name]}")
    words += [name.rpartition(".")[2] for name in _FLAGS if packet.fields.get(name)]
    if packet.trimmed or packet.envelope.shortened:
        words.append("trimmed")
    return " ".join(words) or "UET"


def _rocev2(frame: bytes, packet: DecodedPacket) -> str:
    envelope = packet.envelope
    at = _ETHERNET + 4 * (frame[_ETHERNET] & 0xF) + _UDP if len(frame) > _ETHERNET else 0
    if envelope.dport != UDP_PORT or len(frame) < at + rocev2_headers.BTH.size:
        return f"{len(frame)} octets"
    values = rocev2_headers.BTH.values(frame, at)
    opcode = int(values["opcode"])
    if opcode == CNP_OPCODE:
        name = "CNP"
    else:
        operation = opcode & OPERATION_MASK
        known = operation in BthOperation.__members__.values()
        name = BthOperation(operation).name if known else f"opcode {opcode:#x}"
    return f"{name} psn={values['psn']} qp={values['dqpn']:#x}"


#: Packets that are read at most, and packets of a ladder.
MOST_READ, LADDER = 400_000, 24
#: Ways whose latencies are drawn: as many as there are colours.
MOST_WAYS = len(vl.PALETTE)
#: Offsets in a frame without VLAN tags (IEEE 802.3, RFC 791).
_ETHERTYPE, _ADDRESSES, _PAYLOAD = slice(12, 14), slice(26, 34), slice(42, 86)
_IPV4 = b"\x08\x00"
SHARES = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class CapturedPacket:
    """A frame of the capture: its time (us on the run's clock), port, octets and full length."""

    time_us: float
    port: str
    octets: bytes
    length: int


@dataclass
class _RowPackets:
    """The first packets of the flow that a row's capture begins with, at one port."""

    flow: frozenset[bytes] | None = None
    port: str = ""
    packets: list[CapturedPacket] = field(default_factory=list)
    seen: dict[bytes, tuple[str, float]] = field(default_factory=dict)
    hops: dict[tuple[str, str], list[float]] = field(default_factory=dict)


def packet_figures(record: RunRecord) -> list[Figure]:
    """Return the ladder and the times between ports, or for each of them why there is none."""
    ladder, latency = (
        "Ladder of the first packets of a flow",
        "Packet latency between captured ports",
    )
    point = "captured port"
    reason = _unusable(record)
    rows: dict[int, _RowPackets] = {}
    more = ""
    if reason is None:
        try:
            rows, more = _read(record)
        except (OSError, ValueError, zlib.error) as error:
            reason = f"{CAPTURE} cannot be read ({error})"
        else:
            if not any(one.packets for one in rows.values()):
                reason = "the captured ports saw no packet in an iteration; --capture chooses ports"
                reason += f";{more}" if more else ""
    if reason is not None:
        return [
            Figure.none("packet-latency", latency, point, reason),
            Figure.none("ladder", ladder, point, reason),
        ]
    drawn = _ladder(ladder, record, rows)
    return [_latency(latency, rows, more), replace(drawn, note=f"{drawn.note}{more}".strip())]


def _unusable(record: RunRecord) -> str | None:
    if not record.rows:
        return NO_ROW
    if not (record.path / CAPTURE).exists():
        return without_capture(record.path)
    if record.by_host_clock:
        return (
            "the capture has the times of the host's clock, which belong to no time of an "
            f"iteration; open {CAPTURE} in Wireshark"
        )
    return None


def _read(record: RunRecord) -> tuple[dict[int, _RowPackets], str]:
    """Return what was captured of each drawn row, and what is missing."""
    windows = {
        row: window
        for row in drawn_rows(len(record.rows))
        if (window := window_of(record, row)) is not None
    }
    ordered = sorted(windows.items(), key=lambda item: item[1].begin_us)
    rows = {row: _RowPackets() for row in windows}
    place = 0
    try:
        for number, packet in enumerate(packets_of(record.path / CAPTURE), 1):
            if number > MOST_READ:
                return rows, f" Only the first {MOST_READ} packets of the capture were read."
            while place < len(ordered) and packet.time_us > ordered[place][1].end_us:
                place += 1
            if place == len(ordered):
                break
            row, window = ordered[place]
            if packet.time_us >= window.begin_us:
                _take(rows[row], packet)
    except EOFError:
        return rows, f" {CUT.format(CAPTURE)}."
    return rows, ""


def packets_of(path: Path) -> Iterator[CapturedPacket]:
    """Yield the packets of a capture with times since its epoch."""
    for at_ns, port, _, length, octets in read_packets(path):
        yield CapturedPacket((at_ns - EPOCH_S * 10**9) / 1000, port, octets, length)


def _take(row: _RowPackets, packet: CapturedPacket) -> None:
    octets = packet.octets
    if octets[_ETHERTYPE] != _IPV4 or len(octets) < _PAYLOAD.start:
        return
    addresses = octets[_ADDRESSES]
    ends = frozenset((addresses[:4], addresses[4:]))
    if row.flow is None:
        row.flow, row.port = ends, packet.port
    if ends == row.flow and packet.port == row.port and len(row.packets) < LADDER:
        row.packets.append(packet)
    # Neither ECN nor TTL, which change on the way, nor what trimming cuts off.
    identity = addresses + octets[34:38] + octets[_PAYLOAD]
    before = row.seen.get(identity)
    if before is not None and before[0] != packet.port:
        row.hops.setdefault((before[0], packet.port), []).append(packet.time_us - before[1])
    row.seen[identity] = (packet.port, packet.time_us)


def _latency(title: str, rows: Mapping[int, _RowPackets], more: str) -> Figure:
    point = "captured port"
    records: list[dict[str, Any]] = []
    left_out = 0
    for row, one in rows.items():
        busiest = sorted(one.hops.items(), key=lambda hop: (-len(hop[1]), hop[0]))
        left_out = max(left_out, len(busiest) - MOST_WAYS)
        for rank, ((first, second), times) in enumerate(busiest, 1):
            for share, time_us in zip(SHARES, np.quantile(times, SHARES), strict=True):
                records.append(
                    {
                        "row": row,
                        "way": f"{first} to {second}",
                        "latency_us": round(float(time_us), 4),
                        "share": round(float(share), 2),
                        "packets": len(times),
                        "rank": rank,
                    }
                )
    if not records:
        return Figure.none(
            "packet-latency",
            title,
            point,
            "no packet passed two captured ports; --capture with two ports on a way, such as "
            "h0g0:eth0,rail0:down1, shows it",
        )
    few = (
        f" The {MOST_WAYS} ways with most packets; at most {left_out} more are in the CSV."
        if left_out > 0
        else ""
    )
    line: vl.Json = {
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        "params": [vl.zoom()],
        "encoding": {
            "x": vl.encoding(
                "latency_us", "Q", "time between the two ports (us)", scale={"zero": False}
            ),
            "y": vl.encoding("share", "Q", "share of packets", scale={"domain": [0, 1]}),
            "color": vl.encoding("way", "N", None),
        },
    }
    points = {
        "mark": {"type": "point", "opacity": 0, "size": 30, "filled": True},
        "encoding": {
            **line["encoding"],
            "tooltip": vl.tooltip(
                ("way", "ports"),
                ("share", "share"),
                ("latency_us", "at most (us)"),
                ("packets", "packets"),
            ),
        },
    }
    return Figure(
        name="packet-latency",
        title=f"{title} (CDF)",
        point=point,
        note="The same packet at two captured ports: from its first octet out of a port, or its "
        f"last octet into it.{few}{more}",
        records=records,
        spec=vl.figure(
            [line, points], by_row=True, transform=[{"filter": f"datum.rank <= {MOST_WAYS}"}]
        ),
        by_row=True,
    )


def _ladder(title: str, record: RunRecord, rows: Mapping[int, _RowPackets]) -> Figure:
    names = _names(record)
    records: list[dict[str, Any]] = []
    filters: dict[int, str] = {}
    for row, one in rows.items():
        window = window_of(record, row)
        if not one.packets or window is None:
            continue
        first = one.packets[0].octets[_ADDRESSES]
        left, right = (str(IPv4Address(part)) for part in (first[:4], first[4:]))
        filters[row] = f"ip.addr == {left} && ip.addr == {right} && {capture_filter(window)}"
        for number, packet in enumerate(one.packets, 1):
            forth = packet.octets[_ADDRESSES] == first
            at_us = packet.time_us - window.begin_us
            ends = (names.get(left, left), names.get(right, right))
            records.append(
                {
                    "row": row,
                    "number": number,
                    "t_us": round(at_us, 4),
                    "port": one.port,
                    "from": ends[0 if forth else 1],
                    "to": ends[1 if forth else 0],
                    "x": 0 if forth else 1,
                    "x2": 0.985 if forth else 0.015,
                    "head": 90 if forth else 270,
                    "bytes": packet.length,
                    "packet": packet_words(packet.octets, packet.length),
                    "time": f"{at_us:.3f} us",
                }
            )
    y = vl.encoding("number", "O", None, axis=None)
    told = vl.tooltip(
        ("packet", "packet"),
        ("from", "from"),
        ("to", "to"),
        ("t_us", "at (us)"),
        ("bytes", "frame (B)"),
        ("port", "seen at"),
    )
    scale = {"domain": [-0.22, 1.02], "nice": False}
    x = vl.encoding("x", "Q", None, axis=None, scale=scale)
    kinds = vl.encoding("from", "N", "sent by", sort=None)
    layers = [
        {
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x, "x2": {"field": "x2"}, "y": y, "color": kinds, "tooltip": told},
        },
        {
            "mark": {"type": "point", "shape": "triangle", "filled": True, "size": 60},
            "encoding": {
                "x": {"field": "x2", "type": "quantitative"},
                "y": y,
                "color": kinds,
                "angle": {"field": "head", "type": "quantitative", "scale": None},
                "tooltip": told,
            },
        },
        {
            "mark": {
                "type": "text",
                "align": "center",
                "dy": -7,
                "fontSize": 10.5,
                "limit": {"expr": "width * 0.78"},
            },
            "encoding": {
                "x": {"datum": 0.5, "type": "quantitative"},
                "y": y,
                "text": {"field": "packet"},
                "tooltip": told,
            },
        },
        {
            "mark": {"type": "text", "align": "right", "fontSize": 10.5, "dx": -6},
            "encoding": {
                "x": {"datum": 0, "type": "quantitative"},
                "y": y,
                "text": {"field": "time"},
            },
        },
    ]
    return Figure(
        name="ladder",
        title=title,
        point="captured port",
        note="The flow whose packet the capture saw first in the row's last iteration, at one "
        "port. The times are of that port, so that arrows are level, since the start of the "
        f"iteration. uetemu decode {CAPTURE} shows every field.",
        records=records,
        spec=vl.figure(layers, by_row=True, height={"step": 27}),
        filters=filters,
        by_row=True,
    )


def _names(record: RunRecord) -> dict[str, str]:
    """Names of nodes by the addresses of their ports."""
    found = {}
    for node in record.topology.nodes if record.topology else ():
        for port in node.ports:
            address = getattr(port, "address", None)
            if address is not None:
                found[str(getattr(address, "ip", address))] = node.name
    return found
