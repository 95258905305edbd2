"""How the generated dissector links requests and replies, and which fields it makes."""

import random
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from tests.harness.wire import golden
from tests.harness.wire.tshark import (
    CAPTURES,
    COLUMNS,
    TSHARK,
    Row,
    rows,
    tshark,
    write,
    write_ports,
)
from uet.wire import layers as uet

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")

LINKS = ["uet.pds.reply_in", "uet.pds.reply_to", "uet.pds.reply_time", "uet.pds.retx_of"]
LINKED = ("-o", "uet.links:TRUE")
HERE, THERE = "10.0.0.1", "10.0.0.2"


def frame(source: str, destination: str, packet: Packet) -> bytes:
    return bytes(Ether() / IP(src=source, dst=destination) / UDP(sport=50000) / packet)


REQUEST = frame(HERE, THERE, uet.UET_RUD_REQ(psn=7, spdcid=5, dpdcid=6))
AGAIN = frame(HERE, THERE, uet.UET_RUD_REQ(psn=7, spdcid=5, dpdcid=6, retx=1))
REPLY = frame(THERE, HERE, uet.UET_ACK(cack_psn=7, spdcid=6, dpdcid=5))


def links(lua: Path, capture: Path, *options: str) -> list[Row]:
    """Twice through the capture, with a filter: else the first pass knows no interfaces."""
    return rows(lua, capture, LINKS, "-2", "-Y", "frame", *(options or LINKED))


def test_every_port_of_a_capture_has_its_own_links(lua: Path, tmp_path: Path) -> None:
    """A packet that two ports saw is there twice; each request is answered at its own port."""
    capture = write_ports(
        tmp_path / "ports.pcapng",
        [[(0, 0, REQUEST), (1, 10, REQUEST), (1, 30, REPLY), (0, 40, REPLY)]],
    )
    first, second, near, far = links(lua, capture)
    assert (first["uet.pds.reply_in"], second["uet.pds.reply_in"]) == (["4"], ["3"])
    assert (near["uet.pds.reply_to"], far["uet.pds.reply_to"]) == (["2"], ["1"])
    assert near["uet.pds.reply_time"] == ["0.000020000"]
    assert far["uet.pds.reply_time"] == ["0.000040000"]


def test_a_retransmission_at_one_port_is_none_at_another(lua: Path, tmp_path: Path) -> None:
    """The first transmission never came as far as the second port."""
    capture = write_ports(
        tmp_path / "ports.pcapng",
        [[(0, 0, REQUEST), (0, 50, AGAIN), (1, 55, AGAIN), (1, 60, REPLY), (0, 70, REPLY)]],
    )
    shown = links(lua, capture)
    assert [row.get("uet.pds.retx_of") for row in shown] == [None, ["1"], None, None, None]
    assert [row.get("uet.pds.reply_in") for row in shown] == [["5"], ["5"], ["4"], None, None]
    assert shown[4]["uet.pds.reply_time"] == ["0.000020000"]


def test_transmissions_in_between_are_answered_too(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "a.pcap", [REQUEST, AGAIN, AGAIN, AGAIN, REPLY, REPLY])
    shown = links(lua, capture)
    assert [row.get("uet.pds.reply_in") for row in shown[:4]] == [["5"]] * 4
    assert [row.get("uet.pds.reply_to") for row in shown[4:]] == [["4"]] * 2


def test_links_are_made_where_they_are_asked_for(lua: Path, tmp_path: Path) -> None:
    capture = write(tmp_path / "a.pcap", [REQUEST, REPLY])
    assert all(links(lua, capture))
    assert rows(lua, capture, LINKS) == [{}, {}]


def test_tables_of_requests_and_frames_are_bounded(lua: Path, tmp_path: Path) -> None:
    """With room for four requests and six frames what is older is unknown, and nothing breaks."""
    script = lua.read_text()
    small = script.replace("local WAITING = 65536", "local WAITING = 2")
    small = small.replace("local FRAMES = 4194304", "local FRAMES = 6")
    assert small.count("= 2\n") > script.count("= 2\n")
    assert "FRAMES = 6" in small
    bounded = tmp_path / "bounded.lua"
    bounded.write_text(small)
    requests = [frame(HERE, THERE, uet.UET_RUD_REQ(psn=n, spdcid=5, dpdcid=6)) for n in range(8)]
    replies = [
        frame(THERE, HERE, uet.UET_ACK(cack_psn=n, spdcid=6, dpdcid=5)) for n in reversed(range(8))
    ]
    capture = write(tmp_path / "a.pcap", [*requests, *replies])
    whole = links(lua, capture)
    assert [row["uet.pds.reply_in"] for row in whole[:8]] == [[str(16 - n)] for n in range(8)]
    few = links(bounded, capture)
    for row, full in zip(few, whole, strict=True):
        assert row.items() <= full.items()
    found = [n for n, row in enumerate(few, 1) if "uet.pds.reply_to" in row]
    assert found == [11]  # the places of 9 and 10 were taken by the frames behind them
    assert [n for n, row in enumerate(rows(bounded, capture, LINKS, *LINKED), 1) if row] == [
        9,
        10,
        11,
    ]


#: Fields of all sublayers, some of them derived, hidden, or joined.
WATCHED = (
    *("uet", "uet.pds", "uet.pds.psn", "uet.pds.flags", "uet.pds.flags.syn", "uet.pds.ack_psn"),
    *("uet.ses.opcode", "uet.ses.med_req.flags", "uet.ses", "uet.ext.read_ri_generation"),
    *("uet.payload", "uet.crc.status", "uet.pds.sack_received", "uet.tss.tsc", "uet.trimmed"),
    *("uet.pds.ack.prlg", "uet.pds.reply_to", "uet.error.length", "uet.note.reserved"),
)


@pytest.mark.parametrize("name", WATCHED)
def test_a_filter_finds_what_the_details_show(lua: Path, tmp_path: Path, name: str) -> None:
    """Wireshark asks for single fields where a filter does, for all where it shows a packet."""
    capture = tmp_path / "all.pcap"
    frames = [vector.frame for vector in golden.ALL]
    rng = random.Random(len(name))
    for vector in golden.ALL[::4]:
        changed = bytearray(vector.frame)
        changed[rng.randrange(42, len(changed))] ^= 0x40
        frames.append(bytes(changed))
    write(capture, [*frames, REQUEST, REPLY])
    filtered = tshark(lua, capture, "-Y", name, "-T", "text", *LINKED).splitlines()
    shown = rows(lua, capture, [name], *LINKED)
    assert [int(line.split()[0]) for line in filtered] == [
        number for number, row in enumerate(shown, 1) if row
    ]


def test_expert_notes_come_whether_packets_are_shown_or_not(lua: Path) -> None:
    """A file that is only opened says what is wrong with it."""
    for capture in (golden.CAPTURE, CAPTURES / "err_bad_mkey.pcap"):
        opened = tshark(lua, capture, "-q", "-z", "expert")
        table = opened[opened.index("\n") :]
        verbose = tshark(lua, capture, "-V", "-z", "expert")
        assert verbose.endswith(table)
        assert "The operation failed" in opened or capture == golden.CAPTURE
    assert COLUMNS
