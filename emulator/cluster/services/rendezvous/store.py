"""The store of a rendezvous, without sockets: what each request of a connection answers.

Its operations are those by which frameworks let the ranks of a job find each other: ``set``,
``get`` with a wait for keys that come later, ``add`` to a counter, ``check`` whether a key is
there, ``compare_set`` (which expects null of a key that is not), ``delete``.
A request and an answer are one line of JSON each.

::

    {"op": "set", "key": "master", "value": "100.80.0.2:29500"}   ->  {"ok": true}
    {"op": "add", "key": "arrived", "value": 1}                   ->  {"ok": true, "value": 5}
    {"op": "get", "key": "master"}              ->  {"ok": true, "value": "100.80.0.2:29500"}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST_LINE = 1 << 16  # octets
MOST_KEYS = 100_000
LONGEST_KEY = 1024  # characters

Answer = Callable[[Mapping[str, object]], None]


class RequestError(ValueError):
    """The request cannot be carried out; the message says why."""


@dataclass
class RendezvousStore:
    """Keys and values, and who waits for which key.  ``refused`` counts bad requests."""

    values: dict[str, str | int] = field(default_factory=dict)
    requests: int = 0
    refused: int = 0
    _waiting: dict[str, list[Answer]] = field(default_factory=dict)

    def handle(self, line: bytes, answer: Answer) -> None:
        """Carry out the request ``line``; call ``answer`` once, now or when its key is there."""
        self.requests += 1
        try:
            self._carry_out(_parsed(line), answer)
        except RequestError as error:
            self.refused += 1
            answer({"ok": False, "error": str(error)})

    def forget(self, answer: Answer) -> None:
        """Drop what ``answer`` waits for, as its connection is gone."""
        for key in list(self._waiting):
            left = [one for one in self._waiting[key] if one is not answer]
            if left:
                self._waiting[key] = left
            else:
                del self._waiting[key]

    def _carry_out(self, request: Mapping[str, Any], answer: Answer) -> None:
        operation, key = request.get("op"), request.get("key")
        if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
            raise RequestError(f"key is not a text of 1 to {LONGEST_KEY} characters")
        if operation == "set":
            self._put(key, _text_or_number(request.get("value")))
            answer({"ok": True})
        elif operation == "get":
            if key in self.values:
                answer({"ok": True, "value": self.values[key]})
            else:
                self._waiting.setdefault(key, []).append(answer)
        elif operation == "add":
            number, added = self.values.get(key, 0), request.get("value")
            if not isinstance(number, int) or not _is_whole(added):
                raise RequestError(f"add takes a whole number, and {key!r} must be one")
            assert isinstance(added, int)
            self._put(key, number + added)
            answer({"ok": True, "value": number + added})
        elif operation == "compare_set":
            if self.values.get(key) == request.get("expected"):
                self._put(key, _text_or_number(request.get("value")))
            answer({"ok": True, "value": self.values.get(key)})
        elif operation == "check":
            answer({"ok": True, "value": key in self.values})
        elif operation == "delete":
            answer({"ok": True, "value": self.values.pop(key, None) is not None})
        else:
            raise RequestError(f"there is no operation {operation!r}")

    def _put(self, key: str, value: str | int) -> None:
        if key not in self.values and len(self.values) >= MOST_KEYS:
            raise RequestError(f"the store is full: it has {MOST_KEYS} keys")
        self.values[key] = value
        for answer in self._waiting.pop(key, ()):
            answer({"ok": True, "value": value})


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not a line of JSON: {error}") from None
    if not isinstance(request, dict):
        raise RequestError("not a JSON object")
    return request


def _text_or_number(value: object) -> str | int:
    if isinstance(value, str) or _is_whole(value):
        assert isinstance(value, str | int)
        return value
    raise RequestError("value is neither a text nor a whole number")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
