"""Lines between guardians: a guardian of the job is heard, and nobody else."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from emulator.workers.ranks.rank_guardian import Listener

BUDGET_S = 30.0


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener()) as made:
        yield made


def says(listener: Listener, octets: bytes) -> object:
    """Return what the listener makes of a stranger who says ``octets`` and stops talking."""
    with socket.create_connection(("127.0.0.1", listener.contact.port), BUDGET_S) as stranger:
        stranger.sendall(octets)
        stranger.shutdown(socket.SHUT_WR)
        assert select.select([listener], [], [], BUDGET_S)[0]
        return listener.accepted()


def hello(listener: Listener, **changes: Any) -> bytes:
    words = {"token": listener.contact.token, "number": 3, "machine": "c"} | changes
    return json.dumps(words).encode() + b"\n"


def test_a_guardian_of_the_job_is_heard(listener: Listener) -> None:
    accepted = says(listener, hello(listener))
    assert isinstance(accepted, tuple)
    assert accepted[:2] == (3, "c")
    accepted[2].close()


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[" * 50_000 + b"\n",
        b"[]\n",
        b"17\n",
        b'{"number": 1, "machine": "b"}\n',
        '{"token": "\u00e9", "number": 1, "machine": "b"}\n'.encode(),
    ],
    ids=["nothing", "line", "http", "no text", "deep", "list", "number", "no token", "other token"],
)
def test_a_stranger_is_not(listener: Listener, octets: bytes) -> None:
    assert says(listener, octets) is None
    assert isinstance(says(listener, hello(listener)), tuple)


@pytest.mark.parametrize("changes", [{"number": "3"}, {"machine": 1}, {"number": None}])
def test_a_hello_without_its_facts_is_none(listener: Listener, changes: dict[str, object]) -> None:
    assert says(listener, hello(listener, **changes)) is None
