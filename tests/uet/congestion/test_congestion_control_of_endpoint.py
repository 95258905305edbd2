"""Congestion control in the whole endpoint: what it says on the wire, and what it hears.

The algorithms themselves are tested in :mod:`tests.congestion`.
"""

import random
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import product
from typing import Any

import pytest

from tests.harness.nightly import nightly
from tests.harness.uet.exchange import WIRES, Exchange
from tests.harness.uet.network import Network, endpoint
from tests.harness.uet.operations import TOGETHER, write_one
from tests.harness.uet.script import (
    HERE,
    KEY,
    MS,
    MTU,
    START,
    TARGET,
    THERE,
    US,
    Script,
    Seen,
    control,
    refusal,
    rud,
    write,
)
from tests.harness.uet.script import ack as acknowledge
from uet.config import FepConfig
from uet.config_checks import ConfigurationError
from uet.congestion.control_registry import CONTROLS
from uet.congestion.controls.nscc import Nscc
from uet.congestion.spraying.policies import SPRAYING
from uet.transport import ReceiveRequest, SendRequest
from uet.wire.codes import ControlType, NackCode, PacketType
from uet.wire.frame import decode_frame
from uet.wire.layers import UET_ACK_CC, UET_REQ_CC_STATE

#: 100 Gb/s and 4 us: a window of 75 000 octets at the start, some 60 packets of the tests'.
PATH: dict[str, Any] = {"base_rtt": 4 * US, "link_rate": 100 * 10**9}
UNIT = 256


def pushed(algorithm: str, octets: int = 200 * MTU, **parameters: Any) -> tuple[Script, list[Seen]]:
    """An endpoint with much to send on an open PDC, and what left of it at once."""
    script = Script(cc=algorithm, **{**PATH, "mpr": 8, **parameters})
    script.establish_initiator()
    script.post(bytes(octets))
    return script, script.take()


def nscc_of(script: Script) -> Nscc:
    window = script.pdc.peer.congestion.window
    assert isinstance(window, Nscc)
    return window


# -- everything over every wire -------------------------------------------------------------------


def combined() -> Iterator[object]:
    """Yield wires, algorithms and spraying; what is not nightly has every two of them together."""
    wires = ("perfect", "loss", "reordering", "trimming")
    controls = [name for name in CONTROLS if name != "none"]
    places = (range(len(one)) for one in (wires, controls, SPRAYING.names()))
    for w, c, s in product(*places):
        case = (wires[w], controls[c], SPRAYING.names()[s])
        yield nightly(case) if (w + c + s) % 2 else case


@pytest.mark.parametrize(("wire", "algorithm", "spraying"), list(combined()))
def test_nothing_is_lost_or_stuck(wire: str, algorithm: str, spraying: str) -> None:
    """All operations in both directions at once, a long write among them; all is quiet after."""
    exchange = Exchange(
        WIRES[wire],
        seed=SPRAYING.names().index(spraying),
        rod_reorder=True,
        cc=algorithm,
        spraying=spraying,
        **PATH,
    )
    asked = [(side, *each) for side in exchange.sides for each in TOGETHER]
    exchange.rng.shuffle(asked)
    for side, operation, delivery in asked:
        operation(exchange, side, delivery)
    write_one(exchange, exchange.sides[0], "rud", 300 * MTU)
    exchange.prove()


# -- NSCC -----------------------------------------------------------------------------------------


@pytest.mark.conformance("C-090", "C-092")
def test_the_first_flight_is_a_window() -> None:
    script, packets = pushed("nscc")
    window = nscc_of(script)
    assert window.window_octets == 75_000
    flying = sum(len(p.payload) + 8 + 12 + 44 + 40 for p in packets if p.is_request)
    assert window.inflight == flying
    assert 75_000 - 2 * 1_128 - 4 < flying <= 75_000
    assert packets[-1].ar, "the packet that uses the window up must ask for an ACK"


def test_marks_and_delay_close_the_window() -> None:
    """The ACK's M flag, and its RTT against that of the idle path less the service time."""
    script, packets = pushed("nscc", base_rtt=4 * US)
    window = nscc_of(script)
    window.average = 20.0 * US
    window.pending = 0.0  # growth that establishment has collected
    before = window.cwnd
    script.now += 24 * US
    script.give(acknowledge(packets[-1], m=1))
    assert window.cwnd == before * 0.5 + window.parameters.eta
    assert window.base_rtt == 4 * US


@pytest.mark.conformance("C-093")
@pytest.mark.parametrize(
    ("service", "base_rtt"), [(0, 3_000), (8, 3_000 - 8 * 128), (0xFFFF, 4_000)]
)
def test_the_round_trip_is_measured(service: int, base_rtt: int) -> None:
    """From the transmission of the packet that is answered, less what its destination held it."""
    script, packets = pushed("nscc")
    script.now += 3 * US
    script.give(acknowledge(packets[-1], service_time=service))
    assert nscc_of(script).base_rtt == base_rtt


def test_a_probe_measures_the_idle_path() -> None:
    """One, after the first answer, while more is to be sent: it waits in no queue of data."""
    script = Script(cc="nscc", **PATH)
    script.post(bytes(100 * MTU))
    packets = script.take()
    script.now += 9 * US
    (probe, *_) = [p for p in script.give(acknowledge(packets[0])) if p.control]
    assert (probe.control, probe.dscp) == (ControlType.PROBE, 46)
    assert nscc_of(script).base_rtt == 4 * US
    script.now += 2 * US
    answer = UET_ACK_CC(
        p=1, probe_opaque=probe.probe_opaque, cack_psn=packets[0].psn, sack_psn_offset=0,
        spdcid=TARGET, dpdcid=probe.spdcid, rcvd_bytes=5,
    )  # fmt: skip
    script.give(answer)
    assert nscc_of(script).base_rtt == 2 * US
    later = script.give(acknowledge(packets[1]))
    assert not [p for p in later if p.control is ControlType.PROBE]


def test_who_waits_for_a_window_that_nobody_opens_asks() -> None:
    """The packets that asked for an ACK are trimmed, the rest is too little to be coalesced."""
    script, packets = pushed("nscc", ack_gen_trigger=32_768)
    window = nscc_of(script)
    arrived, cut = packets[:3], packets[3:]
    assert not any(p.ar for p in arrived)
    probes: list[Seen] = []
    window.base_rtt = 1  # however long it takes, every trim cuts the window
    for packet in cut:
        script.now += 100
        probes += script.give(refusal(packet, code=NackCode.TRIMMED))
        window.cwnd = 1_128.0
    probes = [p for p in probes if p.control is ControlType.PROBE]
    assert len(probes) == 1
    assert script.take() == [], "one is enough"
    (probe,) = probes
    octets = sum(len(p.payload) + 8 + 12 + 44 + 40 for p in packets[:3])
    answer = UET_ACK_CC(
        p=1, probe_opaque=probe.probe_opaque, cack_psn=arrived[-1].psn,
        sack_psn_offset=arrived[0].psn - arrived[-1].psn, sack_bitmap=0b111,
        spdcid=TARGET, dpdcid=probe.spdcid, rcvd_bytes=-(-octets // UNIT),
    )  # fmt: skip
    again = script.give(answer)
    assert [(p.psn, p.retx) for p in again if p.is_request] == [(cut[0].psn, 1)]
    assert "rto_expirations" not in script.counters


def test_what_waits_to_be_sent_again_is_not_overdue() -> None:
    """A refused packet has no timer before it leaves again, however long that takes."""
    script, packets = pushed("nscc", rto_init_time=1 * MS)
    for packet in packets:
        script.give(refusal(packet, code=NackCode.TRIMMED))
    waiting = [p for p in packets if p.psn in script.pdc.source.retransmit]
    assert len(waiting) > 10
    script.wait(3 * MS)
    assert script.counters["rto_expirations"] < 3 * (len(packets) - len(waiting))
    source = script.pdc.source
    assert not any(source.timer.timeouts[p.psn & source.requests.slot_mask] for p in waiting)


# -- tail loss ------------------------------------------------------------------------------------


TAIL = 20 * US


def lost_tail(**parameters: Any) -> tuple[Script, list[Seen]]:
    """All packets of a message are in flight; nothing will follow them."""
    script = Script(tail_loss_time=TAIL, rto_init_time=1 * MS, **parameters)
    script.establish_initiator()
    script.post(bytes(6 * MTU))
    return script, script.take()


@pytest.mark.conformance("C-181")
def test_after_a_silence_a_probe_tells_what_is_lost() -> None:
    """Long before the timers, which need not run out; what left just before has its time."""
    script, packets = lost_tail()
    assert script.wait(TAIL - 1) == []
    (probe,) = script.wait(1)
    assert (probe.control, probe.payload_word) == (ControlType.PROBE, packets[0].psn)
    script.post(b"young")
    (young,) = script.take()
    answer = UET_ACK_CC(
        p=1, probe_opaque=probe.probe_opaque, cack_psn=packets[0].psn - 1, sack_psn_offset=1,
        sack_bitmap=0b101101, spdcid=TARGET, dpdcid=probe.spdcid,
    )  # fmt: skip
    again = script.give(answer)
    assert [(p.psn, p.retx) for p in again] == [(packets[n].psn, 1) for n in (1, 4)]
    assert script.counters["losses_inferred"] == 2
    assert not script.pdc.source.window.is_delivered(young.psn)
    assert "rto_expirations" not in script.counters


def test_an_ack_shows_what_is_overdue() -> None:
    """What it does not report and left long ago; not what it does not speak of.

    The packet that is answered was quick: all but 2 us of its time the destination held it.
    """
    script, packets = lost_tail()
    script.now += TAIL
    first = packets[0].psn
    held = (TAIL - 2 * US) // 128
    seen = script.give(
        acknowledge(packets[3], cack=first, sack=(first + 1, 0b100), service_time=held)
    )
    assert [p.psn for p in seen if p.is_request] == [packets[n].psn for n in (1, 2, 4, 5)]


@pytest.mark.conformance("C-181")
def test_nothing_is_overdue_where_answers_are_slow() -> None:
    """What is answered took as long as the others are out: they may be behind it in a queue."""
    script, packets = lost_tail()
    script.now += TAIL
    first = packets[0].psn
    seen = script.give(acknowledge(packets[3], cack=first, sack=(first + 1, 0b100)))
    assert [p for p in seen if p.is_request] == []
    assert "losses_inferred" not in script.counters


@pytest.mark.conformance("C-181")
def test_where_nothing_is_trimmed_the_probe_waits_with_data() -> None:
    """Its delay tells a queue from a loss; where switches trim it goes with control."""
    for trims, dscp in ((False, 0), (True, 46)):
        script, _ = lost_tail(network_trims=trims)
        (probe,) = script.wait(TAIL)
        assert (probe.control, probe.dscp) == (ControlType.PROBE, dscp)


def test_where_only_a_response_is_missing_it_is_asked_for() -> None:
    script, packets = lost_tail()
    first = packets[0].psn
    script.give(acknowledge(packets[5], cack=first - 1, sack=(first, 0b111111)))
    (question,) = script.wait(TAIL)
    assert question.control is ControlType.ACK_REQ
    assert question.psn == script.pdc.source.window.base


def test_a_silence_begins_with_what_is_to_be_answered() -> None:
    """However long nothing was to be heard before; data and control packets alike."""
    script, packets = lost_tail()
    script.give(acknowledge(packets[5], cack=packets[5].psn))
    assert script.wait(3 * TAIL) == []
    script.fep.close()
    (close,) = script.take()
    assert close.control is ControlType.CLOSE_CMD
    assert script.wait(TAIL - 1) == []
    (probe,) = script.wait(1)
    assert probe.control is ControlType.PROBE


def test_questions_have_an_end() -> None:
    """Max_Tail_Loss_Retx of them in a row, then it is the timers' turn."""
    script, _ = lost_tail(max_tail_loss_retx=3)
    seen = script.wait(900 * US)
    assert [p.control for p in seen] == [ControlType.PROBE] * 3
    assert script.counters["tx_tail_loss_probes"] == 3
    assert script.wait(200 * US)[0].retx


# -- RCCC -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["rccc", "both"])
@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_requests_say_how_much_credit_they_want(algorithm: str, delivery: str) -> None:
    script = Script(cc=algorithm, delivery=delivery, **PATH)
    script.post(bytes(100 * MTU))
    packets = script.take()
    kind = PacketType.RUD_CC_REQ if delivery == "rud" else PacketType.ROD_CC_REQ
    assert {p.type for p in packets} == {kind}
    assert {p.ccc_id for p in packets} == {0}
    # What waits beyond the window on trust, up to a window.
    waiting = 100 - len(packets)
    assert waiting > 0
    assert 0 < packets[0].credit_target * UNIT <= 75_000 + UNIT


@pytest.mark.conformance("C-101")
def test_no_credit_no_packet() -> None:
    """The window on trust ends with the first answer; then CREDIT decides, by its newest value."""
    script = Script(cc="rccc", **PATH)
    script.post(bytes(200 * MTU))
    packets = script.take()
    own, end = packets[0].spdcid, packets[-1].psn
    assert {p.type for p in packets} == {PacketType.RUD_CC_REQ}, "data says what is wanted"
    script.now += 4 * US
    (request,) = script.give(acknowledge(packets[-1]))
    assert (request.control, request.payload_word >> 24) == (ControlType.CREDIT_REQ, 0)
    assert request.payload_word & 0xFF_FFFF > 10
    credit = control(ControlType.CREDIT, 0, dpdcid=own, spdcid=TARGET, payload_word=10)
    source = script.pdc.peer.congestion.credit
    assert source is not None
    owed = source.credit  # what the last packet on trust had too much
    assert owed <= 0
    more = script.give(credit)
    packets_for_it = -(-(10 * UNIT + owed) // script.fep.full_size)
    assert [p.psn for p in more] == [end + n + 1 & 0xFFFF_FFFF for n in range(packets_for_it)]
    assert script.give(credit) == [], "it is cumulative: this says nothing new"
    script.now += 4 * US - 1
    assert script.take() == [], "not more than once in a round trip"
    script.now += 1
    assert [p.control for p in script.take()] == [ControlType.CREDIT_REQ]


def with_credit(psn: int, target: int, data: bytes) -> Any:
    """A write that asks for credit."""
    packet = rud(psn, syn=0, ar=1, type=PacketType.RUD_CC_REQ)
    return packet / UET_REQ_CC_STATE(ccc_id=3, credit_target=target) / write(data)


def test_credit_is_granted_at_the_rate_of_the_port() -> None:
    """To whoever asks, whatever limits the endpoint's own packets; four packets at a time."""
    script = Script(**PATH)
    seen = script.give(with_credit(START, 400, b"x" * 100))
    granted = [(p.ccc_id, p.credit) for p in grants(seen)]
    assert granted == [(3, 4 * script.fep.full_size // UNIT)]
    script.now = 100 * US
    seen = script.wait(100 * US)
    credits = [p.credit for p in grants(seen)]
    assert credits == sorted(credits)
    assert 400 in credits
    assert {p.dpdcid for p in grants(seen)} == {script.pdc.peer_id}


def grants(seen: list[Seen]) -> list[Any]:
    """CREDIT packets with their context and credit told apart."""
    found = [p for p in seen if p.control is ControlType.CREDIT]
    for packet in found:
        packet.fields["ccc_id"] = packet.payload_word >> 24
        packet.fields["credit"] = packet.payload_word & 0xFF_FFFF
    return found


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"cc": "dcqcn"}, "'dcqcn' is not known; choose one of none, nscc"),
        ({"spraying": "ecmp"}, "spraying is 'ecmp'"),
        ({"base_rtt": 0}, "base_rtt is 0; it must lie in 1.."),
        ({"link_rate": 0}, "link_rate is 0"),
        ({"cc_parameters": {"nscc": {"window": 3}}}, "nscc has no parameter 'window'"),
        ({"reps_freeze_time": -1}, "reps_freeze_time is -1"),
    ],
)
def test_what_cannot_be_is_refused(parameters: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        FepConfig(address=HERE, mac="02:00:00:00:00:01", neighbours={}, **parameters)


def test_a_window_is_shared_by_all_pdcs_to_a_peer() -> None:
    """An ordered and an unordered one together send what one window allows (UES 3.6)."""
    script, packets = pushed("nscc")
    assert script.take() == []
    script.post(b"x" * MTU, delivery="rod", key=KEY, peer=THERE)
    script.post(b"x" * MTU, delivery="rod", key=KEY, peer=THERE)
    assert len(script.take()) <= 1  # what was left of it
    assert packets


def test_who_asks_for_credit_in_vain_begins_anew() -> None:
    """The destination may have restarted: what it grants now is less than what it had granted."""
    script = Script(cc="rccc", rto_init_time=1 * MS, **PATH)
    script.post(bytes(200 * MTU))
    packets = script.take()
    own, end = packets[0].spdcid, packets[-1].psn
    script.give(acknowledge(packets[-1]))
    for granted in (100, 3):
        script.give(control(ControlType.CREDIT, 0, dpdcid=own, spdcid=TARGET, payload_word=granted))
    sent = script.pdc.source.window.next
    assert sent != end + 1
    script.give(acknowledge(psn=(sent - 1) & 0xFFFF_FFFF, dpdcid=own))
    seen = script.wait(1 * MS + 20 * US)
    begins = next(n for n, p in enumerate(seen) if p.name == "req_cc_state")
    assert {(p.control, p.payload_word >> 24) for p in seen[:begins]} == {
        (ControlType.CREDIT_REQ, 0)
    }
    assert begins > 20
    fresh = [p for p in seen if p.name == "req_cc_state"]
    assert {p.ccc_id for p in fresh} == {1}
    assert fresh[0].psn == sent


# -- what the receiver asks for -------------------------------------------------------------------


def test_memory_that_fills_asks_the_source_to_hold_back() -> None:
    """Unexpected messages are kept here until they are received; rcv_cwnd_pend tells how many."""
    ends = {
        address: endpoint(address, seed=seed, payload_mtu=MTU, unexpected="keep",
                          max_unexpected_octets=32 * MTU, cc="nscc", **PATH)
        for seed, address in enumerate((HERE, THERE))
    }  # fmt: skip
    network = Network(ends, random.Random(1), keep=True)
    penalties: list[int] = []
    for kept in range(1, 33):
        network.sent.clear()
        ends[HERE].post(SendRequest(peer=THERE, payload=memoryview(bytes(MTU))))
        network.settle()
        (fields,) = acks_of(network.sent)
        penalties.append(fields["rcv_cwnd_pend"])
        assert fields["restore_cwnd"] == 0
        assert (penalties[-1] > 0) is (kept > 8), "from a quarter on"
    assert penalties == sorted(penalties)
    assert penalties[-1] == 127
    window = ends[HERE].peers[ip_address(THERE).packed].congestion.window
    assert isinstance(window, Nscc)
    assert window.cwnd < window.max_wnd / 2
    for _ in range(32):
        ends[THERE].post_receive(ReceiveRequest(memory=memoryview(bytearray(MTU))))
    network.sent.clear()
    ends[THERE].post_receive(ReceiveRequest(memory=memoryview(bytearray(MTU))))
    ends[HERE].post(SendRequest(peer=THERE, payload=memoryview(bytes(MTU))))
    network.settle()
    last = acks_of(network.sent)[-1]
    assert (last["rcv_cwnd_pend"], last["restore_cwnd"]) == (0, 1)
    assert window.cwnd == window.max_wnd, "the window of before comes back"


def acks_of(frames: list[bytes]) -> list[dict[str, int]]:
    """The fields of the ACKs among ``frames``."""
    found = []
    for frame in frames:
        for layer in decode_frame(frame, crc="off").layers:
            if layer.name == "pds.ack_cc" and layer.header is not None:
                found.append(dict(zip(layer.header.names, layer.values, strict=True)))
    return found
