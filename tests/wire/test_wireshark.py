"""The generated dissector in a real tshark, against the golden vectors and the decoder."""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from tests.wire import golden
from uet.wire import layers as uet
from uet.wire import wireshark
from uet.wire.frame import DecodedPacket, decode_frame
from uet.wire.wireshark_names import DERIVED, UPSTREAM

CAPTURES = Path(__file__).parents[1] / "captures"
TSHARK = shutil.which("tshark")

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")

OWN = wireshark.display_fields()
EXPERTS = list(wireshark.ERRORS)
OTHERS = ["uet.trimmed", "uet.crc.status", "uet.tss.tsc", "uet.ses.std.restart_token"]
COLUMNS = sorted(
    {*(name for names in OWN.values() for name in names), *(name for name, _ in DERIVED.values())}
    | {*EXPERTS, *OTHERS}
)

Row = dict[str, list[str]]


@pytest.fixture(scope="module")
def lua(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("lua") / "uet.lua"
    script.write_text(wireshark.dissector())
    return script


def tshark(lua: Path, capture: Path, *arguments: str) -> str:
    """What tshark prints with nothing of the user's configuration; it must not complain."""
    command = [str(TSHARK), "-n", "-X", f"lua_script:{lua}", "-r", str(capture), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "WIRESHARK_CONFIG_DIR": str(lua.parent), "HOME": "/nowhere"},
    )
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("Running as")]
    assert not complaints
    assert "Lua Error" not in done.stdout
    assert str(lua) not in done.stdout
    return done.stdout


def rows(lua: Path, capture: Path, columns: list[str], *arguments: str) -> list[Row]:
    """The values of ``columns`` for each frame."""
    chosen = [option for column in columns for option in ("-e", column)]
    layout = ("-T", "fields", "-E", "occurrence=a", "-E", "aggregator=;", *chosen)
    out = tshark(lua, capture, *layout, *arguments)
    return [
        {
            column: text.split(";")
            for column, text in zip(columns, line.split("\t"), strict=True)
            if text
        }
        for line in out.split("\n")[:-1]
    ]


def write(path: Path, frames: Iterable[bytes], *, wire: Iterable[int] = ()) -> Path:
    """A capture of ``frames``, which had ``wire`` octets before they were cut."""
    chosen = list(frames)
    lengths = list(wire) or [len(frame) for frame in chosen]
    records = (
        struct.pack("<IIII", 0, number, len(frame), length) + frame
        for number, (frame, length) in enumerate(zip(chosen, lengths, strict=True))
    )
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"".join(records))
    return path


def number(text: str) -> int:
    if text in ("True", "False"):
        return int(text == "True")
    plain = text.replace(":", "")
    return int(plain, 0) if plain.lstrip("-").isdecimal() or "x" in plain else int(plain, 16)


def value(name: str, text: str) -> int:
    return int(text.replace(":", ""), 16) if name.endswith("_value") else number(text)


def disagreements(row: Row, decoded: DecodedPacket) -> list[str]:
    """In what a frame's row of :data:`COLUMNS` differs from what the decoder says."""
    found = []
    for own, expected in decoded.fields.items():
        if own not in OWN:
            continue  # IP and UDP are Wireshark's own
        shown = [value(name, each) for name in OWN[own] for each in row.get(name, [])]
        if shown != [expected]:
            found.append(f"{own}: {shown} for {expected}")
    for own, expected in decoded.derived.items():
        shown = [number(each) for each in row.get(DERIVED[own][0], [])]
        if shown != [expected]:
            found.append(f"{own}: {shown} for {expected}")
    flawed = any(expert in row for expert in EXPERTS)
    if flawed != bool(decoded.errors):
        found.append(f"experts {[e for e in EXPERTS if e in row]} for {decoded.errors}")
    if ("uet.trimmed" in row) != decoded.trimmed:
        found.append(f"trimmed is {decoded.trimmed}")
    return found


def read_pcap(path: Path) -> list[bytes]:
    data = path.read_bytes()
    order = "little" if data[:4] == b"\xd4\xc3\xb2\xa1" else "big"
    frames, at = [], 24
    while at < len(data):
        length = int.from_bytes(data[at + 8 : at + 12], order)  # type: ignore[arg-type]
        frames.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return frames


def test_every_golden_vector_is_shown_as_the_vector_has_it(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "all.pcap", (vector.frame for vector in golden.ALL))
    shown = rows(lua, capture, COLUMNS)
    assert len(shown) == len(golden.ALL)
    for vector, row in zip(golden.ALL, shown, strict=True):
        if vector.crc_only:
            assert row["uet.error.type"]
            assert row["uet.crc.status"] == ["1"]
            continue
        compared = 0
        for own, expected in vector.fields.items():
            if own not in OWN or (vector.is_tss and not own.startswith(("tss.", "entropy."))):
                continue
            found = [value(name, each) for name in OWN[own] for each in row.get(name, [])]
            assert found == [golden.number(expected)], f"{vector}: {own}"
            compared += 1
        assert compared >= 2, vector
        if not vector.is_tss:
            for own, expected in vector.derived.items():
                name = DERIVED[own][0]
                assert [number(each) for each in row[name]] == [expected], f"{vector}: {own}"


def test_every_golden_vector_is_shown_as_the_decoder_has_it(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "all.pcap", (vector.frame for vector in golden.ALL))
    for vector, row in zip(golden.ALL, rows(lua, capture, COLUMNS), strict=True):
        assert disagreements(row, decode_frame(vector.frame)) == [], vector


def test_captures_of_the_reference_provider(lua: Path, tmp_path: Path) -> None:
    captures = sorted(CAPTURES.glob("*.pcap"))
    assert len(captures) == 46
    frames = [frame for capture in captures for frame in read_pcap(capture)]
    shown = rows(lua, write(tmp_path / "all.pcap", frames), COLUMNS)
    assert len(shown) == len(frames)
    for frame, row in zip(frames, shown, strict=True):
        decoded = decode_frame(frame)
        assert decoded.errors == []
        assert disagreements(row, decoded) == []


#: One vector per layout, so that cutting them at every length stays quick.
SHAPES = list({tuple(name for name, _ in v.layers): v for v in golden.ALL}.values())


def udp_at(frame: bytes) -> int | None:
    """Offset of the UDP header in a vector without VLAN tag or IPv6 extension."""
    v4 = frame[14] >> 4 == 4
    if frame[23 if v4 else 20] != 17:
        return None
    return 14 + ((frame[14] & 15) * 4 if v4 else 40)


def shortened(frame: bytes, length: int, *, trimmed: bool = False) -> bytes:
    """``frame`` as a packet of ``length`` octets; as switches trim, UDP's length stays."""
    short = bytearray(frame[:length])
    v4 = frame[14] >> 4 == 4
    where, size = (16, length - 14) if v4 else (18, length - 54)
    short[where : where + 2] = size.to_bytes(2, "big")
    udp = udp_at(frame)
    if udp is not None and not trimmed:
        short[udp + 4 : udp + 6] = (length - udp).to_bytes(2, "big")
    return bytes(short)


def header_end(frame: bytes) -> int:
    """Where UET begins; Wireshark asks no dissector about a UDP packet without any octet."""
    udp = udp_at(frame)
    v4 = frame[14] >> 4 == 4
    return 14 + (20 if v4 else 40) + 4 if udp is None else udp + 8


def compare(lua: Path, capture: Path, decoded: list[DecodedPacket], *arguments: str) -> None:
    shown = rows(lua, capture, COLUMNS, *arguments)
    wrong = [
        f"frame {at}: {found}"
        for at, (row, packet) in enumerate(zip(shown, decoded, strict=True), start=1)
        if (found := disagreements(row, packet))
    ]
    assert wrong[:3] == []


def test_packets_that_are_too_short(lua: Path, tmp_path: Path) -> None:
    frames = [
        shortened(vector.frame, length)
        for vector in SHAPES
        for length in range(header_end(vector.frame) + 1, len(vector.frame))
    ]
    assert len(frames) > 1000
    compare(lua, write(tmp_path / "short.pcap", frames), [decode_frame(f) for f in frames])


def test_packets_trimmed_at_every_length(lua: Path, tmp_path: Path) -> None:
    frames = [
        shortened(vector.frame, length, trimmed=True)
        for vector in SHAPES
        if udp_at(vector.frame) is not None
        for length in range(header_end(vector.frame) + 1, len(vector.frame))
    ]
    decoded = [decode_frame(frame) for frame in frames]
    assert all(packet.trimmed for packet in decoded)
    compare(lua, write(tmp_path / "trimmed.pcap", frames), decoded)


def test_frames_that_the_capture_cut(lua: Path, tmp_path: Path) -> None:
    cut = [
        (vector.frame[:length], len(vector.frame))
        for vector in SHAPES
        for length in range(header_end(vector.frame) + 1, len(vector.frame))
    ]
    capture = write(tmp_path / "cut.pcap", (f for f, _ in cut), wire=(wire for _, wire in cut))
    compare(lua, capture, [decode_frame(frame, wire_length=wire) for frame, wire in cut])


def test_frames_cut_without_a_word(lua: Path, tmp_path: Path) -> None:
    """Every octet may be the last one: no script error, which :func:`tshark` looks for."""
    frames = [vector.frame[:n] for vector in SHAPES for n in range(14, len(vector.frame))]
    assert len(rows(lua, write(tmp_path / "cut.pcap", frames), COLUMNS)) == len(frames)


def test_random_octets_behind_a_udp_header(lua: Path, tmp_path: Path) -> None:
    rng = random.Random(4793)
    start = golden.ALL[0].frame[:42]
    frames = [
        shortened(start + bytes([kind << 3 | rng.randrange(8)]) + rng.randbytes(size), 43 + size)
        for kind in range(32)
        for size in range(0, 120, 4)
    ]
    compare(lua, write(tmp_path / "random.pcap", frames), [decode_frame(f) for f in frames])


WRITE = [
    uet.UET_RUD_REQ(ar=1, psn=1234, spdcid=5, dpdcid=7),
    uet.UET_SES_STD(opcode=1, message_id=1, request_length=4),
    Raw(b"data"),
]


def stacked(*lower: Packet, crc: bool = True) -> bytes:
    packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    for layer in (*lower, *WRITE, *([uet.UET_CRC()] if crc else [])):
        packet = packet / layer
    return bytes(packet)


IPV4 = IP(src="10.0.0.1", dst="10.0.0.2")
IPV6 = IPv6(src="fd00::1", dst="fd00::2")


@pytest.mark.parametrize(
    "lower",
    [
        (IPV4, UDP(sport=50000)),
        (Dot1Q(vlan=7), IPV4, UDP(sport=50000)),
        (Dot1Q(vlan=7), Dot1Q(vlan=8), IPV6, UDP(sport=50000)),
        (
            IP(src="10.0.0.1", dst="10.0.0.2", options=[IPOption(b"\x94\x04\x00\x00")]),
            UDP(sport=50000),
        ),
        (IPV6, IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt(), UDP(sport=50000)),
        (IPV6, IPv6ExtHdrDestOpt(), uet.UET_ENTROPY(entropy=9)),
        (IPV4, uet.UET_ENTROPY(entropy=9)),
        (IP(src="172.16.0.1", dst="172.16.0.2"), IPV4, UDP(sport=50000)),
        (IPV6, IPV4, uet.UET_ENTROPY(entropy=9)),
    ],
    ids=lambda lower: "-".join(layer.name.split()[0] for layer in lower),
)
def test_what_carries_uet_and_its_crc(lua: Path, tmp_path: Path, lower: tuple[Packet, ...]) -> None:
    frame = stacked(*lower)
    wrong = frame[:-5] + bytes([frame[-5] ^ 1]) + frame[-4:]
    frames = [frame, frame + bytes(7), wrong]  # as sent, padded, with a bit turned
    good, padded, bad = rows(lua, write(tmp_path / "a.pcap", frames), COLUMNS)
    for row in (good, padded):
        assert row["uet.crc.status"] == ["1"]
        assert row["uet.pds.psn"] == ["1234"]
        assert not set(row) & set(EXPERTS)
    assert "uet.crc.status" not in bad  # nothing says that there is a CRC
    strict = rows(lua, tmp_path / "a.pcap", COLUMNS, "-o", "uet.crc:Always")
    assert [row["uet.crc.status"] for row in strict] == [["1"], ["1"], ["0"]]
    assert ["uet.error.crc" in row for row in strict] == [False, False, True]
    off = rows(lua, tmp_path / "a.pcap", [*COLUMNS, "uet.payload"], "-o", "uet.crc:Never")
    assert all("uet.crc" not in row for row in off)
    assert off[0]["uet.payload"] == [(b"data" + frame[-4:]).hex()]


def test_a_code_point_can_mark_trimmed_packets(lua: Path, tmp_path: Path) -> None:
    (vector,) = (vector for vector in golden.ALL if vector.name == "tr-ipv4-udp")
    capture = write(tmp_path / "a.pcap", [vector.frame])
    for ranges, trimmed in ((f"{golden.TRIMMED_DSCP}", True), ("40-45,50", False)):
        codes = {golden.TRIMMED_DSCP} if trimmed else {*range(40, 46), 50}
        decoded = decode_frame(vector.frame, trimmed_dscp=frozenset(codes))
        assert decoded.trimmed == trimmed
        compare(lua, capture, [decoded], "-o", f"uet.dscp:{ranges}")


def test_ports_and_protocols_are_preferences(lua: Path, tmp_path: Path) -> None:
    moved = stacked(IPV4, UDP(sport=50000, dport=5555))
    native = bytearray(stacked(IPV4, uet.UET_ENTROPY()))
    native[23] = 254
    back = stacked(IPV4, UDP(sport=4793, dport=50000))  # somebody else's
    capture = write(tmp_path / "a.pcap", [moved, bytes(native), back])
    assert [bool(row) for row in rows(lua, capture, COLUMNS)] == [False, False, False]
    shown = rows(lua, capture, COLUMNS, "-o", "uet.port:5555", "-o", "uet.protocol:254")
    assert [row.get("uet.pds.psn") for row in shown] == [["1234"], ["1234"], None]
    assert shown[1]["uet.pds.entropy"] == ["0"]


def test_a_source_port_of_another_protocol(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "a.pcap", [stacked(IPV4, UDP(sport=53))])
    (row,) = rows(lua, capture, COLUMNS, "-o", "udp.try_heuristic_first:TRUE")
    assert row["uet.pds.psn"] == ["1234"]


def test_expected_psn_of_the_reference_provider(lua: Path) -> None:
    capture = CAPTURES / "tss_cluster_close_clear.pcap"
    columns = ["uet.pds.expected_psn", "uet.pds.flags.epsn", "uet.payload"]
    (off,) = (row for row in rows(lua, capture, [*columns, "uet.pds.type"])[-1:])
    assert "uet.pds.expected_psn" not in off
    on = rows(lua, capture, columns, "-o", "uet.epsn:TRUE")[-1]
    assert number(on["uet.pds.expected_psn"][0]) == int(off["uet.payload"][0], 16)
    assert "uet.payload" not in on


def summaries(lua: Path, capture: Path, *arguments: str) -> list[str]:
    layout = ("-T", "fields", "-e", "_ws.col.Protocol", "-e", "_ws.col.Info")
    return tshark(lua, capture, *layout, *arguments).splitlines()


def test_the_summary_says_what_an_engineer_asks_first(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "a.pcap", [stacked(IPV4, UDP(sport=50000))])
    assert summaries(lua, capture) == ["UET\tRUD_REQ WRITE AR PSN 1234 PDC 5->7 msg 1 4 B"]
    assert summaries(lua, CAPTURES / "rud_read_12.pcap") == [
        "UET\tRUD_REQ READ SYN AR PSN 478948930 PDC 1->new msg 0 12 B",
        "UET\tACK OK REQ=CLEAR PSN 478948930 CACK 478948929 PDC 1->1 msg 0 12 B at 0",
        "UET\tCP CLEAR_CMD PSN 0 PDC 1->1 clear PSN 478948930",
    ]
    secured = summaries(lua, CAPTURES / "tss_direct_write.pcap")
    assert secured[0].startswith("UET\tTSS SDI 1 AN 0 epoch 0 counter 0 ")


def test_requests_and_answers_are_linked(lua: Path) -> None:
    capture = CAPTURES / "rud_write_loss_ackcc.pcap"
    columns = ["uet.pds.reply_in", "uet.pds.reply_to", "uet.pds.reply_time"]
    shown = rows(lua, capture, columns, "-2")
    assert shown[61] == {"uet.pds.reply_in": ["63"]}  # the retransmission of the lost packet
    assert shown[62]["uet.pds.reply_to"] == ["62"]
    assert shown[62]["uet.pds.reply_time"] == ["0.000099000"]
    duplicate = rows(lua, CAPTURES / "rud_write_ackloss.pcap", ["uet.pds.retx_of"], "-2")
    assert any(row for row in duplicate)


def test_the_sack_bitmap_is_spelled_out(lua: Path) -> None:
    capture = CAPTURES / "rud_write_loss_ackcc.pcap"
    (row,) = rows(lua, capture, ["uet.pds.sack_received"], "-Y", "frame.number == 61")
    assert row["uet.pds.sack_received"] == ["1126659531, 1126659533-1126659540"]


def test_every_colouring_rule_is_a_filter(lua: Path) -> None:
    for rule in wireshark.color_rules():
        _, _, condition, colours = rule.split("@")
        assert colours.count("[") == 2
        tshark(lua, golden.CAPTURE, "-Y", condition)


def test_one_name_finds_all_formats_of_a_request(lua: Path) -> None:
    shown = rows(lua, golden.CAPTURE, ["uet.ses.opcode", "uet.ses.job_id"])
    for vector, row in zip(golden.ALL, shown, strict=True):
        if "ses.job_id" in vector.fields and not vector.is_tss and not vector.crc_only:
            assert row["uet.ses.job_id"] == [str(vector.fields["ses.job_id"])]
            requested = any(name.startswith("ses.request") for name, _ in vector.layers)
            assert row.get("uet.ses.opcode", []) == (
                [str(vector.fields["ses.opcode"])] if requested else []
            )


def test_a_second_dissector_gives_way(lua: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.lua"
    again.write_text(lua.read_text())
    out = summaries(lua, golden.CAPTURE, "-X", f"lua_script:{again}")
    assert len(out) == len(golden.ALL)
    other = tmp_path / "other.lua"
    other.write_text('Proto("uet", "Another").dissector = function() return 0 end\n')
    done = tshark(
        other, golden.CAPTURE, "-X", f"lua_script:{lua}", "-T", "fields", "-e", "frame.protocols"
    )
    assert "uet" not in done


def test_the_script_parses_without_wireshark(lua: Path) -> None:
    luac = shutil.which("luac") or shutil.which("luac5.2")
    if luac is None:
        pytest.skip("luac is not installed")
    subprocess.run([luac, "-p", str(lua)], check=True)


#: Names that Wireshark's own dissector registers, and why this one does without.
NOT_TAKEN = {
    "uet.pds.ack.prlg": "stands for the whole extension",
    "uet.pds.ack.cc_state.reserved": "octets, where the layer has a number",
    "uet.pds.flags.rsvd_ack": "reserved",
    "uet.pds.flags.rsvd_ctl": "reserved",
    "uet.pds.flags.rsvd_nack": "reserved",
    "uet.pds.flags.rsvd_rud_rod": "reserved",
    "uet.pds.flags.rsvd_rudi": "reserved",
    "uet.pds.flags.rsvd_uud": "reserved",
    "uet.pds.pdc_mode": "has the bits the other way round",
    "uet.pds.pdc_mode_rsv": "has the bits the other way round",
    "uet.pds.pdc_mode_use_rsv": "has the bits the other way round",
    "uet.ses.rendv_ext_hdr.reserved": "not reserved: the generation",
    "uet.ses.rendv_ext_hdr.reserved2": "not reserved: the index",
}


def test_names_of_wiresharks_own_dissector() -> None:
    theirs = set((Path(__file__).parent / "wireshark_upstream_fields.txt").read_text().split())
    script = wireshark.dissector()
    ours = set(re.findall(r'ProtoField\.\w+\("(uet[\w.]*)"', script))
    assert theirs - ours == set(NOT_TAKEN)
    for place, names in UPSTREAM.values():
        for name in names.values():
            assert (name if name.startswith("uet.") else f"uet.{place}.{name}") in theirs


def test_numbers_that_wiresharks_own_dissector_joins(lua: Path) -> None:
    columns = ["uet.tss.tsc", "uet.ses.std.restart_token", "uet.ses.std.flags"]
    columns += ["uet.pds.ack.cc_state", "uet.pds.ack.ccx_state"]
    shown = dict(zip(map(str, golden.ALL), rows(lua, golden.CAPTURE, columns), strict=True))
    secured = next(v for v in golden.ALL if str(v) == "rp-tss-ipv4-ssi-direct")
    epoch, counter = secured.fields["tss.epoch"], golden.number(secured.fields["tss.counter"])
    assert shown[str(secured)] == {"uet.tss.tsc": [f"0x{epoch << 48 | counter:016x}"]}
    deferred = next(v for v in golden.ALL if str(v) == "rp-ses-deferrable-send")
    first, second = (deferred.fields[f"ses.{who}_restart_token"] for who in ("initiator", "target"))
    token = shown[str(deferred)]["uet.ses.std.restart_token"]
    assert token == [f"0x{first << 32 | second:016x}"]
    credit = next(v for v in golden.ALL if str(v) == "rp-ack-cc-credit")
    (state,) = (octets[24:32] for name, octets in credit.layers if name == "pds.ack_cc")
    assert shown[str(credit)]["uet.pds.ack.cc_state"] == [state.hex()]


def test_a_packet_quoted_by_icmp_is_not_called_malformed(lua: Path, tmp_path: Path) -> None:
    inner = stacked(IPV4, UDP(sport=50000))[14 : 14 + 20 + 8 + 12 + 10]
    frame = bytes(Ether() / IP(src="10.0.0.9", dst="10.0.0.1") / ICMP(type=11) / Raw(inner))
    capture = write(tmp_path / "icmp.pcap", [frame])
    (row,) = rows(lua, capture, COLUMNS)
    assert row["uet.pds.psn"] == ["1234"]
    assert not set(row) & set(EXPERTS)
    (summary,) = summaries(lua, capture)
    assert summary.startswith("ICMP\tTime-to-live exceeded")
