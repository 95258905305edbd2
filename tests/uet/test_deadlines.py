"""Test when an endpoint must be looked at again, whatever it sends at a time."""

import random
from typing import Any

import pytest

from tests.harness.uet.invariants import check_deadline
from tests.harness.uet.network import Impairment, Network, endpoint
from uet.fep import FabricEndpoint
from uet.timekeeper import NEVER, Timekeeper
from uet.transport import ReadRequest, WriteRequest

HERE, THERE = "10.0.1.1", "10.0.1.2"
KEY = 1
US = 1_000


def test_a_timekeeper_names_the_earliest_timer_of_its_parts() -> None:
    due: dict[str, int | None] = {"a": None, "b": None}
    time = Timekeeper()
    time.watch(lambda: due["a"])
    time.watch(lambda: due["b"])
    assert time.earliest == NEVER
    for part, when, earliest in (("a", 70, 70), ("b", 90, 70), ("b", 40, 40)):
        due[part] = when
        time.started(when)
        assert (time.earliest, time.is_stale) == (earliest, False)
    due["b"] = None
    time.stopped()
    assert time.is_stale
    assert (time.review(), time.earliest, time.is_stale) == (70, 70, False)
    due["a"] = None
    time.stopped()
    assert time.review() == NEVER


def check_pdcs(fep: FabricEndpoint) -> None:
    """The deadline that is kept of each PDC is the one that it has."""
    for pdc in fep.table.by_id.values():
        if pdc not in fep.scheduler.woken and not pdc.source.credited:
            assert pdc.due == (pdc.next_deadline() if pdc.has_work() else None), pdc.id


def busy(fep: FabricEndpoint, peer: str, rng: random.Random) -> int:
    """Post messages of all sizes; how many."""
    for number in range(16):
        size = rng.choice((0, 8, 1_024, 9_000, 20_000))
        memory = memoryview(bytearray(size))
        if number % 6 == 5:
            fep.post(ReadRequest(peer=peer, key=KEY, offset=0, memory=memory))
        else:
            delivery = rng.choice(("rud", "rod"))
            fep.post(WriteRequest(peer=peer, key=KEY, offset=0, payload=memory, delivery=delivery))
    return 16


@pytest.mark.parametrize("limit", [1, 2, 16])
@pytest.mark.parametrize("control", ["nscc", "none"])
@pytest.mark.parametrize(
    "impairment",
    [Impairment(), Impairment(loss=0.03, jitter_ns=20 * US)],
    ids=["perfect", "loss"],
)
def test_deadlines_are_right_after_every_call(
    control: str, limit: int, impairment: Impairment
) -> None:
    """A PDC that sends behind what is in flight keeps the deadline that it had."""
    parameters: dict[str, Any] = {
        "cc": control,
        "payload_mtu": 1_024,
        "rto_init_time": 200 * US,
        "tail_loss_time": 50 * US,
        "window_bytes": 8_000,
    }
    feps = {
        address: endpoint(address, seed=seed, **parameters)
        for seed, address in enumerate((HERE, THERE), 1)
    }
    network = Network(feps, random.Random(5), impairment, limit=limit, ns_per_octet=0.2)
    posted = 0
    for address, fep in feps.items():
        fep.register(memoryview(bytearray(20_000)), key=KEY)
        posted += busy(fep, THERE if address == HERE else HERE, network.rng)

    def checked() -> bool:
        for fep in feps.values():
            check_pdcs(fep)
            check_deadline(fep)
        return sum(map(len, network.completions.values())) == posted

    assert network.run(checked)
    assert not any(done.error for ends in network.completions.values() for done in ends)
