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
from dataclasses import asdict, dataclass

from emulator.cluster.run.clients.client_end import ended_with_sentence, wait_for_release
from emulator.cluster.run.clients.parameter_broadcast import (
    MASTER,
    Broadcast,
    RankAddress,
)
from emulator.cluster.run.clients.sharded_dataset import content
from emulator.cluster.services.rendezvous.store_client import RendezvousClient
from emulator.errors import UserError

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
    """Return the parameters that a master of ``seed`` begins with."""
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
