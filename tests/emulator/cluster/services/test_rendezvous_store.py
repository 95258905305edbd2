"""The store of a rendezvous answers every request once, and counts those that cannot be."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster.services import rendezvous_store as rendezvous
from emulator.cluster.services.rendezvous_store import RendezvousStore


def asked(store: RendezvousStore, **request: Any) -> list[Mapping[str, object]]:
    answers: list[Mapping[str, object]] = []
    store.handle(json.dumps(request).encode(), answers.append)
    return answers


def test_a_value_is_that_which_was_set() -> None:
    store = RendezvousStore()
    assert asked(store, op="set", key="a", value="x") == [{"ok": True}]
    assert asked(store, op="get", key="a") == [{"ok": True, "value": "x"}]
    assert asked(store, op="delete", key="a") == [{"ok": True, "value": True}]
    assert asked(store, op="delete", key="a") == [{"ok": True, "value": False}]


def test_who_asks_too_early_is_answered_when_the_key_is_there() -> None:
    store = RendezvousStore()
    answers = asked(store, op="get", key="late")
    assert answers == []
    asked(store, op="add", key="late", value=3)
    assert answers == [{"ok": True, "value": 3}]
    asked(store, op="set", key="late", value=4)
    assert len(answers) == 1


def test_who_is_gone_is_not_answered() -> None:
    store = RendezvousStore()
    answers: list[Mapping[str, object]] = []
    answer = answers.append
    store.handle(b'{"op": "get", "key": "k"}', answer)
    store.forget(answer)
    asked(store, op="set", key="k", value=1)
    assert answers == []


def test_a_value_changes_only_from_what_is_expected() -> None:
    store = RendezvousStore()
    asked(store, op="set", key="leader", value="h0")
    assert asked(store, op="compare_set", key="leader", expected="h1", value="h2") == [
        {"ok": True, "value": "h0"}
    ]
    assert asked(store, op="compare_set", key="leader", expected="h0", value="h2") == [
        {"ok": True, "value": "h2"}
    ]


def test_a_key_that_is_not_there_is_claimed_once() -> None:
    store = RendezvousStore()
    assert asked(store, op="check", key="rank/0") == [{"ok": True, "value": False}]
    for value in ("h0", "h1"):
        assert asked(store, op="compare_set", key="rank/0", expected=None, value=value) == [
            {"ok": True, "value": "h0"}
        ]
    assert asked(store, op="check", key="rank/0") == [{"ok": True, "value": True}]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"op": "set"}',
        b'{"op": "set", "key": ""}',
        b'{"op": "set", "key": "a", "value": 1.5}',
        b'{"op": "set", "key": "a", "value": true}',
        b'{"op": "add", "key": "a", "value": "1"}',
        b'{"op": "moon", "key": "a"}',
        b"[" * 50_000,
    ],
)
def test_a_bad_request_is_refused_and_counted(line: bytes) -> None:
    store = RendezvousStore()
    answers: list[Mapping[str, object]] = []
    store.handle(line, answers.append)
    assert [answer["ok"] for answer in answers] == [False]
    assert store.refused == 1


def test_a_full_store_takes_no_more_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MOST_KEYS", 2)
    store = RendezvousStore()
    for key in "abc":
        asked(store, op="set", key=key, value=1)
    assert sorted(store.values) == ["a", "b"]
    assert asked(store, op="set", key="a", value=2) == [{"ok": True}]


@given(st.binary(max_size=200) | st.dictionaries(st.text(), st.integers() | st.text()))
def test_whatever_comes_is_answered_at_most_once(request: bytes | dict[str, Any]) -> None:
    answers: list[Mapping[str, object]] = []
    line = request if isinstance(request, bytes) else json.dumps(request).encode()
    RendezvousStore().handle(line, answers.append)
    assert len(answers) <= 1
