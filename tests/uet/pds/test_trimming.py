"""Packets that a switch has cut down to their headers (UES 4.1)."""

import random
from typing import Any

import pytest

from tests.harness.uet.network import Network, endpoint
from tests.harness.uet.script import (
    HERE,
    INITIATOR,
    KEY,
    MS,
    START,
    TARGET,
    THERE,
    Script,
    Seen,
    ack,
    control,
    refusal,
    rod,
    rud,
    write,
)
from uet.compatibility import Compatibility
from uet.pds import repair
from uet.pds.pdc import PdcState
from uet.transport import WriteRequest
from uet.wire.codes import ControlType, NackCode

TRIMMED, LASTHOP = 4, 5  # the script's code points


def trim(frame: bytes, *, dscp: int, octets: int = 24) -> bytes:
    """Trim a frame as a switch does: at most ``octets`` of IP payload, UDP length as it was."""
    cut = bytearray(frame[: 14 + 20 + octets])
    cut[15] = dscp << 2 | frame[15] & 3
    cut[16:18] = (len(cut) - 14).to_bytes(2, "big")
    return bytes(cut)


def give_trimmed(script: Script, packet: object, *, dscp: int, **envelope: Any) -> list[Seen]:
    frame = script.frame(packet, **envelope)
    return script.give_frame(trim(frame, dscp=dscp))


@pytest.mark.parametrize("ordered", [False, True])
def test_trims_of_one_packet_are_bounded(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that trims whatever comes must not keep a PDC busy for ever."""
    assert repair.MOST_COPIES > 1_000
    monkeypatch.setattr(repair, "MOST_COPIES", 60)
    script = Script(delivery="rod" if ordered else "rud")
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    copies = 1
    while script.pdc.state is PdcState.ESTABLISHED:
        again = script.give(refusal(request, code=NackCode.TRIMMED))
        copies += [p.psn for p in again].count(request.psn)
        assert copies <= 61
        request = again[0]
    assert copies == 61
    assert [c.error for c in script.completions] == ["TRIMMED"]


@pytest.mark.conformance("C-120")
@pytest.mark.parametrize(
    ("dscp", "code"), [(TRIMMED, NackCode.TRIMMED), (LASTHOP, NackCode.TRIMMED_LASTHOP)]
)
def test_a_trimmed_request_is_asked_for_again(dscp: int, code: NackCode) -> None:
    """At once, with its PSN, entropy and RETX; nothing is delivered, marked or acknowledged."""
    script = Script()
    own = script.establish_target()
    packet = rud(START + 1, dpdcid=own, ar=1, retx=1) / write(b"x" * 500)
    (nack,) = give_trimmed(script, packet, dscp=dscp, ev=54_321)
    assert (nack.nack, nack.nack_psn, nack.retx, nack.m) == (code, START + 1, 1, 0)
    assert (nack.ev, nack.dscp, nack.spdcid, nack.dpdcid) == (54_321, 46, own, INITIATOR)
    window = script.pdc.destination.window
    assert (window.cack, window.received, window.highest) == (START, 0, START)
    assert script.memory[:500] == bytes(500)
    assert script.counters["rx_trimmed"] == 1
    (answer,) = script.give(packet)
    assert (answer.ack_psn, answer.cack_psn) == (START + 1, START + 1)


@pytest.mark.conformance("C-069", "C-120")
def test_a_trimmed_syn_makes_no_pdc() -> None:
    script = Script(compatibility=Compatibility(silent_trimmed_syn=True))
    packet = rud(START, syn=0, ar=1) / write(b"x" * 500)
    assert give_trimmed(script, packet, dscp=TRIMMED) == []
    assert script.pdcs == []
    assert script.fep.table.find_closed(bytes([10, 0, 1, 2]), INITIATOR) is None


def test_a_trimmed_syn_of_a_known_pdc() -> None:
    script = Script()
    script.establish_target()
    (nack,) = give_trimmed(script, rud(START + 1, syn=1) / write(b"x" * 500), dscp=TRIMMED)
    assert (nack.nack, nack.nack_psn) == (NackCode.TRIMMED, START + 1)


@pytest.mark.conformance("C-120")
def test_trimmed_requests_of_nobody() -> None:
    """A header that cannot be authenticated changes nothing, and draws nothing either."""
    script = Script()
    own = script.establish_target()
    for packet in (
        rud(START + 1, dpdcid=own + 1),
        rud(START + 1, dpdcid=own, spdcid=INITIATOR + 1),
        rud(START + 1, dpdcid=0),
    ):
        assert give_trimmed(script, packet / write(b"x" * 500), dscp=TRIMMED) == []
    assert len(script.pdcs) == 1


@pytest.mark.conformance("C-121")
def test_other_trimmed_packets_draw_no_nack() -> None:
    """ACKs, NACKs and control packets, whose loss their timers repair."""
    script = Script()
    own = script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    for packet in (
        ack(request),
        control(ControlType.CLOSE_REQ, script.pdc.start_psn, dpdcid=own, spdcid=TARGET),
    ):
        frame = trim(script.frame(packet), dscp=TRIMMED)
        assert script.give_frame(frame) == []
    assert script.pdc.source.window.is_open(request.psn)


def test_too_short_to_name_its_psn() -> None:
    script = Script()
    own = script.establish_target()
    frame = script.frame(rud(START + 1, dpdcid=own) / write(b"x" * 500))
    for octets in range(12, 20):
        assert script.give_frame(trim(frame, dscp=TRIMMED, octets=octets)) == []
    assert script.counters["rx_drop_truncated"] == 8


def test_without_trimming_a_cut_frame_is_malformed() -> None:
    script = Script(dscp_trimmed=None, dscp_trimmed_lasthop=None)
    own = script.establish_target()
    packet = rud(START + 1, dpdcid=own, ar=1) / write(b"x" * 500)
    assert give_trimmed(script, packet, dscp=TRIMMED) == []
    assert script.counters["rx_drop_bad_udp_length"] == 1


@pytest.mark.conformance("C-126")
@pytest.mark.parametrize("crc", [False, True])
def test_a_transfer_through_a_trimming_switch(crc: bool) -> None:
    """Every third data frame loses its payload, which a CRC cannot survive: all arrives anyway."""
    rng = random.Random(4)

    def switch(frame: bytes, _: int) -> list[bytes]:
        trimmable = len(frame) > 200 and frame[15] >> 2 == 0
        return [trim(frame, dscp=TRIMMED)] if trimmable and rng.random() < 0.3 else [frame]

    parameters = {"payload_mtu": 1024, "crc": crc, "dscp_trimmed": TRIMMED}
    feps = {
        a: endpoint(a, seed=k, max_nack_retx_cnt=31, **parameters)
        for k, a in enumerate((HERE, THERE))
    }
    network = Network(feps, random.Random(1), tap=switch)
    memory = bytearray(100_000)
    feps[THERE].register(memoryview(memory), key=KEY)
    data = rng.randbytes(100_000)
    feps[HERE].post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(data)))
    assert network.run(lambda: bool(network.completions[HERE]))
    assert network.completions[HERE][0].error is None
    assert memory == data
    counters = feps[HERE].counters()
    assert counters["tx_retransmitted_packets"] > 20
    # whole frames, all of one message: the payload of a packet and its headers
    full = counters["tx_retransmitted_packets"] * (1_024 + 98)
    assert 0.9 * full < counters["tx_retransmitted_octets"] <= full
    # Trimming tells of every loss at once; only trimmed SYN packets wait for their timer.
    assert network.now < 3 * MS


@pytest.mark.conformance("C-121")
@pytest.mark.parametrize("old", [False, True])
def test_a_trimmed_ack_by_revision(old: bool) -> None:
    """NACK TRIMMED_ACK until UES 1.0.2, for the PSN that it answers; since then silence."""
    script = Script(compatibility=Compatibility(trimmed_ack_nack=old))
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    packet = ack(request, cack=request.psn - 1, retx=1)
    seen = give_trimmed(script, packet, dscp=TRIMMED, ev=51_111, ecn=3)
    assert len(seen) == old
    for nack in seen:
        assert (nack.nack, nack.nack_psn) == (NackCode.TRIMMED_ACK, request.psn)
        assert (nack.ev, nack.m, nack.retx) == (51_111, 1, 1)
        assert (nack.spdcid, nack.dpdcid) == (request.spdcid, TARGET)
    assert script.pdc.source.window.is_open(request.psn)
    # Of another PDC, or of a probe, it draws nothing in any revision.
    for other in (ack(request, spdcid=TARGET + 1), ack(request, dpdcid=0, p=1)):
        assert give_trimmed(script, other, dscp=TRIMMED) == []


@pytest.mark.conformance("C-121")
@pytest.mark.parametrize("old", [False, True])
def test_a_nack_of_a_trimmed_ack_by_revision(old: bool) -> None:
    """The NACK asks for the request again until UES 1.0.2; since then the code is ignored."""
    script = Script(compatibility=Compatibility(trimmed_ack_nack=old))
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    seen = script.give(refusal(request, code=NackCode.TRIMMED_ACK))
    assert [(s.psn, s.retx) for s in seen] == [(request.psn, 1)] * old


@pytest.mark.conformance("C-069")
@pytest.mark.parametrize(
    ("dscp", "code"), [(TRIMMED, NackCode.TRIMMED), (LASTHOP, NackCode.TRIMMED_LASTHOP)]
)
def test_a_trimmed_syn_is_refused_without_a_pdc(dscp: int, code: NackCode) -> None:
    script = Script()
    packet = rud(START + 3, syn=3, ar=1) / write(b"x" * 500)
    (nack,) = give_trimmed(script, packet, dscp=dscp)
    assert (nack.nack, nack.nack_psn, nack.spdcid) == (code, START + 3, 0)
    assert nack.dpdcid == INITIATOR
    assert script.pdcs == []


@pytest.mark.conformance("C-046")
@pytest.mark.parametrize("code", [NackCode.TRIMMED, NackCode.TRIMMED_LASTHOP])
def test_trimming_is_not_counted_against_the_retries(code: NackCode) -> None:
    """Sent again at once, as often as it takes, whatever Max_NACK_Retx_Cnt says."""
    script = Script(max_nack_retx_cnt=1)
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    for _ in range(50):
        (request,) = script.give(refusal(request, code=code))
        assert request.retx == 1
    # Others are: the second one of them is too many.
    assert script.give(refusal(request, code=NackCode.NO_PKT_BUFFER)) == []
    (request,) = script.wait(MS)
    script.give(refusal(request, code=NackCode.NO_PKT_BUFFER))
    assert [c.error for c in script.completions] == ["NACK_RETRIES_EXHAUSTED"]


@pytest.mark.conformance("C-120")
def test_a_trimmed_ordered_request() -> None:
    """The request is asked for by name also where it is not its turn: nobody looks at its PSN."""
    script = Script()
    (answer,) = script.give(rod(START, syn=0, ar=1) / write(b"x"))
    packet = rod(START + 5, dpdcid=answer.spdcid) / write(b"x" * 500)
    (nack,) = give_trimmed(script, packet, dscp=TRIMMED)
    assert (nack.nack, nack.nack_psn) == (NackCode.TRIMMED, START + 5)
    assert script.pdc.destination.window.highest == START


@pytest.mark.conformance("C-120")
def test_trimmed_return_data() -> None:
    script = Script()
    own = script.establish_initiator()
    start = script.pdc.start_psn
    packet = rud(start, dpdcid=own, spdcid=TARGET, clear=start - 1) / write(b"x" * 500)
    (nack,) = give_trimmed(script, packet, dscp=LASTHOP)
    assert (nack.nack, nack.nack_psn) == (NackCode.TRIMMED_LASTHOP, start)
    assert (nack.spdcid, nack.dpdcid) == (own, TARGET)
