"""Ranks start together over a store on loopback, and parameters come to every one of them."""

import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from emulator.cluster.run.clients.rendezvous_rank import (
    MASTER,
    PIECE,
    Broadcast,
    RankAddress,
    RankTask,
    children,
    first_parameters,
    layouts,
    parent,
    start,
)
from emulator.cluster.services import rendezvous_store
from emulator.cluster.services.rendezvous_store import RendezvousClient
from emulator.errors import UserError

OCTETS = 300_000


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of a store that runs during the test."""
    argv = [sys.executable, "-m", rendezvous_store.__name__, "127.0.0.1", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline().rpartition(":")[2])
        process.terminate()


def tasks(port: int, ranks: int, timeout_s: float = 20.0, layout: str = "tree") -> list[RankTask]:
    return [
        RankTask(
            job="job",
            rank=rank,
            ranks=ranks,
            gpu=f"h{rank}g0",
            host=f"h{rank}",
            own="127.0.0.1",
            store="127.0.0.1",
            port=port,
            octets=OCTETS,
            layout=layout,
            seed=7,
            timeout_s=timeout_s,
        )
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("layout", ["tree", "chain"])
def test_all_ranks_have_all_addresses_and_the_masters_parameters(port: int, layout: str) -> None:
    given = tasks(port, 4, layout=layout)
    with ThreadPoolExecutor(len(given)) as ranks:
        ended = list(ranks.map(start, given))
    digest = hashlib.sha256(first_parameters(7, OCTETS)).hexdigest()
    assert [one.rank for one in ended] == [0, 1, 2, 3]
    assert {one.sha256 for one in ended} == {digest}
    assert {one.peers for one in ended} == {4}
    assert all(
        min(one.register_s, one.barrier_s, one.exchange_s, one.broadcast_s) > 0 for one in ended
    )


def test_a_missing_rank_is_named_by_all_that_wait(port: int) -> None:
    given = tasks(port, 3, timeout_s=2.0)
    with ThreadPoolExecutor(2) as ranks:
        for waiting in [ranks.submit(start, one) for one in given[:2]]:
            with pytest.raises(UserError, match=r"^rank 2 of job has not registered within 2 s"):
                waiting.result(60)


def test_a_second_process_of_a_rank_is_refused(port: int) -> None:
    first, second = tasks(port, 2)
    with ThreadPoolExecutor(1) as ranks:
        waiting = ranks.submit(start, first)
        with RendezvousClient("127.0.0.1", port) as store:
            store.get("job/rank/0")
        with pytest.raises(UserError, match="rank 0 of job is refused to h1g0 on h1: h0g0 on h0"):
            start(replace(first, gpu=second.gpu, host=second.host))
        start(second)
        assert waiting.result(60).peers == 2


def test_other_parameters_than_the_masters_are_refused(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Broadcast.receive

    def changed(broadcast: Broadcast, listener: socket.socket) -> bytes:
        return received(broadcast, listener)[:-1] + b"?"

    monkeypatch.setattr(Broadcast, "receive", changed)
    master, receiver = tasks(port, 2)
    with ThreadPoolExecutor(1) as ranks:
        sending = ranks.submit(start, master)
        with pytest.raises(UserError, match="rank 1 of job has received other parameters"):
            start(receiver)
        sending.result(60)


def test_a_rank_without_the_address_says_so(port: int) -> None:
    (task,) = tasks(port, 1)
    with pytest.raises(UserError, match=r"rank 0 of job cannot listen at 192\.0\.2\.1"):
        start(replace(task, own="192.0.2.1"))


PARAMETERS = bytes(range(256)) * 4096 + b"the last piece is a short one"
PATIENCE_S = 20.0


def listeners(ranks: int) -> list[socket.socket]:
    return [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks)]


def part(
    rank: int, open_at: list[socket.socket], layout: str, timeout_s: float = PATIENCE_S
) -> Broadcast:
    peers = [
        RankAddress(gpu=f"h{n}g0", host=f"h{n}", address="127.0.0.1", port=one.getsockname()[1])
        for n, one in enumerate(open_at)
    ]
    return Broadcast(
        job="job",
        layout=layout,
        rank=rank,
        peers=peers,
        octets=len(PARAMETERS),
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize("layout", layouts())
@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
def test_every_rank_has_one_parent_that_comes_before_it(layout: str, ranks: int) -> None:
    received = [child for rank in range(ranks) for child in children(layout, rank, ranks)]
    assert sorted(received) == list(range(1, ranks))
    assert parent(layout, MASTER) is None
    for rank in range(1, ranks):
        source = parent(layout, rank)
        assert source is not None
        assert source < rank


def test_a_tree_has_few_steps_and_a_chain_one_child() -> None:
    assert children("tree", MASTER, 8) == (1, 2, 4)
    assert children("tree", 4, 8) == (5, 6)
    assert {len(children("chain", rank, 8)) for rank in range(7)} == {1}
    assert children("flat", MASTER, 4) == (1, 2, 3)


@pytest.mark.parametrize("layout", layouts())
def test_all_ranks_get_what_the_master_sends(layout: str) -> None:
    assert len(PARAMETERS) > PIECE
    opened = listeners(5)
    with ThreadPoolExecutor(len(opened)) as ranks:
        received = [
            ranks.submit(part(rank, opened, layout).receive, opened[rank])
            for rank in range(1, len(opened))
        ]
        part(MASTER, opened, layout).send(PARAMETERS)
        assert all(one.result(PATIENCE_S) == PARAMETERS for one in received)
    for one in opened:
        one.close()


def test_a_stranger_is_closed_and_the_parent_still_heard() -> None:
    opened = listeners(2)
    with ThreadPoolExecutor(1) as ranks:
        stranger = socket.create_connection(opened[1].getsockname())
        stranger.sendall(b"x" * 32)
        received = ranks.submit(part(1, opened, "chain").receive, opened[1])
        stranger.settimeout(PATIENCE_S)
        assert stranger.recv(1) == b""
        part(MASTER, opened, "chain").send(PARAMETERS)
        assert received.result(PATIENCE_S) == PARAMETERS
    stranger.close()
    for one in opened:
        one.close()


def test_who_cuts_the_parameters_short_is_named() -> None:
    opened = listeners(2)
    with socket.create_connection(opened[1].getsockname()) as master:
        master.sendall(hashlib.sha256(b"job 0 1").digest() + PARAMETERS[:-100])
        master.shutdown(socket.SHUT_WR)
        with pytest.raises(UserError, match=r"rank 0 \(h0g0 on h0, .*\) ended 100 octets early"):
            part(1, opened, "chain").receive(opened[1])
    for one in opened:
        one.close()


def test_who_does_not_connect_is_named_and_who_is_not_reached() -> None:
    opened = listeners(2)
    with pytest.raises(UserError, match=r"rank 0 \(h0g0 .*did not connect to rank 1 within 0.1 s"):
        part(1, opened, "chain", timeout_s=0.1).receive(opened[1])
    master = part(MASTER, opened, "chain")
    for one in opened:
        one.close()
    with pytest.raises(UserError, match=r"rank 0 does not reach rank 1 \(h1g0 on h1, "):
        master.send(PARAMETERS)
