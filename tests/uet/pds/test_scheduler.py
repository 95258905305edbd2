"""Test who sends when: PDCs that share a window, peers that share a port, and the cost."""

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from tests.harness.nightly import nightly
from tests.harness.uet.exchange import KEY, MS, US, Exchange, Wire
from tests.harness.uet.network import MACS, endpoint
from tests.harness.uet.script import (
    ELSEWHERE,
    HERE,
    MTU,
    REGION,
    THERE,
    Script,
    ack,
    refusal,
)
from uet.compatibility import REFERENCE_PROVIDER
from uet.fep import FabricEndpoint
from uet.pds.pdc import PdcState
from uet.pds.scheduler import QUANTUM_PACKETS
from uet.transport import ReadRequest, WriteRequest
from uet.wire.codes import NackCode, PacketType

#: 10 Gb/s, and a window of 64 full packets: 215 us of the link.
LINK: dict[str, Any] = {
    "payload_mtu": 4096,
    "window_bytes": 262_144,
    "base_rtt": 12 * US,
    "link_rate": 10 * 10**9,
}
BULK = 1 << 20
CONTROLS = ["none", "nscc", "rccc", "both"]
#: Modes of delivery of bulk and of what is short; what is not left to the night.
MODES = ("rud", "rod"), ("rod", "rud"), ("rud", "rud")
SHORT = {("rud", "rod", "nscc"), ("rod", "rud", "both"), *(("rud", "rud", one) for one in CONTROLS)}


def loaded(control: str, delivery: str, **parameters: Any) -> tuple[Exchange, Callable[[], int]]:
    """One side writes without end; how many of its writes have ended."""
    exchange = Exchange(Wire(), 1, cc=control, **LINK, **parameters)
    exchange.network.ns_per_octet = 0.8
    here, there = exchange.sides
    data = memoryview(bytes(BULK))
    ended = 0

    def refill(now: int) -> None:
        nonlocal ended
        done = sum(c.context == "bulk" for c in exchange.network.completions[here.address])
        for _ in range(4 if not ended and not done else done - ended):
            here.fep.post(
                WriteRequest(
                    peer=there.address, key=KEY, offset=0, payload=data, delivery=delivery,
                    context="bulk",
                )
            )  # fmt: skip
        ended = done

    refill(0)
    exchange.network.watch = refill
    exchange.network.run(lambda: False, horizon_ns=500 * US)
    return exchange, lambda: ended


def time_of(exchange: Exchange, post: Callable[[], None], address: str) -> int:
    """How long the request that ``post`` posts at ``address`` takes (ns); it must not fail."""
    network = exchange.network
    begin = network.now
    post()

    def done() -> list[str | None]:
        return [c.error for c in network.completions[address] if c.context == "small"]

    assert network.run(lambda: bool(done()), horizon_ns=begin + 50 * MS)
    assert done() == [None]
    return network.ended_at - begin


@pytest.mark.conformance("C-210")
@pytest.mark.parametrize(
    ("bulk", "small", "control"),
    [
        one if one in SHORT else nightly(one)
        for one in ((*modes, control) for modes in MODES for control in CONTROLS)
    ],
)
def test_a_short_write_does_not_wait_for_bulk_to_end(bulk: str, small: str, control: str) -> None:
    """A short write waits for the window in flight and a turn; a write of bulk takes 840 us."""
    exchange, ended = loaded(control, bulk)
    here, there = exchange.sides
    request = WriteRequest(
        peer=there.address, key=KEY, offset=0, payload=memoryview(b"x" * 8), delivery=small,
        context="small",
    )  # fmt: skip
    took = time_of(exchange, lambda: here.fep.post(request), here.address)
    assert took < 300 * US, took
    before = ended()
    exchange.network.run(lambda: False, horizon_ns=exchange.network.now + 20 * MS)
    assert ended() - before > 15  # and bulk goes on: the link carries 22


@pytest.mark.conformance("C-210")
@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_a_read_of_a_peer_gets_its_data_while_bulk_goes_the_same_way(
    control: str, delivery: str
) -> None:
    """Return data has its turns beside requests: 64 KiB take some rounds, and no time-out."""
    exchange, _ = loaded(control, "rud", inbound_message_idle_time=5 * MS)
    here, there = exchange.sides
    memory = bytearray(65_536)
    request = ReadRequest(
        peer=here.address, key=KEY, offset=0, memory=memoryview(memory), delivery=delivery,
        context="small",
    )  # fmt: skip
    assert time_of(exchange, lambda: there.fep.post(request), there.address) < 600 * US


@pytest.mark.conformance("C-210")
def test_pdcs_of_one_context_get_equal_shares_of_octets() -> None:
    """Two bulk flows, ordered and not, one of them with packets that are four times as small."""
    exchange = Exchange(Wire(), 1, **LINK, ack_per_packet=True)
    exchange.network.ns_per_octet = 0.8
    here, there = exchange.sides
    octets: Counter[int] = Counter()

    def count(frame: bytes, now: int) -> list[bytes]:
        kind = frame[42] >> 3
        if kind in (PacketType.RUD_REQ, PacketType.ROD_REQ) and 1 * MS < now < 5 * MS:
            octets[kind] += len(frame)
        return [frame]

    exchange.network.tap = count
    large = memoryview(bytes(BULK))
    for _ in range(8):
        here.fep.post(
            WriteRequest(peer=there.address, key=KEY, offset=0, payload=large, delivery="rud")
        )
    for _ in range(8_000):
        here.fep.post(
            WriteRequest(
                peer=there.address, key=KEY, offset=0, payload=large[:1024], delivery="rod"
            )
        )
    exchange.network.run(lambda: False, horizon_ns=5 * MS)
    rud, rod = octets[PacketType.RUD_REQ], octets[PacketType.ROD_REQ]
    assert min(rud, rod) > 1_500_000
    assert abs(rud - rod) < 0.1 * (rud + rod)


@pytest.mark.conformance("C-211")
@pytest.mark.parametrize("limit", [1, 3, 16, 64])
def test_peers_get_equal_shares_whatever_a_call_may_send(limit: int) -> None:
    """However few frames a call may send, the next one goes on with whose turn it is."""
    fep = endpoint(HERE, window_bytes=1 << 30, mpr=255)
    peers = [address for address in MACS if address != HERE][:5]
    data = memoryview(bytes(900 * 4096))
    for peer in peers:
        fep.post(WriteRequest(peer=peer, key=KEY, offset=0, payload=data))
    sent: list[bytes] = []
    while len(sent) < 640:
        sent += [frame[0][30:34] for frame in fep.transmit(1, limit)]
    shares = Counter(sent[:640])
    assert len(shares) == len(peers)
    assert set(shares.values()) == {128}
    # and after a packet to one peer all others have their turns
    for first in range(0, 640, 5):
        assert len(set(sent[first : first + 5])) == 5


@pytest.mark.conformance("C-211")
def test_a_peer_with_several_pdcs_has_no_more_turns_than_others() -> None:
    """PDCs of one context share its turns, several packets each."""
    script = Script(window_bytes=1 << 30, mpr=255)
    for peer, delivery in ((THERE, "rud"), (THERE, "rod"), (ELSEWHERE, "rud")):
        script.post(bytes(40 * MTU), peer=peer, delivery=delivery)
    sent = [(seen.decoded.envelope.destination, seen.name) for seen in script.take(1)][:64]
    assert [peer for peer, _ in sent] == [THERE, ELSEWHERE] * 32
    turns = [len(list(turn)) for _, turn in groupby(name for peer, name in sent if peer == THERE)]
    assert set(turns[:-1]) <= {
        QUANTUM_PACKETS,
        QUANTUM_PACKETS + 1,
    }  # one may go beyond the quantum


@pytest.mark.parametrize("control", ["nscc", "both"])
def test_the_packet_that_uses_up_the_window_requests_an_ack(control: str) -> None:
    """And no other one, though each is the last of its turn (UES 3.6.13)."""
    script = Script(cc=control, base_rtt=12 * US, link_rate=16 * 10**9)
    for peer in (THERE, ELSEWHERE):
        script.post(bytes(REGION), peer=peer)
    sent = script.take(1)
    for peer in (THERE, ELSEWHERE):
        asked = [seen.ar for seen in sent if seen.decoded.envelope.destination == peer]
        assert len(asked) > 20
        assert asked == [0] * (len(asked) - 1) + [1]


def test_a_peer_whose_window_is_used_up_keeps_no_other_waiting() -> None:
    script = Script(window_bytes=3_000)
    script.post(bytes(20_000), peer=THERE)
    assert script.take()
    script.post(b"x", peer=ELSEWHERE)
    (frame,) = script.take()
    assert frame.decoded.envelope.destination == ELSEWHERE


# -- a second PDC for short messages ---------------------------------------------------------------


def busy(**parameters: Any) -> Script:
    """An endpoint with a PDC to the peer, on which a long message waits."""
    script = Script(window_bytes=3_000, **parameters)
    script.establish_initiator()
    script.post(bytes(200_000), context="long")
    assert script.take()
    return script


def windows_open(script: Script) -> None:
    """Let all that is in flight arrive."""
    first = min(script.pdcs, key=lambda pdc: pdc.id)
    script.give(ack(psn=first.source.window.next - 1, dpdcid=first.id, spdcid=first.peer_id))


@pytest.mark.conformance("C-212")
def test_a_short_message_takes_a_second_pdc_while_a_long_one_waits() -> None:
    script = busy()
    first = script.pdc
    script.post(b"short")
    windows_open(script)
    second = next(pdc for pdc in script.pdcs if pdc is not first)
    assert second.second
    assert (second.ordered, second.address, second.sdi) == (False, first.address, first.sdi)
    assert second.source.open
    # once it is there it is used again
    script.post(b"another")
    assert len(script.pdcs) == 2
    assert not first.source.queue


@pytest.mark.conformance("C-212")
@pytest.mark.parametrize(
    "fields",
    [{"short_message_packets": 0}, {"delivery": "rod"}, {"compatibility": REFERENCE_PROVIDER}],
    ids=["switched off", "ordered", "reference provider"],
)
def test_otherwise_there_is_one_pdc(fields: dict[str, Any]) -> None:
    """Messages on an ordered PDC keep their order; the reference provider knows one PDC a mode."""
    script = busy(**fields)
    script.post(b"short")
    windows_open(script)
    assert len(script.pdcs) == 1


def test_short_messages_alone_share_a_pdc() -> None:
    script = Script(window_bytes=3_000)
    script.establish_initiator()
    for _ in range(50):
        script.post(bytes(1_000))
    script.take()
    script.post(bytes(1_000))
    script.take()
    assert len(script.pdcs) == 1


def test_a_message_that_is_not_short_waits_behind_the_long_one() -> None:
    script = busy(short_message_packets=2, payload_mtu=1024)
    script.post(bytes(2 * 1024 + 1))
    script.take()
    assert len(script.pdcs) == 1
    script.post(bytes(2 * 1024))
    script.take()
    assert len(script.pdcs) == 2


def test_where_pdcs_are_scarce_there_is_one() -> None:
    script = busy(max_pdcs=4)
    script.post(b"short")
    windows_open(script)
    assert len(script.pdcs) == 1


@pytest.mark.conformance("C-212")
def test_a_peer_without_room_for_a_second_pdc() -> None:
    """What has left is tried again; what has not, and all that follows, goes on the first."""
    script = busy()
    first = script.pdc
    script.post(b"refused", context="refused")
    windows_open(script)
    second = next(pdc for pdc in script.pdcs if pdc is not first)
    script.post(b"taken back", context="taken back")
    request = psn_of(second)
    script.give(refusal(psn=request, dpdcid=second.id, spdcid=0, code=NackCode.NO_PDC_AVAIL))
    assert second.state is PdcState.CREATING
    script.post(b"later", context="later")
    script.take()
    assert not second.source.queue
    while first.source.queue or first.source.open:
        windows_open(script)
    ended = {c.context: c.error for c in script.completions}
    assert {"long", "taken back", "later"} <= ended.keys()
    assert "refused" not in ended
    script.give(ack(psn=request, dpdcid=second.id, spdcid=77))
    assert {c.context: c.error for c in script.completions}["refused"] is None


def psn_of(pdc: Any) -> int:
    """The PSN of the oldest open request."""
    return int(pdc.source.window.base)


# -- what looking costs ----------------------------------------------------------------------------


def test_a_turn_looks_at_nobody_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """PDCs that wait for a window, an answer or a timer are not touched until it comes."""
    fep = endpoint(HERE, window_bytes=10_000, rto_init_time=1_000 * MS)
    for peer in MACS:
        if peer != HERE:
            fep.post(WriteRequest(peer=peer, key=KEY, offset=0, payload=memoryview(bytes(100_000))))
    while fep.transmit(1, 64):
        pass
    looked = count_looks(fep, monkeypatch)
    for now in range(2, 500):
        assert fep.transmit(now, 64) == []
        assert fep.next_deadline() == 1 + 1_000 * MS
    assert looked() == 0


def count_looks(fep: FabricEndpoint, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a PDC of ``fep`` is asked for what it can send, or when."""
    looks = 0
    kind = type(next(iter(fep.table.by_id.values())))

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: Any, *args: Any) -> Any:
            nonlocal looks
            looks += 1
            return method(self, *args)

        return counted

    for name in ("attend", "send", "next_deadline"):
        monkeypatch.setattr(kind, name, counting(getattr(kind, name)))
    return lambda: looks


def test_stale_timers_do_not_pile_up() -> None:
    """A NACK's delay comes before a retransmission's each time, and leaves the later one stale."""
    script = Script(nack_retx_time=MS, rto_init_time=1_000 * MS, max_nack_retx_cnt=31)
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    longest = 32 * MS  # of NACK_Retx_Time, doubled
    for _ in range(600):
        script.give(refusal(request, code=NackCode.NO_PKT_BUFFER))
        deadline = script.fep.next_deadline()
        assert deadline is not None
        assert deadline <= script.now + longest
        (request,) = script.wait(deadline - script.now)
        assert script.fep.next_deadline() == script.now + 1_000 * MS
    assert len(script.fep.scheduler.timers) <= 300
