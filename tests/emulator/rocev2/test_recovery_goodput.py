"""Test what loss costs the two ways of recovery: 64 packets in flight at 400 Gb/s."""

import random

import pytest

from tests.harness.nightly import nightly_beyond
from tests.harness.rocev2.ends import HERE, KEY, THERE, done, ends, pair
from tests.harness.uet.network import Impairment
from uet.transport import WriteRequest

MTU = 4096
FRAME = MTU + 82
NS_PER_OCTET = 0.02  # 400 Gb/s
WINDOW_PACKETS = 64
#: One way, so that a round trip holds the window.
DELAY_NS = int(WINDOW_PACKETS * FRAME * NS_PER_OCTET / 2)
MESSAGES, PACKETS = 32, 200
SEEDS = (1, 2, 3)


def time_of(seed: int, loss: float, recovery: str) -> int:
    """ns until all but the last messages have completed; all end well, their data is checked."""
    network = pair(
        Impairment(loss=loss), seed=seed, mtu=MTU, recovery=recovery,
        window_packets=WINDOW_PACKETS + 16, ack_interval=8, timeout=5,
    )  # fmt: skip
    network.delay_ns, network.ns_per_octet = DELAY_NS, NS_PER_OCTET
    here, there = ends(network)
    size = PACKETS * MTU
    data = random.Random(seed).randbytes(MESSAGES * size)
    memory = bytearray(len(data))
    there.register(memoryview(memory), key=KEY)
    for at in range(0, len(data), size):
        here.post(
            WriteRequest(peer=THERE, key=KEY, offset=at, payload=memoryview(data)[at : at + size])
        )
    assert network.run(lambda: len(done(network, 0, "write")) >= MESSAGES - 2)
    time = network.now
    assert network.run(lambda: len(done(network, 0, "write")) == MESSAGES)
    assert {completion.error for completion in network.completions[HERE]} == {None}
    assert memory == data
    return time


@pytest.mark.parametrize("seed", nightly_beyond(1, SEEDS))
def test_selective_repeat_against_go_back_n(seed: int) -> None:
    """Going back costs a window per loss, so that at loss p it takes 1 + 64 p times as long, and
    what waits for a timer; repeating one packet costs little more than the wait for it."""
    link = (MESSAGES - 2) * PACKETS * FRAME * NS_PER_OCTET
    clean = time_of(seed, 0, "go_back_n")
    assert clean < 1.1 * link + 2 * DELAY_NS, "the loss-free transfer must fill the link"
    assert time_of(seed, 0, "selective_repeat") == pytest.approx(clean, rel=0.02)
    back, selective = (time_of(seed, 0.01, how) for how in ("go_back_n", "selective_repeat"))
    assert back > 1.5 * clean
    assert selective < 0.85 * back
    assert selective < 1.6 * clean
    assert time_of(seed, 0.0001, "go_back_n") < 1.1 * clean
