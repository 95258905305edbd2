"""A broadcast of the first parameters of a job over TCP: who sends to whom, and the pieces.

Every rank but the master receives from its parent and passes each piece on to its children, while
more comes.  A layout is a function that gives the parent of a rank.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from emulator.errors import UserError

Parent = Callable[[int], int]
#: The rank that has the parameters.
MASTER = 0
#: What is read and sent on at once (octets).
PIECE = 2**18
_LAYOUTS: dict[str, Parent] = {}


def layout(name: str) -> Callable[[Parent], Parent]:
    """Register the function below as the layout ``name``."""

    def registered(parent: Parent) -> Parent:
        _LAYOUTS[name] = parent
        return parent

    return registered


@layout("tree")
def _binomial(rank: int) -> int:
    """Return the parent in a binomial tree: the rank without its lowest bit."""
    return rank & (rank - 1)


@layout("chain")
def _before(rank: int) -> int:
    """Return the rank before."""
    return rank - 1


@layout("flat")
def _master(_rank: int) -> int:
    """Return the master: it sends to all."""
    return MASTER


def layouts() -> tuple[str, ...]:
    """Return the names of all layouts."""
    return tuple(_LAYOUTS)


def parent(name: str, rank: int) -> int | None:
    """Return who sends to ``rank`` in the layout ``name``, None for the master."""
    return None if rank == MASTER else _LAYOUTS[name](rank)


def children(name: str, rank: int, ranks: int) -> tuple[int, ...]:
    """Return to whom ``rank`` of ``ranks`` sends in the layout ``name``."""
    return tuple(one for one in range(ranks) if parent(name, one) == rank)


@dataclass(frozen=True, kw_only=True)
class RankAddress:
    """The place of a rank, which it registers: its GPU and server, and where it listens."""

    gpu: str
    host: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.gpu} on {self.host}, {self.address}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The part of ``rank`` in a broadcast of ``octets`` to all ``peers``, in the order of ranks.

    ``job`` tells broadcasts apart: a connection of another one is closed.  A peer may be silent
    for ``timeout_s`` of the machine's time.
    """

    job: str
    layout: str
    rank: int
    peers: Sequence[RankAddress]
    octets: int
    timeout_s: float

    def send(self, parameters: bytes) -> None:
        """Send ``parameters`` to the children; UserError names one that does not take them."""
        view = memoryview(parameters)
        with self._connected() as following:
            for at in range(0, len(view), PIECE):
                self._pass_on(view[at : at + PIECE], following)

    def receive(self, listener: socket.socket) -> bytes:
        """Take the parameters from the parent, pass them on, and return them.

        Raises UserError, which names the peer, if it does not come or ends too early.
        """
        source = parent(self.layout, self.rank)
        assert source is not None
        received = bytearray()
        with ExitStack() as opened:
            before = opened.enter_context(self._accepted(listener, source))
            following = opened.enter_context(self._connected())
            while len(received) < self.octets:
                try:
                    piece = before.recv(min(PIECE, self.octets - len(received)))
                except OSError as error:
                    raise UserError(f"{self._named(source)} sends no more: {error}") from None
                if not piece:
                    raise UserError(
                        f"{self._named(source)} ended {self.octets - len(received)} octets early"
                    )
                self._pass_on(piece, following)
                received += piece
        return bytes(received)

    def _greeting(self, source: int, target: int) -> bytes:
        """Return what ``source`` sends first: a digest that is this job's and this pair's alone."""
        return hashlib.sha256(f"{self.job} {source} {target}".encode()).digest()

    def _accepted(self, listener: socket.socket, source: int) -> socket.socket:
        """Return the connection of ``source``; others are closed."""
        expected = self._greeting(source, self.rank)
        deadline = time.monotonic() + self.timeout_s
        while (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                break
            connection.settimeout(self.timeout_s)
            if _greeted(connection, expected):
                return connection
            connection.close()
        raise UserError(
            f"{self._named(source)} did not connect to rank {self.rank} within {self.timeout_s:g} s"
        )

    @contextmanager
    def _connected(self) -> Iterator[Mapping[int, socket.socket]]:
        """Connect to every child, greet it, and close the connections at the end."""
        with ExitStack() as opened:
            found = {}
            for child in children(self.layout, self.rank, len(self.peers)):
                peer = self.peers[child]
                try:
                    connection = socket.create_connection(
                        (peer.address, peer.port), timeout=self.timeout_s
                    )
                    found[child] = opened.enter_context(connection)
                    connection.sendall(self._greeting(self.rank, child))
                except OSError as error:
                    raise UserError(
                        f"rank {self.rank} does not reach {self._named(child)}: {error}"
                    ) from None
            yield found

    def _pass_on(self, piece: bytes | memoryview, following: Mapping[int, socket.socket]) -> None:
        for child, connection in following.items():
            try:
                connection.sendall(piece)
            except OSError as error:
                raise UserError(f"{self._named(child)} takes no more: {error}") from None

    def _named(self, rank: int) -> str:
        return f"rank {rank} ({self.peers[rank]})"


def _greeted(connection: socket.socket, expected: bytes) -> bool:
    """Return whether the first octets of ``connection`` are those ``expected``."""
    greeting = b""
    try:
        while len(greeting) < len(expected):
            piece = connection.recv(len(expected) - len(greeting))
            if not piece:
                return False
            greeting += piece
    except OSError:
        return False
    return greeting == expected
