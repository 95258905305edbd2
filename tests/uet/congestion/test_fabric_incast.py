"""Incasts of whole endpoints through one switch, near and far, in virtual time."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.nightly import nightly_beyond
from tests.harness.uet.spraying_fabric import US, Incast, incast

KIB = 1_024
#: 100 Gb/s and 12 us; a write of 128 KiB is 32 packets of 4 KiB.
RTT, OCTETS = 12 * US, 128 * KIB
PACKET = 4_096 + 44 + 16 + 8 + 20 + 14 + 24
Cables = Callable[[int], int]


def flat(index: int) -> int:
    """Every cable is 2.75 us long."""
    return 2_750


def near_and_far(index: int) -> int:
    """The receiver and every other sender have a cable of 0.5 us, the others one of 5 us."""
    return 500 if index % 2 or not index else 5_000


def ideal(senders: int) -> float:
    """Return what the receiver's link takes for all that is written, us."""
    return senders * (OCTETS / 4_096) * PACKET * 8 / 100 / US


def run(senders: int, algorithm: str, cables: Cables = flat, **more: Any) -> tuple[Incast, float]:
    made = incast(senders, OCTETS, far=cables, cc=algorithm, **more)
    took = made.run()
    assert made.fabric.completed == senders
    return made, took


@pytest.mark.conformance("C-180")
@pytest.mark.parametrize("cables", [flat, near_and_far])
@pytest.mark.parametrize("senders", nightly_beyond(2, [16, 64, 32]))
@pytest.mark.parametrize("algorithm", ["rccc", "both"])
def test_credit_keeps_the_link_busy(algorithm: str, senders: int, cables: Cables) -> None:
    """However many first packets are trimmed: 4 % and one and a half round trips above the ideal.

    Half of the senders are far away in one case, and nobody starves.
    """
    made, took = run(senders, algorithm, cables)
    assert took < 1.04 * ideal(senders) + 1.5 * RTT / US
    assert made.fabric.count("rto_expirations") == 0
    assert made.port.dropped == 0


@pytest.mark.conformance("C-181")
@pytest.mark.parametrize(("senders", "cables"), [(8, flat), (16, flat), (16, near_and_far)])
def test_without_trimming_a_probe_finds_what_a_deep_queue_dropped(
    senders: int, cables: Cables
) -> None:
    """Long before a timer, and nothing is sent again that only waits in the queue."""
    made, took = run(senders, "nscc", cables, trimming=False)
    assert made.port.dropped > 20
    assert made.fabric.count("rto_expirations") == 0
    assert made.fabric.count("rx_duplicates") == 0
    assert made.fabric.count("tx_retransmitted_packets") == made.port.dropped
    assert took < ideal(senders) + 8 * RTT / US
