"""The HTTP server for local readers: what it answers, and what clients cannot do to it."""

import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import pytest

from emulator.errors import UserError
from emulator.lab.monitoring import local_server
from emulator.lab.monitoring.local_server import (
    MOST_CLIENTS,
    MOST_OCTETS,
    MOST_STREAMS,
    HttpAnswer,
    LocalServer,
    parse_address,
)

PATIENCE_S = 60.0


def route(_: Mapping[str, str]) -> HttpAnswer:
    return HttpAnswer(kind="text/plain", body=b"here\n", headers={"X-More": "yes"})


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer(("127.0.0.1", 0), {"/": route, "/events": events}) as made:
        yield made


ENDED = threading.Event()


def events(_: Mapping[str, str]) -> HttpAnswer:
    def parts() -> Iterator[bytes]:
        yield b"data: 1\n\n"
        ENDED.wait(PATIENCE_S)

    return HttpAnswer(kind="text/event-stream", parts=parts())


def place(server: LocalServer) -> tuple[str, int]:
    url = urlsplit(server.url)
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def asked(
    server: LocalServer, method: str = "GET", path: str = "/", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    link = http.client.HTTPConnection(*place(server), timeout=PATIENCE_S)
    link.request(method, path, headers=headers)
    answer = link.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def opened(server: LocalServer) -> socket.socket:
    return socket.create_connection(place(server), timeout=PATIENCE_S)


def test_what_it_answers(server: LocalServer) -> None:
    status, body, headers = asked(server)
    assert (status, body) == (200, b"here\n")
    assert headers["X-More"] == "yes"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert asked(server, path="/?query=1")[0] == 200
    assert asked(server, "HEAD")[:2] == (200, b"")
    assert asked(server, path="/etc/passwd")[0] == 404
    assert asked(server, "POST")[0] == 501
    assert asked(server, "DELETE")[0] == 501


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1:80", "[::1]:9", "127.9.9.9"])
def test_loopback_names_are_answered(server: LocalServer, name: str) -> None:
    assert asked(server, Host=name)[0] == 200


@pytest.mark.parametrize("name", ["evil.example", "10.0.0.1", "localhost.evil.example", "[", ""])
def test_a_page_from_elsewhere_gets_nothing(server: LocalServer, name: str) -> None:
    assert asked(server, Host=name)[0] == 403


def test_garbage_and_giants_do_no_harm(server: LocalServer) -> None:
    for sent in (
        b"\x00\xff\x00\r\n\r\n",
        b"GET / HTTP/9.9.9\r\n\r\n",
        b"GET /" + b"a" * (MOST_OCTETS + 10) + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * MOST_OCTETS + b"\r\n",
    ):
        with opened(server) as link:
            try:
                link.sendall(sent)
                while link.recv(65536):
                    pass
            except ConnectionError:
                continue
    assert asked(server)[0] == 200


def test_slow_clients_are_cut_and_others_answered(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "LONGEST_S", 0.5)
    slow = [opened(server) for _ in range(MOST_CLIENTS)]
    for link in slow:
        link.sendall(b"GET / HT")
    with opened(server) as more:  # no thread is left for this one
        more.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 503 " in more.recv(4096)
    for link in slow:
        assert link.recv(1) == b""  # cut, though each could have sent more
        link.close()
    status = 503
    while status == 503:
        status = asked(server)[0]
    assert status == 200


def test_streams_are_few(server: LocalServer) -> None:
    ENDED.clear()
    links = []
    try:
        for _ in range(MOST_STREAMS):
            link = opened(server)
            links.append(link)
            link.sendall(b"GET /events HTTP/1.0\r\n\r\n")
            received = b""
            while b"data: 1\n\n" not in received:
                received += link.recv(4096)
        assert asked(server, path="/events")[0] == 503
        assert asked(server)[0] == 200
    finally:
        ENDED.set()
        for link in links:
            link.close()


def test_it_ends_though_clients_hold_on() -> None:
    ENDED.clear()
    with LocalServer(("127.0.0.1", 0), {"/events": events}) as made:
        link = opened(made)
        link.sendall(b"GET /events HTTP/1.0\r\n\r\n")
        assert link.recv(1)
    while link.recv(4096):
        pass
    link.close()
    ENDED.set()
    with pytest.raises(ConnectionRefusedError):
        opened(made)


def test_an_address_that_is_taken(server: LocalServer) -> None:
    with pytest.raises(UserError, match=r"cannot listen on 127.0.0.1:\d+: .*--listen"):
        LocalServer(place(server), {})


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9477", ("127.0.0.1", 9477)), ("[::1]:0", ("::1", 0)),
     ("localhost:80", ("127.0.0.1", 80)), ("0.0.0.0:65535", ("0.0.0.0", 65535))],
)  # fmt: skip
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "9477", ":9477", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536",
             "::1:80", "example.org:80", "127.0.0.1:-1", "127.0.0.1:²", "[127.0.0.1:80"],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match="is no ADDRESS:PORT; write"):
        parse_address(text)
