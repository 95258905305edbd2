"""Nothing that the stack sends is malformed or unknown to `uetemu decode` or the dissector."""

from pathlib import Path

import pytest

from tests.harness.wire.everything import TRIMMED_DSCP, Sent, everything
from tests.harness.wire.tshark import COLUMNS, TSHARK, disagreements, rows, tshark, write
from uet.wire.codes import ControlType, NackCode, NextHeader, Opcode, PacketType, ProviderOpcode
from uet.wire.wireshark import dissector

#: Packet types that the stack never sends: it refuses without congestion state.
NEVER = {PacketType.TSS, PacketType.NACK_CCX}
_RETURN_DATA = (NextHeader.RESPONSE_DATA, NextHeader.RESPONSE_DATA_SMALL)


@pytest.fixture(scope="module")
def sent() -> list[Sent]:
    return everything()


def test_the_exchanges_bring_every_kind_of_packet(sent: list[Sent]) -> None:
    """Without this the other tests would prove less and less."""
    fields = [each.decoded().fields for each in sent]
    assert {f.get("pds.type") for f in fields} >= {*PacketType} - NEVER
    assert {f.get("pds.ctl_type") for f in fields} >= {*ControlType}
    assert {f.get("pds.nack_code") for f in fields} >= {*NackCode}
    requests = [f for f in fields if "ses.som" in f]
    assert {f["ses.opcode"] for f in requests} >= {*Opcode, *ProviderOpcode} - {
        Opcode.EXTENDED,
        Opcode.MSG_ERROR,  # of messages that are given up
    }
    formats = (NextHeader.REQUEST_SMALL, NextHeader.REQUEST_MEDIUM, NextHeader.REQUEST_STD)
    for kind in (PacketType.RUD_REQ, PacketType.ROD_REQ, PacketType.RUD_CC_REQ):
        seen = {f.get("pds.next_hdr") for f in fields if f.get("pds.type") == kind}
        assert seen >= {*formats, *_RETURN_DATA}, kind
    assert any(each.decoded().trimmed for each in sent)


def test_the_decoder_finds_nothing_wrong(sent: list[Sent]) -> None:
    for each in sent:
        packet = each.decoded()
        assert packet.errors == [], each
        assert [n for n in packet.notes if not n.startswith("trimmed by")] == [], each
        assert "payload" not in packet.layer_names[:1], each


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
@pytest.mark.parametrize("provider", [False, True])
def test_the_dissector_finds_nothing_wrong(
    sent: list[Sent], tmp_path: Path, provider: bool
) -> None:
    chosen = [each for each in sent if each.reference_provider == provider]
    assert len(chosen) > 20
    script = tmp_path / "uet.lua"
    script.write_text(dissector.dissector())
    capture = write(tmp_path / "sent.pcap", [each.frame for each in chosen])
    options = ["-o", "uet.dscp:" + ",".join(map(str, sorted(TRIMMED_DSCP)))]
    if provider:
        options += ["-o", "uet.reference_provider:TRUE"]
    for each, row in zip(chosen, rows(script, capture, COLUMNS, *options), strict=True):
        # disagreements() also tells errors that only one of them has; the decoder has none
        assert disagreements(row, each.decoded(with_keys=False)) == [], each
    verbose = tshark(script, capture, "-V", *options)
    for words in ("alformed", "nknown", "eserved bits", "none of UES"):
        assert words not in "\n".join(ultra_ethernet(verbose)), words


def ultra_ethernet(verbose: str) -> list[str]:
    """The lines about UET in tshark's packet details."""
    found, inside = [], False
    for line in verbose.splitlines():
        if line and not line.startswith(" "):
            inside = line.startswith("Ultra Ethernet")
        if inside:
            found.append(line)
    return found
