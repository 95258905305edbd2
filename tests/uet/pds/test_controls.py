"""Control packets: those that open a PDC, ask, measure and grant (UES 3.5.16)."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import Network, endpoint
from tests.harness.uet.script import (
    HERE,
    INITIATOR,
    KEY,
    MASK,
    MS,
    MTU,
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
from tests.harness.uet.stub import StubSemantics, guaranteed
from uet.compatibility import Compatibility
from uet.pds.open_requests import FIRST_SLOTS
from uet.pds.packets import SYN_RETX_TRANSFER, agreed_features, feature_request
from uet.transport import WriteRequest
from uet.wire.codes import ControlType, NackCode
from uet.wire.frame import decode_frame
from uet.wire.layers import UET_ACK, UET_ACK_CC, UET_CP

OPENING = [ControlType.NOOP, ControlType.NEGOTIATION]
FEATURES = feature_request(Compatibility())


def opened_by(kind: ControlType, ordered: bool = False, **fields: Any) -> Any:
    """A control packet of the peer that opens a PDC."""
    more = {"syn": 1, "psn_offset": 0, "ar": 1, "isrod": int(ordered)} | fields
    packet = control(kind, START, dpdcid=0, **more)
    if kind is ControlType.NEGOTIATION:
        packet.payload_word = int.from_bytes(FEATURES[:4], "big")
        packet = packet / FEATURES[4:]
    return packet


# -- NOOP and NEGOTIATION -------------------------------------------------------------------------


@pytest.mark.conformance("C-005", "C-067")
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("kind", OPENING)
def test_a_pdc_without_a_request(kind: ControlType, ordered: bool) -> None:
    """The target opens one of the kind that is asked for, and requests follow on it."""
    script = Script()
    answer, *more = script.give(opened_by(kind, ordered))
    assert (answer.is_ack, answer.ack_psn, answer.cack_psn) == (True, START, START)
    assert answer.ses is None
    assert script.pdc.ordered is ordered
    assert [s.control for s in more] == [kind] * (kind is ControlType.NEGOTIATION)
    request = rod if ordered else rud
    (answer,) = script.give(
        request(START + 1, dpdcid=answer.spdcid, clear=START, ar=1) / write(b"hello")
    )
    assert answer.cack_psn == START + 1
    assert script.memory[:5] == b"hello"


@pytest.mark.parametrize("kind", OPENING)
def test_copies_of_it(kind: ControlType) -> None:
    """They are acknowledged again, and open nothing more."""
    script = Script()
    script.give(opened_by(kind))
    for _ in range(2):
        seen = script.give(opened_by(kind, retx=1))
        assert (seen[0].is_ack, seen[0].ack_psn, seen[0].retx) == (True, START, 1)
        assert len(script.pdcs) == 1


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("negotiate", [False, True])
def test_an_initiator_opens_a_pdc(negotiate: bool, ordered: bool) -> None:
    """The packet takes the first PSN and is sent until it is acknowledged; messages follow."""
    script = Script()
    assert script.fep.open_pdc(THERE, ordered=ordered, negotiate=negotiate)
    (opening,) = script.take()
    kind = ControlType.NEGOTIATION if negotiate else ControlType.NOOP
    assert (opening.control, opening.syn, opening.psn_offset) == (kind, 1, 0)
    assert (opening.isrod, opening.ar, opening.retx) == (int(ordered), 1, 0)
    assert opening.octets[54:62] == (FEATURES if negotiate else bytes(4))
    (again,) = script.wait(MS)
    assert (again.psn, again.retx, again.syn) == (opening.psn, 1, 1)
    assert again.octets[54:62] == opening.octets[54:62]
    script.post(b"x", delivery="rod" if ordered else "rud")
    (request,) = script.take()
    assert (request.psn, request.syn, request.psn_offset) == (opening.psn + 1, 1, 1)
    script.give(ack(psn=again.psn, dpdcid=again.spdcid, code=None))
    script.post(b"y", delivery="rod" if ordered else "rud")
    (request,) = script.take()
    assert (request.syn, request.dpdcid) == (0, TARGET)
    script.give(ack(request))
    check_idle(script.fep)


def test_nobody_answers_to_an_opening() -> None:
    script = Script(max_rto_retx_cnt=2)
    assert script.fep.open_pdc(THERE)
    assert [s.retx for s in script.wait(20 * MS)] == [0, 1, 1]
    assert script.pdcs == []
    check_idle(script.fep)


def test_no_room_for_another_opening() -> None:
    """No more PSNs are in flight than can be remembered."""
    script = Script(window_bytes=1 << 30)
    script.establish_initiator()
    script.post(bytes(60_000), offset=0)
    script.take()
    room = 1_024 - script.pdc.source.window.outstanding
    for _ in range(room):
        assert script.fep.open_pdc(THERE)
    assert not script.fep.open_pdc(THERE)
    script.take(2_000)
    check(script.fep, script.now)


def test_a_control_packet_finds_room_in_a_full_ring() -> None:
    script = Script(window_bytes=1 << 30)
    script.establish_initiator()
    script.post(bytes(FIRST_SLOTS * MTU), offset=0)
    script.take()
    requests = script.pdc.source.requests
    assert requests.window.outstanding == len(requests.size) == FIRST_SLOTS
    assert script.fep.open_pdc(THERE)
    assert len(requests.size) == 2 * FIRST_SLOTS
    script.take()
    check(script.fep, script.now)
    assert len([size for size in requests.size if size]) == FIRST_SLOTS


def test_what_both_can_do() -> None:
    """The target answers a NEGOTIATION with its own, and each keeps what both have."""
    network = Network(
        {a: endpoint(a, seed=k) for k, a in enumerate((HERE, THERE))}, random.Random(1)
    )
    assert network.endpoints[HERE].open_pdc(THERE, negotiate=True)
    network.settle()
    pdcs = [next(iter(fep.table.by_id.values())) for fep in network.endpoints.values()]
    assert [pdc.negotiated for pdc in pdcs] == [SYN_RETX_TRANSFER] * 2
    for fep in network.endpoints.values():
        check_idle(fep)


def test_what_only_one_can_do() -> None:
    keeps = Compatibility(keep_syn_on_retransmission=True)
    assert agreed_features(feature_request(Compatibility()), keeps) == 0
    assert agreed_features(feature_request(keeps), Compatibility()) == 0
    assert agreed_features(feature_request(Compatibility()), Compatibility()) == SYN_RETX_TRANSFER


@pytest.mark.parametrize(
    "octets", [b"", FEATURES[:7], b"\x02" + FEATURES[1:], b"\1\3" + FEATURES[2:]]
)
def test_a_negotiation_that_is_not_understood(octets: bytes) -> None:
    """The negotiation is acknowledged as a packet, and counted; nothing is agreed."""
    script = Script()
    packet = opened_by(ControlType.NOOP)
    packet.ctl_type = ControlType.NEGOTIATION
    packet.payload_word = int.from_bytes(octets[:4].ljust(4, b"\0"), "big")
    (answer,) = script.give(packet / octets[4:])
    assert answer.is_ack
    assert script.pdc.negotiated is None
    assert script.counters["rx_negotiations_not_understood"] == 1


@pytest.mark.conformance("C-012")
def test_control_packets_outside_the_window() -> None:
    script = Script(mpr=1)
    own = script.establish_target()
    for kind in OPENING:
        (nack,) = script.give(control(kind, START + 200, dpdcid=own, ar=1))
        assert nack.nack is NackCode.PSN_OOR_WINDOW


# -- PROBE ----------------------------------------------------------------------------------------


@pytest.mark.conformance("C-056", "C-067")
def test_a_probe_is_answered_at_once() -> None:
    """P, the opaque, and the window from the SACK base asked for; nothing about a PSN."""
    script = Script()
    own = script.establish_target()
    for k in (3, 70, 100):
        script.give(rud(START + k, dpdcid=own) / write(b"x"))
    packet = control(
        ControlType.PROBE, 0, dpdcid=own, ar=1, probe_opaque=0xBEEF, payload_word=START + 69
    )
    (answer,) = script.give(packet, ev=50_505, ecn=3)
    assert (answer.is_ack, answer.p, answer.probe_opaque) == (True, 1, 0xBEEF)
    assert (answer.m, answer.ev, answer.dscp, answer.ses) == (1, 50_505, 46, None)
    assert answer.cack_psn == START
    assert answer.sack_psn_offset == 69
    assert answer.sack_bitmap == 1 << 1 | 1 << 31
    # It took no PSN.
    assert script.pdc.destination.window.first_missing == START + 1


@pytest.mark.conformance("C-056")
def test_a_probe_for_a_base_that_no_ack_could_name() -> None:
    script = Script()
    own = script.establish_target()
    packet = control(
        ControlType.PROBE, 0, dpdcid=own, ar=1, probe_opaque=1, payload_word=START + 2**20
    )
    (answer,) = script.give(packet)
    assert (answer.cack_psn, answer.sack_psn_offset) == (START, 0)


@pytest.mark.conformance("C-056")
def test_a_probe_opens_no_pdc() -> None:
    script = Script()
    for packet in (
        control(ControlType.PROBE, START, dpdcid=0, ar=1, syn=1, psn_offset=0),
        control(ControlType.PROBE, START, dpdcid=99, ar=1),
    ):
        (nack,) = script.give(packet)
        assert (nack.nack, nack.spdcid) == (NackCode.INV_DPDCID, 0)
    assert script.pdcs == []


def probed(script: Script) -> tuple[Seen, list[Seen]]:
    """Eight packets are in flight, and a probe."""
    script.establish_initiator()
    script.post(bytes(8 * 1024))
    packets = script.take()
    assert script.fep.probe(THERE)
    (probe,) = script.take()
    return probe, packets


def probe_ack(probe: Seen, *, cack: int, base: int, bitmap: int, **fields: Any) -> Any:
    fields = {"probe_opaque": probe.probe_opaque, "mpr": 8} | fields
    return UET_ACK_CC(
        p=1, cack_psn=cack & MASK, sack_psn_offset=base - cack, sack_bitmap=bitmap,
        spdcid=TARGET, dpdcid=probe.spdcid, **fields,
    )  # fmt: skip


@pytest.mark.conformance("C-056")
def test_the_answer_to_a_probe_is_about_no_psn() -> None:
    """Its SACK is used, its CACK completes nothing."""
    script = Script()
    probe, packets = probed(script)
    assert (probe.control, probe.ar, probe.psn) == (ControlType.PROBE, 1, 0)
    assert probe.dscp == 46
    assert probe.payload_word == packets[0].psn
    first = packets[0].psn
    script.give(probe_ack(probe, cack=packets[1].psn, base=first, bitmap=0b1111))
    assert script.counters["rx_probe_acks"] == 1
    window = script.pdc.source.window
    assert window.base == first
    assert [window.is_delivered(p.psn) for p in packets] == [True] * 4 + [False] * 4
    asked = script.wait(MS)
    assert [s.psn for s in asked if s.control is ControlType.ACK_REQ] == [
        p.psn for p in packets[:4]
    ]
    assert [s.psn for s in asked if s.is_request] == [p.psn for p in packets[4:]]


@pytest.mark.conformance("C-056")
def test_a_probe_asks_from_the_oldest_psn_in_flight_on() -> None:
    """An answer shows 64 PSNs: those of which something is known are not asked about again."""
    script = Script()
    probe, packets = probed(script)
    script.give(probe_ack(probe, cack=packets[0].psn - 1, base=packets[0].psn, bitmap=0b10111))
    assert script.fep.probe(THERE)
    (again,) = script.take()
    assert again.payload_word == packets[3].psn


@pytest.mark.conformance("C-056")
def test_answers_to_probes_never_sent() -> None:
    """A plain ACK that answers one tells that the PDC is there, and no more."""
    script = Script()
    probe, packets = probed(script)
    first = packets[0].psn
    wrong: list[Any] = [
        probe_ack(probe, cack=first, base=first, bitmap=255, probe_opaque=probe.probe_opaque + 1),
        probe_ack(probe, cack=first + 50, base=first, bitmap=255),
        UET_ACK(
            p=1,
            probe_opaque=probe.probe_opaque,
            cack_psn=first,
            spdcid=TARGET,
            dpdcid=probe.spdcid,
        ),
    ]
    answered = []
    for packet in wrong:
        assert script.give(packet) == []
        answered.append(script.counters.get("rx_probe_acks", 0))
    assert script.pdc.source.window.delivered == 0
    assert answered == [0, 0, 1]


def test_there_is_nothing_to_probe() -> None:
    script = Script()
    assert not script.fep.probe(THERE)
    script.establish_target()
    assert not script.fep.probe(THERE)


@given(opaque=st.integers(0, 0xFFFF), base=st.integers(-40_000, 40_000))
@examples(30)
@pytest.mark.conformance("C-056")
def test_any_probe(opaque: int, base: int) -> None:
    script = Script()
    own = script.establish_target()
    packet = control(
        ControlType.PROBE, 0, dpdcid=own, ar=1, probe_opaque=opaque,
        payload_word=(START + base) & MASK,
    )  # fmt: skip
    (answer,) = script.give(packet)
    assert answer.probe_opaque == opaque
    expected = base if -0x8000 <= base < 0x8000 else 0
    assert answer.sack_psn_offset == expected


# -- CREDIT, CREDIT_REQ ---------------------------------------------------------------------------


@pytest.mark.parametrize("ccc_id", [0, 0x12])
def test_credit_is_for_the_context_it_names(ccc_id: int) -> None:
    """Credit is cumulative, and what a context may send; a fixed window ignores it."""
    fixed, script = Script(), Script(cc="rccc")
    for one in (fixed, script):
        own = one.establish_initiator()
        credit = control(
            ControlType.CREDIT, 0, dpdcid=own, spdcid=TARGET, payload_word=ccc_id << 24 | 100
        )
        assert one.give(credit) == one.give(credit) == []
    context = script.pdc.peer.congestion
    assert context.credit is not None
    assert context.credit.credit == (0 if ccc_id else 25_600)
    assert script.fep.counts["rx_credits"] == 2
    assert fixed.pdc.peer.congestion.credit is None


def test_a_credit_request_is_granted() -> None:
    """By any endpoint, whatever limits what it sends itself; on the PDC that asked."""
    script = Script()
    own = script.establish_target()
    ask = control(ControlType.CREDIT_REQ, 0, dpdcid=own, payload_word=0x12_000010)
    answers = script.give(ask)
    assert [(a.ctl_type, a.psn, a.ar, a.dpdcid) for a in answers[:1]] == [
        (ControlType.CREDIT, 0, 0, script.pdc.peer_id)
    ]
    assert answers[0].payload_word == 0x12_000010
    assert script.fep.counts["rx_credit_requests"] == 1


# -- CLEAR_REQ ------------------------------------------------------------------------------------


@pytest.mark.conformance("C-066")
def test_a_target_asks_for_a_clear() -> None:
    """The source answers at once by a control packet, unless a request is about to say it."""
    script = Script()
    own = script.establish_initiator()
    psn = script.next_psn
    packet = control(ControlType.CLEAR_REQ, 0, dpdcid=own, spdcid=TARGET)
    for _ in range(2):
        (clear,) = script.give(packet)
        assert (clear.control, clear.psn, clear.ar) == (ControlType.CLEAR_CMD, 0, 0)
        assert clear.payload_word == psn - 1
    assert script.next_psn == psn


def test_an_initiator_may_ask_for_a_clear_too() -> None:
    """The CLEAR is of the return direction, whose source is the target."""
    script = Script()
    own = script.establish_target()
    (clear,) = script.give(control(ControlType.CLEAR_REQ, 0, dpdcid=own))
    assert (clear.control, clear.payload_word) == (ControlType.CLEAR_CMD, START - 1)


def test_a_clear_reaches_the_destination_of_the_return_direction() -> None:
    script = Script()
    own = script.establish_initiator()
    start = script.pdc.start_psn
    packet = control(ControlType.CLEAR_CMD, 0, dpdcid=own, spdcid=TARGET, payload_word=start + 5)
    assert script.give(packet) == []
    # Nobody can know responses to what has not arrived.
    assert script.pdc.destination.window.cack == start - 1


# -- the wrong moment, the wrong end --------------------------------------------------------------


@pytest.mark.conformance("C-055")
@pytest.mark.parametrize("kind", [10, 12, 15])
def test_types_that_do_not_exist(kind: int) -> None:
    assert kind not in set(ControlType)
    script = Script()
    own = script.establish_target()
    (nack,) = script.give(UET_CP(ctl_type=kind, psn=START + 1, spdcid=INITIATOR, dpdcid=own))
    assert nack.nack is NackCode.UNEXP_EVENT


@pytest.mark.conformance("C-055")
def test_close_and_close_req_have_a_direction() -> None:
    script = Script()
    own = script.establish_target()
    (nack,) = script.give(control(ControlType.CLOSE_REQ, START + 1, dpdcid=own, ar=1))
    assert nack.nack is NackCode.UNEXP_EVENT
    script = Script()
    own = script.establish_initiator()
    packet = control(ControlType.CLOSE_CMD, script.pdc.start_psn, dpdcid=own, spdcid=TARGET, ar=1)
    (nack,) = script.give(packet)
    assert nack.nack is NackCode.UNEXP_EVENT


@pytest.mark.parametrize("kind", [k for k in ControlType if k not in OPENING])
def test_before_the_target_is_known(kind: ControlType) -> None:
    """A control packet for a PDC that is being made can only be of an older one."""
    script = Script()
    script.post(b"x")
    (request,) = script.take()
    packet = control(kind, request.psn, dpdcid=request.spdcid, spdcid=TARGET)
    assert script.give(packet) == []
    assert script.pdc.peer_id == 0
    assert script.counters["rx_drop_control_before_establishment"] == 1


@pytest.mark.conformance("C-009")
@pytest.mark.parametrize("kind", list(ControlType))
def test_of_another_pdc(kind: ControlType) -> None:
    script = Script()
    own = script.establish_target()
    (nack,) = script.give(control(kind, START + 1, dpdcid=own, spdcid=INITIATOR + 1))
    assert (nack.nack, nack.spdcid) == (NackCode.PDC_HDR_MISMATCH, 0)
    assert len(script.pdcs) == 1


def test_a_peer_that_knows_no_probe() -> None:
    """The UEC reference provider refuses it (UNEXP_EVENT): no PSN of ours, so nothing happens."""
    script = Script()
    probe, _ = probed(script)
    script.give(refusal(psn=probe.psn, dpdcid=probe.spdcid, code=NackCode.UNEXP_EVENT))
    assert len(script.pdcs) == 1
    assert script.counters["rx_nacks_of_settled_psn"] == 1


# -- the loss of each -----------------------------------------------------------------------------


def control_of(frame: bytes) -> ControlType | None:
    decoded = decode_frame(frame, crc="off")
    for layer in decoded.layers:
        if layer.name == "pds.cp" and layer.header is not None:
            fields = dict(zip(layer.header.names, layer.values, strict=True))
            return ControlType(fields["ctl_type"])
    return None


@pytest.mark.conformance("C-051", "C-054")
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize(
    "kind",
    [
        ControlType.NOOP,
        ControlType.NEGOTIATION,
        ControlType.CLEAR_CMD,
        ControlType.CLOSE_CMD,
        ControlType.CLOSE_REQ,
    ],
)
def test_each_may_be_lost_or_doubled(kind: ControlType, copies: int, ordered: bool) -> None:
    """A PDC is opened without a request, used, and closed at its target's wish all the same."""
    feps = {
        a: endpoint(a, seed=k, delivery="rod" if ordered else "rud", close_req_time=50 * MS)
        for k, a in enumerate((HERE, THERE))
    }
    here, there = feps[HERE], feps[THERE]
    touched = 0

    def tap(frame: bytes, now: int) -> list[bytes]:
        nonlocal touched
        if control_of(frame) is kind and touched < 1:
            touched += 1
            return [frame] * copies
        return [frame]

    network = Network(feps, random.Random(1), tap=tap)
    assert here.open_pdc(THERE, ordered=ordered, negotiate=kind is ControlType.NEGOTIATION)
    network.settle()
    for k in range(3):  # refusals, which are kept until they are cleared
        here.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(b"x"), context=k))
        network.settle()
    assert [c.error for c in network.completions[HERE]] == ["BAD_MKEY"] * 3
    (pdc,) = there.table.by_id.values()
    assert pdc.destination.stored == {}
    there.control.append(pdc.ask_to_close(network.now))
    there.activate(pdc)
    network.settle()
    assert touched == 1
    for fep in feps.values():
        assert fep.counters()["pdcs_open"] == 0
        assert fep.counters().get("pdc_errors", 0) == 0
        check_idle(fep)


def test_a_stored_response_outlives_a_lost_clear() -> None:
    """The duplicate that follows is answered by it; REQ_CLEAR in that brings another CLEAR."""
    script = Script()
    StubSemantics(script, {START + 1: guaranteed()})
    own = script.establish_target()
    (first,) = script.give(rud(START + 1, dpdcid=own, ar=1) / write(b"x"))
    (again,) = script.give(rud(START + 1, dpdcid=own, ar=1, retx=1) / write(b"x"))
    assert (first.req, again.req) == (1, 1)
    script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=START + 1))
    (after,) = script.give(rud(START + 1, dpdcid=own, ar=1, retx=1) / write(b"x"))
    assert (after.req, after.cack_psn) == (0, START + 1)
