"""A server of a chain that passes a file on while it arrives: ``python -m ...file_relay JSON``.

It listens for the next server, if there is one, and waits until it is released.  Then it connects
to the one before, which is an HTTP server or another relay, and writes and sends on what comes.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from emulator.cluster.run.clients.block_transfer import ended_with_sentence, wait_for_release
from emulator.errors import UserError

#: What is read at once (octets), and how long a neighbour may be silent (s).
PIECE = 2**18
PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class RelayTask:
    """The task of one server: the file at ``source`` and ``port`` goes to ``target``.

    ``path`` is that of an HTTP server; a relay, for which it is empty, sends the file at once.
    ``listen`` is the server's own address, at which the next one gets the file at the same port;
    empty: there is none.  A file has ``octets``.
    """

    source: str
    port: int
    path: str
    target: str
    listen: str
    octets: int
    held: bool = True


def relay(task: RelayTask) -> float:
    """Carry out ``task`` and return when all had arrived (s, of time.monotonic)."""
    with ExitStack() as opened:
        listener = None
        if task.listen:
            listener = opened.enter_context(socket.create_server((task.listen, task.port)))
            listener.settimeout(PATIENCE_S)
        if task.held:
            wait_for_release()
        try:
            read = _source(task, opened)
            following = None
            if listener is not None:
                following = opened.enter_context(listener.accept()[0])
                following.settimeout(PATIENCE_S)
            _pump(task, read, following)
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"the file did not come from {task.source}: {error}") from None
    return time.monotonic()


def _source(task: RelayTask, opened: ExitStack) -> Callable[[int], bytes]:
    if not task.path:
        address = (task.source, task.port)
        before = opened.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
        return before.recv
    server = http.client.HTTPConnection(task.source, task.port, timeout=PATIENCE_S)
    opened.callback(server.close)
    server.request("GET", task.path)
    answer = server.getresponse()
    if answer.status != http.HTTPStatus.OK:
        raise UserError(f"{task.source} answers {answer.status} to GET {task.path}")
    return answer.read1


def _pump(task: RelayTask, read: Callable[[int], bytes], following: socket.socket | None) -> None:
    """Write and send on what is read, until the file is complete."""
    left = task.octets
    with Path(task.target).open("wb") as file:
        while left:
            piece = read(min(PIECE, left))
            if not piece:
                raise UserError(f"{task.source} ended {left} octets before the file did")
            if following is not None:
                following.sendall(piece)
            file.write(piece)
            left -= len(piece)


def main(text: str) -> None:
    """Carry out the task in ``text`` and print when the file was complete."""
    with ended_with_sentence():
        click.echo(json.dumps(relay(RelayTask(**json.loads(text)))))


if __name__ == "__main__":
    main(sys.argv[1])
