"""Relays pass a file on while it arrives, and say who cut it short."""

import socket
import threading
from pathlib import Path

import pytest

from emulator.cluster.run.clients.file_relay import RelayTask, relay
from emulator.errors import UserError

CONTENT = bytes(range(256)) * 4096


def task(port: int, target: Path, listen: str = "") -> RelayTask:
    return RelayTask(
        source="127.0.0.1",
        port=port,
        path="",
        target=str(target),
        listen=listen,
        octets=len(CONTENT),
        held=False,
    )


def sender(content: bytes) -> int:
    """Send ``content`` to the first who connects to the port that is returned."""
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.sendall(content)

    threading.Thread(target=serve, daemon=True).start()
    return port


def test_the_last_of_a_chain_has_the_file(tmp_path: Path) -> None:
    relay(task(sender(CONTENT), tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_a_relay_in_the_middle_passes_all_on(tmp_path: Path) -> None:
    port = sender(CONTENT)
    middle = task(port, tmp_path / "copy", listen="127.0.0.2")
    passing = threading.Thread(target=relay, args=(middle,))
    passing.start()
    received = bytearray()
    while True:
        try:
            following = socket.create_connection(("127.0.0.2", port), timeout=10)
            break
        except ConnectionRefusedError:
            assert passing.is_alive()
    with following:
        while len(received) < len(CONTENT):
            received += following.recv(2**20)
    passing.join(10)
    assert received == CONTENT == (tmp_path / "copy").read_bytes()


def test_a_file_that_ends_early_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"127\.0\.0\.1 ended 1000 octets before the file did"):
        relay(task(sender(CONTENT[:-1000]), tmp_path / "copy"))
