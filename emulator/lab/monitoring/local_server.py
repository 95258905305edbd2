"""A small HTTP server for local readers, which hostile clients cannot stop.

It answers GET and HEAD.  At most :data:`MOST_CLIENTS` connections are open; the next one gets
status 503.  A connection ends after one answer, and after :data:`LONGEST_S` in any case, however
slowly its client sends or reads.  Only a stream lasts: at most :data:`MOST_STREAMS` of them, each
until its client does not take an event within :data:`LONGEST_S`.

A server on a loopback address answers only requests for a loopback name: a page from elsewhere,
whose name was made to point here (DNS rebinding), gets status 403.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Self
from urllib.parse import urlsplit

from emulator.errors import UserError

MOST_CLIENTS, MOST_STREAMS = 32, 8
#: Octets of a request, without a body, which nothing here reads.
MOST_OCTETS = 16_384
LONGEST_S = 10.0
#: The server looks so often for connections that have lasted too long.
LOOK_S = 0.25

_log = logging.getLogger(__name__)
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """The answer to a request: a body, or a stream of parts of it."""

    kind: str
    body: bytes = b""
    parts: Iterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


#: Makes the answer from the request's headers.
Route = Callable[[Mapping[str, str]], HttpAnswer]


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``ADDRESS:PORT``; an IPv6 address stands in brackets.  UserError for anything else."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address("127.0.0.1" if bare == "localhost" else bare)
        number = int(port) if port.isascii() and port.isdigit() else -1
    except ValueError:
        address, number = None, -1
    right = address is not None and (address.version == 4 or host.startswith("["))
    if not right or not 0 <= number <= 65535:
        raise UserError(f"{text!r} is no ADDRESS:PORT; write 127.0.0.1:9477 or [::1]:9477")
    return str(address), number


class LocalServer:
    """Serves ``routes`` (path to answer) on ``address``, in threads of its own, until it is left.

    Raises UserError if the address cannot be taken.
    """

    def __init__(self, address: tuple[str, int], routes: Mapping[str, Route]) -> None:
        try:
            self._server = _BoundedServer(address, routes)
        except OSError as error:
            raise UserError(
                f"cannot listen on {shown(address)}: {error.strerror}; choose another address "
                "with --listen"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(LOOK_S,), name="http", daemon=True
        )

    @property
    def url(self) -> str:
        """Return the address of the server as a URL, with the port that it really has."""
        return f"http://{shown(self._server.server_address[:2])}/"

    @property
    def is_loopback(self) -> bool:
        return self._server.loopback

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.cut(None)


def shown(address: tuple[Any, ...]) -> str:
    """Return an address as ``ADDRESS:PORT``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _BoundedServer(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = MOST_CLIENTS

    def __init__(self, address: tuple[str, int], routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self.loopback = ipaddress.ip_address(address[0]).is_loopback
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self._slots = threading.BoundedSemaphore(MOST_CLIENTS)
        self._due: dict[socket.socket, float] = {}
        self._changing = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            with suppress(OSError):
                request.setblocking(False)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        with self._changing:
            self._due[request] = time.monotonic() + LONGEST_S
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def service_actions(self) -> None:
        self.cut(time.monotonic())

    def cut(self, now: float | None) -> None:
        """End connections that have lasted too long at ``now``; all of them without it."""
        with self._changing:
            late = [one for one, due in self._due.items() if now is None or due < now]
        for one in late:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def let_last(self, request: socket.socket) -> None:
        with self._changing:
            self._due[request] = float("inf")

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a client's connection ended early", exc_info=True)

    def _forget(self, request: socket.socket) -> None:
        with self._changing:
            known = self._due.pop(request, None)
        if known is not None:
            self._slots.release()


class _Head:
    """The head of a request, of :data:`MOST_OCTETS` at most; then the connection ends."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._left = stream, MOST_OCTETS

    def readline(self, limit: int = -1) -> bytes:
        most = self._left + 1
        line: bytes = self._stream.readline(most if limit < 0 else min(limit, most))
        self._left -= len(line)
        if self._left < 0:
            raise ConnectionAbortedError("the request is too long")
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Handler(BaseHTTPRequestHandler):
    server: _BoundedServer
    timeout = LONGEST_S
    server_version, sys_version = "uetemu", ""

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Head(self.rfile)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

    def _answer(self, *, with_body: bool) -> None:
        if not self._for_us():
            self._refuse(HTTPStatus.FORBIDDEN, "this server answers for loopback names only")
            return
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            known = ", ".join(sorted(self.server.routes))
            self._refuse(HTTPStatus.NOT_FOUND, f"there is {known} here")
            return
        answer = route({name.lower(): value for name, value in self.headers.items()})
        if answer.parts is None:
            self._head(answer, str(len(answer.body)))
            if with_body:
                self.wfile.write(answer.body)
        elif not with_body:
            self._head(answer, None)
        elif not self.server.streams.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_STREAMS} readers are here already")
        else:
            try:
                self._stream(answer, answer.parts)
            finally:
                self.server.streams.release()

    def _stream(self, answer: HttpAnswer, parts: Iterator[bytes]) -> None:
        self._head(answer, None)
        self.server.let_last(self.connection)
        for part in parts:
            self.wfile.write(part)

    def _head(self, answer: HttpAnswer, length: str | None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", answer.kind)
        if length is not None:
            self.send_header("Content-Length", length)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        body = f"{why}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _for_us(self) -> bool:
        if not self.server.loopback or "Host" not in self.headers:
            return True
        try:
            name = urlsplit(f"//{self.headers['Host']}").hostname or ""
            return name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False
