"""The rendezvous of jobs: a store of keys and values over TCP, its client and its server.

Its operations are those by which frameworks let the ranks of a job find each other: ``set``,
``get`` with a wait for keys that come later, ``add`` to a counter, ``check`` whether a key is
there, ``compare_set`` (which expects null of a key that is not), ``delete``.
A request and an answer are one line of JSON each, in the same order.  A connection that sends an
endless line is closed.

::

    {"op": "set", "key": "master", "value": "100.80.0.2:29500"}   ->  {"ok": true}
    {"op": "add", "key": "arrived", "value": 1}                   ->  {"ok": true, "value": 5}
    {"op": "get", "key": "master"}              ->  {"ok": true, "value": "100.80.0.2:29500"}

The server is ``python -m`` this module with ``ADDRESS PORT``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from emulator.errors import UserError

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
            if isinstance(added, bool) or not (isinstance(number, int) and isinstance(added, int)):
                raise RequestError(f"add takes a whole number, and {key!r} must be one")
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
    if isinstance(value, str | int) and not isinstance(value, bool):
        return value
    raise RequestError("value is neither a text nor a whole number")


class RendezvousClient:
    """A connection to the store at ``address`` and ``port``.

    Every call takes at most ``timeout_s`` of the machine's time.  Raises UserError if the store
    does not answer, or refuses.
    """

    def __init__(self, address: str, port: int, *, timeout_s: float = 30.0) -> None:
        self._where = f"the rendezvous at {address}:{port}"
        try:
            self._socket = socket.create_connection((address, port), timeout=timeout_s)
        except OSError as error:
            raise UserError(f"{self._where} does not answer: {error}") from None
        self._lines = self._socket.makefile("rwb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def set(self, key: str, value: str | int) -> None:
        """Store ``value`` under ``key``; who waits for that goes on."""
        self._call(op="set", key=key, value=value)

    def get(self, key: str) -> str | int:
        """Return the value of ``key``, once there is one."""
        value: str | int = self._call(op="get", key=key)
        return value

    def add(self, key: str, number: int) -> int:
        """Add ``number`` to the counter ``key``, which begins at 0, and return what it is then."""
        return int(self._call(op="add", key=key, value=number))

    def check(self, key: str) -> bool:
        return bool(self._call(op="check", key=key))

    def compare_set(
        self, key: str, expected: str | int | None, value: str | int
    ) -> str | int | None:
        """Store ``value`` if ``key`` has ``expected``; return what it has then.

        A key that is not there has None.
        """
        found: str | int | None = self._call(
            op="compare_set", key=key, expected=expected, value=value
        )
        return found

    def barrier(self, name: str, ranks: int) -> None:
        if self.add(f"{name}/arrived", 1) == ranks:
            self.set(f"{name}/open", 1)
        self.get(f"{name}/open")

    def _call(self, **request: object) -> Any:
        try:
            self._lines.write(json.dumps(request).encode() + b"\n")
            self._lines.flush()
            line = self._lines.readline()
        except OSError as error:
            raise UserError(f"{self._where} does not answer: {error}") from None
        if not line:
            raise UserError(f"{self._where} has closed the connection")
        answer = json.loads(line)
        if not answer["ok"]:
            raise UserError(f"{self._where} refuses {request['op']}: {answer['error']}")
        return answer.get("value")


#: Requests of a connection that wait for their answers.
MOST_PENDING = 1000


class Conversation:
    """One connection: requests are carried out as they come, and answered in their order."""

    def __init__(self, store: RendezvousStore, writer: asyncio.StreamWriter) -> None:
        self._store = store
        self._writer = writer
        self._pending: asyncio.Queue[OpenAnswer] = asyncio.Queue(MOST_PENDING)

    async def hold(self, reader: asyncio.StreamReader) -> None:
        """Read requests until the peer closes the connection, or sends an endless line."""
        answering = asyncio.ensure_future(self._answer())
        try:
            while line := await reader.readline():
                answer = OpenAnswer()
                await self._pending.put(answer)
                self._store.handle(line, answer)
        except (ValueError, ConnectionError):
            self._store.refused += 1
        finally:
            answering.cancel()
            while not self._pending.empty():
                self._store.forget(self._pending.get_nowait())
            self._writer.close()

    async def _answer(self) -> None:
        while True:
            answer = await self._pending.get()
            try:
                content = await answer.content
                self._writer.write(json.dumps(content).encode() + b"\n")
                await self._writer.drain()
            except (ConnectionError, asyncio.CancelledError):
                self._store.forget(answer)
                raise


class OpenAnswer:
    """An answer that may come later; calling it gives it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.content: asyncio.Future[Mapping[str, object]] = loop.create_future()

    def __call__(self, content: Mapping[str, object]) -> None:
        if not self.content.done():
            self.content.set_result(content)


async def serve(address: str, port: int) -> None:
    """Serve one store at ``address`` and ``port`` until this is cancelled.

    It prints where: port 0 is any that is free.
    """
    store = RendezvousStore()
    server = await asyncio.start_server(
        lambda reader, writer: Conversation(store, writer).hold(reader),
        address,
        port,
        limit=LONGEST_LINE,
    )
    chosen = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"rendezvous at {address}:{chosen}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
