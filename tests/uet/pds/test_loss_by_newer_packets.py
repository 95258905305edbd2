"""Test when a packet that many newer ones have overtaken counts as lost."""

from collections import Counter
from typing import Any

from tests.harness.uet.open_requests import SIZE, opened, sent
from uet.config import FepConfig
from uet.pds.repair import LossRecovery

NEWER = 16
FAST, SLOW = 6_000, 40_000


def test_a_slow_path_that_was_not_taken_for_long_is_still_known() -> None:
    """Spraying keeps off a slow path; its next packet is overtaken by all others, and not lost."""
    requests = opened(1, window=NEWER * SIZE)
    requests.largest = SIZE
    counts: Counter[str] = Counter()
    config = FepConfig(address="10.0.0.1", mac="02:00:00:00:00:01")
    nowhere: Any = None
    recovery = LossRecovery(
        requests,
        config,
        writer=nowhere,
        event=lambda name, **data: None,
        counters=counts,
    )
    base_rtt = requests.flow.context.base_rtt
    recovery.timed(SLOW, 0)
    again = 40 * base_rtt
    for now in range(base_rtt, again, base_rtt):
        recovery.timed(FAST, now)
    psns = sent(requests, NEWER + 1, again)
    requests.window.sacked(psns[1], (1 << NEWER) - 1)
    assert recovery.inference is not None
    recovery.inference.arrived(psns[-1])
    recovery.infer_loss(again + SLOW)
    assert counts["losses_inferred"] == 0
    recovery.infer_loss(again + 2 * SLOW)
    assert counts["losses_inferred"] == 1
