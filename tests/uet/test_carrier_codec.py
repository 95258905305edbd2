"""Ethernet, IP, UDP and the CRC around UET packets (UES 3.5.10)."""

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from tests.harness.uet.network import MACS, joined
from tests.harness.uet.script import HERE, KEY, MS, MTU, START, THERE, Script, Seen, ack, rud, write
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.wire.frame import decode_frame
from uet.wire.layers import UET_CRC, UET_RUDI_REQ


@pytest.mark.conformance("C-124", "C-125")
def test_what_frames_look_like() -> None:
    """Addresses, don't fragment, ECN capable data, control at its own code point."""
    script = Script(dscp_data=10, dscp_control=44, ttl=17)
    script.post(bytes(MTU))
    (data,) = script.take()
    (answer,) = script.give(rud(START, syn=0) / write(b"x"))
    for seen, tos in ((data, 10 << 2 | 2), (answer, 44 << 2)):
        packet = Ether(seen.octets)
        assert (packet.src, packet.dst) == (MACS[HERE], MACS[THERE])
        ip = packet[IP]
        assert (ip.src, ip.dst, ip.tos, ip.ttl) == (HERE, THERE, tos, 17)
        assert (str(ip.flags), ip.frag, ip.len) == ("DF", 0, len(seen.octets) - 14)
        assert packet[UDP].len == ip.len - 20
        sent = ip.chksum
        del ip.chksum
        assert IP(bytes(ip)).chksum == sent


@pytest.mark.conformance("C-124", "C-125")
@pytest.mark.parametrize("capable", [True, False])
def test_classes_of_what_leaves(capable: bool) -> None:
    """Classes are right for data, first and again, ACK, NACK and control, on PDCs and without."""
    script = Script(dscp_data=10, dscp_control=44, ecn_capable=capable)
    script.establish_initiator()
    seen: dict[str, list[Seen]] = {"data": [], "control": []}
    script.post(bytes(MTU))
    seen["data"] += script.take()
    seen["data"] += [again for again in script.wait(MS) if again.is_request]
    script.post(b"x", key=KEY | IDEMPOTENT_SAFE, delivery="rudi")
    seen["data"] += script.take()
    assert script.fep.probe(THERE)
    seen["control"] += script.take()
    script.give(ack(seen["data"][0]))
    target = script.establish_target()
    for packet in (
        rud(START + 1, dpdcid=target, ar=1) / write(b"x", message_id=9),
        rud(START + 2, dpdcid=target + 99) / write(b"x"),
        UET_RUDI_REQ(pkt_id=1) / write(b"x", match_bits=KEY | IDEMPOTENT_SAFE),
    ):
        seen["control"] += script.give(packet)
    assert (len(seen["data"]), len(seen["control"])) == (3, 4)
    assert {(s.dscp, s.ecn) for s in seen["data"]} == {(10, 2 if capable else 0)}
    assert {(s.dscp, s.ecn) for s in seen["control"]} == {(44, 0)}


@pytest.mark.conformance("C-126")
def test_crc_on_every_frame() -> None:
    """Data, ACKs and control packets end with a CRC that verifies."""
    script = Script(crc=True)
    script.post(bytes(2 * MTU + 5), header_data=3)
    frames = [joined(frame) for frame in script.fep.transmit(0, 64)]
    request = script.frame(rud(START, syn=0) / write(b"x") / UET_CRC())
    script.fep.receive([memoryview(request)], 0)
    (answer,) = script.fep.transmit(0, 64)
    for frame in [*frames, joined(answer)]:
        decoded = decode_frame(frame, crc="on")
        assert decoded.errors == []
        assert decoded.layers[-1].name == "crc"
    assert decode_frame(joined(answer)).fields["pds.cack_psn"] == START


def test_frames_that_are_not_for_us() -> None:
    """Each is counted under its reason, and none is answered."""
    script = Script()
    good = bytearray(script.frame(rud(START, syn=0) / write(b"x")))

    def altered(at: int, octets: bytes) -> bytes:
        frame = bytearray(good)
        frame[at : at + len(octets)] = octets
        return bytes(frame)

    for frame, reason in (
        (altered(12, b"\x86\xdd"), "rx_drop_not_uet"),
        (altered(26, bytes([10, 7, 7, 7])), "rx_drop_unknown_peer"),
        (altered(42, b"\x00"), "rx_drop_unsupported_type"),
        (altered(42, b"\x79"), "rx_drop_unsupported_type"),
        (b"", "rx_drop_truncated"),
        (altered(50, b"\x00\x00"), "rx_drop_syn_without_pdcid"),
    ):
        before = script.counters.get(reason, 0)
        assert script.give_frame(frame) == []
        assert script.counters[reason] == before + 1
    assert script.pdcs == []


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5])
def test_no_more_frames_than_asked_for(limit: int) -> None:
    """Requests, CLEAR and CLOSE keep to the limit, answers all leave at once, none is lost."""
    script = Script(rto_init_time=10**9)
    for source in range(3):
        script.post(bytes(10 * MTU), context=source)
    for k in range(7):
        frame = script.frame(rud(START + k, syn=k) / write(b"x", message_id=k + 1))
        script.fep.receive([memoryview(frame)], 0)
    frames = script.fep.transmit(0, limit)
    answers = 7
    assert answers <= len(frames) <= answers + limit
    for _ in range(200):
        some = script.fep.transmit(0, limit)
        assert len(some) <= limit
        frames += some
    assert len(frames) == answers + (30 if limit else 0)
