"""``uetemu decode`` as a user calls it."""

import gzip
import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet
from scapy.utils import PcapNgWriter, PcapWriter, RawPcapReader

from emulator.cli.main import main
from emulator.transports.one_time_keys import KEY_FILE
from tests.harness.wire.golden import ALL, CAPTURE, TRIMMED_DSCP, VECTORS, Vector
from uet.wire.layers import UET_CP


class Result:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def decode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run ``uetemu decode`` with these arguments."""

    def run(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["uetemu", "decode", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


def assert_one_sentence(result: Result, *words: str) -> None:
    assert result.status != 0
    assert result.err.startswith("uetemu: ")
    assert len(result.err.splitlines()) == 1
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


def assert_like_vector(found: dict[str, Any], vector: Vector) -> None:
    assert set(found) == {"frame", "layers", "fields", "derived", "errors", "notes"}
    control = vector.fields.get("pds.ctl_type")
    stated = {"clear_psn": (2, 3), "sack_base_psn": (6,), "negotiation_payload": (9,)}
    more = {name for name, kinds in stated.items() if control in kinds and not vector.is_tss}
    assert set(found["derived"]) == set(vector.derived) | more
    assert vector.derived.items() <= found["derived"].items()
    if vector.is_tss or vector.crc_only:
        return
    fields = dict(found["fields"])
    if vector.name.startswith("ws-"):
        del fields["ip.dscp"]
    assert fields == vector.fields
    assert found["layers"] == [name for name, _ in vector.layers]
    assert bool(found["errors"]) == ("header_only" in vector.restrictions)


def test_the_golden_capture_as_json(decode: Any) -> None:
    result = decode(CAPTURE, "--format", "json")
    assert (result.status, result.err) == (0, "")
    assert [found["frame"] for found in result.objects] == list(range(1, len(ALL) + 1))
    for found, vector in zip(result.objects, ALL, strict=True):
        if vector.is_tss:
            assert found["layers"] == ["tss", "payload", "icv"]
        else:
            assert_like_vector(found, vector)


@pytest.mark.parametrize("vector", [v for v in ALL if not v.is_tss][::9], ids=str)
def test_a_frame_in_hexadecimal(decode: Any, vector: Vector) -> None:
    for digits in (vector.frame.hex(), vector.frame.hex(":").upper(), "0x" + vector.frame.hex()):
        (found,) = decode(digits, "--format=json", "--trimmed-dscp", TRIMMED_DSCP).objects
        assert found["frame"] == 1
        assert_like_vector(found, vector)


def test_text_names_layers_fields_and_meanings(decode: Any) -> None:
    result = decode(CAPTURE)
    assert result.status == 0
    for words in (
        "Frame 96",
        "pds.rud_req  12 octets at 42",
        "opcode=1(WRITE)",
        "nack_code=1(TRIMMED)",
        "clear_psn=16909057",
        "note: trimmed by a switch",
        "error: payload_length is 837, but 0 octets follow",
    ):
        assert words in result.out


def test_brief_is_one_line_a_frame(decode: Any) -> None:
    result = decode("--brief", CAPTURE)
    assert len(result.out.splitlines()) == len(ALL)
    for words in (
        "CLOSE_CMD psn=3000 pdc=16389->16390 ar",
        "CLEAR_REQ pdc=12291->12292 clear_psn=4294967294",
        "PROBE pdc=24585->24586 sack_base_psn=11537390",
        "CREDIT pdc=28683->28684 ccc=0 credit=1193046",
        "NEGOTIATION psn=16909060 pdc=36879->new payload=0x00000000",
        "cack_psn=1 ack_psn=4294967293 pdc=1->2 REQ=close",
        "ROD_OOO nack_psn=2309737967 pdc=291->17767",
        "ses.ext_atomic PROD",
        "RESPONSE_W_DATA OK response_message_id=12289",
        "tss sdi=658188 an=1 epoch=258 counter=3315799033608",
    ):
        assert words in result.out


def test_what_control_packets_say_in_their_payload(decode: Any) -> None:
    def derived(packet: Packet, octets: bytes = b"") -> dict[str, Any]:
        frame = bytes(Ether() / IP(dst="10.0.1.2") / UDP(dport=4793) / packet / octets)
        (found,) = decode(frame.hex(), "--format=json").objects
        return dict(found["derived"])

    for kind in ("CLEAR_CMD", "CLEAR_REQ"):
        assert derived(UET_CP(ctl_type=kind, payload_word=7)) == {"clear_psn": 7}
    assert derived(UET_CP(ctl_type="PROBE", payload_word=9)) == {"sack_base_psn": 9}
    assert derived(UET_CP(ctl_type="CREDIT", payload_word=9)) == {}
    stated = derived(UET_CP(ctl_type="NEGOTIATION", payload_word=0x01020304), b"\x05\xff")
    assert stated == {"negotiation_payload": "0x0102030405ff"}


def test_pcapng_gzip_and_standard_input(
    decode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = decode(CAPTURE, "--format=json").out
    modern = tmp_path / "modern.pcapng"
    with PcapNgWriter(str(modern)) as writer:
        for octets, _ in RawPcapReader(str(CAPTURE)):
            writer.write(Ether(octets))
    assert decode(modern, "--format=json").out == expected
    packed = tmp_path / "packed.pcap.gz"
    packed.write_bytes(gzip.compress(CAPTURE.read_bytes()))
    assert decode(packed, "--format=json").out == expected
    for path in (CAPTURE, modern):
        stream = io.TextIOWrapper(io.BytesIO(path.read_bytes()))
        monkeypatch.setattr(sys, "stdin", stream)
        assert decode("-", "--format=json").out == expected


def write_capture(path: Path, frames: list[bytes], *, snap: int = 65535, linktype: int = 1) -> Path:
    with path.open("wb") as file:
        file.write(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, snap, linktype))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame[:snap]), len(frame)) + frame[:snap])
    return path


def test_headers_only_capture(decode: Any, tmp_path: Path) -> None:
    frames = [vector.frame for vector in ALL if not vector.restrictions]
    capture = write_capture(tmp_path / "headers.pcap", frames, snap=66)
    result = decode(capture, "--format=json")
    assert result.status == 0
    assert all(found["errors"] == [] for found in result.objects)
    cut = [found for found, frame in zip(result.objects, frames, strict=True) if len(frame) > 66]
    assert all("captured 66 of" in found["notes"][0] for found in cut)


@pytest.mark.parametrize(("linktype", "front"), [(101, b""), (113, bytes(14)), (276, b"")])
def test_captures_of_other_link_types(
    decode: Any, tmp_path: Path, linktype: int, front: bytes
) -> None:
    frames = []
    for vector in ALL:
        ethertype, packet = vector.frame[12:14], vector.frame[14:]
        head = {101: b"", 113: front + ethertype, 276: ethertype + bytes(18)}[linktype]
        frames.append(head + packet)
    capture = write_capture(tmp_path / "other.pcap", frames, linktype=linktype)
    assert decode(capture, "--format=json").out == decode(CAPTURE, "--format=json").out


def test_frames_without_uet_are_counted_on_stderr(decode: Any, tmp_path: Path) -> None:
    capture = tmp_path / "mixed.pcap"
    with PcapWriter(str(capture), linktype=1) as writer:
        writer.write(Ether(ALL[0].frame))
        writer.write(Ether() / ARP())
        writer.write(Ether() / IP(dst="10.0.1.2") / UDP(dport=53))
    result = decode(capture, "--format=json")
    assert result.status == 0
    assert [found["frame"] for found in result.objects] == [1]
    assert "2 of 3 frames carry no UET" in result.err
    listed = decode(capture, "--format=json", "--all")
    assert [found["layers"] for found in listed.objects[1:]] == [[], []]
    assert all(len(found["errors"]) == 1 for found in listed.objects[1:])
    assert listed.err == ""


def test_malformed_frame_in_a_good_capture(decode: Any, tmp_path: Path) -> None:
    broken = bytearray(ALL[0].frame)
    broken[42] = 0xF8
    capture = write_capture(tmp_path / "broken.pcap", [ALL[0].frame, bytes(broken)])
    result = decode(capture, "--format=json")
    assert result.status == 0
    assert [bool(found["errors"]) for found in result.objects] == [False, True]


def test_crc_modes(decode: Any) -> None:
    vector = next(v for v in ALL if v.name == "rp-nack-experimental")
    damaged = (vector.frame[:-1] + bytes([vector.frame[-1] ^ 1])).hex()
    (found,) = decode(damaged, "--format=json", "--crc=on").objects
    assert found["layers"][-1] == "crc"
    assert "CRC" in found["errors"][0]
    (found,) = decode(damaged, "--format=json").objects
    assert "CRC" in found["errors"][0]
    (found,) = decode(vector.frame.hex(), "--format=json", "--crc=off").objects
    assert "crc" not in found["fields"]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("/no/such/file.pcap", "no such file"),
        ("abc", "two are needed"),
        ("", "nothing to decode"),
        ("  ", "nothing to decode"),
        ("0xzz", "hexadecimal"),
        ("deadbeef", "no UET"),
        ("00" * 5000, "no UET"),
        (".", "directory"),
        ("a\0b", "no such file"),
    ],
)
def test_bad_sources(decode: Any, source: str, word: str) -> None:
    assert_one_sentence(decode(source), word)


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 10, 23, 24, 30, 39, 41, 100, 3000])
def test_truncated_captures(decode: Any, tmp_path: Path, kept: int) -> None:
    capture = tmp_path / "cut.pcap"
    capture.write_bytes(CAPTURE.read_bytes()[:kept])
    word = {0: "empty", 24: "no frames"}.get(kept, "damaged")
    result = decode(capture, "--format=json")
    assert_one_sentence(result, word)
    if kept == 3000:
        assert len(result.objects) > 10


@pytest.mark.parametrize("kept", [1, 4, 7, 11, 20, 27, 30, 47, 60, 200, 3001])
def test_truncated_pcapng(decode: Any, tmp_path: Path, kept: int) -> None:
    whole = tmp_path / "whole.pcapng"
    with PcapNgWriter(str(whole)) as writer:
        for octets, _ in RawPcapReader(str(CAPTURE)):
            writer.write(Ether(octets))
    cut = tmp_path / "cut.pcapng"
    cut.write_bytes(whole.read_bytes()[:kept])
    assert_one_sentence(decode(cut), "cut.pcapng")


def test_hostile_captures(decode: Any, tmp_path: Path) -> None:
    record = struct.pack("<IIII", 0, 0, 0xFFFFFFF0, 60)
    good = CAPTURE.read_bytes()
    hostile = {
        "length.pcap": good[:24] + record + bytes(50),
        "text.pcap": b"no capture at all, only text",
        "zip.pcap.gz": gzip.compress(good)[:500],
        "notgzip.gz": b"\x1f\x8b" + bytes(40),
        "type.pcap": good[:20] + struct.pack("<I", 147) + good[24:],
        "block.pcapng": struct.pack("<IIIHHq", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1)
        + struct.pack("<III", 28, 6, 0xFFFFFFF0),
        "interface.pcapng": struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
        + struct.pack("<IIIIIIII", 6, 32, 9, 0, 0, 0, 0, 32),
    }
    for name, octets in hostile.items():
        path = tmp_path / name
        path.write_bytes(octets)
        assert_one_sentence(decode(path), name)


def test_damaged_captures_never_escape(decode: Any, tmp_path: Path) -> None:
    good = bytearray(CAPTURE.read_bytes()[:2000])
    path = tmp_path / "damaged.pcap"
    for at in range(0, 120):
        damaged = bytearray(good)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        result = decode(path, "--format=json")
        assert result.status in (0, 1)
        assert "Traceback" not in result.err


# Keys

SECURED = [vector for vector in ALL if vector.is_tss]


def domain_of(vector: Vector) -> dict[str, Any]:
    """The secure domain of a vector as a key file has it."""
    tss = json.loads((VECTORS / f"{vector.name}.json").read_text())["tss"]
    rekey = {name: tss[name] for name in ("rekey_mask", "rekey_shift") if name in tss}
    keys = {str(vector.fields["tss.an"]): tss["secure_domain_key"]}
    return {"sdi": vector.fields["tss.sdi"], "mode": tss["mode"], "keys": keys, **rekey}


def write_keys(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


def secured_capture(folder: Path) -> Path:
    return write_capture(folder / "secured.pcap", [vector.frame for vector in SECURED])


def assert_shows_the_plaintext(result: Result) -> None:
    assert (result.status, result.err) == (0, "")
    for found, vector in zip(result.objects, SECURED, strict=True):
        assert found["layers"] == [name for name, _ in vector.layers]
        assert found["fields"] == vector.fields
        assert found["derived"] == vector.derived
        assert found["errors"] == []


def test_keys_show_the_plaintext(decode: Any, tmp_path: Path) -> None:
    capture = secured_capture(tmp_path)
    domains = [domain_of(vector) for vector in SECURED]
    for data in (domains, {"domains": domains}):
        keys = write_keys(tmp_path / "keys.json", data)
        assert_shows_the_plaintext(decode(capture, "--format=json", "--keys", keys))


def test_text_shows_the_plaintext_too(decode: Any, tmp_path: Path) -> None:
    vector = next(there for there in SECURED if there.layers[-2][0] == "payload")
    keys = write_keys(tmp_path / "keys.json", domain_of(vector))
    text = decode(vector.frame.hex(), "--keys", keys)
    (payload,) = (octets for name, octets in vector.layers if name == "payload")
    assert payload[:12].hex(" ", 4) in text.out
    assert "pds.rud_req" in text.out
    sealed = decode(vector.frame.hex())
    assert payload[:12].hex(" ", 4) not in sealed.out
    assert "pds.rud_req" not in sealed.out


def test_the_key_file_of_a_run_is_found_beside_the_capture(decode: Any, tmp_path: Path) -> None:
    capture = secured_capture(tmp_path)
    write_keys(tmp_path / KEY_FILE, [domain_of(vector) for vector in SECURED])
    assert_shows_the_plaintext(decode(capture, "--format=json"))
    # Keys that are given stand for it.
    wrong = write_keys(tmp_path / "wrong.json", domain_of(SECURED[0]) | {"sdi": 0xABCDEF})
    result = decode(capture, "--format=json", "--keys", wrong)
    assert all("no keys are given" in found["errors"][0] for found in result.objects)


def test_each_generation_of_keys_is_tried(decode: Any, tmp_path: Path) -> None:
    right = domain_of(SECURED[0])
    generations = [right | {"keys": {"0": f"{n:064x}", "1": f"{n + 9:064x}"}} for n in range(2)]
    keys = write_keys(tmp_path / "keys.json", [*generations, right])
    (found,) = decode(SECURED[0].frame.hex(), "--format=json", "--keys", keys).objects
    assert found["errors"] == []
    assert "pds.rud_req" in found["layers"]


def test_packets_that_do_not_open_say_why(decode: Any, tmp_path: Path) -> None:
    vector = SECURED[0]
    right = domain_of(vector)
    an = vector.fields["tss.an"]
    wrong_key = right | {"keys": {str(an): "00" * 32}}
    other_an = right | {"keys": {str(1 - an): "00" * 32}}
    other_sdi = right | {"sdi": right["sdi"] ^ 1}
    for domain, words in (
        (wrong_key, "does not authenticate with the key of AN"),
        (other_an, f"no key is given for AN {an}"),
        (other_sdi, f"no keys are given for secure domain {right['sdi']}"),
    ):
        keys = write_keys(tmp_path / "keys.json", [domain])
        result = decode(vector.frame.hex(), "--format=json", "--keys", keys)
        assert result.status == 0
        (found,) = result.objects
        assert found["layers"] == ["tss", "payload", "icv"]
        (error,) = found["errors"]
        assert words in error
    keys = write_keys(tmp_path / "keys.json", [right])
    damaged = vector.frame[:-1] + bytes([vector.frame[-1] ^ 1])
    (found,) = decode(damaged.hex(), "--format=json", "--keys", keys).objects
    assert "does not authenticate" in found["errors"][0]


def test_a_cut_capture_is_not_decrypted(decode: Any, tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "cut.pcap", [there.frame for there in SECURED], snap=80)
    keys = write_keys(tmp_path / "keys.json", [domain_of(vector) for vector in SECURED])
    cut = [there for there in SECURED if len(there.frame) > 80]
    assert cut
    stated = decode(capture, "--format=json", "--keys", keys).objects
    for found, vector in zip(stated, SECURED, strict=True):
        assert found["errors"] == []
        words = f"the capture has 80 of {len(vector.frame)} octets; capture with --snaplen full"
        assert (f"not decrypted: {words}" in found["notes"]) == (vector in cut)
        assert found["layers"][0] == "tss"
        assert "pds.psn" not in found["fields"]
    brief = decode(capture, "--brief", "--keys", keys).out
    assert brief.count("[not decrypted: cut]") == len(cut)
    assert "--snaplen" not in brief


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ("[]", "no secure domains"),
        ("3", "no secure domains"),
        ('{"domains": {}}', "no secure domains"),
        ("[3]", "secure domain 1: a secure domain is"),
        ('{"domain": []}', "'domain' is no field"),
        ('[{"sdi": 1, "mode": "direct"}]', "lacks 'keys'"),
        ('[{"sdi": 1, "mode": "direct", "keys": {"0": "00"}}]', "takes 32"),
    ],
)
def test_bad_key_files(decode: Any, tmp_path: Path, content: str, word: str) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(content)
    assert_one_sentence(decode(CAPTURE, "--keys", keys), "keys.json", word)


def test_a_missing_key_file(decode: Any, tmp_path: Path) -> None:
    assert_one_sentence(decode(CAPTURE, "--keys", tmp_path / "none.json"), "none.json", "path")
    assert_one_sentence(decode(CAPTURE, "--keys", tmp_path), "directory")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    assert_one_sentence(decode(CAPTURE, "--keys", binary), "not a JSON file")
