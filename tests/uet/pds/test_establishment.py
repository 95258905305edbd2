"""How a PDC comes into being: SYN, identifiers, first PSNs (UES 3.5.8)."""

import random

import pytest
from scapy.packet import Packet

from tests.harness.uet.network import Network, endpoint
from tests.harness.uet.script import (
    ELSEWHERE,
    HERE,
    INITIATOR,
    KEY,
    MS,
    MTU,
    REGION,
    START,
    TARGET,
    THERE,
    Script,
    ack,
    control,
    refusal,
    rud,
    write,
)
from uet.transport import WriteRequest
from uet.wire.codes import ControlType, NackCode


@pytest.mark.conformance("C-001", "C-002")
def test_identifiers_are_never_zero_and_differ() -> None:
    """Whatever the generator's seed, and when the identifiers have gone round."""
    for seed in range(20):
        script = Script(seed=seed)
        script.post(b"x", peer=THERE)
        script.post(b"x", peer=ELSEWHERE)
        ids = [request.spdcid for request in script.take()]
        assert 0 not in ids
        assert len(set(ids)) == 2
    script = Script(last_pdcid=5)
    table = script.fep.table
    created = []
    for number in range(12):
        pdc = table.accept(script.fep.peers[bytes([10, 0, 1, 2])], 100 + number, START, 0)
        assert pdc is not None
        created.append(pdc.id)
        pdc.closed()
    assert created == [(created[0] - 1 + k) % 5 + 1 for k in range(12)]


@pytest.mark.conformance("C-003", "C-006")
def test_syn_until_the_first_answer() -> None:
    """The k-th packet before an answer says how far it is from the first; then SYN ends."""
    script = Script()
    script.post(bytes(5 * MTU))
    packets = script.take()
    assert [p.syn for p in packets] == [1] * 5
    assert [p.psn_offset for p in packets] == [0, 1, 2, 3, 4]
    assert len({p.start_psn for p in packets}) == 1
    assert script.give(ack(packets[0])) == []
    script.post(bytes(MTU))
    (later,) = script.take()
    assert later.syn == 0
    assert later.dpdcid == TARGET
    assert later.psn == packets[-1].psn + 1


@pytest.mark.conformance("C-003")
def test_a_resend_before_the_answer_keeps_its_offset() -> None:
    script = Script()
    script.post(bytes(3 * MTU))
    first = script.take()
    again = script.wait(MS)
    assert [(p.psn, p.psn_offset, p.retx) for p in again] == [
        (p.psn, p.psn_offset, 1) for p in first
    ]


def test_a_resend_after_the_answer_carries_the_learnt_identifier() -> None:
    script = Script()
    script.post(bytes(2 * MTU))
    first, second = script.take()
    script.give(ack(first))
    (again,) = script.wait(MS)
    assert (again.psn, again.syn, again.dpdcid, again.retx) == (second.psn, 0, TARGET, 1)


@pytest.mark.conformance("C-004", "C-007", "C-016")
def test_any_syn_packet_may_arrive_first() -> None:
    """The target derives Start_PSN from the offset, and opens one PDC for all SYN packets."""
    script = Script()
    parts = [write(bytes([k]) * 4, at=4 * k, total=16) for k in range(4)]
    (first,) = script.give(rud(START + 2, syn=2) / parts[2])
    assert (first.cack_psn, first.ack_psn) == (START - 1, START + 2)
    for k in (0, 3, 1):
        (answer,) = script.give(rud(START + k, syn=k) / parts[k])
        assert answer.spdcid == first.spdcid
        assert answer.ack_psn == START + k
    assert answer.cack_psn == START + 3
    assert script.memory[:16] == b"".join(bytes([k]) * 4 for k in range(4))
    assert script.pdc.start_psn == START
    assert script.next_psn == START  # the return direction begins at the same PSN


@pytest.mark.conformance("C-005")
def test_every_syn_packet_is_acknowledged() -> None:
    script = Script()
    for k in range(20):
        answers = script.give(rud(START + k, syn=k, ar=0) / write(b"a", message_id=k + 1))
        assert [a.ack_psn for a in answers] == [START + k]


@pytest.mark.conformance("C-007")
def test_a_syn_packet_sent_again_makes_no_second_pdc() -> None:
    script = Script()
    packet = rud(START, syn=0, ar=1) / write(b"abc", header_data=5, hd=1)
    (first,) = script.give(packet)
    packet.retx = 1
    (second,) = script.give(packet)
    assert second.spdcid == first.spdcid
    assert len(script.completions) == 1
    assert script.counters["pdcs_open"] == 1


def test_equal_identifiers_of_two_peers_are_two_pdcs() -> None:
    script = Script()
    here = script.establish_target(source=THERE)
    there = script.establish_target(source=ELSEWHERE)
    assert here != there
    (nack,) = script.give(rud(START + 1, dpdcid=here) / write(b"x"), source=ELSEWHERE)
    assert nack.nack is NackCode.INV_DPDCID


@pytest.mark.conformance("C-008")
def test_unknown_pdc() -> None:
    script = Script()
    script.establish_target()
    before = script.counters
    for dpdcid in (0, script.pdc.id + 1, 65_535):
        (nack,) = script.give(rud(5, dpdcid=dpdcid, retx=1) / write(b"x"), ecn=3, ev=51_234)
        assert nack.nack is NackCode.INV_DPDCID
        assert (nack.spdcid, nack.dpdcid, nack.nack_psn) == (0, INITIATOR, 5)
        assert (nack.retx, nack.m, nack.ev, nack.dscp) == (1, 1, 51_234, 46)
    assert script.counters["pdcs_open"] == before["pdcs_open"]
    assert script.memory[0] == 0


def test_a_request_to_an_initiator_is_no_request_of_that_pdc() -> None:
    """The return direction carries no requests."""
    script = Script()
    own = script.establish_initiator()
    (nack,) = script.give(rud(START, dpdcid=own, spdcid=TARGET) / write(b"x"))
    assert nack.nack is NackCode.PDC_HDR_MISMATCH
    assert script.memory[0] == 0


@pytest.mark.conformance("C-009")
def test_wrong_source_identifier() -> None:
    script = Script()
    own = script.establish_target()
    (nack,) = script.give(rud(START + 1, dpdcid=own, spdcid=INITIATOR + 1) / write(b"x"))
    assert nack.nack is NackCode.PDC_HDR_MISMATCH
    assert nack.dpdcid == INITIATOR + 1
    assert script.memory[0] == 0
    (nack,) = script.give(
        control(ControlType.NOOP, START + 1, dpdcid=own, spdcid=INITIATOR + 1, ar=1)
    )
    assert nack.nack is NackCode.PDC_HDR_MISMATCH
    assert script.pdc.destination.window.cack == START


@pytest.mark.conformance("C-009")
def test_next_header_that_is_no_request() -> None:
    script = Script()
    (nack,) = script.give(rud(START, syn=0, next_hdr=0) / b"abcd")
    assert nack.nack is NackCode.PDC_HDR_MISMATCH
    assert nack.spdcid == 0
    assert script.pdcs == []
    own = script.establish_target()
    (nack,) = script.give(rud(START + 1, dpdcid=own, next_hdr=4) / b"abcd")
    assert nack.nack is NackCode.PDC_HDR_MISMATCH
    assert nack.spdcid == own


@pytest.mark.conformance("C-010")
def test_no_pdc_available() -> None:
    """A refused SYN leaves nothing behind."""
    script = Script(max_pdcs=1)
    script.establish_target()
    (nack, *_) = script.give(rud(START, syn=0, spdcid=8) / write(b"xyz", buffer_offset=100))
    assert nack.nack is NackCode.NO_PDC_AVAIL
    assert (nack.spdcid, nack.dpdcid, nack.nack_psn) == (0, 8, START)
    assert [pdc.peer_id for pdc in script.pdcs] == [INITIATOR]
    assert script.memory[100:103] == bytes(3)


@pytest.mark.conformance("C-010")
def test_a_refused_initiator_tries_again() -> None:
    """After NACK_Retx_Time, as the same packet; with an answer all is well."""
    script = Script()
    script.post(bytes(2 * MTU))
    first = script.take()
    for request in first:
        assert script.give(refusal(request, code=NackCode.NO_PDC_AVAIL, spdcid=0)) == []
    again = script.wait(MS)
    assert [(p.psn, p.syn, p.psn_offset, p.retx) for p in again] == [
        (p.psn, 1, p.psn_offset, 1) for p in first
    ]
    script.give(ack(again[1]))
    assert [c.error for c in script.completions] == [None]


@pytest.mark.conformance("C-011")
@pytest.mark.parametrize("psn", [START + 1025, START - 1024, START + 2**31])
def test_syn_outside_the_window(psn: int) -> None:
    script = Script()
    own = script.establish_target()
    (nack,) = script.give(rud(psn, syn=0) / write(b"x"))
    assert nack.nack is NackCode.INVALID_SYN
    assert nack.spdcid == own
    assert script.pdc.start_psn == START
    assert script.memory[0] == 0


@pytest.mark.conformance("C-011")
@pytest.mark.parametrize("mpr", [1, 8])
def test_the_window_of_a_syn_begins_and_ends_with_mpr(mpr: int) -> None:
    """MPR packets from the base on are tracked, with and without SYN; the next one is not.

    The SYN packets agree with the PDC in its first PSN, by their offsets from it.
    """
    for syn, code in ((True, NackCode.INVALID_SYN), (False, NackCode.PSN_OOR_WINDOW)):
        script = Script(mpr=mpr)
        own = script.establish_target()
        size = 128 * mpr

        def request(offset: int, syn: bool = syn, own: int = own) -> Packet:
            more = {"syn": offset} if syn else {"dpdcid": own}
            return rud(START + offset, **more)

        (refused,) = script.give(request(1 + size) / write(b"x"))
        assert refused.nack is code
        assert script.memory[0] == 0
        answers = script.give(request(size) / write(b"y"))
        assert [answer.nack for answer in answers if answer.name == "nack"] == []
        assert bytes(script.memory[:1]) == b"y"


def test_an_old_ack_does_not_decide_who_the_peer_is() -> None:
    """Neither without an identifier, nor for a PSN that this PDC has not sent."""
    script = Script()
    script.post(b"x")
    (request,) = script.take()
    script.give(ack(request, spdcid=0))
    script.give(ack(psn=request.psn - 70_000, dpdcid=request.spdcid, spdcid=77))
    assert script.counters["rx_drop_ack_before_establishment"] == 2
    assert script.pdc.peer_id == 0
    script.give(ack(request))
    assert script.pdc.peer_id == TARGET


def test_control_packets_wait_for_the_establishment() -> None:
    """The ACK that names the target's identifier may be lost; a control packet is then ignored."""
    script = Script()
    script.post(b"x")
    (request,) = script.take()
    close_request = control(
        ControlType.CLOSE_REQ, request.psn, dpdcid=request.spdcid, spdcid=TARGET, ar=1
    )
    assert script.give(close_request) == []
    assert script.counters["rx_drop_control_before_establishment"] == 1


def test_close_before_the_establishment() -> None:
    """What was posted is finished first, though the close began before the first answer."""
    script = Script()
    script.post(bytes(3 * MTU), context="mine")
    packets = script.take()
    script.fep.close()
    assert script.take() == []
    answers = [script.give(ack(p)) for p in packets]
    assert [(c.context, c.error) for c in script.completions] == [("mine", None)]
    (close,) = answers[-1]
    assert close.control is ControlType.CLOSE_CMD
    script.give(ack(close, code=None))
    assert script.fep.closed


def test_close_of_an_endpoint_that_was_never_used() -> None:
    script = Script()
    script.fep.close()
    assert script.fep.closed
    assert script.take() == []
    assert script.fep.next_deadline() is None


def test_both_sides_initiate_at_once() -> None:
    """Two PDCs, one each way, with packets of both under way before any answer."""
    feps = {a: endpoint(a, seed=n, payload_mtu=MTU) for n, a in enumerate((HERE, THERE))}
    network = Network(feps, random.Random(3))
    memory = {a: bytearray(REGION) for a in feps}
    for address, fep in feps.items():
        fep.register(memoryview(memory[address]), key=KEY)
    data = {HERE: bytes([1]) * 20_000, THERE: bytes([2]) * 30_000}
    for address, peer in ((HERE, THERE), (THERE, HERE)):
        feps[address].post(
            WriteRequest(peer=peer, key=KEY, offset=0, payload=memoryview(data[address]))
        )
    network.settle()
    assert all([c.error for c in network.completions[a]] == [None] for a in feps)
    assert memory[THERE][:20_000] == data[HERE]
    assert memory[HERE][:30_000] == data[THERE]
    assert [fep.counters()["pdcs_open"] for fep in feps.values()] == [2, 2]


def test_a_peer_that_has_restarted() -> None:
    """Its new endpoint does not know the old PDC: what it refuses goes to a new one."""
    feps = {a: endpoint(a, seed=n, payload_mtu=MTU) for n, a in enumerate((HERE, THERE))}
    network = Network(feps, random.Random(3))
    memory = bytearray(REGION)
    feps[THERE].register(memoryview(memory), key=KEY)

    def send(context: str) -> None:
        payload = memoryview(context.encode() * 1000)
        feps[HERE].post(
            WriteRequest(peer=THERE, key=KEY, offset=0, payload=payload, context=context)
        )
        network.settle()

    send("a")
    feps[THERE] = endpoint(THERE, seed=99, payload_mtu=MTU)
    memory = bytearray(REGION)
    feps[THERE].register(memoryview(memory), key=KEY)
    send("b")
    assert memory[:1000] == b"b" * 1000
    send("c")
    assert memory[:1000] == b"c" * 1000
    assert [(c.context, c.error) for c in network.completions[HERE]] == [
        ("a", None),
        ("b", None),
        ("c", None),
    ]


def test_an_initiator_that_has_restarted() -> None:
    """Its new PDC is a new one here too, whatever became of the old one."""
    feps = {a: endpoint(a, seed=n, payload_mtu=MTU) for n, a in enumerate((HERE, THERE))}
    network = Network(feps, random.Random(3))
    memory = bytearray(REGION)
    feps[THERE].register(memoryview(memory), key=KEY)
    for generation in (b"a", b"b"):
        payload = memoryview(generation * 10_000)
        feps[HERE].post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=payload))
        network.settle()
        assert memory[:10_000] == generation * 10_000
        feps[HERE] = endpoint(HERE, seed=50, payload_mtu=MTU)
