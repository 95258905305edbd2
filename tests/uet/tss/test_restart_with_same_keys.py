"""An endpoint that starts again at the same address, with the same keys (UES 3.5.8, 3.7)."""

import random
from typing import Any

import pytest

from tests.harness.uet.network import Network, endpoint
from tests.harness.uet.script import HERE, KEY, MS, START, THERE, control
from tests.harness.uet.secured import DOMAINS, SDI, SecureScript, counter_of, opening
from uet.config import FepConfig
from uet.config_checks import ConfigurationError
from uet.fep import FabricEndpoint
from uet.pds.window import START_END
from uet.transport import AtomicRequest, WriteRequest
from uet.tss.secure_domain import SecureDomain
from uet.wire.codes import AtomicOpcode, ControlType, Datatype, NackCode

_SECURED: dict[str, Any] = {"domains": DOMAINS, "sdi": SDI}


def write(context: object) -> WriteRequest:
    return WriteRequest(
        peer=THERE, key=KEY, offset=0, payload=memoryview(b"x" * 100), context=context
    )


def network(here: FabricEndpoint, there: FabricEndpoint) -> Network:
    there.register(memoryview(bytearray(4_096)), key=KEY)
    return Network({HERE: here, THERE: there}, random.Random(1), keep=True)


# -- nonces ---------------------------------------------------------------------------------------


@pytest.mark.conformance("C-131", "C-142")
@pytest.mark.parametrize("restarted", [HERE, THERE])
def test_no_packet_counter_comes_twice_over_restarts(restarted: str) -> None:
    """An endpoint that restarts counts beyond its earlier life, and work goes on with it."""
    start = 1 << 30
    net = network(
        endpoint(HERE, seed=1, first_counter=start, **_SECURED),
        endpoint(THERE, seed=2, first_counter=start, **_SECURED),
    )
    for life in range(1, 4):
        net.endpoints[HERE].post(write(life))
        net.settle()
        fep = endpoint(restarted, seed=10 + life, first_counter=start + life * 1_000, **_SECURED)
        if restarted == THERE:
            net.endpoints[HERE].close()  # so that the next request begins a PDC
            net.settle()
            net.endpoints[HERE] = endpoint(
                HERE, seed=20 + life, first_counter=start + life * 1_000, **_SECURED
            )
            fep.register(memoryview(bytearray(4_096)), key=KEY)
        net.endpoints[restarted] = fep
    assert [c.error for c in net.completions[HERE]] == [None] * 3
    stamps = [counter_of(frame) for frame in net.sent]
    assert len(set(stamps)) == len(stamps) > 10


def test_a_secured_endpoint_must_be_told_where_to_count_from() -> None:
    config = FepConfig(address=HERE, mac="02:00:00:00:00:01", **_SECURED)
    with pytest.raises(ConfigurationError, match="needs first_counter"):
        FabricEndpoint(config, seed=1)


@pytest.mark.conformance("C-141")
def test_one_key_in_two_domains_is_refused() -> None:
    twice = tuple(SecureDomain(sdi=n, mode="cluster", keys={0: bytes(range(32))}) for n in (1, 2))
    with pytest.raises(ValueError, match="SDI 1 and SDI 2 have the same key"):
        FepConfig(address=HERE, mac="02:00:00:00:00:01", domains=twice)


# -- replays --------------------------------------------------------------------------------------


@pytest.mark.conformance("C-061", "C-062", "C-135", "C-142")
@pytest.mark.parametrize("secure_start", ["0rtt", "1rtt"])
def test_a_restarted_target_carries_out_no_replay(secure_start: str) -> None:
    """Neither before its first PDC nor after one has closed, wherever the old ones began."""
    parameters = {**_SECURED, "secure_start": secure_start}
    add = AtomicRequest(
        peer=THERE,
        key=KEY,
        offset=0,
        operation=AtomicOpcode.SUM,
        datatype=Datatype.UINT64,
        operand=(5).to_bytes(8, "little"),
    )
    recorded = []
    for life in range(8):  # half of them begin beyond what the new life will expect
        net = network(
            endpoint(HERE, seed=life, **parameters), endpoint(THERE, seed=90 + life, **parameters)
        )
        net.endpoints[HERE].post(add)
        net.settle()
        recorded += [frame for frame in net.sent if frame[30:34] == bytes([10, 0, 1, 2])]
    memory = bytearray(64)
    there = endpoint(THERE, seed=200, **parameters)
    there.register(memoryview(memory), key=KEY)
    net = Network({HERE: endpoint(HERE, seed=201, **parameters), THERE: there}, random.Random(1))

    def replay() -> int:
        for _ in range(3):
            for frame in recorded:
                there.receive([memoryview(frame)], net.now)
                there.transmit(net.now, 64)
        return int.from_bytes(memory[:8], "little")

    assert replay() == 0
    net.run(lambda: False, horizon_ns=net.now + 20 * MS)
    net.endpoints[HERE].post(add)
    net.endpoints[HERE].close()
    net.settle()
    assert [c.error for c in net.completions[HERE]] == [None]
    assert there.counters()["pdcs_open"] == 0
    assert replay() == 5
    assert there.counters()["pdcs_open"] == 0


@pytest.mark.conformance("C-061", "C-062")
def test_expected_psn_is_learned_from_the_first_pdc_that_closes() -> None:
    """1-RTT until then; 0-RTT afterwards, for what begins there exactly."""
    script = SecureScript(expected_psn=None)
    (nack,) = script.give(opening(START))
    first = nack.payload_word
    assert nack.nack is NackCode.NEW_START_PSN
    (other,) = script.give(opening(START, spdcid=8))
    assert other.payload_word != first
    (answer,) = script.give(opening(first))
    assert answer.is_ack
    close = control(ControlType.CLOSE_CMD, first + 1, dpdcid=answer.spdcid, ar=1)
    assert script.give(close)[0].is_ack
    for start in (first, first + 2, START_END - 1, START):
        (nack,) = script.give(opening(start, spdcid=9))
        assert (nack.nack, nack.payload_word) == (NackCode.NEW_START_PSN, first + 1)
    (answer,) = script.give(opening(first + 1, spdcid=10))
    assert answer.is_ack


@pytest.mark.conformance("C-061")
@pytest.mark.parametrize("expected", [0, START, START + 1])
def test_an_expected_psn_may_be_handed_in(expected: int) -> None:
    """An earlier life has left it; a PDC that begins there or later is taken at once."""
    script = SecureScript(expected_psn=expected)
    (answer,) = script.give(opening(START))
    if expected <= START:
        assert answer.is_ack
    else:
        assert (answer.nack, answer.payload_word) == (NackCode.NEW_START_PSN, expected)


# -- identifiers ----------------------------------------------------------------------------------


def test_without_a_seed_no_two_endpoints_begin_alike() -> None:
    """PDC ids and first PSNs are the operating system's; one seed repeats them."""

    def begins(seed: int | None) -> tuple[int, int]:
        config = FepConfig(
            address=HERE, mac="02:00:00:00:00:01", neighbours={THERE: "02:00:00:00:00:02"}
        )
        fep = FabricEndpoint(config, seed=seed)
        fep.post(write(None))
        (pdc,) = fep.table.by_id.values()
        return pdc.id, pdc.start_psn

    assert begins(5) == begins(5)
    assert len({begins(None) for _ in range(8)}) == 8


@pytest.mark.conformance("C-142")
@pytest.mark.parametrize("secure_start", ["0rtt", "1rtt"])
def test_work_goes_on_with_a_target_that_has_restarted(secure_start: str) -> None:
    """The PDC is gone there; what it has not carried out begins on a new one, by 1-RTT."""
    parameters = {**_SECURED, "secure_start": secure_start}
    net = network(endpoint(HERE, seed=1, **parameters), endpoint(THERE, seed=2, **parameters))
    net.endpoints[HERE].post(write("before"))
    net.settle()
    memory = bytearray(4_096)
    net.endpoints[THERE] = endpoint(THERE, seed=3, **parameters)
    net.endpoints[THERE].register(memoryview(memory), key=KEY)
    net.endpoints[HERE].post(write("after"))
    net.settle()
    ended = [(c.context, c.error) for c in net.completions[HERE]]
    assert ended == [("before", None), ("after", None)]
    assert memory[:100] == b"x" * 100
    stamps = [counter_of(frame) for frame in net.sent]
    assert len(set(stamps)) == len(stamps)
