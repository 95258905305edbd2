"""Selective repeat with direct placement: what per-packet load balancing reorders is no loss."""

import random
from typing import Any

import pytest

from tests.harness.nightly import nightly_beyond
from tests.harness.rocev2.ends import KEY, THERE, adapter, done, ends, pair
from tests.harness.rocev2.lone import Lone
from tests.harness.uet.network import Impairment
from uet.config_checks import ConfigurationError
from uet.transport import WriteRequest

MTU = 1024
PACKETS = 500
DIRECT: dict[str, Any] = {"recovery": "selective_repeat", "placement": "direct"}
#: A packet leaves every 100 ns, and may be late by as much as 60 others take.
SPACING_NS, JITTER_NS = 0.1, 6_000


def transfer(seed: int, loss: float = 0.0, **parameters: Any) -> tuple[dict[str, int], ...]:
    """Counters of both ends after messages over a path that reorders; their data are checked."""
    network = pair(
        Impairment(loss=loss, jitter_ns=JITTER_NS), seed=seed, mtu=MTU, endless_receives=True,
        timeout=6, **parameters,
    )  # fmt: skip
    network.ns_per_octet = SPACING_NS
    here, there = ends(network)
    data = random.Random(seed).randbytes(4 * PACKETS * MTU + 17)
    memory = bytearray(len(data))
    there.register(memoryview(memory), key=KEY)
    size = PACKETS * MTU
    messages = [(at, memoryview(data)[at : at + size]) for at in range(0, len(data), size)]
    for number, (at, part) in enumerate(messages):
        here.post(WriteRequest(peer=THERE, key=KEY, offset=at, payload=part, header_data=number))
    assert network.run(lambda: len(done(network, 0, "write")) == len(messages))
    assert {one.error for one in done(network, 0, "write")} == {None}
    assert memory == data
    reported = [(c.header_data, c.offset, c.length) for c in done(network, 1, "remote_write")]
    assert reported == [(number, at, len(part)) for number, (at, part) in enumerate(messages)]
    return dict(here.counters()), dict(there.counters())


@pytest.mark.parametrize("seed", nightly_beyond(1, [1, 2, 3]))
def test_reordering_alone_repeats_nothing(seed: int) -> None:
    here, there = transfer(seed, reorder_tolerance=128, **DIRECT)
    assert there["rx_out_of_order"] > PACKETS  # most packets have been overtaken
    assert there.get("tx_naks", 0) == 0
    assert here.get("tx_retransmitted_packets", 0) == there.get("rx_duplicates", 0) == 0
    # Without tolerance every packet that is overtaken counts as lost: a storm of NAKs.
    here, there = transfer(seed, **DIRECT)
    assert there["tx_naks"] > PACKETS
    assert here["tx_retransmitted_packets"] > PACKETS


@pytest.mark.parametrize("seed", nightly_beyond(1, [1, 2, 3]))
def test_losses_among_what_is_reordered_are_repeated_once(seed: int) -> None:
    """Repeats are reordered as well: one that overtakes another is no sign that this was lost."""
    here, there = transfer(seed, loss=0.01, reorder_tolerance=128, **DIRECT)
    lost = 4 * PACKETS * 0.01
    assert 0.4 * lost < here["tx_retransmitted_packets"] < 3 * lost
    assert there.get("rx_duplicates", 0) < lost


def test_data_are_placed_when_they_come_and_told_when_it_is_their_turn() -> None:
    end = Lone(endless_receives=True, reorder_tolerance=8, **DIRECT)
    memory = bytearray(3 * MTU)
    end.hca.register(memoryview(memory), key=KEY)

    def packet(number: int, operation: int, *headers: dict[str, int]) -> bytes:
        reth = {"va": number * MTU, "rkey": KEY, "dmalen": MTU}
        payload = bytes([number + 1]) * MTU
        return end.frame(operation, end.psn + number, reth, *headers, payload=payload, ask=True)

    assert end.ask(packet(2, 0x0B, {"immediate": 7})) == []
    assert end.ask(packet(1, 0x0A)) == []
    assert memory == bytes(MTU) + bytes([2]) * MTU + bytes([3]) * MTU
    assert end.done() == []
    (ack,) = end.ask(packet(0, 0x0A))
    assert ack.syndrome == 0x1F
    assert memory[:MTU] == bytes([1]) * MTU
    (reported,) = end.done()
    assert (reported.header_data, reported.offset, reported.length) == (7, 0, 3 * MTU)


def test_a_place_that_is_not_the_peer_s_is_refused_in_its_turn() -> None:
    end = Lone(endless_receives=True, reorder_tolerance=8, **DIRECT)
    memory = bytearray(MTU)
    end.hca.register(memoryview(memory), key=KEY)
    bad = {"va": 1, "rkey": KEY, "dmalen": MTU}
    good = {"va": 0, "rkey": KEY, "dmalen": MTU}
    assert end.ask(end.frame(0x0A, end.psn + 1, bad, payload=b"x" * MTU)) == []
    assert memory == bytes(MTU)
    naks = end.ask(end.frame(0x0A, end.psn, good, payload=b"y" * MTU))
    assert [nak.syndrome for nak in naks] == [0x62]
    assert memory == b"y" * MTU


def test_every_packet_says_where_its_data_go() -> None:
    end = Lone(**DIRECT)
    data = memoryview(bytes(2 * MTU + 5))
    end.hca.post(WriteRequest(peer=THERE, key=KEY, offset=100, payload=data, header_data=9))
    sent = end.take()
    assert [packet.opcode for packet in sent] == [0x0A, 0x0A, 0x0B]
    places = [(packet.fields["va"], packet.fields["dmalen"]) for packet in sent]
    assert places == [(100, MTU), (100 + MTU, MTU), (100 + 2 * MTU, 5)]
    assert sent[-1].fields["immediate"] == 9


def test_going_back_has_nothing_to_place() -> None:
    with pytest.raises(ConfigurationError, match="placement is direct, which is for recovery"):
        adapter(0, placement="direct")
