"""The return direction: data that a read asked for comes as requests of the target (UES 3.5.6)."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from scapy.packet import Packet

from tests.harness.uet.carriage import OPTIMIZED_KEY
from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import Impairment, Network, endpoint
from tests.harness.uet.script import (
    HERE,
    INITIATOR,
    KEY,
    MS,
    MTU,
    START,
    TARGET,
    THERE,
    US,
    Script,
    Seen,
    ack,
    control,
    refusal,
    rod,
    rud,
    write,
)
from uet.pds.pdc import PdcState
from uet.transport import ReadRequest, WriteRequest
from uet.wire.codes import ControlType, NackCode, Opcode, ReturnCode
from uet.wire.frame import decode_frame
from uet.wire.layers import UET_SES_RESPONSE_DATA, UET_SES_STD

Build = Callable[..., Packet]


def read_request(octets: int, *, message_id: int = 1, offset: int = 0, **fields: Any) -> Packet:
    return UET_SES_STD(
        opcode=Opcode.READ, rel=1, som=1, eom=1, message_id=message_id, job_id=1,
        resource_index=15, initiator=16, match_bits=KEY, buffer_offset=offset,
        request_length=octets, **fields,
    )  # fmt: skip


def data(octets: bytes, *, of: int, at: int = 0, total: int | None = None) -> Packet:
    """Return data for the read request with the message id ``of``."""
    return (
        UET_SES_RESPONSE_DATA(
            list=0, opcode=2, return_code=ReturnCode.OK, response_message_id=of, job_id=1,
            read_request_message_id=of, payload_length=len(octets), message_offset=at,
            modified_length=len(octets) if total is None else total,
        )
        / octets
    )  # fmt: skip


def post_read(script: Script, octets: int, *, context: object = None, **more: Any) -> bytearray:
    memory = bytearray(octets)
    script.fep.post(
        ReadRequest(
            peer=THERE, key=KEY, offset=0, memory=memoryview(memory), context=context, **more
        )
    )
    return memory


def asked(script: Script, octets: int = 5_000, *, build: Build = rud) -> tuple[int, list[Seen]]:
    """The peer has opened a PDC and sent a read request; id, and what came in answer."""
    script.memory[:octets] = random.Random(1).randbytes(octets)
    (answer,) = script.give(build(START, syn=0, ar=1) / write(b"\0", at=0, total=1))
    own = answer.spdcid
    return own, script.give(build(START + 1, dpdcid=own, ar=1) / read_request(MTU))


# -- the target -----------------------------------------------------------------------------------


@pytest.mark.conformance("C-016", "C-073")
@pytest.mark.parametrize("build", [rud, rod])
def test_data_comes_back_on_the_same_pdc(build: Build) -> None:
    """The request is answered at once, the data has PSNs of its own, from Start_PSN on."""
    script = Script()
    own, (answer, back) = asked(script, build=build)
    assert (answer.is_ack, answer.ack_psn, answer.answer) == (True, START + 1, ReturnCode.OK)
    assert (answer.req, answer.payload) == (0, b"")  # nothing that has to be cleared
    assert (back.name, back.psn, back.syn) == (f"{build.__name__}_req", START, 0)
    assert (back.spdcid, back.dpdcid, back.ar) == (own, INITIATOR, 1)
    assert back.ses.read_request_message_id == 1
    assert back.payload == script.memory[:MTU]
    assert script.pdc.in_use
    assert script.give(ack(back, spdcid=INITIATOR)) == []
    assert not script.pdc.in_use
    check_idle(script.fep)


@pytest.mark.conformance("C-045")
def test_lost_data_is_sent_again() -> None:
    script = Script()
    _, (_, back) = asked(script)
    assert script.wait(MS - 1) == []
    (again,) = script.wait(1)
    assert (again.psn, again.retx, again.ar) == (back.psn, 1, 1)
    assert (again.payload, again.ses) == (back.payload, back.ses)
    assert again.ev != back.ev
    script.give(ack(again, spdcid=INITIATOR, retx=1))
    check_idle(script.fep)


def test_refused_data_is_sent_again() -> None:
    """Trimmed on its way, or no room for it."""
    for code, wait in ((NackCode.TRIMMED, 0), (NackCode.NO_PKT_BUFFER, MS)):
        script = Script()
        _, (_, back) = asked(script)
        seen = script.give(refusal(back, code=code, spdcid=INITIATOR))
        if wait:
            assert seen == []
            seen = script.wait(wait)
        assert [(s.psn, s.retx, s.payload) for s in seen] == [(START, 1, back.payload)]


def test_a_duplicate_read_request_is_not_executed_twice() -> None:
    script = Script()
    own, _ = asked(script)
    script.memory[:MTU] = bytes(MTU)
    (answer,) = script.give(rud(START + 1, dpdcid=own, ar=1, retx=1) / read_request(MTU))
    assert (answer.is_ack, answer.ack_psn, answer.retx) == (True, START + 1, 1)
    assert script.next_psn == START + 1


@pytest.mark.conformance("C-052")
@pytest.mark.parametrize("build", [rud, rod])
def test_close_while_data_is_outstanding(build: Build) -> None:
    """The CLOSE is refused with the number of packets, and the PDC is gone."""
    script = Script()
    own, _ = asked(script, build=build)
    packet = build(START + 2, dpdcid=own, ar=1) / read_request(MTU, message_id=2)
    (_, back) = script.give(packet)
    assert back.psn == START + 1
    (nack,) = script.give(control(ControlType.CLOSE_CMD, START + 3, dpdcid=own, ar=1))
    assert (nack.nack, nack.nack_psn) == (NackCode.CLOSING_IN_ERR, START + 3)
    assert nack.payload_word == 2
    assert (nack.spdcid, nack.dpdcid) == (own, INITIATOR)
    assert script.pdcs == []
    assert script.counters["pdc_errors"] == 1
    check_idle(script.fep)


def test_close_after_the_data() -> None:
    script = Script()
    own, (_, back) = asked(script)
    script.give(ack(back, spdcid=INITIATOR))
    (answer,) = script.give(control(ControlType.CLOSE_CMD, START + 2, dpdcid=own, ar=1))
    assert (answer.is_ack, answer.ack_psn) == (True, START + 2)
    assert script.pdcs == []


def test_data_for_an_initiator_that_is_gone() -> None:
    """Nothing of it is in flight any more once the initiator says that it has no such PDC."""
    script = Script()
    _, (_, back) = asked(script)
    assert script.give(refusal(back, code=NackCode.INV_DPDCID, spdcid=0)) == []
    assert script.pdcs == []
    check_idle(script.fep)


def test_an_initiator_that_does_not_take_its_data() -> None:
    """The target gives up after Max_RTO_Retx_Cnt, and the PDC with it."""
    script = Script(max_rto_retx_cnt=2)
    asked(script)
    sent = script.wait(20 * MS)
    assert [s.psn for s in sent] == [START, START]
    assert script.pdcs == []
    assert script.counters["pdc_errors"] == 1
    check_idle(script.fep)


def test_data_keeps_to_the_range_of_the_initiator() -> None:
    """The window of the return direction is its own; nothing beyond the peer's range leaves."""
    script = Script(mpr=1, window_bytes=1 << 20, ack_gen_trigger=32_768)
    own, _ = asked(script)
    sent = 1
    for k in range(2, 140):
        packet = rud(START + k, dpdcid=own, clear=START + k - 1) / read_request(64, message_id=k)
        sent += sum(s.is_request for s in script.give(packet))
    assert sent == 128
    more = script.give(ack(psn=START + 127, dpdcid=own, spdcid=INITIATOR, mpr=1))
    assert [s.psn - START for s in more if s.is_request] == list(range(128, 139))


# -- the initiator --------------------------------------------------------------------------------


def reading(script: Script, octets: int, **more: Any) -> tuple[bytearray, int, list[Seen]]:
    """A PDC is open and a read under way: its memory, the PDC's id, the requests."""
    own = script.establish_initiator()
    memory = post_read(script, octets, context="read", **more)
    return memory, own, script.take()


@pytest.mark.conformance("C-050")
def test_a_pdc_is_not_closed_while_data_is_to_come() -> None:
    """Its requests are acknowledged, but not before the last of the data comes CLOSE."""
    script = Script()
    memory, own, requests = reading(script, 2_500)
    number = requests[0].ses.message_id
    for request in requests:
        assert script.give(ack(request)) == []
    start = script.pdc.start_psn
    assert script.pdc.locks == 1
    script.pdc.quiesce()
    script.fep.activate(script.pdc)
    script.fep.close()
    assert script.wait(20 * MS) == []
    expected = random.Random(3).randbytes(2_500)
    for k in (2, 0):
        part = expected[k * MTU : (k + 1) * MTU]
        packet = rud(start + k, dpdcid=own, spdcid=TARGET, clear=start - 1, ar=1)
        (answer,) = script.give(packet / data(part, of=number, at=k * MTU, total=2_500))
        assert (answer.is_ack, answer.ack_psn, answer.req) == (True, start + k, 0)
    assert script.completions == []
    packet = rud(start + 1, dpdcid=own, spdcid=TARGET, clear=start - 1, ar=1)
    answer, close = script.give(
        packet / data(expected[MTU : 2 * MTU], of=number, at=MTU, total=2_500)
    )
    assert (answer.cack_psn, close.control) == (start + 2, ControlType.CLOSE_CMD)
    assert [(c.context, c.error) for c in script.completions] == [("read", None)]
    assert memory == expected
    script.give(ack(close, code=None))
    assert script.fep.closed


@pytest.mark.parametrize("early", [False, True])
def test_data_may_come_before_the_acknowledgement_of_its_request(early: bool) -> None:
    script = Script()
    memory, own, (request,) = reading(script, MTU)
    start = script.pdc.start_psn
    steps = [
        ack(request),
        rud(start, dpdcid=own, spdcid=TARGET, clear=start - 1, ar=1)
        / data(b"d" * MTU, of=request.ses.message_id),
    ]
    for packet in reversed(steps) if early else steps:
        assert script.completions == []
        script.give(packet)
    assert [c.error for c in script.completions] == [None]
    assert memory == b"d" * MTU
    assert script.pdc.locks == 0
    check_idle(script.fep)


@pytest.mark.conformance("C-029")
def test_a_duplicate_of_data_is_acknowledged_again() -> None:
    """Its first ACK was lost."""
    script = Script()
    memory, own, (request,) = reading(script, MTU)
    script.give(ack(request))
    start = script.pdc.start_psn
    for retx in (0, 1):
        packet = rud(start, dpdcid=own, spdcid=TARGET, clear=start - 1, ar=1, retx=retx)
        (answer,) = script.give(packet / data(b"d" * MTU, of=request.ses.message_id))
        assert (answer.ack_psn, answer.cack_psn, answer.retx) == (start, start, retx)
        memory[:] = bytes(MTU) if not retx else memory
    assert memory == bytes(MTU)  # the second copy was not written
    assert len(script.completions) == 1


def test_the_return_direction_carries_nothing_else() -> None:
    """A request of the peer on a PDC that this end has initiated is refused (UES 3.5.6)."""
    script = Script()
    own = script.establish_initiator()
    start = script.pdc.start_psn
    packet = rud(start, dpdcid=own, spdcid=TARGET, clear=start - 1, ar=1)
    for ses in (write(b"evil"), read_request(10)):
        (nack,) = script.give(packet / ses)
        assert (nack.nack, nack.nack_psn) == (NackCode.PDC_HDR_MISMATCH, start)
    assert script.memory[:4] == bytes(4)
    assert script.pdc.destination.window.cack == start - 1


def test_data_that_nobody_asked_for() -> None:
    """Such data is acknowledged with a refusal, so that the peer is rid of it, and counted."""
    script = Script()
    own = script.establish_initiator()
    start = script.pdc.start_psn
    packet = rud(start, dpdcid=own, spdcid=TARGET, clear=start - 1, ar=1)
    (answer,) = script.give(packet / data(b"x", of=55))
    assert (answer.ack_psn, answer.answer) == (start, ReturnCode.CANCELLED)
    assert script.counters["rx_read_data_unknown"] == 1


def test_data_for_a_pdc_that_closes() -> None:
    script = Script()
    own = script.establish_initiator()
    start = script.pdc.start_psn
    script.fep.close()
    (close,) = script.take()
    assert close.control is ControlType.CLOSE_CMD
    packet = rud(start, dpdcid=own, spdcid=TARGET, clear=start - 1, ar=1)
    (nack,) = script.give(packet / data(b"x", of=1))
    assert (nack.nack, nack.nack_psn) == (NackCode.CLOSING, start)


@pytest.mark.conformance("C-052")
def test_a_close_that_is_refused_ends_the_pdc() -> None:
    """CLOSING_IN_ERR: nothing is sent again, and no message is lost by it."""
    script = Script()
    script.establish_initiator()
    script.fep.close()
    (close,) = script.take()
    seen = script.give(refusal(close, code=NackCode.CLOSING_IN_ERR, payload_word=3))
    assert seen == []
    assert script.pdcs == []
    assert script.fep.closed
    assert script.completions == []


def test_a_target_that_dies_before_its_data() -> None:
    """The read does not wait for ever: another request finds out that the PDC is gone.

    A READ may be carried out twice, and the WRITE was not carried out: both go to a new PDC.
    """
    script = Script()
    memory, _, (request,) = reading(script, MTU)
    script.give(ack(request))
    script.post(b"x", context="write")
    (wrote,) = script.take()
    reads, writes = script.give(refusal(wrote, code=NackCode.INV_DPDCID, spdcid=0))
    assert {(packet.syn, packet.spdcid != wrote.spdcid) for packet in (reads, writes)} == {
        (1, True)
    }
    script.give(ack(writes, spdcid=TARGET + 1))
    packet = rud(reads.start_psn, spdcid=TARGET + 1, dpdcid=reads.spdcid, next_hdr=5)
    script.give(packet / data(bytes(range(256)) * 4, of=reads.ses.message_id))
    assert {c.context: c.error for c in script.completions} == {"read": None, "write": None}
    assert bytes(memory[:256]) == bytes(range(256))


@pytest.mark.conformance("C-073")
def test_data_of_a_request_without_message_id() -> None:
    """A medium header has none: its data names it by its PSN."""
    network, memory = pair(6, optimized_headers=True)
    here = network.endpoints[HERE]
    network.endpoints[THERE].register(memoryview(memory[THERE]), key=OPTIMIZED_KEY)
    mine = [bytearray(600) for _ in range(5)]
    for k, each in enumerate(mine):
        here.post(
            ReadRequest(peer=THERE, key=OPTIMIZED_KEY, offset=k * 700, memory=memoryview(each))
        )
    network.settle()
    assert [c.error for c in network.completions[HERE]] == [None] * 5
    for k, each in enumerate(mine):
        assert each == memory[THERE][k * 700 : k * 700 + 600]
    assert network.endpoints[THERE].counters()["tx_data_packets"] == 5
    check_idle(here)


def test_data_that_overtakes_the_first_ack() -> None:
    """The data names the target just as well, unless its PSN is that of an older PDC."""
    script = Script()
    memory = post_read(script, MTU, context="read")
    (request,) = script.take()
    start = request.psn
    for psn in (start - 70_000, start + 70_000):
        packet = rud(psn, dpdcid=request.spdcid, spdcid=TARGET + 1, clear=psn - 1, ar=1)
        assert script.give(packet / data(b"o" * MTU, of=request.ses.message_id)) == []
        assert script.pdc.peer_id == 0
    assert script.counters["rx_drop_data_before_establishment"] == 2
    packet = rud(start, dpdcid=request.spdcid, spdcid=TARGET, clear=start - 1, ar=1)
    (answer,) = script.give(packet / data(b"d" * MTU, of=request.ses.message_id))
    assert (answer.is_ack, answer.ack_psn, answer.dpdcid) == (True, start, TARGET)
    assert script.completions == []
    script.give(ack(request))
    assert memory == b"d" * MTU
    assert [c.error for c in script.completions] == [None]


# -- both together --------------------------------------------------------------------------------


def pair(seed: int, **parameters: Any) -> tuple[Network, dict[str, bytearray]]:
    feps, memory = {}, {}
    for k, address in enumerate((HERE, THERE)):
        feps[address] = endpoint(address, seed=seed + k, payload_mtu=1024, **parameters)
        memory[address] = bytearray(random.Random(seed + k).randbytes(64 * 1024))
        feps[address].register(memoryview(memory[address]), key=KEY)
    return Network(feps, random.Random(seed)), memory


def kind_of(frame: bytes) -> str:
    """Return what a frame carries, as :func:`test_the_loss_of_one_packet` names it."""
    decoded = decode_frame(frame, crc="off")
    names = [layer.name for layer in decoded.layers]
    if "pds.cp" in names:
        return "control"
    if "pds.ack_cc" in names:
        return "ack of data" if decoded.envelope.source == HERE else "ack of request"
    return "data" if "ses.response_data" in names else "request"


@pytest.mark.conformance("C-050", "C-073")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("lost", ["request", "ack of request", "data", "ack of data"])
def test_the_loss_of_one_packet(lost: str, delivery: str) -> None:
    """Whichever it is, and once for each packet of that kind, the data arrives whole."""
    network, memory = pair(5)
    left = {lost: 3}

    def tap(frame: bytes, now: int) -> list[bytes]:
        kind = kind_of(frame)
        if left.get(kind, 0):
            left[kind] -= 1
            return []
        return [frame]

    network.tap = tap
    mine = bytearray(2_500)
    network.endpoints[HERE].post(
        ReadRequest(peer=THERE, key=KEY, offset=100, memory=memoryview(mine), delivery=delivery)
    )
    network.run(lambda: bool(network.completions[HERE]))
    network.endpoints[HERE].close()
    network.settle()
    assert [c.error for c in network.completions[HERE]] == [None]
    assert mine == memory[THERE][100:2_600]
    assert left[lost] == 0
    for fep in network.endpoints.values():
        check_idle(fep)
        assert fep.counters()["pdcs_open"] == 0


@pytest.mark.conformance("C-022", "C-050")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("seed", range(3))
def test_reads_and_writes_both_ways_over_a_bad_network(delivery: str, seed: int) -> None:
    network, memory = pair(
        seed, delivery=delivery, max_rto_retx_cnt=15, mpr=1, rod_reorder=seed == 1
    )
    network.impairment = Impairment(loss=0.03, duplicate=0.03, jitter_ns=2 * US)
    rng = random.Random(seed)
    reads = []
    for source, target in ((HERE, THERE), (THERE, HERE)):
        for _ in range(12):
            octets = rng.choice((1, 16, 17, 1_024, 5_000))
            offset = rng.randrange(32 * 1024 - octets)
            mine = bytearray(octets)
            reads.append((mine, memory[target][offset : offset + octets]))
            network.endpoints[source].post(
                ReadRequest(peer=target, key=KEY, offset=offset, memory=memoryview(mine))
            )
            network.endpoints[source].post(
                WriteRequest(peer=target, key=KEY, offset=40_000, payload=memoryview(bytes(octets)))
            )
    network.settle()
    for address, fep in network.endpoints.items():
        assert [c.error for c in network.completions[address]] == [None] * 24
        check_idle(fep)
        check(fep, network.now)
        fep.close()
    for mine, expected in reads:
        assert mine == expected
    network.settle()
    for fep in network.endpoints.values():
        assert fep.closed
        assert all(pdc.state is not PdcState.CREATING for pdc in fep.table.by_id.values())
        assert fep.counters()["pdcs_open"] == 0
