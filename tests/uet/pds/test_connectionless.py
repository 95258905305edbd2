"""Without a PDC: idempotent requests (RUDI, UES 3.5.22) and datagrams (UUD, UES 3.5.3)."""

import random
from typing import Any

import pytest
from scapy.packet import Packet

from tests.harness.uet.invariants import check_idle
from tests.harness.uet.network import Impairment, Network, endpoint
from tests.harness.uet.script import ELSEWHERE, HERE, KEY, MS, MTU, THERE, US, Script, Seen, write
from uet.pds.connectionless import MOST_OUTSTANDING, MOST_OUTSTANDING_OF_A_PEER
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import ReadRequest, ReceiveRequest, SendRequest, WriteRequest
from uet.wire.codes import Opcode, ReturnCode
from uet.wire.layers import (
    UET_NACK,
    UET_RUDI_REQ,
    UET_RUDI_RESP,
    UET_SES_RESPONSE,
    UET_SES_RESPONSE_DATA,
    UET_SES_STD,
    UET_UUD_REQ,
)

SAFE = KEY | IDEMPOTENT_SAFE


def safe(**parameters: Any) -> Script:
    """A script whose memory may be written any number of times."""
    script = Script(**parameters)
    script.fep.register(memoryview(script.memory), key=SAFE)
    return script


def response(packet_id: int, code: ReturnCode = ReturnCode.OK, **fields: Any) -> Packet:
    """The answer of the peer."""
    return UET_RUDI_RESP(pkt_id=packet_id, **fields) / UET_SES_RESPONSE(
        opcode=int(code != ReturnCode.OK), return_code=code, message_id=1, job_id=1
    )


def requests(script: Script, data: bytes, **more: Any) -> list[Seen]:
    """The endpoint posts an idempotent write."""
    script.post(data, key=SAFE, delivery="rudi", context="w", **more)
    return script.take()


# -- RUDI: the target ---------------------------------------------------------------------------


@pytest.mark.conformance("C-057")
def test_every_copy_is_executed_and_answered() -> None:
    """A response each, with the packet id of its request; no PDC is made."""
    script = safe()
    packet = UET_RUDI_REQ(pkt_id=0xABCD) / write(b"first", match_bits=SAFE, message_id=3)
    for _ in range(2):
        script.memory[:5] = b"-----"
        (answer,) = script.give(packet, ev=51_515, ecn=3)
        assert (answer.name, answer.pkt_id) == ("rudi_resp", 0xABCD)
        assert (answer.answer, answer.ses.message_id) == (ReturnCode.OK, 3)
        assert (answer.m, answer.ev, answer.dscp) == (1, 51_515, 46)
        assert script.memory[:5] == b"first"
    assert script.pdcs == []


@pytest.mark.conformance("C-057")
def test_a_read_is_answered_with_the_data() -> None:
    script = safe()
    script.memory[:MTU] = bytes(k % 251 for k in range(MTU))
    ses = UET_SES_STD(
        opcode=Opcode.READ, rel=1, som=1, eom=1, message_id=5, job_id=1, resource_index=15,
        initiator=16, match_bits=SAFE, request_length=MTU,
    )  # fmt: skip
    for _ in range(2):
        (answer,) = script.give(UET_RUDI_REQ(pkt_id=9) / ses)
        assert (answer.pkt_id, answer.payload) == (9, bytes(script.memory[:MTU]))
        assert answer.ses.read_request_message_id == 5
    assert script.pdcs == []


@pytest.mark.conformance("C-058")
def test_only_what_is_safe() -> None:
    """A region whose key does not say so, header data, and other operations are refused."""
    script = safe()
    for ses in (
        write(b"x", match_bits=KEY),
        write(b"x", match_bits=SAFE, hd=1, header_data=1),
        write(b"x", match_bits=SAFE, opcode=Opcode.SEND),
    ):
        (answer,) = script.give(UET_RUDI_REQ(pkt_id=1) / ses)
        assert (answer.name, answer.answer) == ("rudi_resp", ReturnCode.OP_VIOLATION)
    assert script.memory[0] == 0


@pytest.mark.conformance("C-058")
def test_a_region_that_is_not_safe_whatever_the_request_says() -> None:
    """With bit 63 in the request's key and not in the region's; a key of nobody stays unknown."""
    script = Script()
    script.fep.register(memoryview(bytearray(8)), key=0x77)
    for key, code in (
        (0x77, ReturnCode.OP_VIOLATION),
        (0x77 | IDEMPOTENT_SAFE, ReturnCode.OP_VIOLATION),
        (0x78 | IDEMPOTENT_SAFE, ReturnCode.BAD_MKEY),
    ):
        (answer,) = script.give(UET_RUDI_REQ(pkt_id=1) / write(b"x", match_bits=key))
        assert (answer.name, answer.answer) == ("rudi_resp", code)
    (answer,) = script.give(
        UET_RUDI_REQ(pkt_id=1) / write(b"x", match_bits=0x77 | IDEMPOTENT_SAFE, job_id=9)
    )
    assert answer.answer != ReturnCode.OK


@pytest.mark.conformance("C-058")
def test_what_is_not_safe_fails_at_the_initiator() -> None:
    script = safe()
    (request,) = requests(script, b"x")
    script.give(response(request.pkt_id, ReturnCode.OP_VIOLATION))
    assert [c.error for c in script.completions] == ["OP_VIOLATION"]


def test_a_profile_without_rudi() -> None:
    script = safe(profiles=("ai_base",))
    (answer,) = script.give(UET_RUDI_REQ(pkt_id=1) / write(b"x", match_bits=SAFE))
    assert answer.answer == ReturnCode.UNSUPPORTED_OP


# -- RUDI: the initiator ------------------------------------------------------------------------


@pytest.mark.conformance("C-057")
def test_responses_find_their_request_by_packet_id() -> None:
    """In any order; ids are unique, and a packet is done at its first response."""
    script = safe()
    sent = requests(script, bytes(4 * MTU))
    assert len({s.pkt_id for s in sent}) == 4
    assert {s.name for s in sent} == {"rudi_req"}
    assert len({s.ev for s in sent}) == 4
    for k in (2, 0, 3):
        assert script.give(response(sent[k].pkt_id)) == []
    script.give(response(sent[2].pkt_id))
    script.give(response(sent[1].pkt_id + 77))
    script.give(response(sent[1].pkt_id), source=ELSEWHERE)
    assert script.counters["rx_drop_unexpected_rudi_response"] == 3
    assert script.completions == []
    script.give(response(sent[1].pkt_id))
    assert [(c.context, c.error) for c in script.completions] == [("w", None)]
    check_idle(script.fep)


def test_a_request_is_sent_again_until_it_is_answered() -> None:
    """After RTO_Init_Time, then twice as long; the copy has RETX, its id and another path."""
    script = safe(max_rto_retx_cnt=3)
    (request,) = requests(script, b"data")
    times, copies = [], []
    for _ in range(3):
        before = script.now
        while not (seen := script.wait(US)):
            assert script.now < before + 100 * MS
        copies += seen
        times.append(script.now)
    assert times == [MS, 3 * MS, 7 * MS]
    for copy in copies:
        assert (copy.pkt_id, copy.retx) == (request.pkt_id, 1)
        assert (copy.payload, copy.ses) == (b"data", request.ses)
    assert len({s.ev for s in (request, *copies)}) == 4
    script.give(response(request.pkt_id, retx=1))
    assert [c.error for c in script.completions] == [None]
    check_idle(script.fep)


def test_retries_are_exhausted() -> None:
    """One packet without an answer fails the message; what comes later is nobody's."""
    script = safe(max_rto_retx_cnt=2)
    sent = requests(script, bytes(3 * MTU))
    for k in (0, 2):
        script.give(response(sent[k].pkt_id))
    copies = script.wait(20 * MS)
    assert [s.pkt_id for s in copies] == [sent[1].pkt_id] * 2
    assert [c.error for c in script.completions] == ["RTO_RETRIES_EXHAUSTED"]
    script.give(response(sent[1].pkt_id))
    assert script.completions == []
    check_idle(script.fep)


def test_a_refusal_brings_it_again_after_a_while() -> None:
    """A NACK with NT names a packet id; it counts against a limit of its own, not that of RTO."""
    script = safe(max_rto_retx_cnt=0, max_nack_retx_cnt=3, nack_retx_time=MS // 4)
    (request,) = requests(script, b"data")
    nack = UET_NACK(nt=1, nack_code=7, nack_pkt_id=request.pkt_id)
    script.give(UET_NACK(nt=1, nack_code=7, nack_pkt_id=request.pkt_id + 1))
    script.give(nack, source=ELSEWHERE)
    assert script.counters["rx_nacks_of_settled_psn"] == 2
    for doublings in range(3):
        assert script.give(nack) == []
        assert script.wait((MS // 4 << doublings) - 1) == []
        (copy,) = script.wait(1)
        assert (copy.pkt_id, copy.retx) == (request.pkt_id, 1)
    assert script.counters.get("rto_expirations", 0) == 0
    assert script.give(nack) == []
    assert [c.error for c in script.completions] == ["NACK_RETRIES_EXHAUSTED"]
    check_idle(script.fep)


def test_the_number_of_requests_in_flight_is_limited() -> None:
    """RUDI has no window; it must not flood those that have one."""
    script = safe(payload_mtu=1024)
    sent = requests(script, bytes((MOST_OUTSTANDING + 50) * MTU)[:60_000])
    sent += requests(script, bytes(60_000)) + requests(script, bytes(60_000))
    sent += requests(script, bytes(60_000)) + requests(script, bytes(60_000))
    assert len(sent) == MOST_OUTSTANDING_OF_A_PEER
    assert len(script.give(response(sent[0].pkt_id))) == 1


def test_what_has_timed_out_holds_up_no_other_peer() -> None:
    """Two dead peers have all of the common limit; a request that comes then waits for one RTO."""
    here, there, *silent = (f"10.0.1.{last}" for last in range(1, 5))
    feps = {address: endpoint(address, seed=last) for last, address in enumerate((here, there))}
    feps[there].register(memoryview(bytearray(8)), key=SAFE)
    network = Network(feps, random.Random(1), Impairment(), delay_ns=5 * US)
    for peer in silent:
        payload = memoryview(bytearray(1 << 20))
        feps[here].post(
            WriteRequest(peer=peer, key=SAFE, offset=0, payload=payload, delivery="rudi")
        )
    network.run(lambda: False, horizon_ns=100 * US)
    assert feps[here].counters()["tx_data_packets"] == MOST_OUTSTANDING
    last = memoryview(bytearray(8))
    feps[here].post(WriteRequest(peer=there, key=SAFE, offset=0, payload=last, delivery="rudi"))
    done = network.completions[here]
    network.run(lambda: bool(done), horizon_ns=3 * MS)
    assert [(c.peer, c.error) for c in done] == [(there, None)]


@pytest.mark.parametrize("dead", [1, 3])
def test_peers_that_do_not_answer_leave_room_for_others(dead: int) -> None:
    """What they hold up of the common limit is free again when it has timed out."""
    addresses = [f"10.0.1.{last}" for last in range(1, 3 + dead)]
    feps = {
        address: endpoint(address, seed=k, payload_mtu=1024)
        for k, address in enumerate(addresses[:2])
    }
    memory = bytearray(4096)
    feps[addresses[1]].register(memoryview(memory), key=SAFE)
    network = Network(feps, random.Random(1), Impairment(), delay_ns=5 * US)
    here = feps[addresses[0]]
    for peer in (*addresses[2:], addresses[1]):
        payload = memoryview(bytes([1]) * (8 if peer == addresses[1] else 1 << 20))
        here.post(WriteRequest(peer=peer, key=SAFE, offset=0, payload=payload, delivery="rudi"))
    done = network.completions[addresses[0]]
    assert network.run(lambda: bool(done), horizon_ns=5 * MS)
    assert [(c.peer, c.error) for c in done] == [(addresses[1], None)]
    assert memory[:9] == bytes([1]) * 8 + b"\0"
    assert network.run(lambda: len(done) == 1 + dead, horizon_ns=1_000 * MS)
    assert {c.error for c in done[1:]} == {"RTO_RETRIES_EXHAUSTED"}
    assert here.connectionless.idle
    assert not here.connectionless.outstanding
    assert MOST_OUTSTANDING_OF_A_PEER < MOST_OUTSTANDING


@pytest.mark.parametrize("seed", range(3))
def test_idempotent_reads_and_writes_over_a_bad_network(seed: int) -> None:
    """Loss and duplicates both ways."""
    feps, memory = {}, {}
    for k, address in enumerate((HERE, THERE)):
        feps[address] = endpoint(address, seed=seed + k, payload_mtu=1024, max_rto_retx_cnt=15)
        memory[address] = bytearray(random.Random(seed + k).randbytes(40_000))
        feps[address].register(memoryview(memory[address]), key=SAFE)
    network = Network(
        feps, random.Random(seed), Impairment(loss=0.05, duplicate=0.05, jitter_ns=3 * US)
    )
    data = random.Random(seed + 9).randbytes(10_000)
    mine = bytearray(9_000)
    feps[HERE].post(
        WriteRequest(peer=THERE, key=SAFE, offset=0, payload=memoryview(data), delivery="rudi")
    )
    feps[HERE].post(
        ReadRequest(peer=THERE, key=SAFE, offset=20_000, memory=memoryview(mine), delivery="rudi")
    )
    network.settle()
    assert sorted((c.kind, c.error) for c in network.completions[HERE]) == [
        ("read", None),
        ("write", None),
    ]
    assert memory[THERE][:10_000] == data
    assert mine == memory[THERE][20_000:29_000]
    for fep in feps.values():
        check_idle(fep)
        assert fep.counters()["pdcs_open"] == 0


# -- UUD ----------------------------------------------------------------------------------------


@pytest.mark.conformance("C-060")
def test_a_datagram_is_one_packet_with_message_id_0() -> None:
    script = Script()
    script.fep.post(SendRequest(peer=THERE, payload=memoryview(b"gram"), delivery="uud", context=1))
    (seen,) = script.take()
    assert (seen.name, seen.payload) == ("uud_req", b"gram")
    assert (seen.ses.opcode, seen.ses.message_id) == (Opcode.DATAGRAM_SEND, 0)
    assert (seen.ses.som, seen.ses.eom, seen.ses.request_length) == (1, 1, 4)
    with pytest.raises(ValueError, match="exceeds the payload MTU"):
        script.fep.post(SendRequest(peer=THERE, payload=memoryview(bytes(MTU + 1)), delivery="uud"))


@pytest.mark.conformance("C-059")
def test_a_datagram_is_sent_once_and_forgotten() -> None:
    script = Script()
    script.fep.post(SendRequest(peer=THERE, payload=memoryview(b"gram"), delivery="uud", context=1))
    assert len(script.take()) == 1
    assert [(c.context, c.error) for c in script.completions] == [(1, None)]
    assert script.fep.next_deadline() is None
    assert script.wait(1_000 * MS) == []
    assert script.pdcs == []


def datagram(data: bytes, **fields: Any) -> Packet:
    ses = {"opcode": Opcode.DATAGRAM_SEND, "message_id": 0, "match_bits": 0}
    return UET_UUD_REQ() / write(data, **ses | fields)


@pytest.mark.conformance("C-059")
def test_a_datagram_draws_no_answer() -> None:
    """Whether it is taken, finds no buffer, is wrong, or comes twice."""
    script = Script()
    room = bytearray(100)
    script.fep.post_receive(ReceiveRequest(memory=memoryview(room), context="r"))
    assert script.give(datagram(b"gram")) == []
    assert [(c.context, c.length, c.error) for c in script.completions] == [("r", 4, None)]
    assert room[:4] == b"gram"
    for packet in (
        datagram(b"gram"),  # a copy, or one without a buffer
        datagram(b"gram", job_id=99),
        datagram(b"gram", resource_index=3),
        datagram(b"gram", opcode=Opcode.WRITE, match_bits=KEY),
        datagram(b"gram", eom=0, request_length=5_000),
        UET_UUD_REQ(next_hdr=4) / b"12345678901234567890",
    ):
        assert script.give(packet) == []
    assert script.completions == []
    assert script.memory[:4] == bytes(4)
    assert script.pdcs == []
    assert script.counters.get("tx_acks", 0) == script.counters.get("tx_nacks", 0) == 0


def test_truncated_ones() -> None:
    script = safe()
    for packet in (
        UET_RUDI_REQ(pkt_id=1) / write(b"x" * 20, match_bits=SAFE),
        datagram(b"x" * 20),
        response(1),
    ):
        whole = script.frame(packet)
        for size in range(42, len(whole) - 20):
            cut = bytearray(whole[:size])
            cut[16:18] = (size - 14).to_bytes(2, "big")
            cut[38:40] = (size - 34).to_bytes(2, "big")
            assert script.give_frame(bytes(cut)) == []
    assert script.counters["rx_drop_truncated"] > 30


def test_return_data_is_no_request() -> None:
    script = safe()
    for base in (UET_RUDI_REQ(pkt_id=1), UET_UUD_REQ()):
        assert script.give(base / UET_SES_RESPONSE_DATA() / b"x") == []


def test_closing_waits_for_the_responses() -> None:
    script = safe()
    (request,) = requests(script, b"x")
    script.fep.close()
    script.take()
    assert not script.fep.closed
    script.give(response(request.pkt_id))
    script.take()
    assert script.fep.closed
