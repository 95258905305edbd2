"""PDCs in a secure domain: how they begin, what they do not fall for, how keys change (UES 3.7)."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import Impairment, flip
from tests.harness.uet.script import (
    HERE,
    KEY,
    MASK,
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
    rud,
    write,
)
from tests.harness.uet.secured import OTHER, SDI, SecureScript, counter_of, opening, pair
from tests.uet.pds.test_return_direction import data as return_data
from tests.uet.pds.test_return_direction import read_request
from uet.compatibility import Compatibility
from uet.pds.feedback import MOST_RENUMBERINGS
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import ReadRequest, WriteRequest
from uet.wire.codes import ControlType, NackCode
from uet.wire.layers import UET_RUDI_REQ


def close_at(script: Script, psn: int, own: int) -> Seen:
    (answer,) = script.give(control(ControlType.CLOSE_CMD, psn, dpdcid=own, ar=1))
    return answer


# -- how a target begins --------------------------------------------------------------------------


@pytest.mark.conformance("C-061")
def test_with_0rtt_a_replayed_start_is_refused() -> None:
    """Whatever begins below the PSN expected is told where to begin, and is taken there only."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    assert (answer.is_ack, answer.cack_psn) == (True, START)
    assert close_at(script, START + 1, answer.spdcid).is_ack
    assert script.pdcs == []
    for start in (START, START - 1, START - 50_000):
        (nack,) = script.give(opening(start, spdcid=8))
        assert (nack.nack, nack.payload_word) == (NackCode.NEW_START_PSN, START + 1)
        assert (nack.nack_psn, nack.spdcid, nack.dpdcid) == (start, 0, 8)
        assert script.pdcs == []
    # Another packet than the first may be the first to arrive.
    (answer,) = script.give(opening(START + 1, offset=3, spdcid=8))
    assert (answer.is_ack, script.pdc.start_psn) == (True, START + 1)


@pytest.mark.conformance("C-061", "C-135")
@pytest.mark.parametrize("last", [8, 9], ids=["earlier start ends last", "later start ends last"])
def test_the_order_in_which_pdcs_end_opens_no_way_for_replays(last: int) -> None:
    """Two PDCs stand side by side; whichever ends last, neither can be opened again."""
    script = SecureScript()
    starts = {8: START, 9: START + 70_000}
    own = {}
    for spdcid, start in starts.items():
        (answer,) = script.give(opening(start, spdcid=spdcid))
        assert answer.is_ack
        own[spdcid] = answer.spdcid
    for spdcid in sorted(starts, key=lambda number: number == last):
        close = control(
            ControlType.CLOSE_CMD, starts[spdcid] + 1, dpdcid=own[spdcid], spdcid=spdcid, ar=1
        )
        (answer,) = script.give(close)
        assert answer.is_ack
    assert script.pdcs == []
    for start in starts.values():
        for spdcid in (8, 9, 10):
            script.give(opening(start, spdcid=spdcid))
            assert script.pdcs == []
    (nack,) = script.give(opening(starts[9], spdcid=11))
    assert (nack.nack, nack.payload_word) == (NackCode.NEW_START_PSN, starts[9] + 1)


@pytest.mark.conformance("C-061")
def test_with_0rtt_a_later_start_is_taken_at_once() -> None:
    script = SecureScript()
    (answer,) = script.give(opening(START))
    close_at(script, START + 1, answer.spdcid)
    (answer,) = script.give(opening(START + 1, spdcid=8))
    assert answer.is_ack
    (answer,) = script.give(opening(START + 70_000, spdcid=9))
    assert answer.is_ack
    assert len(script.pdcs) == 2


@pytest.mark.conformance("C-061", "C-063")
def test_a_pdc_that_ended_in_error_counts_too() -> None:
    """Its packets must not make it once more, whatever became of it."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    back = script.give(rud(START + 1, dpdcid=answer.spdcid, ar=1) / read_request(100))
    assert back[-1].is_request
    assert close_at(script, START + 2, answer.spdcid).nack is NackCode.CLOSING_IN_ERR
    (nack,) = script.give(opening(START, spdcid=8))
    assert (nack.nack, nack.payload_word) == (NackCode.NEW_START_PSN, START + 1)


@pytest.mark.conformance("C-062")
def test_with_1rtt_every_start_is_named_by_the_target() -> None:
    """At random, and the same one until New_PDC_Time is over."""
    script = SecureScript(secure_start="1rtt", new_pdc_time=5 * MS)
    (nack,) = script.give(opening(START))
    requested = nack.payload_word
    assert (nack.nack, nack.spdcid) == (NackCode.NEW_START_PSN, 0)
    script.wait(4 * MS)
    for start in (START, START + 1, requested - 1, requested + 1):
        (nack,) = script.give(opening(start))
        assert (nack.nack, nack.payload_word) == (NackCode.NEW_START_PSN, requested)
    assert script.pdcs == []
    (nack,) = script.give(opening(START, spdcid=8))
    assert nack.payload_word != requested
    script.wait(MS)
    assert script.counters["pending_pdcs_expired"] == 1
    (nack,) = script.give(opening(requested))
    assert nack.nack is NackCode.NEW_START_PSN
    assert nack.payload_word != requested
    (answer,) = script.give(opening(nack.payload_word, offset=1))
    assert (answer.is_ack, answer.ack_psn) == (True, nack.payload_word + 1)
    assert script.pdc.start_psn == nack.payload_word
    script.wait(20 * MS)
    assert script.counters["pending_pdcs_expired"] == 2
    assert script.fep.next_deadline() is None


@pytest.mark.conformance("C-062")
def test_a_start_that_was_demanded_stands_until_there_is_room() -> None:
    """Else each attempt without room would end in another demand, and soon in an error."""
    script = SecureScript(
        secure_start="1rtt", new_pdc_time=5 * MS, max_pdcs=2, close_req_time=100 * MS
    )
    for spdcid in (1, 2):
        (nack,) = script.give(opening(START, spdcid=spdcid))
        (answer,) = script.give(opening(nack.payload_word, spdcid=spdcid))
        assert answer.is_ack
    (nack,) = script.give(opening(START, spdcid=3))
    requested = nack.payload_word
    for _ in range(3):
        script.wait(4 * MS)
        refused = script.give(opening(requested, spdcid=3))[0]
        assert refused.nack is NackCode.NO_PDC_AVAIL
    script.pdcs[0].closed()
    (answer,) = script.give(opening(requested, spdcid=3))
    assert answer.is_ack
    assert "pending_pdcs_expired" not in script.counters
    assert not script.fep.secure.next_deadline()


@pytest.mark.conformance("C-062")
def test_half_open_pdcs_are_limited() -> None:
    """They cost no PDC, and the oldest makes room."""
    script = SecureScript(secure_start="1rtt")
    first: Seen | None = None
    for spdcid in range(1, 1_030):
        (nack,) = script.give(opening(START, spdcid=spdcid))
        first = first or nack
    assert script.pdcs == []
    assert script.counters["pending_pdcs_expired"] == 5
    assert first is not None
    (nack,) = script.give(opening(first.payload_word, spdcid=1))
    assert nack.nack is NackCode.NEW_START_PSN
    (answer,) = script.give(opening(nack.payload_word, spdcid=1))
    assert answer.is_ack


@pytest.mark.conformance("C-063")
def test_the_ack_of_a_close_tells_the_next_start() -> None:
    """Flag 0x40 and four octets; it is the larger of what was known and Start_PSN + 1."""
    script = SecureScript(compatibility=Compatibility(epsn_in_close_ack=True))
    reported = []
    for start, spdcid in ((START, 7), (START + 90_000, 8), (START + 60_000, 9)):
        seen = script.give(opening(start, spdcid=spdcid))
        if seen[0].nack:
            start = seen[0].payload_word
            seen = script.give(opening(start, spdcid=spdcid))
        packet = control(
            ControlType.CLOSE_CMD, start + 1, dpdcid=seen[0].spdcid, spdcid=spdcid, ar=1
        )
        (answer,) = script.give(packet)
        uet = answer.octets[42:]
        assert (uet[0] >> 3, uet[1] & 0x40) == (7, 0x40)
        reported.append(int.from_bytes(uet[12:16], "big"))
    assert reported == [START + 1, START + 90_001, START + 90_002]


# -- how an initiator begins ----------------------------------------------------------------------


@pytest.mark.conformance("C-061", "C-062")
@given(
    requested=st.one_of(
        st.integers(0, MASK),
        st.integers(-6, 6).map(lambda d: d & MASK),  # the packets lie around 2^32
        st.integers(0, 3).map(lambda k: k * 1024),
    ),
    packets=st.integers(1, 12),
)
@examples(40)
def test_numbering_anew(requested: int, packets: int) -> None:
    """All packets go out again from there: same offsets and content, no RETX, and all complete."""
    script = Script()
    script.post(bytes(range(256)) * 4 * packets, context="m")
    sent = script.take()
    start = sent[0].psn
    if requested == start:
        return
    nack = refusal(sent[0], code=NackCode.NEW_START_PSN, payload_word=requested, spdcid=0)
    again = script.give(nack)
    assert [s.psn for s in again] == [(requested + k) & MASK for k in range(packets)]
    for old, new in zip(sent, again, strict=True):
        assert (new.syn, new.retx, new.psn_offset) == (1, 0, old.psn_offset)
        assert (new.payload, new.ses, new.spdcid) == (old.payload, old.ses, old.spdcid)
        assert new.clear_psn_offset == -1 - old.psn_offset
    assert script.give(nack) == []  # the same refusal, of another packet or a copy
    check(script.fep, script.now)
    script.give(ack(again[-1]))
    assert [c.error for c in script.completions] == [None]
    script.post(b"more")
    (more,) = script.take()
    assert (more.psn, more.syn, more.dpdcid) == ((requested + packets) & MASK, 0, TARGET)
    # The return direction begins there too.
    assert script.pdc.destination.window.base == requested
    script.give(ack(more))
    check_idle(script.fep)


def test_numbering_anew_is_for_the_beginning() -> None:
    script = Script()
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    assert script.give(refusal(request, code=NackCode.NEW_START_PSN, payload_word=5)) == []
    assert script.next_psn == request.psn + 1
    assert script.counters["rx_nacks_of_settled_psn"] == 1


def test_numbering_anew_begins_the_retries_anew() -> None:
    script = Script(max_rto_retx_cnt=1)
    script.post(b"x")
    (request,) = script.take()
    (request,) = script.wait(MS)
    (request,) = script.give(
        refusal(request, code=NackCode.NEW_START_PSN, payload_word=7_000, spdcid=0)
    )
    assert (request.psn, request.retx) == (7_000, 0)
    (again,) = script.wait(MS)
    assert (again.psn, again.retx) == (7_000, 1)
    script.give(ack(again))
    assert [c.error for c in script.completions] == [None]


def test_numbering_anew_is_no_retry_and_has_an_end() -> None:
    """A target that wants another beginning again and again keeps nobody busy for ever."""
    script = Script(max_nack_retx_cnt=1)
    script.post(b"x")
    (request,) = script.take()
    for count in range(MOST_RENUMBERINGS):
        start = 7_000 + 10 * count
        nack = refusal(request, code=NackCode.NEW_START_PSN, payload_word=start, spdcid=0)
        (request,) = script.give(nack)
        assert (request.psn, request.retx) == (start, 0)
    assert script.completions == []
    nack = refusal(request, code=NackCode.NEW_START_PSN, payload_word=5, spdcid=0)
    assert script.give(nack) == []
    assert [c.error for c in script.completions] == ["NEW_START_PSN"]


def test_a_noop_that_opens_a_pdc_is_numbered_anew() -> None:
    script = Script()
    assert script.fep.open_pdc(THERE)
    script.post(b"x")
    noop, request = script.take()
    again = script.give(
        refusal(psn=noop.psn, dpdcid=noop.spdcid, code=NackCode.NEW_START_PSN,
                payload_word=7_000, spdcid=0)
    )  # fmt: skip
    assert sorted((s.psn, s.psn_offset) for s in again) == [(7_000, 0), (7_001, 1)]
    script.give(ack(psn=7_001, dpdcid=noop.spdcid))
    assert [c.error for c in script.completions] == [None]
    assert request.psn == noop.psn + 1
    check_idle(script.fep)


@pytest.mark.conformance("C-063")
def test_the_next_pdc_begins_where_the_target_said() -> None:
    switch = Compatibility(epsn_in_close_ack=True)
    network, _ = pair(3, compatibility=switch)
    here, there = network.endpoints[HERE], network.endpoints[THERE]
    starts = []
    for _ in range(3):
        here.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(b"x")))
        network.settle()
        starts.append(next(iter(there.table.by_id.values())).start_psn)
        here.table.quiesce()
        for pdc in here.table.by_id.values():
            here.activate(pdc)
        network.settle()
        assert there.counters()["pdcs_open"] == 0
    assert starts == [starts[0], starts[0] + 1, starts[0] + 2]
    assert here.counters().get("pdcs_renumbered", 0) == 0


# -- whole transfers ------------------------------------------------------------------------------


@pytest.mark.conformance("C-061", "C-062", "C-131")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("secure_start", ["0rtt", "1rtt"])
def test_transfers_over_a_bad_network(secure_start: str, delivery: str) -> None:
    """Everything completes, PDC after PDC; no counter is used twice, resends included."""
    network, memory = pair(
        1, secure_start=secure_start, delivery=delivery, max_rto_retx_cnt=15, mpr=1
    )
    network.impairment = Impairment(loss=0.03, duplicate=0.03, corrupt=0.02, jitter_ns=2 * US)
    rng = random.Random(2)
    for address in (HERE, THERE):
        memory[address][16_384:] = rng.randbytes(16_384)
    for _ in range(3):
        data = rng.randbytes(9_000)
        mine = bytearray(3_000)
        for source, target in ((HERE, THERE), (THERE, HERE)):
            fep = network.endpoints[source]
            fep.post(WriteRequest(peer=target, key=KEY, offset=0, payload=memoryview(data)))
            fep.post(ReadRequest(peer=target, key=KEY, offset=17_000, memory=memoryview(mine)))
            network.settle()
            assert [c.error for c in network.completions[source]] == [None] * 2
            network.completions[source].clear()
            assert memory[target][:9_000] == data
            assert mine == memory[target][17_000:20_000]
            fep.table.quiesce()
            for pdc in fep.table.by_id.values():
                fep.activate(pdc)
            network.settle()
            assert not fep.table.open_initiators
    counters = [counter_of(frame) for frame in network.sent]
    assert len(set(counters)) == len(counters)
    assert sum(f.counters().get("tx_retransmitted_packets", 0) for f in network.endpoints.values())
    for fep in network.endpoints.values():
        check_idle(fep)
    if secure_start == "1rtt":
        assert network.endpoints[HERE].counters()["pdcs_renumbered"] >= 3


@pytest.mark.conformance("C-135")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_replayed_frames_change_nothing(delivery: str) -> None:
    """While the PDC stands, and after it has closed: nothing is executed twice, or opened."""
    network, memory = pair(4, delivery=delivery)
    here, there = network.endpoints[HERE], network.endpoints[THERE]
    here.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(b"w" * 5_000)))
    network.settle()
    recorded = [frame for frame in network.sent if frame[30:34] == bytes([10, 0, 1, 2])]
    messages = there.counters()["rx_messages"]

    def replay() -> None:
        memory[THERE][:] = bytes(32_768)
        frames = recorded[:]
        for _ in range(3):
            random.Random(1).shuffle(frames)
            for frame in frames:
                there.receive([memoryview(frame)], network.now)
                there.transmit(network.now, 64)
        assert memory[THERE] == bytes(32_768)
        assert there.counters()["rx_messages"] == messages

    replay()
    assert there.counters()["pdcs_open"] == 1
    here.close()
    network.settle()
    assert there.counters()["pdcs_open"] == 0
    replay()
    assert there.counters()["pdcs_open"] == 0
    assert there.counters().get("tss_bad_tag", 0) == 0  # they are authentic, and known


@pytest.mark.conformance("C-133")
def test_a_flipped_bit_is_dropped_and_counted() -> None:
    """Anywhere from the source address on; no NACK either, for nobody knows who sent it."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    frame = script.frame(rud(START + 1, dpdcid=answer.spdcid, ar=1) / write(b"data"))
    udp_checksum = range(40 * 8, 42 * 8)
    dropped = 0
    for bit in range(42 * 8, len(frame) * 8):
        if bit in udp_checksum:
            continue
        assert script.give_frame(flip(frame, bit)) == []
        dropped += 1
    counts = script.counters
    reasons = [name for name in counts if name.startswith(("tss_", "rx_drop"))]
    assert sum(counts[name] for name in reasons) == dropped
    assert counts["tss_bad_tag"] > dropped // 2
    assert script.memory[:4] == bytes(4)
    (answer,) = script.give_frame(frame)
    assert answer.is_ack
    assert script.memory[:4] == b"data"


@pytest.mark.conformance("C-134")
def test_domains_do_not_share_pdcs() -> None:
    """Packets of another domain that name a PDC of this one are dropped and counted."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    own = answer.spdcid
    before = script.pdc.destination.window.cack
    for packet in (
        rud(START + 1, dpdcid=own, ar=1) / write(b"evil"),
        rud(START + 1, syn=1, ar=1) / write(b"evil"),
        opening(START),
        control(ControlType.CLOSE_CMD, START + 1, dpdcid=own, ar=1),
    ):
        assert script.give_frame(script.frame(packet, sdi=OTHER)) == []
    assert script.counters["rx_drop_other_domain"] == 4
    assert script.pdc.destination.window.cack == before
    assert script.memory[:4] == bytes(4)
    # Its own PDC is another one, answered in its own domain.
    frame = script.frame(opening(START, spdcid=8), sdi=OTHER)
    (answer,) = script.give_frame(frame)
    assert (answer.is_ack, script.newest_sdi) == (True, OTHER)
    assert {pdc.sdi for pdc in script.pdcs} == {SDI, OTHER}


@pytest.mark.conformance("C-134")
def test_answers_of_another_domain_are_dropped() -> None:
    script = SecureScript()
    script.post(b"x", context="w")
    (request,) = script.take()
    for packet in (ack(request), refusal(request, code=NackCode.INV_DPDCID, spdcid=0)):
        assert script.give_frame(script.frame(packet, sdi=OTHER)) == []
    assert script.completions == []
    assert script.pdc.peer_id == 0
    assert script.counters["rx_drop_ack_of_unknown_pdc"] == 1
    assert script.counters["rx_drop_nack_of_unknown_pdc"] == 1
    script.give(ack(request))
    assert [c.error for c in script.completions] == [None]


@pytest.mark.conformance("C-134")
def test_data_of_another_domain_does_not_name_the_target() -> None:
    """Nor does it end the PDC: it might be anybody's."""
    script = SecureScript()
    memory = bytearray(MTU)
    script.fep.post(ReadRequest(peer=THERE, key=KEY, offset=0, memory=memoryview(memory)))
    (request,) = script.take()
    packet = rud(
        request.psn, dpdcid=request.spdcid, spdcid=TARGET, clear=request.psn - 1, ar=1
    ) / return_data(b"d" * MTU, of=request.ses.message_id)
    assert script.give_frame(script.frame(packet, sdi=OTHER)) == []
    assert (script.pdc.peer_id, memory) == (0, bytearray(MTU))
    (answer,) = script.give(packet)
    assert answer.is_ack
    assert memory == b"d" * MTU


@pytest.mark.conformance("C-134")
def test_an_idempotent_request_is_answered_in_its_domain() -> None:
    """Though this endpoint speaks in another one, or in clear, when it begins itself."""
    script = SecureScript(sdi=None)
    key = KEY | IDEMPOTENT_SAFE
    script.fep.register(memoryview(script.memory), key=key)
    packet = UET_RUDI_REQ(pkt_id=1) / write(b"x", match_bits=key)
    (answer,) = script.give_frame(script.frame(packet, sdi=OTHER))
    assert (answer.pkt_id, script.newest_sdi) == (1, OTHER)
