"""The client of a rendezvous: a rank's view of the store."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Self

from emulator.errors import UserError


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._lines.close()
        self._socket.close()

    def set(self, key: str, value: str | int) -> None:
        """Store ``value`` under ``key``; who waits for that goes on."""
        self._call(op="set", key=key, value=value)

    def get(self, key: str) -> str | int:
        """Return the value of ``key``, once there is one."""
        value = self._call(op="get", key=key)
        assert isinstance(value, str | int)
        return value

    def add(self, key: str, number: int) -> int:
        """Add ``number`` to the counter ``key``, which begins at 0, and return what it is then."""
        value = self._call(op="add", key=key, value=number)
        assert isinstance(value, int)
        return value

    def check(self, key: str) -> bool:
        """Return whether ``key`` has a value now."""
        return bool(self._call(op="check", key=key))

    def compare_set(
        self, key: str, expected: str | int | None, value: str | int
    ) -> str | int | None:
        """Store ``value`` if ``key`` has ``expected``; return what it has then.

        A key that is not there has None.
        """
        found = self._call(op="compare_set", key=key, expected=expected, value=value)
        assert found is None or isinstance(found, str | int)
        return found

    def barrier(self, name: str, ranks: int) -> None:
        """Return when ``ranks`` clients have called this with ``name``."""
        if self.add(f"{name}/arrived", 1) == ranks:
            self.set(f"{name}/open", 1)
        self.get(f"{name}/open")

    def _call(self, **request: object) -> object:
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
