"""PDCs in a secure domain: how they begin, what they do not fall for, how keys change (UES 3.7)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from tests.stack.invariants import check, check_idle
from tests.stack.network import Impairment, Network, endpoint, flip, joined
from tests.stack.script import (
    HERE,
    INITIATOR,
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
from tests.stack.test_return_direction import read_request
from tests.tss.wire import parts, sealed_frame
from uet.compatibility import Compatibility
from uet.ses.memory import IDEMPOTENT_SAFE
from uet.transport import Read, Send, Write
from uet.tss.domain import COUNTER_LIMIT, SecureDomain
from uet.tss.record import SecureDomains, sdi_of
from uet.wire.codes import ControlType, NackCode
from uet.wire.frame import decode_frame
from uet.wire.layers import UET_NACK, UET_RUDI_REQ

SDI, OTHER = 0x123456, 0x77
DOMAINS = (
    SecureDomain(sdi=SDI, mode="cluster", keys={0: bytes(range(32))}),
    SecureDomain(sdi=OTHER, mode="cluster", keys={0: bytes(range(50, 82))}),
)
#: An initiator begins anywhere in here when it has not been told where to.
LATEST = 1 << 31


class SecureScript(Script):
    """The peer speaks in a secure domain, and understands what it is told there."""

    def __init__(self, **parameters: Any) -> None:
        parameters.setdefault("domains", DOMAINS)
        parameters.setdefault("sdi", SDI)
        self.there = SecureDomains(DOMAINS)
        #: what the endpoint really sent
        self.sealed: list[bytes] = []
        super().__init__(**parameters)

    def frame(self, packet: Packet, *, sdi: int | None = SDI, **envelope: Any) -> bytes:
        """A sealed frame, or one in clear (``sdi=None``)."""
        if sdi is None:
            return super().frame(packet, **envelope)
        records = self.there.find(sdi)
        assert records is not None
        return sealed_frame(records, bytes(packet), source=THERE, destination=HERE)

    def take(self, limit: int = 64) -> list[Seen]:
        seen = []
        while frames := self.fep.transmit(self.now, limit):
            for frame in frames:
                octets = joined(frame)
                self.sealed.append(octets)
                prefix, packet, size = parts(octets)
                plaintext = self.there.open(prefix, packet, size)
                assert isinstance(plaintext, bytes), plaintext
                ip = IP(src=HERE, dst=THERE, tos=octets[15], flags="DF")
                ports = UDP(sport=int.from_bytes(octets[34:36], "big"), dport=4793, chksum=0)
                clear = bytes(Ether() / ip / ports / Raw(plaintext))
                seen.append(Seen(decode_frame(clear, crc="off"), clear))
        return seen

    @property
    def newest_sdi(self) -> int:
        return sdi_of(parts(self.sealed[-1])[1])


def opening(start: int, *, offset: int = 0, spdcid: int = INITIATOR) -> Packet:
    """A SYN packet of a PDC that begins at ``start``."""
    psn = start + offset
    return rud(psn, syn=offset, clear=start - 1, ar=1, spdcid=spdcid) / write(b"\0")


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
    wanted = nack.payload_word
    assert (nack.nack, nack.spdcid) == (NackCode.NEW_START_PSN, 0)
    script.wait(4 * MS)
    for start in (START, START + 1, wanted - 1, wanted + 1):
        (nack,) = script.give(opening(start))
        assert (nack.nack, nack.payload_word) == (NackCode.NEW_START_PSN, wanted)
    assert script.pdcs == []
    (nack,) = script.give(opening(START, spdcid=8))
    assert nack.payload_word != wanted
    script.wait(MS)
    assert script.counters["pending_pdcs_expired"] == 1
    (nack,) = script.give(opening(wanted))
    assert nack.nack is NackCode.NEW_START_PSN
    assert nack.payload_word != wanted
    (answer,) = script.give(opening(nack.payload_word, offset=1))
    assert (answer.is_ack, answer.ack_psn) == (True, nack.payload_word + 1)
    assert script.pdc.start_psn == nack.payload_word
    script.wait(20 * MS)
    assert script.counters["pending_pdcs_expired"] == 2
    assert script.fep.next_deadline() is None


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
    told = []
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
        told.append(int.from_bytes(uet[12:16], "big"))
    assert told == [START + 1, START + 90_001, START + 90_002]


# -- how an initiator begins ----------------------------------------------------------------------


@pytest.mark.conformance("C-061", "C-062")
@given(
    wanted=st.one_of(
        st.integers(0, MASK),
        st.integers(-6, 6).map(lambda d: d & MASK),  # the packets lie around 2^32
        st.integers(0, 3).map(lambda k: k * 1024),
    ),
    packets=st.integers(1, 12),
)
@settings(max_examples=40, deadline=None)
def test_numbering_anew(wanted: int, packets: int) -> None:
    """All packets go out again from there: same offsets and content, no RETX, and all complete."""
    script = Script()
    script.post(bytes(range(256)) * 4 * packets, context="m")
    sent = script.take()
    start = sent[0].psn
    if wanted == start:
        return
    nack = refusal(sent[0], code=NackCode.NEW_START_PSN, payload_word=wanted, spdcid=0)
    again = script.give(nack)
    assert [s.psn for s in again] == [(wanted + k) & MASK for k in range(packets)]
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
    assert (more.psn, more.syn, more.dpdcid) == ((wanted + packets) & MASK, 0, TARGET)
    # The return direction begins there too.
    assert script.pdc.destination.window.base == wanted
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
        here.post(Write(peer=THERE, key=KEY, offset=0, payload=memoryview(b"x")))
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


def pair(seed: int, **parameters: Any) -> tuple[Network, dict[str, bytearray]]:
    feps, memory = {}, {}
    parameters = {"domains": DOMAINS, "sdi": SDI, "payload_mtu": 1024} | parameters
    for k, address in enumerate((HERE, THERE)):
        feps[address] = endpoint(address, seed=seed + k, **parameters)
        memory[address] = bytearray(32_768)
        feps[address].register(memoryview(memory[address]), key=KEY)
        feps[address].register(memoryview(memory[address]), key=KEY | IDEMPOTENT_SAFE)
    return Network(feps, random.Random(seed), keep=True), memory


def counter_of(frame: bytes) -> tuple[bytes, int, bytes]:
    """What must be unique: source address, AN, packet counter with epoch."""
    _, packet, _ = parts(frame)
    return frame[26:30], packet[0] & 1, packet[4:12]


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
            fep.post(Write(peer=target, key=KEY, offset=0, payload=memoryview(data)))
            fep.post(Read(peer=target, key=KEY, offset=17_000, memory=memoryview(mine)))
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
    here.post(Write(peer=THERE, key=KEY, offset=0, payload=memoryview(b"w" * 5_000)))
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
def test_an_idempotent_request_is_answered_in_its_domain() -> None:
    """Though this endpoint speaks in another one, or in clear, when it begins itself."""
    script = SecureScript(sdi=None)
    key = KEY | IDEMPOTENT_SAFE
    script.fep.register(memoryview(script.memory), key=key)
    packet = UET_RUDI_REQ(pkt_id=1) / write(b"x", match_bits=key)
    (answer,) = script.give_frame(script.frame(packet, sdi=OTHER))
    assert (answer.pkt_id, script.newest_sdi) == (1, OTHER)


# -- clear packets --------------------------------------------------------------------------------


def test_packets_in_clear_are_refused() -> None:
    script = SecureScript()
    (answer,) = script.give(opening(START))
    script.post(b"x")
    (request,) = script.take()
    clear = (
        opening(START + 9, spdcid=9),
        rud(START + 1, dpdcid=answer.spdcid, ar=1) / write(b"evil"),
        ack(request),
        refusal(request, code=NackCode.INV_DPDCID, spdcid=0),
        control(ControlType.CLOSE_CMD, START + 1, dpdcid=answer.spdcid, ar=1),
    )
    for packet in clear:
        assert script.give_frame(script.frame(packet, sdi=None)) == []
    assert script.counters["tss_clear_refused"] == len(clear)
    assert script.completions == []
    assert len(script.pdcs) == 2


def test_a_domain_may_accept_refusals_in_clear() -> None:
    """As the UEC reference provider sends them where it has no PDC; nothing else in clear."""
    lax = SecureDomain(sdi=SDI, mode="cluster", keys={0: bytes(range(32))}, accept_clear=True)
    script = SecureScript(domains=(lax,))
    script.post(b"x", context="w")
    (request,) = script.take()
    assert script.give_frame(script.frame(ack(request), sdi=None)) == []
    assert script.completions == []
    nack = refusal(request, code=NackCode.NEW_START_PSN, payload_word=9_000, spdcid=0)
    (again,) = script.give_frame(script.frame(nack, sdi=None))
    assert again.psn == 9_000
    script.give(ack(again))
    assert [c.error for c in script.completions] == [None]


def test_secured_packets_where_there_is_no_security() -> None:
    script = Script()
    (domain,) = SecureDomains(DOMAINS[:1])
    frame = sealed_frame(domain, bytes(opening(START)), source=THERE, destination=HERE)
    assert script.give_frame(frame) == []
    assert script.counters["rx_drop_unsupported_type"] == 1


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.conformance("C-132")
def test_keys_change_under_traffic() -> None:
    """Make before break, each end in its own time: nothing is lost by it, no timer runs out."""
    network, memory = pair(5)
    data = random.Random(5).randbytes(30_000)
    done = 0

    def advance(messages: int) -> None:
        nonlocal done
        done += messages
        for source, target in ((HERE, THERE), (THERE, HERE)):
            for _ in range(messages):
                network.endpoints[source].post(
                    Write(peer=target, key=KEY, offset=0, payload=memoryview(data))
                )
        end = network.now + 5 * US
        network.run(lambda: network.now >= end)

    records = {}
    for address, fep in network.endpoints.items():
        assert fep.domains is not None
        records[address] = fep.domains.find(SDI)
    seen = []
    for generation in range(1, 4):
        an = generation & 1
        advance(2)
        for there in records.values():
            assert there is not None
            there.set_key(an, bytes([generation]) * 32)
        advance(1)
        for there in records.values():
            assert there is not None
            assert there.position(an) == (0, 0)
            there.rotate(an)
            advance(1)
        network.run(lambda: all(not f.initiator.open_messages for f in network.endpoints.values()))
        for there in records.values():
            assert there is not None
            there.retire(an ^ 1)
        seen.append(len(network.sent))
    network.settle()
    for address, fep in network.endpoints.items():
        assert [c.error for c in network.completions[address]] == [None] * done
        assert memory[address][:30_000] == data
        counts = fep.counters()
        assert not [n for n in counts if n.startswith("tss_") and counts[n]]
        assert counts.get("tx_retransmitted_packets", 0) == 0
    # The counter began anew with each key.
    first = {counter_of(frame)[1:] for frame in network.sent[seen[0] :]}
    assert (0, bytes(8)) in first
    assert (1, bytes(8)) in first


def exhaust(fep: Any, left: int) -> None:
    """Leave so many packets under the present key."""
    (records,) = (r for r in fep.domains if r.domain.sdi == SDI)
    records._sending.counter = COUNTER_LIMIT - left


def test_an_exhausted_counter_ends_the_pdc() -> None:
    """What is under way fails by name; nothing is raised, sent again for ever, or left behind."""
    script = SecureScript()
    script.establish_initiator()
    exhaust(script.fep, 3)
    script.post(bytes(5 * MTU), context="under way")
    script.post(b"y", context="behind it")
    assert len(script.take()) == 3
    assert {c.context: c.error for c in script.completions} == {
        "under way": "TSS_COUNTER_EXHAUSTED",
        "behind it": "TSS_COUNTER_EXHAUSTED",
    }
    assert script.pdcs == []
    check_idle(script.fep)
    # A new key, and all is well.
    for records in (*script.fep.domains, script.there.find(SDI)):  # type: ignore[misc]
        if records.domain.sdi == SDI:
            records.set_key(1, bytes([1]) * 32)
            records.rotate(1)
    script.post(b"z", context="anew")
    (request,) = script.take()
    script.give(ack(request))
    assert [(c.context, c.error) for c in script.completions] == [("anew", None)]


def test_an_exhausted_counter_at_a_target() -> None:
    """It answers no more; its return data fails, and the PDC with it."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    own = answer.spdcid
    exhaust(script.fep, 1)
    (answer,) = script.give(rud(START + 1, dpdcid=own, ar=1) / read_request(100))
    assert answer.is_ack
    assert script.pdcs == []
    assert script.give(rud(START + 2, dpdcid=own, ar=1) / write(b"x")) == []
    assert script.counters["tss_counter_exhausted"] >= 2
    assert script.fep.next_deadline() is None


@pytest.mark.parametrize("delivery", ["rudi", "uud"])
def test_an_exhausted_counter_without_a_pdc(delivery: str) -> None:
    script = SecureScript()
    exhaust(script.fep, 1)
    for context in ("first", "second"):
        if delivery == "rudi":
            script.post(b"x", key=KEY | IDEMPOTENT_SAFE, delivery="rudi", context=context)
        else:
            script.fep.post(
                Send(peer=THERE, payload=memoryview(b"x"), delivery="uud", context=context)
            )
    assert len(script.take()) == 1
    ended = {c.context: c.error for c in script.completions}
    assert ended["second"] == "TSS_COUNTER_EXHAUSTED"
    assert ended.get("first", None) is None


def test_control_packets_of_an_exhausted_domain() -> None:
    script = SecureScript()
    script.establish_initiator()
    exhaust(script.fep, 0)
    assert not script.fep.probe(THERE)
    assert not script.fep.open_pdc(THERE)
    assert script.take() == []
    assert script.pdcs == []


def test_clear_refusals_of_rudi_need_leave() -> None:
    script = SecureScript()
    script.post(b"x", key=KEY | IDEMPOTENT_SAFE, delivery="rudi")
    (request,) = script.take()
    nack = UET_NACK(nt=1, nack_code=7, nack_pkt_id=request.pkt_id)
    for frame in (script.frame(nack, sdi=None), script.frame(nack, sdi=OTHER)):
        assert script.give_frame(frame) == []
    assert script.counters["tss_clear_refused"] == 1
    assert script.counters["rx_nacks_of_settled_psn"] == 1
