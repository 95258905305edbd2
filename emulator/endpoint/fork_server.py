"""The process from which all agents of a pool are forked.

It imports everything an agent needs once, freezes the garbage collector over it, and then forks
an agent per request: a fork costs milliseconds where an import costs a second, and what was
imported stays shared between all agents.  It has one socket, to the runner: requests with the
agent's control connection come in, births and deaths of agents go out.

Nothing here outlives the runner: when the socket closes the fork server ends, and its agents die
with it (``PR_SET_PDEATHSIG``), besides seeing their own control connections close.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from emulator.endpoint.agent import live
from emulator.endpoint.agent_spec import AgentStart, Born, Died

_MESSAGE_OCTETS = 1 << 20
#: How long agents may take to end once the runner has gone (host seconds).
_GRACE_SECONDS = 1.0


def serve(runner: socket.socket, preload: Sequence[str]) -> None:
    """Import ``preload``, then fork an agent for every request until the runner goes away."""
    for module in preload:
        with contextlib.suppress(ImportError):  # the agent that needs it will report it
            importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_out)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    gc.collect()
    gc.freeze()  # else the first collection in an agent would copy every shared page
    ranks: dict[int, int] = {}
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it went away in mid-word
        while _attend(runner, (wake_in, wake_out), ranks):
            pass
    _outlive(wake_in, ranks)


def _attend(runner: socket.socket, wake: tuple[int, int], ranks: dict[int, int]) -> bool:
    """Wait for the next request or death and see to it; false when the runner has gone."""
    readable, _, _ = select.select([runner.fileno(), wake[0]], [], [])
    if wake[0] in readable:
        os.read(wake[0], 4096)
        for pid, status in _reap():
            runner.send(pickle.dumps(Died(ranks.pop(pid), pid, status)))
    if runner.fileno() in readable:
        message, descriptors, _, _ = socket.recv_fds(runner, _MESSAGE_OCTETS, 1)
        if not message:
            return False
        start_message: AgentStart = pickle.loads(message)
        pid = os.fork()
        if pid == 0:
            _become_agent(start_message, descriptors[0], close=(runner, *wake))
        os.close(descriptors[0])
        ranks[pid] = start_message.spec.rank
        runner.send(pickle.dumps(Born(start_message.spec.rank, pid)))
    return True


def _outlive(wake: int, ranks: dict[int, int]) -> None:
    """Let the agents end by themselves, and kill those that do not."""
    give_up = time.monotonic() + _GRACE_SECONDS
    while True:
        for pid, _ in _reap():
            ranks.pop(pid, None)
        left = give_up - time.monotonic()
        if not ranks or left <= 0:
            break
        select.select([wake], [], [], left)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    for pid in ranks:
        os.waitpid(pid, 0)


def _become_agent(
    start_message: AgentStart, descriptor: int, *, close: tuple[socket.socket, int, int]
) -> None:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        runner, *pipe = close
        runner.close()
        for end in pipe:
            os.close(end)
        status = live(start_message, Connection(descriptor))
    finally:
        os._exit(status)  # never back into the fork server's loop, nor into its exit handlers


def _reap() -> list[tuple[int, int]]:
    dead: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if pid == 0:
            return dead
        dead.append((pid, os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
