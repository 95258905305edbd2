"""Test what loss costs, in virtual time and therefore exactly: a link with 64 packets in flight."""

import random
from typing import Any

import pytest

from tests.harness.nightly import nightly_beyond
from tests.harness.uet.network import Impairment, Network, endpoint
from uet.transport import WriteRequest

HERE, THERE = "10.0.1.1", "10.0.1.2"
KEY = 7
MTU = 4096
FRAME = 14 + 20 + 8 + 12 + 44 + MTU
WINDOW_PACKETS = 64
NS_PER_OCTET = 0.02  # 400 Gb/s
#: One way, so that a round trip with one packet's serialisation holds the window.
DELAY_NS = int(WINDOW_PACKETS * FRAME * NS_PER_OCTET / 2)
MESSAGES, PACKETS = 64, 200
#: Goodput is that of a flow that goes on; the end of the last messages waits for a timer.
COUNTED = 60
SEEDS = (1, 2, 3)


def time_of(seed: int, impairment: Impairment, messages: int, **parameters: Any) -> int:
    """ns until so many of the writes have completed; all end well and their data is checked."""
    feps = {
        address: endpoint(
            address,
            seed=seed + number,
            payload_mtu=MTU,
            window_bytes=(WINDOW_PACKETS + 8) * (FRAME + 26),
            **parameters,
        )
        for number, address in enumerate((HERE, THERE))
    }
    network = Network(
        feps, random.Random(seed), impairment, delay_ns=DELAY_NS, ns_per_octet=NS_PER_OCTET
    )
    size = PACKETS * MTU
    data = random.Random(seed).randbytes(MESSAGES * size)
    memory = bytearray(len(data))
    feps[THERE].register(memoryview(memory), key=KEY)
    for at in range(0, len(data), size):
        payload = memoryview(data)[at : at + size]
        feps[HERE].post(WriteRequest(peer=THERE, key=KEY, offset=at, payload=payload))
    done = network.completions[HERE]
    assert network.run(lambda: len(done) >= messages)
    time = network.now
    assert network.run(lambda: len(done) == MESSAGES)
    assert {completion.error for completion in done} == {None}
    assert memory == data
    return time


@pytest.mark.parametrize("seed", nightly_beyond(1, SEEDS))
def test_unordered_delivery_at_five_percent_loss(seed: int) -> None:
    """At least half of the loss-free goodput is left, with every packet's loss independent."""
    clean = time_of(seed, Impairment(), COUNTED)
    link = COUNTED * PACKETS * FRAME * NS_PER_OCTET
    assert clean < 1.1 * link + 2 * DELAY_NS, "the loss-free transfer must fill the link"
    assert time_of(seed, Impairment(loss=0.05), COUNTED) <= 2 * clean


@pytest.mark.parametrize("reorder", [False, True])
@pytest.mark.parametrize("seed", nightly_beyond(1, SEEDS))
def test_ordered_delivery_at_one_percent_loss_completes(seed: int, reorder: bool) -> None:
    """With go-back-N and with a reorder buffer at the destination."""
    impairment = Impairment(loss=0.01)
    time_of(seed, impairment, MESSAGES, delivery="rod", rod_reorder=reorder)
