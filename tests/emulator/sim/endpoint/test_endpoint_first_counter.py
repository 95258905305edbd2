"""Test where packet counters begin on a host's clock."""

from typing import Any

import pytest

from emulator.sim.endpoint.first_counter import COUNTERS_PER_SECOND, first_counter
from uet.tss.record import SecureRecords
from uet.tss.secure_domain import SecureDomain

SECOND = 10**9
NOW = 1_800_000_000 * SECOND


def test_a_later_start_lies_beyond_what_was_counted() -> None:
    """Whatever an endpoint has sent meanwhile at the rate it may have."""
    for pause in (SECOND // 1_000, SECOND, 86_400 * SECOND):
        sent = COUNTERS_PER_SECOND * pause // SECOND
        assert first_counter(NOW + pause) >= first_counter(NOW) + sent
    assert first_counter() > first_counter(NOW - 3 * 365 * 86_400 * SECOND)


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "cluster", "keys": {0: bytes(32)}},
        {"mode": "server", "keys": {0: bytes(32)}, "clients": {"10.0.0.1": 1}},
        {"mode": "client", "keys": {0: bytes(44)}, "ssi": 1},
    ],
    ids=["peers", "server", "client"],
)
def test_it_fits_into_every_domain_at_every_time(fields: dict[str, Any]) -> None:
    domain = SecureDomain(sdi=1, **fields)
    for years in range(60):
        start = first_counter(NOW + years * 31_557_600 * SECOND)
        assert SecureRecords(domain, first_counter=start).position(0)[1] < domain.counter_limit
