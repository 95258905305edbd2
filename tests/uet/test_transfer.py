"""Writes over a bad network: every octet arrives exactly once, or the message fails by name.

Corruption is tested with the CRC only: without it a flipped bit in a payload, a key or an offset
makes another valid packet, which no endpoint can tell from the true one.
"""

import random
from typing import Any

import pytest

from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import Impairment, Network, endpoint
from uet.transport import WriteRequest

A, B, C = "10.0.1.1", "10.0.1.2", "10.0.1.3"
KEY = 0x1234
NS_PER_MS = 1_000_000

#: Errors that end a message when a network stays bad for longer than the retries last.
NAMED_ERRORS = {"RTO_RETRIES_EXHAUSTED", "NACK_RETRIES_EXHAUSTED", "INV_DPDCID"}


def transfer(seed: int, impairment: Impairment, **parameters: Any) -> dict[str, Any]:
    """Random messages between three endpoints; checks what must hold whatever happens."""
    rng = random.Random(seed)
    parameters.setdefault("payload_mtu", 1024)
    feps = {a: endpoint(a, seed=rng.randrange(2**32), **parameters) for a in (A, B, C)}
    network = Network(feps, random.Random(seed ^ 0xABCDEF), impairment)
    sizes = [0, 1, 1023, 1024, 1025, 5000, 40_000]
    memory = {a: bytearray(200_000) for a in feps}
    for address, fep in feps.items():
        fep.register(memoryview(memory[address]), key=KEY)
    expected = {a: bytearray(200_000) for a in feps}
    place = dict.fromkeys(feps, 0)
    posted: dict[tuple[str, object], tuple[str, int, bytes]] = {}
    for number in range(rng.randrange(1, 9)):
        source = rng.choice(list(feps))
        target = rng.choice([a for a in feps if a != source])
        data = rng.randbytes(rng.choice(sizes))
        offset = place[target]
        place[target] += len(data) + 7
        posted[source, number] = (target, offset, data)
        feps[source].post(
            WriteRequest(
                peer=target,
                key=KEY,
                offset=offset,
                payload=memoryview(data),
                header_data=number,
                context=number,
            )
        )

    def done() -> bool:
        return sum(1 for a in feps for c in network.completions[a] if c.kind == "write") == len(
            posted
        )

    assert network.run(done), "messages were left without a completion"
    failed = 0
    for address in feps:
        for completion in network.completions[address]:
            if completion.kind != "write":
                continue
            target, offset, data = posted.pop((address, completion.context))  # exactly once
            if completion.error is None:
                expected[target][offset : offset + len(data)] = data
                arrivals = [
                    c
                    for c in network.completions[target]
                    if c.kind == "remote_write" and c.header_data == completion.context
                ]
                assert len(arrivals) == 1
                assert (arrivals[0].offset, arrivals[0].length) == (offset, len(data))
            else:
                failed += 1
                assert completion.error in NAMED_ERRORS
                # What a failed message left behind is unspecified: take it as it is.
                end = offset + len(data)
                expected[target][offset:end] = memory[target][offset:end]
    assert not posted
    assert memory == expected
    arrived = {a: _arrived(network, a) for a in feps}
    for fep in feps.values():
        fep.close()
    network.settle()
    assert all(fep.closed for fep in feps.values())
    # Neither late copies nor the closes have brought anything a second time.
    assert {a: _arrived(network, a) for a in feps} == arrived or failed
    for fep in feps.values():
        check(fep, network.now)
        check_idle(fep)
        assert not any(pdc.initiator for pdc in fep.table.by_id.values())
        # Targets are left only where the network lost every CLOSE.
        assert len(fep.table) == 0 or failed or parameters.get("max_rto_retx_cnt") == 2
    return {"failed": failed, "counters": [fep.counters() for fep in feps.values()]}


def _arrived(network: Network, address: str) -> list[object]:
    return [c.header_data for c in network.completions[address] if c.kind == "remote_write"]


@pytest.mark.conformance("C-022")
def test_perfect_network() -> None:
    result = transfer(1, Impairment())
    assert result["failed"] == 0
    for counters in result["counters"]:
        assert "tx_retransmitted_packets" not in counters
        assert counters["pdcs_open"] == 0


@pytest.mark.conformance("C-022")
@pytest.mark.parametrize(
    ("impairment", "parameters"),
    [
        (Impairment(loss=0.05), {}),
        (Impairment(loss=0.3, jitter_ns=20_000), {"max_rto_retx_cnt": 15}),
        (Impairment(duplicate=0.3), {}),
        (Impairment(jitter_ns=100_000), {}),
        (Impairment(corrupt=0.05), {"crc": True}),
        (
            Impairment(loss=0.05, duplicate=0.1, corrupt=0.05, jitter_ns=50_000),
            {"crc": True, "max_rto_retx_cnt": 15},
        ),
        (
            Impairment(loss=0.1, duplicate=0.1, jitter_ns=50_000),
            {"window_bytes": 6000, "mpr": 1, "max_rto_retx_cnt": 15},
        ),
        (Impairment(loss=0.6), {"max_rto_retx_cnt": 2}),
    ],
    ids=["loss", "heavy-loss", "duplicates", "reorder", "corrupt", "all", "tight", "hopeless"],
)
@pytest.mark.parametrize("block", range(5))
def test_schedules(impairment: Impairment, parameters: dict[str, object], block: int) -> None:
    """Eight kinds of bad networks, hundreds of seeds each."""
    for seed in range(block * 60, block * 60 + 60):
        result = transfer(seed, impairment, **parameters)
        if parameters.get("max_rto_retx_cnt") == 15:
            assert result["failed"] == 0, f"seed {seed}"
