"""What the generated dissector offers besides the fields: CRC, preferences, links, names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from tests.wire import golden
from tests.wire.tshark import (
    CAPTURES,
    COLUMNS,
    EXPERTS,
    TSHARK,
    compare,
    number,
    rows,
    summaries,
    tshark,
    write,
)
from uet.wire import layers as uet
from uet.wire import wireshark
from uet.wire.frame import decode_frame
from uet.wire.wireshark_colors import color_rules
from uet.wire.wireshark_names import UPSTREAM

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")


@pytest.fixture(scope="module")
def lua(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("lua") / "uet.lua"
    script.write_text(wireshark.dissector())
    return script


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


def test_the_summary_says_what_an_engineer_asks_first(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "a.pcap", [stacked(IPV4, UDP(sport=50000))])
    assert summaries(lua, capture) == ["UET\tRUD_REQ WRITE AR PSN 1234 PDC 5->7 msg 1 4 B"]
    assert summaries(lua, CAPTURES / "rud_read_12.pcap") == [
        "UET\tRUD_REQ READ SYN AR PSN 478948930 PDC 1->new msg 0 12 B",
        "UET\tACK DATA OK REQ=CLEAR PSN 478948930 CACK 478948929 PDC 1->1 msg 0 12 B at 0",
        "UET\tCP CLEAR_CMD PDC 1->1 clear PSN 478948930",
    ]
    secured = summaries(lua, CAPTURES / "tss_direct_write.pcap")
    assert secured[0].startswith("UET\tTSS SDI 1 AN 0 epoch 0 counter 0 ")


def test_the_summary_of_control_packets_and_return_data(lua: Path, tmp_path: Path) -> None:
    ids = {"spdcid": 5, "dpdcid": 7}
    packets = [
        uet.UET_CP(ctl_type="PROBE", payload_word=9, **ids),
        uet.UET_CP(ctl_type="CREDIT", payload_word=0x0100_0003, **ids),
        uet.UET_CP(ctl_type="CLOSE_CMD", psn=8, **ids),
        uet.UET_CP(ctl_type="NEGOTIATION", psn=8, payload_word=0x01020304, **ids)
        / Raw(b"\x05\xff"),
        uet.UET_RUD_REQ(psn=8, next_hdr=5, **ids)
        / uet.UET_SES_RESPONSE_DATA(response_message_id=3, payload_length=2, modified_length=2)
        / Raw(b"ab"),
    ]
    frames = [bytes(Ether() / IPV4 / UDP(sport=50000) / packet) for packet in packets]
    assert summaries(lua, write(tmp_path / "a.pcap", frames)) == [
        "UET\tCP PROBE PDC 5->7 SACK base PSN 9",
        "UET\tCP CREDIT PDC 5->7 CCC 1 credit 3",
        "UET\tCP CLOSE_CMD PSN 8 PDC 5->7",
        "UET\tCP NEGOTIATION PSN 8 PDC 5->7 payload 0102030405ff",
        "UET\tRUD_REQ DATA OK PSN 8 PDC 5->7 msg 3 2 B at 0",
    ]


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
    for rule in color_rules():
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
