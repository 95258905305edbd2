"""The ranks of a script: processes forked after one import of torch.

::

    driver --fork--> fork server (imports torch once) --fork--> rank 0, rank 1, ...
       ^  |             |                                         |
       |  +-- places -->+                                         |
       +<-- pids, exit statuses                                   |
       +<-- standard streams, channel ----------------------------+

The driver never imports torch.  The fork server is the leader of a session of its own: a terminal's
Ctrl-C reaches the driver alone, which ends all, also what ranks have started in other sessions.
Ranks die with the fork server, and that with the driver, whatever befalls it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

from emulator.errors import UserError

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MOST_KILLS = 1000
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_libc = ctypes.CDLL(None, use_errno=True)
NO_TORCH = (
    "PyTorch is not installed: pip install 'uetemu[torch]' (or torch's CPU build) into the Python "
    "that runs uetemu"
)


@dataclass(frozen=True)
class RankPlace:
    """A rank as its process knows it; ``host`` is that of its GPU, ``local`` its number there.

    ``channel`` is the descriptor of a socket to the driver, whatever is spoken there.
    """

    rank: int
    size: int
    local: int
    local_size: int
    host: int
    channel: int

    def variables(self, port: int) -> dict[str, str]:
        """Return what torchrun sets in the environment of a rank; ``port`` is of a TCP store."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.host),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "uetemu",
            "OMP_NUM_THREADS": "1",
        }


#: Called in a rank's process before its script runs: the seam for whatever stands between the
#: script and torch.distributed.  It may return what is called when the script is over, with a
#: sentence on why it failed, or with nothing.
Prepare = Callable[[RankPlace], Callable[[str], None] | None]


@dataclass(frozen=True, kw_only=True)
class Script:
    """The script, or the module, with its arguments; ``prepare`` are called in each rank in turn.

    They run after torch was imported, and before the script.  ``preload`` are modules that the fork
    server imports after torch, so that no rank has to.
    """

    path: str
    arguments: Sequence[str] = ()
    is_module: bool = False
    prepare: Sequence[Prepare] = ()
    preload: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class RankProcess:
    """A rank as the driver knows it: its ``channel``, its streams, and how it has ended.

    ``status`` is the exit status, negative for a signal; None while it lives.
    """

    place: RankPlace
    channel: socket.socket
    streams: dict[int, BinaryIO]
    pid: int = 0
    status: int | None = None


class ForkServer:
    """The process that has torch, and forks ranks of ``script``.  Use it as a context manager.

    Call it before anything is made that a child must not have: it has whatever is here now.
    """

    def __init__(self, script: Script) -> None:
        ours, theirs = socket.socketpair()
        driver = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                ours.close()
                _run_fork_server(script, theirs, driver)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._socket = ours
        self._control = Connection(os.dup(ours.fileno()))
        self.ranks: dict[int, RankProcess] = {}
        #: how often ranks have been forked
        self.executions = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self) -> None:
        """Wait until torch is there; UserError if it is not."""
        answer = self._receive()
        if answer is not None:
            raise UserError(str(answer))

    def spawn(self, places: Sequence[RankPlace]) -> list[RankProcess]:
        """Fork a process for each of ``places``; the ``channel`` they come with is replaced."""
        self.ranks = {}
        self.executions += 1
        for place in places:
            ours, theirs = socket.socketpair()
            pipes = [os.pipe() for _ in (1, 2)]
            self._control.send(place)
            handed = [theirs.fileno(), *(pipe[1] for pipe in pipes)]
            socket.send_fds(self._socket, [b"f"], handed)
            theirs.close()
            for pipe in pipes:
                os.close(pipe[1])
            streams: dict[int, BinaryIO] = {
                number: os.fdopen(pipe[0], "rb", buffering=0)
                for number, pipe in zip((1, 2), pipes, strict=True)
            }
            self.ranks[place.rank] = RankProcess(place, ours, streams)
        for process in self.ranks.values():
            process.pid = self._receive()
        return list(self.ranks.values())

    def fileno(self) -> int:
        """Return what is readable when :meth:`next_exit` has something."""
        return self._control.fileno()

    def next_exit(self) -> RankProcess:
        """Return the rank whose process has ended, which the fork server has reported."""
        number, status = self._receive()
        process = self.ranks[number]
        process.status = status
        return process

    def _receive(self) -> Any:
        try:
            return self._control.recv()
        except (EOFError, OSError):
            raise UserError(
                f"the process that forks the ranks (process {self.pid}) was killed; "
                "start the run again"
            ) from None

    def kill_ranks(self) -> None:
        """Kill what is left of all ranks; :meth:`next_exit` has their ends."""
        for process in self.ranks.values():
            self.kill(process)

    def kill(self, process: RankProcess) -> None:
        """Kill the process of a rank, if it lives; :meth:`next_exit` has its end."""
        if process.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def end_ranks(self) -> None:
        """Kill what is left of all ranks, wait until they are gone, and close what is theirs."""
        self.kill_ranks()
        while any(process.status is None for process in self.ranks.values()):
            self.next_exit()
        for process in self.ranks.values():
            process.channel.close()
            for stream in process.streams.values():
                stream.close()

    def close(self) -> None:
        """End the fork server with all that it has forked, and whatever these have."""
        for _ in range(_MOST_KILLS):  # as those that live may fork; orphans are its children
            offspring = _offspring(self.pid)
            for pid in offspring:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not offspring:
                break
        for kill in (os.killpg, os.kill):  # it may not have a session of its own yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._control.close()
        self._socket.close()


def _offspring(ancestor: int) -> list[int]:
    """Return the processes that live and descend from ``ancestor``, in whatever session."""
    parents: dict[int, int] = {}
    living: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            pid = int(path.parent.name)
            parents[pid] = int(parent)
            if state not in "ZX":
                living.add(pid)
    found: set[int] = set()
    generation = {ancestor}
    while generation := {pid for pid, parent in parents.items() if parent in generation} - found:
        found |= generation
    return sorted(found & living)


def places(hosts: Sequence[int]) -> list[RankPlace]:
    """Return the places of ranks 0, 1, ..., whose GPUs are in ``hosts``."""
    seen: dict[int, int] = {}
    made = []
    for rank, host in enumerate(hosts):
        local = seen[host] = seen.get(host, -1) + 1
        made.append(RankPlace(rank, len(hosts), local, hosts.count(host), host, -1))
    return made


def check_script(path: str, *, is_module: bool) -> None:
    """Raise UserError unless there is such a script."""
    if not is_module and not Path(path).is_file():
        raise UserError(f"there is no script {path}; give the path of a .py file")


def _die_with(parent: int) -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def _run_fork_server(script: Script, control: socket.socket, driver: int) -> NoReturn:
    status = 1
    try:
        _die_with(driver)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*_ENDING, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        _serve(script, control)
        status = 0
    finally:
        os._exit(status)


def _serve(script: Script, control: socket.socket) -> None:
    connection = Connection(os.dup(control.fileno()))
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.update(script.environment)
    try:
        import torch
    except ImportError as missing:
        known = missing.name == "torch"
        connection.send(NO_TORCH if known else f"torch cannot be imported: {missing}")
        return
    torch.set_num_threads(1)
    for name in script.preload:
        import_module(name)
    gc.freeze()
    connection.send(None)
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    by_pid: dict[int, int] = {}
    sources: list[Connection | socket.socket] = [connection, woken]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if woken in readable:
            woken.recv(4096)
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if pid == 0:
                    break
                if pid in by_pid:  # or it is one that a rank has left
                    connection.send((by_pid.pop(pid), os.waitstatus_to_exitcode(status)))
        if connection not in readable:
            continue
        try:
            place = connection.recv()
        except (EOFError, OSError):
            return
        _, handed, _, _ = socket.recv_fds(control, 1, 3)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (connection, woken, waker, control):
                    each.close()
                _become_rank(script, place, handed, server)
            finally:
                os._exit(1)
        for descriptor in handed:
            os.close(descriptor)
        by_pid[pid] = place.rank
        connection.send(pid)


def _become_rank(script: Script, place: RankPlace, handed: Sequence[int], server: int) -> NoReturn:
    from emulator.torch_backend.rank_process import run_script

    _die_with(server)
    channel, out, err = handed
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place = RankPlace(**{**vars(place), "channel": channel})
    os._exit(run_script(script, place))
