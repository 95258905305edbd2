"""Secure domains: what is refused, and their form as JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.uet.tss_vectors import KEY, OTHER_KEY
from uet.tss.secure_domain import SecureDomain, SecureDomainError, domain_from_data, is_older

GOOD: dict[str, Any] = {"sdi": 1, "mode": "cluster", "keys": {0: KEY}}
CLIENT_KEY = KEY + bytes(12)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"sdi": 1 << 24}, "sdi"),
        ({"sdi": -1}, "sdi"),
        ({"sdi": "1"}, "sdi"),
        ({"mode": "peer"}, "choose one of direct, cluster, server, client"),
        ({"keys": {}}, "keys"),
        ({"keys": {2: KEY}}, "AN 0"),
        ({"keys": {0: KEY[1:]}}, "31 octets"),
        ({"keys": {0: KEY.hex()}}, "not octets"),
        ({"keys": {0: KEY, 1: KEY}}, "same key"),
        ({"an": 1}, "none for it"),
        ({"an": 2}, "an is 2"),
        ({"mode": "client"}, "takes 44"),
        ({"ssi": 1 << 32}, "ssi"),
        ({"clients": {"10.0.0.1": 1}}, "server mode"),
        ({"mode": "server", "ssi": 1}, "clients"),
        ({"mode": "server", "clients": {"host": 1}}, "not an IP address"),
        ({"mode": "server", "clients": {"10.0.0.1": -1}}, "32 bits"),
        ({"mode": "server", "clients": {"10.0.0.1": 1, "10.0.0.2": 1}}, "unique"),
        ({"mode": "direct", "rekey_mask": 0xFF00}, "cluster mode"),
        ({"rekey_mask": 0xFFFF_FFFF_FF00}, "32 bits"),
        ({"rekey_mask": 1 << 48}, "rekey_mask"),
        ({"rekey_shift": 48}, "rekey_shift"),
        ({"epoch": 1 << 16}, "epoch"),
        ({"epoch": None}, "epoch"),
        ({"rx_max_epoch_lifetime": 1 << 15}, "rx_max_epoch_lifetime"),
        ({"failure_threshold": -1}, "failure_threshold"),
    ],
)
def test_impossible_domains_are_refused_in_one_sentence(change: dict[str, Any], word: str) -> None:
    with pytest.raises(SecureDomainError, match=word) as refusal:
        SecureDomain(**GOOD | change)
    assert "\n" not in str(refusal.value)


def test_a_domain_does_not_print_its_keys() -> None:
    assert KEY.hex() not in repr(SecureDomain(**GOOD))
    assert str(KEY) not in repr(SecureDomain(**GOOD))


@pytest.mark.parametrize(
    "domain",
    [
        SecureDomain(**GOOD),
        SecureDomain(**GOOD | {"keys": {0: KEY, 1: OTHER_KEY}, "an": 1, "ssi": 7, "epoch": 3}),
        SecureDomain(**GOOD, rekey_mask=0xFF00, rekey_shift=8, reject_old_epochs=True),
        SecureDomain(sdi=0, mode="client", keys={1: CLIENT_KEY}, ssi=0, accept_clear=True),
        SecureDomain(sdi=2, mode="server", keys={0: KEY}, clients={"10.0.0.7": 7, "fd00::7": 8}),
    ],
)
def test_json_keeps_all_of_a_domain(domain: SecureDomain) -> None:
    assert domain_from_data(json.loads(json.dumps(domain.as_data()))) == domain


def test_numbers_may_be_hexadecimal_text() -> None:
    data = {"sdi": "0x10", "mode": "cluster", "keys": {"0": KEY.hex()}, "rekey_mask": "0xff00"}
    domain = domain_from_data(data)
    assert (domain.sdi, domain.rekey_mask) == (16, 0xFF00)


TEXT = {"sdi": 1, "mode": "direct", "keys": {"0": KEY.hex()}}


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (3, "JSON object"),
        ({}, "lacks 'sdi'"),
        ({"sdi": 1, "mode": "direct"}, "lacks 'keys'"),
        (TEXT | {"key": "00"}, "'key' is no field of a secure domain; it has sdi, mode, keys, an"),
        (TEXT | {"keys": ["00"]}, "keys is an object"),
        (TEXT | {"keys": {"0": "zz"}}, "not hexadecimal"),
        (TEXT | {"keys": {"0": 5}}, "not hexadecimal"),
        (TEXT | {"keys": {"x": "00"}}, "AN x"),
        (TEXT | {"keys": {"0": "00ff"}}, "2 octets"),
        (TEXT | {"sdi": 1.5}, "whole number"),
        (TEXT | {"sdi": True}, "whole number"),
        (TEXT | {"ssi": "many"}, "whole number"),
        (TEXT | {"accept_clear": 1}, "true or false"),
        (TEXT | {"clients": ["10.0.0.1"]}, "clients is an object"),
        (TEXT | {"mode": ["direct"]}, "mode"),
    ],
)
def test_wrong_json_is_refused_in_one_sentence(data: object, word: str) -> None:
    with pytest.raises(SecureDomainError, match=word):
        domain_from_data(data)


@given(st.integers(0, 0xFFFF), st.integers(0, 0x7FFF), st.integers(0, 0x7FFF))
def test_age_of_an_epoch_wraps(current: int, age: int, lifetime: int) -> None:
    assert is_older((current - age) & 0xFFFF, current, lifetime) == (age > lifetime)


@given(st.integers(0, 0xFFFF), st.integers(0, 0x8000), st.integers(0, 0x7FFF))
def test_a_newer_epoch_is_never_old(current: int, ahead: int, lifetime: int) -> None:
    assert not is_older((current + ahead) & 0xFFFF, current, lifetime)
