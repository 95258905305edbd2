"""Test what the generated dissector offers besides the fields: CRC, preferences, links, names."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from tests import DATA
from tests.harness.wire import golden
from tests.harness.wire.tshark import (
    CAPTURES,
    COLUMNS,
    EXPERTS,
    TSHARK,
    compare,
    disagreements,
    number,
    read_pcap,
    rows,
    summaries,
    tshark,
    write,
)
from uet.wire import layers as uet
from uet.wire.frame import decode_frame
from uet.wire.wireshark import dissector
from uet.wire.wireshark.colors import color_rules
from uet.wire.wireshark.names import ALIASES, JOINED, UPSTREAM

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")


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


PROVIDER = ("-o", "uet.reference_provider:TRUE")


def test_expected_psn_of_the_reference_provider(lua: Path) -> None:
    capture = CAPTURES / "tss_cluster_close_clear.pcap"
    frame = read_pcap(capture)[-1]
    columns = [*COLUMNS, "uet.pds.flags.epsn", "uet.payload", "uet.note.reserved"]
    off = rows(lua, capture, columns)[-1]
    assert "uet.pds.expected_psn" not in off
    assert "uet.note.reserved" in off
    on = rows(lua, capture, columns, *PROVIDER)[-1]
    assert number(on["uet.pds.expected_psn"][0]) == int(off["uet.payload"][0], 16)
    assert not {"uet.payload", "uet.note.reserved"} & set(on)
    decoded = decode_frame(frame, reference_provider=True)
    assert disagreements(on, decoded) == []
    assert decoded.notes == []
    assert decode_frame(frame).notes == ["pds.ack: reserved rsvd_flags_hi is 1"]


@pytest.mark.parametrize("name", ["rod_writesync_700x3", "rod_atomicsync_900x3"])
def test_synchronised_operations_of_the_reference_provider(lua: Path, name: str) -> None:
    capture = CAPTURES / f"{name}.pcap"
    frames = read_pcap(capture)
    compare(lua, capture, [decode_frame(f, reference_provider=True) for f in frames], *PROVIDER)
    columns = ["uet.ext.sync_group", "uet.ext.sync_count", "uet.note.opcode", "uet.payload"]
    plain = rows(lua, capture, columns)
    shown = rows(lua, capture, columns, *PROVIDER)
    asked = [k for k, row in enumerate(plain) if "uet.note.opcode" in row]
    assert len(asked) == 3
    for k in asked:
        assert "uet.note.opcode" not in shown[k]
        (octets,) = plain[k]["uet.payload"]
        group, count = (number(shown[k][column][0]) for column in columns[:2])
        assert octets.startswith(f"{group:04x}{count:04x}")
    assert summaries(lua, capture, *PROVIDER)[asked[0]].startswith("UET\tROD_REQ SYNC_")


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
    shown = rows(lua, capture, columns, "-2", "-Y", "frame", "-o", "uet.links:TRUE")
    assert shown[61] == {"uet.pds.reply_in": ["63"]}  # the retransmission of the lost packet
    assert shown[62]["uet.pds.reply_to"] == ["62"]
    assert shown[62]["uet.pds.reply_time"] == ["0.000099000"]
    duplicate = rows(
        lua, CAPTURES / "rud_write_ackloss.pcap", ["uet.pds.retx_of"], "-o", "uet.links:TRUE"
    )
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


#: Names that Wireshark's own dissector registers (``epan/dissectors/packet-uet.c`` of its sources,
#: as of late 2025), with their types; Debian 12's tshark does not have it.
UPSTREAM_FIELDS = dict(
    line.split() for line in (DATA / "wireshark_upstream_fields.txt").read_text().splitlines()
)
#: Lua types whose values filters and columns treat alike.
_KINDS = {
    **dict.fromkeys(("uint", "uint8", "uint16", "uint24", "uint32", "int16"), "number"),
    **dict.fromkeys(("bytes", "none"), "octets"),
}


def registered(script: str) -> dict[str, set[str]]:
    """The names that a script registers, with the kinds of their fields."""
    found: dict[str, set[str]] = {}
    for kind, name in re.findall(r'ProtoField\.(\w+)\("(uet[\w.]*)"', script):
        found.setdefault(name, set()).add(_KINDS.get(kind, kind))
    return found


def test_every_name_of_wiresharks_own_dissector_is_known() -> None:
    """A profile with columns, filters and colours on them loads with either."""
    ours = registered(dissector.dissector())
    assert set(UPSTREAM_FIELDS) - set(ours) == set()
    strange = {
        name: (kind, ours[name])
        for name, kind in UPSTREAM_FIELDS.items()
        if ours[name] != {_KINDS.get(kind, kind)}
    }
    assert strange == {}


def test_every_name_here_is_wiresharks_own_or_one_that_it_lacks() -> None:
    """A field that both have has one name: no name of ours stands for what upstream names."""
    for place, names in UPSTREAM.values():
        for name in names.values():
            whole = name if name.startswith("uet.") else f"uet.{place}.{name}"
            assert whole in UPSTREAM_FIELDS, whole
    for _, _, name in ALIASES:
        assert name in UPSTREAM_FIELDS, name
    for *_, name in JOINED:
        assert name in UPSTREAM_FIELDS, name
    own = set(registered(dissector.dissector())) - set(UPSTREAM_FIELDS)
    stated = set((DATA / "wireshark_own_fields.txt").read_text().split())
    assert own == stated


def test_names_for_what_is_shown_under_another(lua: Path, tmp_path: Path) -> None:
    """Values under the names of Wireshark's own dissector, by the layouts of UES 1.0."""
    packets = [
        uet.UET_RUD_REQ(syn=1, pdc_info=1, rsvd_flags_hi=2, rsvd_flags_lo=1),
        uet.UET_RUD_REQ(syn=1, pdc_info=8),
        uet.UET_RUD_REQ(syn=1, pdc_info=6),
        uet.UET_ACK_CCX(ccx_type=14, ccx_state_lo=7, rsvd_flags_lo=1),
        uet.UET_ACK_CC(cc_type=1, credit=5, rsvd_credit=9),
        uet.UET_NACK(nt=1, nack_pkt_id=77, rsvd_flags_lo=5),
        uet.UET_CP(syn=1, pdc_info=9, rsvd_flags_hi=1),
        uet.UET_RUDI_REQ(rsvd_flags_lo=3),
        uet.UET_UUD_REQ(rsvd_flags=0x21),
    ]
    frames = [bytes(Ether() / IPV4 / UDP(sport=50000) / packet) for packet in packets]
    base = "uet.pds."
    columns = [
        base + name
        for name in (
            *("pdc_mode", "pdc_mode_use_rsv", "pdc_mode_rsv", "ack.prlg", "ack.cc_type"),
            *("ack.cc_state.reserved", "nack.psn"),
            *(f"flags.rsvd_{kind}" for kind in ("rud_rod", "ack", "nack", "ctl", "rudi", "uud")),
        )
    ]
    shown = [
        {name.removeprefix(base): values for name, values in row.items()}
        for row in rows(lua, write(tmp_path / "a.pcap", frames), columns)
    ]
    mode = ("pdc_mode", "pdc_mode_use_rsv", "pdc_mode_rsv")
    assert [[number(row[name][0]) for name in mode] for row in shown[:3]] == [
        [1, 1, 0], [8, 1, 0], [6, 0, 3],
    ]  # fmt: skip
    assert [number(each) for each in shown[0]["flags.rsvd_rud_rod"]] == [2, 1]
    assert number(shown[3]["ack.cc_type"][0]) == 14
    assert shown[3]["ack.prlg"] == [bytes(packets[3])[12:40].hex()]
    assert [number(each) for each in shown[3]["flags.rsvd_ack"]] == [0, 1]
    assert shown[4]["ack.prlg"] == [bytes(packets[4])[12:32].hex()]
    assert shown[4]["ack.cc_state.reserved"] == ["000009"]
    assert number(shown[5]["nack.psn"][0]) == 77
    assert [number(each) for each in shown[5]["flags.rsvd_nack"]] == [0, 5]
    assert number(shown[6]["pdc_mode_use_rsv"][0]) == 1
    assert [number(each) for each in shown[6]["flags.rsvd_ctl"]] == [1, 0]
    assert [number(each) for each in shown[7]["flags.rsvd_rudi"]] == [0, 3]
    assert [number(each) for each in shown[8]["flags.rsvd_uud"]] == [0x21]


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
