"""A rank of a job that starts, for one GPU: ``python -m ...clients.rendezvous_rank JSON``.

As frameworks do it: the rank registers at the rendezvous where it can be reached, waits until all
ranks have, reads their addresses, and gets the first parameters from the master, rank 0.  The store
has the checksum of these, so a receiver learns it by another network than the parameters.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass

from emulator.cluster.run.clients.block_transfer import ended_with_sentence, wait_for_release
from emulator.cluster.run.clients.dataset_reader import content
from emulator.cluster.services.rendezvous_store import RendezvousClient
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
    return rank - 1


@layout("flat")
def _master(_rank: int) -> int:
    return MASTER


def layouts() -> tuple[str, ...]:
    return tuple(_LAYOUTS)


def parent(name: str, rank: int) -> int | None:
    """Return who sends to ``rank`` in the layout ``name``, None for the master."""
    return None if rank == MASTER else _LAYOUTS[name](rank)


def children(name: str, rank: int, ranks: int) -> tuple[int, ...]:
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
        source = _LAYOUTS[self.layout](self.rank)
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


#: What the first parameters are drawn from, beside the seed.
_PARAMETERS = 4
#: Connections that wait for a rank: strangers' must not keep its parent's away.
BACKLOG = 64


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """The task of ``rank`` of ``ranks``, which computes on ``gpu`` of the server ``host``.

    The rendezvous is at ``store`` and ``port``; keys of one job begin with ``job``.  Peers reach
    the rank at ``own``, an address of its server.  The parameters have ``octets``.  A wait takes
    ``timeout_s`` of the machine's time at most.  With ``held`` it begins when it is released.
    """

    job: str
    rank: int
    ranks: int
    gpu: str
    host: str
    own: str
    store: str
    port: int
    octets: int
    layout: str
    seed: int
    timeout_s: float
    held: bool = False


@dataclass(kw_only=True)
class RankStarted:
    """The outcome of a rank: the times of its phases (s, of the machine), and what it received.

    ``sha256`` is that of the parameters, ``peers`` are the addresses that it read.
    """

    rank: int
    host: str
    sha256: str = ""
    peers: int = 0
    register_s: float = 0.0
    barrier_s: float = 0.0
    exchange_s: float = 0.0
    broadcast_s: float = 0.0


def first_parameters(seed: int, octets: int) -> bytes:
    return content(seed, _PARAMETERS, octets=octets)


def start(task: RankTask) -> RankStarted:
    """Go through the phases of a job's start.

    Raises UserError with one sentence if another has this rank already, or a rank is missing when
    the time is over, or a peer is not reached, or the parameters are not the master's.
    """
    done = RankStarted(rank=task.rank, host=task.host)
    own = first_parameters(task.seed, task.octets) if task.rank == MASTER else b""
    with _listening(task) as listener:
        began = time.perf_counter()
        with RendezvousClient(task.store, task.port, timeout_s=task.timeout_s) as store:
            _register(task, store, listener.getsockname()[1])
            registered = time.perf_counter()
            _wait_for_all(task, store)
            complete = time.perf_counter()
            peers = [_address(store, task.job, rank) for rank in range(task.ranks)]
            exchanged = time.perf_counter()
            done.sha256 = _parameters(_broadcast(task, peers), store, own, listener)
            ended = time.perf_counter()
    done.peers = len(peers)
    done.register_s, done.barrier_s = registered - began, complete - registered
    done.exchange_s, done.broadcast_s = exchanged - complete, ended - exchanged
    return done


def _register(task: RankTask, store: RendezvousClient, port: int) -> None:
    """Claim the rank with the place of this process; UserError if another one has claimed it."""
    own = json.dumps(asdict(RankAddress(gpu=task.gpu, host=task.host, address=task.own, port=port)))
    found = store.compare_set(_rank_key(task.job, task.rank), None, own)
    if found != own:
        other = RankAddress(**json.loads(str(found)))
        raise UserError(
            f"rank {task.rank} of {task.job} is refused to {task.gpu} on {task.host}: {other} has "
            "registered it; give every process a rank of its own"
        )


def _wait_for_all(task: RankTask, store: RendezvousClient) -> None:
    """Wait at the barrier; UserError names the ranks that have not come in time."""
    try:
        store.barrier(f"{task.job}/start", task.ranks)
    except UserError:
        missing = _missing(task)
        if not missing:
            raise
        one = len(missing) == 1
        raise UserError(
            f"rank{'' if one else 's'} {', '.join(map(str, missing))} of {task.job} "
            f"{'has' if one else 'have'} not registered within {task.timeout_s:g} s, and "
            f"{task.ranks - len(missing)} of {task.ranks} have"
        ) from None


def _missing(task: RankTask) -> list[int]:
    """Return the ranks that have not registered, by a new connection: the old one still waits."""
    with RendezvousClient(task.store, task.port, timeout_s=task.timeout_s) as store:
        return [one for one in range(task.ranks) if not store.check(_rank_key(task.job, one))]


def _address(store: RendezvousClient, job: str, rank: int) -> RankAddress:
    return RankAddress(**json.loads(str(store.get(_rank_key(job, rank)))))


def _rank_key(job: str, rank: int) -> str:
    return f"{job}/rank/{rank}"


def _listening(task: RankTask) -> socket.socket:
    try:
        return socket.create_server((task.own, 0), backlog=BACKLOG)
    except OSError as error:
        raise UserError(
            f"rank {task.rank} of {task.job} cannot listen at {task.own}: {error}"
        ) from None


def _broadcast(task: RankTask, peers: list[RankAddress]) -> Broadcast:
    return Broadcast(
        job=task.job,
        layout=task.layout,
        rank=task.rank,
        peers=peers,
        octets=task.octets,
        timeout_s=task.timeout_s,
    )


def _parameters(
    broadcast: Broadcast, store: RendezvousClient, own: bytes, listener: socket.socket
) -> str:
    """Send ``own`` or receive the parameters; return their SHA-256, which must be the master's."""
    checksum = f"{broadcast.job}/parameters"
    if broadcast.rank == MASTER:
        digest = hashlib.sha256(own).hexdigest()
        store.set(checksum, digest)
        broadcast.send(own)
        return digest
    digest = hashlib.sha256(broadcast.receive(listener)).hexdigest()
    if digest != store.get(checksum):
        raise UserError(
            f"rank {broadcast.rank} of {broadcast.job} has received other parameters than rank "
            f"{MASTER} has sent: their SHA-256 begins with {digest[:16]}"
        )
    return digest


def main(text: str) -> None:
    """Carry out the task in ``text`` and print its outcome."""
    task = RankTask(**json.loads(text))
    with ended_with_sentence():
        if task.held:
            wait_for_release()
        json.dump(asdict(start(task)), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
